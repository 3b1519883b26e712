"""gunicorn's settings where they differ from its defaults. gunicorn 23 (on PyPy) passes over what it does not know."""

import os
import sys

chdir = os.path.dirname(os.path.abspath(__file__))  # wherever it is started from
sys.path.insert(0, chdir)

from gunicorn.glogging import Logger  # noqa: E402

from sluice import daemon as supervisor  # noqa: E402  # gunicorn would take the name `daemon` for its setting
from sluice import settings  # noqa: E402

_settings = settings.load_or_exit()

wsgi_app = "ingest:app"
worker_class = "sluice.fastlane.loop.FastLane"
workers = _settings.gateways
bind = [f"unix:{path}" for path in _settings.gateway_sockets]
umask = 0o077  # the sockets are for the user who started us
backlog = 65535  # a full Unix socket refuses at once; the kernel cuts this to net.core.somaxconn
worker_connections = 65535  # nginx decides how many there are
keepalive = 75  # above keepalive_timeout in nginx/sluice.conf, so that it is always nginx who hangs up first

# above large_client_header_buffers in nginx/sluice.conf, so that it is always nginx who refuses
limit_request_line = 8190
limit_request_fields = 32768
# whatever scheme a client claims to have come by: nobody reads it, and two claims would be a 400
secure_scheme_headers: dict[str, str] = {}

# A process that is told to stop waits for nginx to hang up on the idle connections (fastlane.py: for three quarters of
# this), which nginx does within keepalive_timeout of nginx/sluice.conf; the rest is for a machine that is busy. Where
# nginx has gone first, as when bin/up stops, there is nothing to wait for.
graceful_timeout = 6
if os.path.isdir("/dev/shm"):
    worker_tmp_dir = "/dev/shm"  # heartbeats on a disk stop when the disk is busy, and the worker is killed for it
control_socket_disable = True  # nobody uses it, and it would lie in the home directory


def pre_exec(arbiter):
    """The new master of an upgrade (USR2) leads a process group of its own, for it will outlive the old one.

    gunicorn would start the file again that -m found, beside which lies gunicorn's `http`, and take that for Python's.
    """
    os.setpgid(0, 0)
    arbiter.START_CTX["args"][1:2] = ["-m", "gunicorn"]


class Log(Logger):
    """gunicorn's own, whose lines look like the worker's where INGEST_LOG or the journal wants that."""

    def setup(self, cfg):
        super().setup(cfg)
        style = supervisor.formatter(_settings.log)
        for handler in self.error_log.handlers if style else ():
            handler.setFormatter(style)


logger_class = Log


def post_worker_init(worker):
    """systemd starts the gateway anew when no process of it turns any more; one of several is gunicorn's to kill."""
    watchdog = supervisor.Watchdog()
    if watchdog.every:
        import gevent

        def turn():
            while True:
                watchdog.turn()
                gevent.sleep(watchdog.every)

        gevent.spawn(turn)
