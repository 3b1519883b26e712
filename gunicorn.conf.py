"""gunicorn, which runs ingest.app between nginx and Redis: the settings that differ from its defaults.

For other programs too, whose command lines name the application, the sockets, the worker class and one process.

gunicorn 23 (on PyPy) ignores settings that it does not know.
"""

import logging
import os
import sys

chdir = os.path.dirname(os.path.abspath(__file__))  # independent of the directory that it is started in
sys.path.insert(0, chdir)

from gunicorn.glogging import Logger  # noqa: E402

from sluice import settings  # noqa: E402
from sluice.base import daemon as supervisor  # noqa: E402  # the name `daemon` would be a setting

_settings = settings.load_or_exit()

wsgi_app = "ingest:app"
loglevel = "debug" if _settings.log.debug else "info"
worker_class = (_settings.spooling and _settings.spooling.lane) or "sluice.fastlane.loop.FastLane"
workers = _settings.gateways
bind = [f"unix:{path}" for path in _settings.gateway_sockets]
umask = 0o077  # only this user may connect to the sockets
backlog = 65535  # a Unix socket whose backlog is full refuses at once; limited by net.core.somaxconn
worker_connections = 65535  # nginx limits them
keepalive = 75  # seconds; above the upstream's keepalive_timeout in nginx/sluice.conf, so that nginx closes first

# above large_client_header_buffers in nginx/sluice.conf, so that nginx rejects first
limit_request_line = 8190
limit_request_fields = 32768
# ignore X-Forwarded-Proto and the like: nothing reads the scheme, and contradictory fields would get 400
secure_scheme_headers: dict[str, str] = {}

# seconds. A process that stops waits for three quarters of this (GRACE_FRACTION in sluice/fastlane/loop.py) until nginx
# has closed the idle connections, which takes the upstream's keepalive_timeout (1 s); the rest is for a busy machine
graceful_timeout = 6
if os.path.isdir("/dev/shm"):
    worker_tmp_dir = "/dev/shm"  # on a busy disk the heartbeat may block, and the master kills the process
control_socket_disable = True  # not used; gunicorn would create it in the home directory


def pre_exec(arbiter):
    """Prepare an upgrade (USR2): own process group, and `-m gunicorn` again.

    gunicorn would run the file that -m found, whose directory has a module `http` that hides Python's.
    """
    os.setpgid(0, 0)  # the new master outlives the old one
    arbiter.START_CTX["args"][1:2] = ["-m", "gunicorn"]


class GatewayLogger(Logger):
    """gunicorn's logger, and the application's, with the worker's line format if INGEST_LOG or the journal asks."""

    def setup(self, cfg):
        super().setup(cfg)
        style = supervisor.formatter(_settings.log)
        for handler in self.error_log.handlers if style else ():
            handler.setFormatter(style)
        ours = logging.getLogger("sluice")
        ours.handlers = self.error_log.handlers
        ours.setLevel(self.loglevel)


logger_class = GatewayLogger


def post_worker_init(worker):
    """Notify systemd's watchdog from the loop. systemd restarts the gateway if no process notifies; if one of several
    hangs, gunicorn replaces it.
    """
    watchdog = supervisor.Watchdog()
    if watchdog.every:
        import gevent

        def turn():
            while True:
                watchdog.report_alive()
                gevent.sleep(watchdog.every)

        gevent.spawn(turn)
