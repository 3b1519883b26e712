"""A program and the system that runs it: log formats, signals, sd_notify, watchdog."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import signal
import socket
import time
from typing import Any

from sluice.parsers import LogStyle

PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}  # syslog(3)


class JournalFormatter(logging.Formatter):
    """`name: message`, each line prefixed with its priority (sd-daemon(3)); the journal adds time and process."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"<{PRIORITIES.get(record.levelno, 5)}>"
        return "\n".join(prefix + line for line in super().format(record).splitlines())


class TextFormatter(logging.Formatter):
    """`time name: message`, with the time in UTC as in the JSON format."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"


class JsonFormatter(TextFormatter):
    """One JSON object per line: time (UTC), level, logger, process, message, and traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def formatter(style: LogStyle) -> logging.Formatter | None:
    """The formatter for JSON, or for the journal, if systemd has connected standard error to it; else None."""
    if style.json:
        return JsonFormatter()
    return JournalFormatter("%(name)s: %(message)s") if "JOURNAL_STREAM" in os.environ else None


def start_logging(style: LogStyle) -> None:
    logging.basicConfig(level=logging.DEBUG if style.debug else logging.INFO)
    logging.getLogger().handlers[0].setFormatter(formatter(style) or TextFormatter("%(asctime)s %(name)s: %(message)s"))


def stop_on_signal(loop: Any) -> None:
    """At SIGTERM or SIGINT call `loop.stop()`; at the next one, while `loop.stopping`, exit at once."""

    def stop(number: int, frame: Any) -> None:
        if loop.stopping:
            os._exit(128 + number)
        loop.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


class Interrupted(KeyboardInterrupt):
    """SIGINT has come. Any other KeyboardInterrupt is one that some code has raised."""


def notify_systemd(state: str) -> None:
    """Send a state such as READY=1 to systemd (sd_notify(3)), if it started this process."""
    if address := os.environ.get("NOTIFY_SOCKET", ""):
        # a lost notification must not stop the program
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
            sock.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)


class Watchdog:
    """Notifies systemd that a loop is alive, if the unit sets WatchdogSec=."""

    def __init__(self) -> None:
        # a third of WatchdogSec=, because one turn may take long
        self.every = int(os.environ.get("WATCHDOG_USEC") or 0) / 3e6  # seconds
        self.due = 0.0 if self.every else math.inf  # monotonic

    def report_alive(self) -> None:
        """Call this once per turn of the loop."""
        now = time.monotonic()
        if now >= self.due:
            self.due = now + self.every
            notify_systemd("WATCHDOG=1")
