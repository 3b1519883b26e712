"""Keep the views in step with the database: the follower, and the refresher of tallies."""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import Any

from sluice import daemon, settings, views
from sluice.sinks.schema import load_streams
from sluice.views.contract import SOCKET
from sluice.views.follower import Follower
from sluice.views.refresh import Refresher


def main() -> int:
    """Follow until SIGTERM or SIGINT; the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    s = settings.load_or_exit()
    if formatter := daemon.formatter(s.log):
        logging.getLogger().handlers[0].setFormatter(formatter)
    try:
        streams = load_streams(s)
        declared = views.load(s)
        views.verify(declared, streams)
    except settings.SettingError as error:
        return settings.complain(error)
    socket = str(s.home / SOCKET)
    follower = Follower(socket, s.sink, declared, streams)
    refresher = Refresher(socket, s.sink, declared, streams)

    def stop(number: int, frame: Any) -> None:
        if follower.stopping:
            os._exit(128 + number)
        follower.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    daemon.notify("READY=1")
    refresher.start()
    follower.run()
    refresher.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
