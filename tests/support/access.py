"""API keys, passwords and certificates for the tests of access control, and the real curl."""

from __future__ import annotations

import subprocess
from pathlib import Path

from proving.harness import PATIENCE

KEY, OTHER = "0123456789abcdef0123456789abcdef01234567", "Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6"


def private(path: Path, text: str) -> Path:
    """Write a file that only its owner can read."""
    path.touch(0o600)
    path.write_text(text)
    return path


def keys(tmp: Path) -> Path:
    return private(tmp / "api-keys", f"# whose\n{KEY} telegraf;\n\n{OTHER}  jane.doe ;  # until May\n")


def tls(certificate: tuple[Path, Path]) -> dict[str, object]:
    """The settings of a certificate and its key."""
    return {"INGEST_TLS_CERTIFICATE": certificate[0], "INGEST_TLS_KEY": certificate[1]}


def passwords(tmp: Path) -> Path:
    made = subprocess.run(["openssl", "passwd", "-apr1", "s3cret"], capture_output=True, text=True, check=True)
    return private(tmp / "passwords", f"jane:{made.stdout}")


def curl(*arguments: object) -> tuple[int, dict[str, list[str]], str]:
    """Send a request with the real curl. Returns: status (0: no answer), headers by lower-case name, body or error."""
    done = subprocess.run(
        ["curl", "-sS", "-i", "--http1.1", "--max-time", str(PATIENCE), *map(str, arguments)],
        capture_output=True,
        text=True,
    )
    head, _, body = done.stdout.partition("\n\n")
    if not head:
        return 0, {}, done.stderr
    first, *lines = head.splitlines()
    headers: dict[str, list[str]] = {}
    for name, value in (line.split(": ", 1) for line in lines):
        headers.setdefault(name.lower(), []).append(value)
    return int(first.split()[1]), headers, body
