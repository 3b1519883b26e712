"""The slow lane: gunicorn's own gevent handler serves, in a greenlet, one request that the fast lane declined."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gevent
from gevent import socket as gsocket
from gevent.lock import Semaphore
from gunicorn.http.errors import InvalidHeader, ParseException
from gunicorn.workers.ggevent import GeventWorker

from sluice.fastlane.connection import READ_BYTES, Connection
from sluice.fastlane.interface import MAX_BODY_BYTES

LETTERS = re.compile(rb"[A-Z]+ /[!->@-~]*\?[!-~\x80-\xff]* HTTP/1\.[01]")  # a request line with letters in its query
MAX_BODIES = 4  # of up to MAX_BODY_BYTES that are read at a time; a longer one is read alone
# What a client is told whose request gunicorn rejects, by status
DETAILS = {
    400: "The request is not well-formed HTTP; it had no effect.",
    414: "The request line is too long; the request had no effect.",
    431: "The header fields are too long; the request had no effect.",
    501: "The only supported transfer coding is chunked; the request had no effect.",
}
BEGIN_BYTES = 4096  # of a request, to say which one was rejected
LINGER_SECONDS = 2.0  # in which a client that is still sending can read its rejection


class SlowLane(GeventWorker):
    """gunicorn's gevent worker, changed to serve one request of a connection instead of all."""

    rejected: Callable[[int, str, bytes], None]  # see Options

    def make_room(self) -> None:
        """For bodies that are read at the same time."""
        self.queue, self.room = Semaphore(1), Semaphore(MAX_BODIES)

    def serve(self, conn: Connection) -> bytes | None:
        """Serve one request; its first bytes are in `pieces`. None: the connection is closed.

        Returns the bytes that were read after the request; the connection has a new descriptor.
        """
        sock = gsocket.socket(fileno=conn.sock.detach())
        client = Unread(sock, encode_query(b"".join(conn.pieces)))
        conn.pieces = []
        try:
            self.handle(conn.listener, client, conn.peer)
            if client.left is None:
                self.linger(sock)
        finally:
            if client.left is None:
                sock.close()
        if client.left is None:
            return None
        conn.sock = socket.socket(fileno=sock.detach())
        conn.sock.setblocking(False)
        conn.fd = conn.sock.fileno()
        return client.left + client.data

    def handle_request(self, listener_name: Any, req: Any, sock: Any, addr: Any) -> None:
        """Serve a parsed request, then stop gunicorn's keep-alive loop. A body that is not here yet waits for room."""
        if req.version == (1, 1) and not any(name == "HOST" for name, _ in req.headers):
            raise InvalidHeader("HOST")  # RFC 9112, 3.2
        size = next((int(value) for name, value in req.headers if name == "CONTENT-LENGTH"), None)
        if size is None:
            size = MAX_BODY_BYTES if any(name == "TRANSFER-ENCODING" for name, _ in req.headers) else 0
        share = 0 if size <= READ_BYTES else 1 if size <= MAX_BODY_BYTES else MAX_BODIES
        if share:
            with self.queue:  # in the order of arrival
                for _ in range(share):
                    self.room.acquire()
        try:
            super().handle_request(listener_name, req, sock, addr)
        finally:
            for _ in range(share):
                self.room.release()
        unread = 0
        with gevent.Timeout(LINGER_SECONDS, False):
            while unread < MAX_BODY_BYTES:
                try:
                    data = req.body.read(READ_BYTES)
                except Exception:  # malformed, so its end cannot be found; the client has its answer
                    break
                unread += len(data)
                if getattr(req.body, "failed", False):  # malformed, and the application ignored the exception
                    break
                if not data:
                    sock.left = req.unreader.buf.getvalue()
                    break
        raise StopIteration

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:
        """Answer in the form of all errors (RFC 9457) what gunicorn answers with a page.

        It quotes the text that it cannot parse, which may be a body or a secret: hide it from the log.
        """
        if isinstance(exc, ParseException):
            vars(exc).update({name: "..." for name, value in vars(exc).items() if isinstance(value, (str, bytes))})
        elif hasattr(req, "uri"):
            req.uri = req.path
        pages: list[bytes] = []
        super().handle_error(req, SimpleNamespace(sendall=pages.append, gettimeout=float), addr, exc)
        if pages:
            status = pages[0].partition(b"\r\n")[0].decode("latin-1").partition(" ")[2]
            code = int(status[:3])
            detail = DETAILS.get(code, "The request failed.")
            with contextlib.suppress(OSError):
                client.sendall(render_problem(status, detail))
            self.rejected(code, detail, client.begin)

    def linger(self, sock: Any) -> None:
        """Let the client close first, for LINGER_SECONDS: closing a socket with unread bytes resets the connection, and
        the client may lose an answer that it has not read yet, such as a 413 (RFC 9112, 9.6).
        """
        with gevent.Timeout(LINGER_SECONDS, False):
            try:
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(READ_BYTES):
                    gevent.sleep(0)  # else a client that sends without a pause occupies the loop
            except OSError:
                pass


def encode_query(begin: bytes) -> bytes:
    """The beginning of a request, with what is no ASCII in its query percent-encoded: clients such as curl send letters
    as they are, and gunicorn refuses them.
    """
    line, end, rest = begin.partition(b"\r\n")
    if line.isascii() or not LETTERS.fullmatch(line):
        return begin
    return re.sub(rb"[\x80-\xff]", lambda found: b"%%%02X" % ord(found[0]), line) + end + rest


def render_problem(status: str, detail: str) -> bytes:
    """An error (RFC 9457) that closes the connection."""
    code, _, title = status.partition(" ")
    body = json.dumps({"type": "about:blank", "title": title, "status": int(code), "detail": detail})
    lines = "Connection: close", "Content-Type: application/problem+json", f"Content-Length: {len(body)}", "", body
    return "\r\n".join((f"HTTP/1.1 {status}", *lines)).encode("latin-1")


class Unread:
    """A socket for gunicorn's handler, with bytes put back in front of it.

    begin: the first bytes of the request.
    left: after the request, the bytes that gunicorn's parser read but did not use; None: the connection must end.
    """

    def __init__(self, sock: Any, data: bytes) -> None:
        self.sock = sock
        self.data = data
        self.begin = data[:BEGIN_BYTES]
        self.left: bytes | None = None

    def recv(self, size: int) -> bytes:
        if not self.data:
            received: bytes = self.sock.recv(size)
            return received
        data, self.data = self.data[:size], self.data[size:]
        return data

    def close(self) -> None:
        """Nothing: `serve` closes the socket, unless the connection returns to the fast lane."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sock, name)
