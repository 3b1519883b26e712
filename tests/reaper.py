"""Run a command; when it has ended, kill each program that it started and left.

python tests/reaper.py [--until SECONDS] COMMAND…

bin/test runs pytest so: a suite that is interrupted leaves no servers, also if they have sessions of their own. A
command that has not ended after SECONDS is killed with all that it started; the status is 124.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
SI_KERNEL = 128
STOPS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}


def main(command: list[str], seconds: float = float("inf")) -> int:
    """Returns: the command's status, or 128 + the signal that ended it."""
    # a process whose parent has ended becomes a child of this one, not of init
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    deadline = time.monotonic() + seconds
    signal.pthread_sigmask(signal.SIG_BLOCK, {*STOPS, signal.SIGCHLD})
    started = subprocess.Popen(command, preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, ()))
    status: int | None = None
    while status is None:
        left = min(deadline - time.monotonic(), 3600)
        received = signal.sigtimedwait({*STOPS, signal.SIGCHLD}, max(left, 0))
        if received and received.si_signo == signal.SIGCHLD:
            status = reap().get(started.pid)
        elif received and received.si_code != SI_KERNEL:  # a terminal sends it to the command, too
            os.kill(started.pid, received.si_signo)
        elif left <= 0:
            print(f"not ended after {seconds:g} s: {' '.join(command)}", file=sys.stderr)
            kill_children()
            return 124
    code = os.waitstatus_to_exitcode(status)
    if names := kill_children():
        print(f"killed at the end, because the tests left them: {', '.join(names)}", file=sys.stderr)
    return 128 - code if code < 0 else code


def reap() -> dict[int, int]:
    """Take the status of each child that has ended, by its id."""
    found = {}
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found[ended[0]] = ended[1]
    return found


def kill_children() -> list[str]:
    """Kill all children, and theirs, which become children of this process. Returns: their names."""
    names = []
    while pids := Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        for pid in map(int, pids):
            with contextlib.suppress(OSError):
                names.append(Path(f"/proc/{pid}/comm").read_text().strip())
            os.kill(pid, signal.SIGKILL)
        for pid in map(int, pids):
            os.waitpid(pid, 0)
    return sorted(names)


if __name__ == "__main__":
    if sys.argv[1] == "--until":
        sys.exit(main(sys.argv[3:], float(sys.argv[2])))
    sys.exit(main(sys.argv[1:]))
