"""A program for rsyslog's output omprog, standard library only: it posts the lines of each transaction to Sluice.

Its argument is the URL, such as http://localhost:8080. docs/INTEGRATIONS.md has the configuration of rsyslog. What
Sluice rejects goes to standard error, and rsyslog goes on; after anything else rsyslog sends the lines again.
"""

from __future__ import annotations

import json
import sys

from client import Client, Rejected, Unknown


def post(client: Client, lines: list[str]) -> str:
    """Post lines of JSON; what rsyslog is to be told."""
    try:
        client.post("/logs", [json.loads(line) for line in lines])
    except Rejected as error:
        print(error, *lines, sep="\n", file=sys.stderr, flush=True)
    except (Unknown, TimeoutError) as error:
        return f"Error: {error}"
    return "OK"


def main() -> None:
    """Speak omprog's protocol: a word for each line of the input."""
    client = Client(sys.argv[1], patience=0)
    lines: list[str] = []
    print("OK", flush=True)
    for line in sys.stdin:
        answer = "DEFER_COMMIT"
        if line == "BEGIN TRANSACTION\n":
            answer = "OK"
        elif line == "COMMIT TRANSACTION\n":
            answer, lines = post(client, lines), []
        else:
            lines.append(line)
        print(answer, flush=True)


if __name__ == "__main__":
    main()
