"""supervisord, with some of its manners changed: how soon it looks, what a hang-up means, what its lines look like."""

from __future__ import annotations

import signal

from supervisor import loggers, poller, supervisord
from supervisor.options import ServerOptions


class Poller(poller.Poller):
    """supervisord looks for dead children once a second, and starts them again at its next look.

    It means a signal to wake it, but since Python 3.5 an interrupted poll goes on (PEP 475).
    """

    def poll(self, timeout: float):
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

    def setsignals(self) -> None:
        """A terminal that is closed stops everything; for supervisord it would be the sign to start all again."""
        ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # nohup
        super().setsignals()
        stop = signal.SIG_IGN if ignored else lambda _, frame: self.signal_receiver.receive(signal.SIGTERM, frame)
        signal.signal(signal.SIGHUP, stop)


def run(configuration: str) -> None:
    """Run everything in the foreground until a signal ends it."""
    supervisord.ServerOptions = Options
    supervisord.main(["-n", "-c", configuration])
