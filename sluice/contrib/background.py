"""Work for which nobody waits: in a thread, or in a program that lets the others go first."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import NoReturn, TypeVar

T = TypeVar("T")
AUTOGROUP = Path("/proc/self/autogroup")  # the niceness of this session
SCHEDSTAT = Path("/proc/thread-self/schedstat")  # of this thread: nanoseconds of running, of waiting; …
NICENESS = 10  # of a program that can wait: a tenth of the processor time of another one, while both want it


def background(work: Callable[[], T]) -> Future[T]:
    """Do something in a thread that ends with the process."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="background", daemon=True).start()
    return future


def exit_on_signal(at_once: bool = False) -> None:
    """At SIGTERM or SIGINT exit with status 0: supervisord logs other ends as not expected.

    at_once: without cleaning up. On a busy machine that takes seconds of a program that gives way.
    """

    def leave(number: int, frame: object) -> NoReturn:
        if at_once:
            os._exit(0)
        sys.exit(0)

    for number in signal.SIGTERM, signal.SIGINT:
        signal.signal(number, leave)


def give_way() -> None:
    """Let all other programs have precedence for the processors.

    A process with SCHED_BATCH does not preempt another one when it wakes up. Where the kernel groups processes by
    session (autogroup in sched(7)), niceness counts only within a session, so the session gets it too.
    """
    os.nice(NICENESS)
    with contextlib.suppress(OSError):  # a sandbox may forbid it, and not every kernel has autogroups
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        if os.getsid(0) == os.getpid():
            AUTOGROUP.write_text(str(NICENESS))


def waited_seconds() -> float:
    """Seconds for which this thread could have run, but had no processor; 0 if the kernel does not count them."""
    try:
        return int(SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0
