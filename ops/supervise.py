"""supervisord, with three of its manners changed: how soon it looks, what a hang-up means, how its lines begin."""

from __future__ import annotations

import signal

from supervisor import loggers, poller
from supervisor.medusa import asyncore_25 as asyncore
from supervisor.options import ServerOptions
from supervisor.supervisord import Supervisor


class Poller(poller.Poller):
    """supervisord looks for dead children once a second, and starts them again at its next look.

    It means a signal to wake it, but since Python 3.5 an interrupted poll goes on (PEP 475).
    """

    def poll(self, timeout: float):
        return super().poll(min(timeout, 0.1))


class Options(ServerOptions):
    """What supervisord takes from its configuration and command line, and three things that it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.poller = Poller(self)

    def make_logger(self) -> None:
        self.logger = loggers.getLogger(self.loglevel)
        loggers.handle_stdout(self.logger, f"{'up':<8} | %(message)s\n")
        loggers.handle_file(
            self.logger, self.logfile, "%(asctime)s %(message)s\n", True, self.logfile_maxbytes, self.logfile_backups
        )

    def setsignals(self) -> None:
        """A terminal that is closed stops everything; for supervisord it would be the sign to start all again."""
        ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # nohup
        super().setsignals()
        stop = signal.SIG_IGN if ignored else lambda _, frame: self.signal_receiver.receive(signal.SIGTERM, frame)
        signal.signal(signal.SIGHUP, stop)


def run(configuration: str) -> None:
    """Run everything in the foreground until a signal ends it."""
    options = Options()
    options.realize(["-n", "-c", configuration])
    options.first = True
    try:
        Supervisor(options).main()
    except asyncore.ExitNow:
        pass
