"""A private HAProxy with deploy/haproxy.cfg, for tests and the drill."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from proving import harness
from proving.harness import PATIENCE, ROOT, Server, environment, poll, running
from sluice.run.configure import replaced
from sluice.run.servers import program_path


@contextlib.contextmanager
def haproxy(
    tmp: Path, cells: Sequence[str], port: int = 0, prefix: Sequence[str] = (), patient: bool = False
) -> Iterator[Server]:
    """HAProxy in front of cells at these addresses (HOST:PORT), once it has found all of them ready.

    port: its own; 0: a free one. prefix: of its command. patient: a cell that a busy machine delays counts as ready.
    """
    port, admin = port or harness.free_port(), tmp / "haproxy.sock"
    text = (ROOT / "deploy/haproxy.cfg").read_text()
    head, _, _ = text.partition("    server cell-1")
    text = replaced(head, ("bind :8000", f"bind 127.0.0.1:{port}"), ("/run/haproxy/admin.sock", str(admin)))
    if patient:
        text = replaced(text, ("connect 200ms", f"connect {PATIENCE:.0f}s"), ("check 600ms", f"check {PATIENCE:.0f}s"))
    text += "".join(f"    server cell-{n} {cell}\n" for n, cell in enumerate(cells))
    (tmp / "haproxy.cfg").write_text(text)
    command = [*prefix, shutil.which("haproxy", path=program_path()), "-db", "-f", tmp / "haproxy.cfg"]
    with running(command, tmp / "haproxy.out", environment(tmp)) as process:
        server = Server(process, tmp / "haproxy.out", tmp, port, [admin])
        poll(harness.listening(server, port), what="haproxy")
        poll(lambda: all_up(server, len(cells)), 60, "all cells are up")
        yield server


def state(balancer: Server, number: int) -> str:
    """What the balancer thinks of a cell: UP, DOWN, or no check."""
    with harness.connect(balancer.socket) as connection:
        connection.sendall(b"show stat\n")
        said = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    names, *rows = [line.split(",") for line in said.removeprefix("# ").splitlines() if line]
    (row,) = [found for found in (dict(zip(names, row)) for row in rows) if found["svname"] == f"cell-{number}"]
    return row["status"].split()[0]


def all_up(balancer: Server, count: int) -> bool:
    """Whether the balancer sends requests to each of its cells."""
    return all(state(balancer, number) == "UP" for number in range(count))
