"""Start one program of bin/up: end what an earlier one left, give its lines their name, become it.

Every program and all its children carry $INGEST_HOME/run/NAME.tag open as descriptor TAG. That is how their remains
are known after a kill -9 (nginx's workers outlive their master and keep its port), and it cannot be mistaken for
anything else: numbers of processes are used again, and nginx erases its environment.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

TAG = 99
PAUSE = 0.5  # seconds from start to start, so that all are back within one


def holders(tag: Path) -> list[int]:
    """The processes that carry this tag, but for the caller."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/fd/{TAG}") == str(tag) and int(pid) != os.getpid():
                found.append(int(pid))
        except OSError:  # gone meanwhile, somebody else's, or without such a descriptor
            pass
    return found


def parent_of(pid: int) -> int:
    """A process's parent, 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def leads(pid: int) -> bool:
    """Whether a process leads a process group."""
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False


def end(tag: Path, ask: int, patience: float) -> bool:
    """End all processes that carry this tag: ask, wait that many seconds, kill, and see them gone.

    Returns: whether there were any.
    """
    found = holders(tag)
    for number, seconds in (ask, patience), (signal.SIGKILL, 5.0):
        for pid in found:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
        deadline = time.monotonic() + seconds
        while holders(tag) and time.monotonic() < deadline:
            time.sleep(0.01)
        if not holders(tag):
            break
    return bool(found)


def name_lines(name: str) -> None:
    """Send standard output and error through sed: with the name to supervisord's terminal, without to its log file."""
    lines, ours = os.pipe()
    if os.fork() == 0:
        os.dup2(lines, 0)
        os.closerange(3, 64)
        os.execvp("sed", ["sed", "-u", "-e", "w /dev/stderr", "-e", f"s/^/{name:<8} | /"])
    os.dup2(ours, 1)
    os.dup2(ours, 2)
    os.close(lines)
    os.close(ours)


def main(name: str, ask: str, *command: str) -> None:
    tag = Path(os.environ["INGEST_HOME"]).resolve() / "run" / f"{name}.tag"
    name_lines(name)
    if end(tag, signal.Signals[f"SIG{ask}"], patience=0.4):
        print("ended what an earlier one had left", flush=True)
    if tag.exists():  # one that cannot run must not take a whole core to try
        time.sleep(max(0.0, min(PAUSE, tag.stat().st_mtime + PAUSE - time.time())))
    os.dup2(os.open(tag, os.O_RDONLY | os.O_CREAT, 0o600), TAG, inheritable=True)
    os.utime(tag)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
