"""A program for rsyslog's output omprog, standard library only: it posts the lines of each transaction to Sluice.

Its argument is the URL, such as http://localhost:8080. docs/INTEGRATIONS.md has the configuration of rsyslog. What
Sluice rejects goes to standard error, and rsyslog goes on; after anything else rsyslog sends the lines again.
"""

from __future__ import annotations

import json
import sys

from client import Client, Rejected


def post(client: Client, lines: list[dict]) -> str:
    """Post lines; what rsyslog is to be told. Those that are too large for one request go in halves."""
    try:
        client.post("/logs", lines, key="")  # rsyslog sends the same lines again, each with its time
    except Rejected as error:
        if str(error).startswith("413") and len(lines) > 1:
            half = len(lines) // 2
            first = post(client, lines[:half])
            return post(client, lines[half:]) if first == "OK" else first
        print(error, *map(json.dumps, lines), sep="\n", file=sys.stderr, flush=True)
    except TimeoutError as error:
        return f"Error: {error}"
    return "OK"


def main() -> None:
    """Speak omprog's protocol: a word for each line of the input."""
    client = Client(sys.argv[1], patience=0)
    lines: list[dict] = []
    print("OK", flush=True)
    for raw in sys.stdin.buffer:
        line = raw.decode("utf-8", "replace").rstrip("\n")
        answer = "DEFER_COMMIT"
        if line == "BEGIN TRANSACTION":
            answer = "OK"
        elif line == "COMMIT TRANSACTION":
            answer, lines = post(client, lines), []
        else:
            lines.append(json.loads(line))
        print(answer, flush=True)


if __name__ == "__main__":
    main()
