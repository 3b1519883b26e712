"""The commands of the README, and whether they print what the README says. It needs nothing but Python, and a shell."""

from __future__ import annotations

import re
import subprocess
import time

CHANGES = re.compile(r"\d{4}-\S+?Z|\|\d+\|\d+\|?$")  # times, and what depends on when a row was stored


def read_steps(readme: str) -> list[tuple[str, str]]:
    """The commands of the README's text and what they print."""
    (text,) = re.findall(r"^## See data flow\n\n(.*?)\n\n", readme, re.M | re.S)
    lines = re.sub("^    ", "", text, flags=re.M)
    return re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n?)*)", lines, re.M)


def check_steps(steps: list[tuple[str, str]], sluice: str, port: str, home: str, seconds: float = 120) -> None:
    """Type each command until it prints what it should; one that posts, once.

    sluice: the command in place of bin/sluice. home: the directory in place of var. Raises: AssertionError.
    """
    for line, printed in steps:
        line = (
            line.split("  #")[0]
            .strip()
            .replace("8080", port)
            .replace("bin/sluice", sluice)
            .replace(" var/", f" {home}/")
        )
        wanted = CHANGES.sub("X", printed.strip())
        deadline = time.monotonic() + seconds
        while not (said := print_of(line)).startswith(wanted):
            assert "-d" not in line and time.monotonic() < deadline, f"{line}\n{said}\ninstead of\n{wanted}"
            time.sleep(0.2)


def print_of(line: str) -> str:
    done = subprocess.run(["bash", "-c", line], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return CHANGES.sub("X", done.stdout.strip())
