"""What whoever runs these programs wants of them: log lines in one format, and a sign of life. Both halves use it."""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import time

PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}  # syslog(3)


class Journal(logging.Formatter):
    """`name: message` with its priority before each line, as sd-daemon(3) has it; the journal adds time and process."""

    def format(self, record: logging.LogRecord) -> str:
        """One record, for standard error."""
        prefix = f"<{PRIORITIES.get(record.levelno, 5)}>"
        return "\n".join(prefix + line for line in super().format(record).splitlines())


class Json(logging.Formatter):
    """A JSON object a line: time (UTC), level, logger, process, message, and traceback where there is one."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        """One record as one line."""
        line = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def formatter(style: str) -> logging.Formatter | None:
    """The formatter for INGEST_LOG; None: the program's own.

    style: json; or text, which is the journal's where systemd has connected standard error to it.
    """
    if style == "json":
        return Json()
    return Journal("%(name)s: %(message)s") if "JOURNAL_STREAM" in os.environ else None


def notify(state: str) -> None:
    """Tell systemd something, such as READY=1 (sd_notify(3)); where nobody wants to know, nothing happens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            try:
                sock.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)
            except OSError:  # nothing that we do hangs on it
                pass


class Watchdog:
    """Tells systemd that a loop still turns. Where the unit has no WatchdogSec= it tells nobody."""

    def __init__(self) -> None:
        # a third, for a turn may be a long one
        self.every = int(os.environ.get("WATCHDOG_USEC") or 0) / 3e6  # seconds
        self.due = 0.0 if self.every else math.inf  # monotonic

    def turn(self) -> None:
        """To be called once a turn."""
        now = time.monotonic()
        if now >= self.due:
            self.due = now + self.every
            notify("WATCHDOG=1")
