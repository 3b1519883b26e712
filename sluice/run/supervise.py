"""supervisord with seven changes: it restarts at once, follows upgrades, stops at SIGHUP, stops what is being started,
repeats a SIGQUIT, names each line, and waits for no reader of its output.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import queue
import select
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from supervisor import loggers, poller, supervisord
from supervisor.options import ServerOptions
from supervisor.states import SupervisorStates

from sluice.run import launch

PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
PIECE_BYTES, KEPT_PIECES = 4096, 64  # of output that its reader does not take
STOPS = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM}  # handled by supervisord


class Poller(poller.Poller):
    """Polls ten times a second: no signal interrupts supervisord's poll of a second since Python 3.5 (PEP 475).

    announced: called each time until it is true, or everything stops.
    """

    announced: Callable[[], bool] | None = None

    def poll(self, timeout: float) -> Any:
        if Poller.announced and (self.options.mood < SupervisorStates.RUNNING or Poller.announced()):
            Poller.announced = None  # a request to programs that stop would hold them up
        return super().poll(min(timeout, 0.1))


class Options(ServerOptions):
    def __init__(self) -> None:
        super().__init__()
        self.poller = Poller(self)

    def make_logger(self) -> None:
        # a closed standard output (bin/up | head) must not end supervisord and leave the programs without one
        loggers.Handler.handleError = lambda handler: None
        self.logger = loggers.getLogger(self.loglevel)
        loggers.handle_stdout(self.logger, f"{'up':<8} | %(message)s\n")
        loggers.handle_file(
            self.logger, self.logfile, "%(asctime)s %(message)s\n", True, self.logfile_maxbytes, self.logfile_backups
        )

    def waitpid(self) -> tuple[int | None, int | None]:
        """The next child that has ended, or None. After an upgrade (gunicorn's USR2), its successor takes its place.

        Called ten times a second. A SIGQUIT is repeated each time: nginx only notes one that comes before it waits for
        signals, and goes on waiting.
        """
        for pid, process in self.pidhistory.items():
            if process.killing and process.config.stopsignal == signal.SIGQUIT:
                with contextlib.suppress(ProcessLookupError):
                    self.kill(pid, signal.SIGQUIT)
        pid, status = super().waitpid()
        process = self.pidhistory.get(pid)
        successor = process and find_successor(process.config.name)
        if successor:
            self.logger.warn(f"upgraded: {process.config.name} (process {successor} in place of {pid})")
            del self.pidhistory[pid]
            process.pid = successor
            self.pidhistory[successor] = process
            if process.killing:
                self.kill(successor, signal.SIGTERM)
        return pid, status

    def setsignals(self) -> None:
        """SIGHUP, sent when the terminal closes, stops everything; in supervisord it would restart everything."""
        ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # nohup
        super().setsignals()
        stop = signal.SIG_IGN if ignored else lambda _, frame: self.signal_receiver.receive(signal.SIGTERM, frame)
        signal.signal(signal.SIGHUP, stop)


def find_successor(name: str) -> int | None:
    """The new master of a program that has ended: it leads a process group and has become a child of this process."""
    ours = (pid for pid in launch.tag_holders(launch.program_tag(name)) if launch.parent_of(pid) == os.getpid())
    return next(filter(launch.is_leader, ours), None)


def let_signals_end_children() -> None:
    """Let a signal end a process of a program between `fork` and `execve`.

    Until then the process has copies of supervisord's handlers, which only note a signal: the program would start, and
    be killed when its time to stop is over.
    """

    def in_child() -> None:
        for number in STOPS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

    os.register_at_fork(
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, STOPS),
        after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS),
        after_in_child=in_child,
    )


class Output:
    """Passes on what is written to `source`, to a reader who may stop reading: a terminal that is held, a pager.

    Otherwise supervisord would wait for it, and then, once their pipes are full, all programs. So what is more than
    KEPT_PIECES is dropped; the log files have it.
    """

    def __init__(self, source: int, target: int) -> None:
        self.source, self.target = source, target
        self.waiting = queue.Queue[bytes](KEPT_PIECES)
        self.dropped = 0  # lines
        for step in self.take, self.give:
            threading.Thread(target=self.go_on, args=(step,), daemon=True).start()

    def go_on(self, step: Callable[[], None]) -> None:
        while True:
            try:
                step()
            except Exception:  # if nobody took the output, all programs would wait
                time.sleep(0.1)

    def take(self) -> None:
        piece = os.read(self.source, PIECE_BYTES)
        if self.waiting.full():
            self.dropped += piece.count(b"\n")
            return
        if self.dropped:
            said = f"{self.dropped} lines are in the log files only: nobody has read them here"
            piece = f"\n{'up':<8} | {said}\n".encode() + piece
            self.dropped = 0
        self.waiting.put(piece)

    def give(self) -> None:
        piece = self.waiting.get()
        try:
            while piece:
                piece = piece[os.write(self.target, piece) :]
        finally:  # also if the reader has gone, or its disk is full
            self.waiting.task_done()

    def end(self) -> None:
        """Wait until all is passed on, or for a second."""
        deadline = time.monotonic() + 1
        poller = select.poll()
        poller.register(self.source, select.POLLIN)
        while (self.waiting.unfinished_tasks or poller.poll(0)) and time.monotonic() < deadline:
            time.sleep(0.01)


def own_stdout() -> Output | None:
    """Make /dev/fd/1, which supervisord opens by name, openable: another user's terminal (su) and sockets are not.

    Returns: what passes it on, unless it is a file.
    """
    if stat.S_ISREG(os.fstat(1).st_mode):  # nobody has to read it
        # bin/up > file: without O_APPEND the two open files would overwrite each other
        fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) | os.O_APPEND)
        with contextlib.suppress(OSError):  # another user's file
            os.close(os.open("/dev/fd/1", os.O_WRONLY | os.O_APPEND))
            return None
    read, write = os.pipe()
    target = os.dup(1)
    os.dup2(write, 1)
    os.close(write)
    return Output(read, target)


def run(configuration: str, announced: Callable[[], bool]) -> None:
    Poller.announced = staticmethod(announced)  # of the process: supervisord makes the poller
    output = own_stdout()
    # a process whose parent has ended becomes a child of this process, not of init
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    let_signals_end_children()
    supervisord.ServerOptions = Options
    supervisord.main(["-n", "-c", configuration])
    sys.stdout.flush()
    if output:
        output.end()
    # Python flushes standard output at exit, and would exit with status 120 if its reader has gone
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
