"""Starts one program of bin/up: ends what an earlier run left, puts the name before each line, and execs the program.

Every program and all its children hold $INGEST_HOME/run/NAME.tag open as descriptor TAG. This identifies them after a
kill -9 (nginx's workers outlive their master and keep its port). Process ids are reused, and nginx overwrites its
environment; an open file can be confused with nothing else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

TAG = 99
PAUSE_SECONDS = 0.5  # between two starts; a killed program must be back within a second


def home_tags(home: Path) -> list[Path]:
    """The tags of all programs that were ever started in a home."""
    return list((home.resolve() / "run").glob("*.tag"))


def program_tag(name: str, home: Path | None = None) -> Path:
    """The tag of a program. home: by default that of the environment."""
    return (home or Path(os.environ["INGEST_HOME"])).resolve() / "run" / f"{name}.tag"


def tag_holders(tag: Path) -> list[int]:
    """The processes that hold this tag, except the caller."""
    pids = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended, belongs to another user, or has no such descriptor
            if os.readlink(f"/proc/{pid}/fd/{TAG}") == str(tag) and int(pid) != os.getpid():
                pids.append(int(pid))
    return pids


def parent_of(pid: int) -> int:
    """The parent of a process; 0 if the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def is_leader(pid: int) -> bool:
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False


def end_tagged(tag: Path, ask: int, patience: float) -> bool:
    """Signal `ask` all that hold this tag, wait `patience` seconds, kill; returns whether there were any."""
    pids = tag_holders(tag)
    for number, seconds in (ask, patience), (signal.SIGKILL, 5.0):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + seconds
        while tag_holders(tag) and time.monotonic() < deadline:
            time.sleep(0.01)
        if not tag_holders(tag):
            break
    return bool(pids)


# Lines of a start that nobody has to read or to act upon: they are in the log file only. What to do about the memory
# says sluice/run/first_screen.py
REDIS = (
    *("oO0OoO0OoO0Oo", "just started", "Configuration loaded", "Server initialized", "Ready to accept connections"),
    *("WARNING Memory overcommit", "WARNING overcommit_memory", "WARNING you have Transparent Huge Pages"),
)
GUNICORN = "] Starting gunicorn", "] Listening at: ", "] Using worker: ", "] Booting worker with pid: "
# to the socket of the page's program, which counts requests: it starts later, and one that was killed left its socket.
# Of a failed request nginx says "connect() to unix: …"
NGINX = ("connect() failed (",)
UNSHOWN = {"nginx": NGINX, "redis": REDIS, "views": REDIS, "gateway": GUNICORN, "reader": GUNICORN}


def name_lines(name: str) -> None:
    """Send standard output and error through sed: with the name to the terminal, without it to the log file."""
    unshown = [word for text in UNSHOWN.get(name, ()) for word in ("-e", f"/{text}/d")]
    lines, ours = os.pipe()
    if os.fork() == 0:
        os.dup2(lines, 0)
        os.closerange(3, 64)
        os.execvp("sed", ["sed", "-u", "-e", "w /dev/stderr", *unshown, "-e", f"s/^/{name:<8} | /"])
    os.dup2(ours, 1)
    os.dup2(ours, 2)
    os.close(lines)
    os.close(ours)


def main(name: str, ask: str, *command: str) -> None:
    mine = program_tag(name)
    name_lines(name)
    if end_tagged(mine, signal.Signals[f"SIG{ask}"], patience=0.4):
        print("ended the processes that an earlier run left", flush=True)
    if mine.exists():  # a program that cannot run must not use a whole core for its restarts
        time.sleep(max(0.0, min(PAUSE_SECONDS, mine.stat().st_mtime + PAUSE_SECONDS - time.time())))
    os.dup2(os.open(mine, os.O_RDONLY | os.O_CREAT, 0o600), TAG, inheritable=True)
    os.utime(mine)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
