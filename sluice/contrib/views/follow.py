"""Keep the views in step with the database: the follower, and the refresher of tallies."""

from __future__ import annotations

import logging
import os

from sluice import settings
from sluice.base import daemon
from sluice.contrib import background, views
from sluice.contrib.views.follower import Follower
from sluice.contrib.views.refresh import Refresher
from sluice.store.registry import check_store
from sluice.streams.built_in import load_streams


def main() -> None:
    with settings.exit_if_invalid():
        s = settings.load_settings()
        daemon.start_logging(s.log)
        streams = load_streams(s)
        declared = views.load_views(s)
        views.check_declarations(declared, streams)
        check_store(s.store)
    socket = s.scratch_redis
    background.give_way()  # to what accepts and stores; a count may take seconds of CPU
    follower = Follower(socket, s.store, declared, streams)
    refresher = Refresher(socket, s.store, declared, streams, lambda: follower.token)
    daemon.stop_on_signal(follower)
    daemon.notify_systemd("READY=1")
    refresher.start()
    follower.run()
    refresher.stop()
    logging.shutdown()
    os._exit(0)  # at this precedence Python's own end may take more than the supervisor waits for


if __name__ == "__main__":
    main()
