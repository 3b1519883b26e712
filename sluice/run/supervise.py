"""supervisord, with some of its manners changed: how soon it looks, what a hang-up means, what its lines look like."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

from supervisor import loggers, poller, supervisord
from supervisor.options import ServerOptions

from sluice.run import launch

PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


class Poller(poller.Poller):
    """supervisord looks for dead children once a second, and starts them again at its next look.

    It means a signal to wake it, but since Python 3.5 an interrupted poll goes on (PEP 475).
    """

    def poll(self, timeout: float) -> tuple[list[int], list[int]]:
        return super().poll(min(timeout, 0.1))


class Options(ServerOptions):
    """What supervisord takes from its configuration, and what it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.poller = Poller(self)

    def make_logger(self) -> None:
        # nobody reads the lines any more (bin/up | head): no reason to die and leave everything running without a head
        loggers.Handler.handleError = lambda handler: None
        self.logger = loggers.getLogger(self.loglevel)
        loggers.handle_stdout(self.logger, f"{'up':<8} | %(message)s\n")
        loggers.handle_file(
            self.logger, self.logfile, "%(asctime)s %(message)s\n", True, self.logfile_maxbytes, self.logfile_backups
        )

    def waitpid(self) -> tuple[int | None, int | None]:
        """The next child that has ended, or None. One that has an heir (gunicorn's USR2) lives on in it: no end."""
        pid, status = super().waitpid()
        process = self.pidhistory.get(pid)
        heir = process and find_heir(process.config.name)
        if heir:
            self.logger.warn(f"upgraded: {process.config.name} (process {heir} in place of {pid})")
            del self.pidhistory[pid]
            process.pid = heir
            self.pidhistory[heir] = process
            if process.killing:
                self.kill(heir, signal.SIGTERM)
        return pid, status

    def setsignals(self) -> None:
        """A terminal that is closed stops everything; for supervisord it would be the sign to start all again."""
        ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # nohup
        super().setsignals()
        stop = signal.SIG_IGN if ignored else lambda _, frame: self.signal_receiver.receive(signal.SIGTERM, frame)
        signal.signal(signal.SIGHUP, stop)


def find_heir(name: str) -> int | None:
    """Of a program that has ended: its process that leads a group and has become a child of ours."""
    tag = Path(os.environ["INGEST_HOME"]).resolve() / "run" / f"{name}.tag"
    ours = (pid for pid in launch.holders(tag) if launch.parent_of(pid) == os.getpid())
    return next(filter(launch.leads, ours), None)


def run(configuration: str) -> None:
    """Run everything in the foreground until a signal ends it."""
    # whose parent has ended becomes our child, not init's
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    supervisord.ServerOptions = Options
    supervisord.main(["-n", "-c", configuration])
