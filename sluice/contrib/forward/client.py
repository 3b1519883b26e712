"""One POST to a receiver, and its answer.

The standard library's client: it follows no redirect, asks the system's certificate authorities, and keeps a connection
from one request to the next. It bounds the time of each read, not of a request, so whoever runs it closes what has
passed its `deadline`.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import time
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

ANSWER_BYTES = 4 << 10  # of an answer that are read; a connection with more is closed
CONNECT_SECONDS = 5.0  # at most
RETRY_SECONDS = 86_400.0  # the most that Retry-After may ask for

Fields = Sequence[tuple[str, bytes]]


class Answer(NamedTuple):
    """What became of a request. status: 0: there was no answer. words: for people. after: Retry-After, in seconds."""

    status: int
    words: str
    after: float = 0.0

    @property
    def taken(self) -> bool:
        return 200 <= self.status < 300

    @property
    def gone(self) -> bool:
        return self.status == HTTPStatus.GONE


class Client:
    """A connection to one receiver, of one thread. deadline: monotonic, of the present request; 0: there is none."""

    def __init__(self, url: str, timeout: float, context: ssl.SSLContext | None = None) -> None:
        """url: without login and fragment. context: of TLS."""
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port
        self.path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self.timeout = timeout
        self.context = context if context or parts.scheme == "http" else ssl.create_default_context()
        self.connection: http.client.HTTPConnection | None = None
        self.deadline = 0.0

    def post(self, fields: Fields, body: bytes) -> Answer:
        """Post a body, once more on a new connection if the one that was kept has ended meanwhile."""
        self.deadline = time.monotonic() + self.timeout
        kept = self.connection is not None
        try:
            try:
                return self.answer(fields, body)
            except (ConnectionError, http.client.BadStatusLine):
                if not kept or time.monotonic() >= self.deadline:
                    raise
                self.close()
                return self.answer(fields, body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            late = time.monotonic() >= self.deadline
            self.close()
            return Answer(0, f"no answer within {self.timeout:g} s" if late else failure(error))
        finally:
            self.deadline = 0.0

    def answer(self, fields: Fields, body: bytes) -> Answer:
        connection = self.connection = self.connection or self.connect()
        connection.putrequest("POST", self.path, skip_accept_encoding=True)
        for name, value in fields:
            connection.putheader(name, value)
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        words = f"answered {response.status} {response.reason}".strip()[:100]
        answer = Answer(response.status, words, retry_after(response.getheader("Retry-After") or ""))
        try:
            response.read(ANSWER_BYTES)
            whole = response.isclosed()
        except (OSError, http.client.HTTPException):  # what the status says holds
            whole = False
        if not whole or not connection.sock:  # it would connect by itself, and keep the time limit of connecting
            self.close()
        return answer

    def connect(self) -> http.client.HTTPConnection:
        """Raises: OSError."""
        limit = min(CONNECT_SECONDS, self.timeout)
        if self.context is None:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=limit)
        else:
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=limit, context=self.context)
        connection.connect()
        connection.sock.settimeout(self.timeout)
        return connection

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    def abort(self) -> None:
        """End a request that has passed its deadline. Called by another thread."""
        connection = self.connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)


def failure(error: Exception) -> str:
    """Why there is no answer, without addresses."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    if isinstance(error, OSError):
        return f"no answer: {error.strerror or type(error).__name__}"
    return f"no valid answer: {type(error).__name__}"


def retry_after(value: str) -> float:
    """Seconds that a field Retry-After asks for: a number, or a date; 0 if it is neither."""
    value = value.strip()
    seconds = 0.0
    if value.isascii() and value.isdecimal():
        seconds = float(value[:9])
    elif value:
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
    return min(max(seconds, 0.0), RETRY_SECONDS)
