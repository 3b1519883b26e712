"""The slow lane: gunicorn's own gevent handler serves, in a greenlet, one request that the fast lane declined."""

from __future__ import annotations

import socket
from typing import Any

import gevent
from gunicorn.http.errors import ParseException
from gunicorn.workers.ggevent import GeventWorker

from sluice.fastlane.connection import BODY_MOST, LINGER, READ


class SlowLane(GeventWorker):
    """What gunicorn's worker does otherwise when it serves one request for the fast lane."""

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:
        """gunicorn's, for the slow lane. It quotes what it does not understand, which may be a body or a secret."""
        if isinstance(exc, ParseException):
            vars(exc).update({name: "..." for name, value in vars(exc).items() if isinstance(value, (str, bytes))})
        elif hasattr(req, "uri"):
            req.uri = req.path
        super().handle_error(req, client, addr, exc)

    def hang_up(self, sock: Any) -> None:
        """Let the client close first, for a while: closing on bytes that were not read resets the connection, which may
        cost the client an answer that it has not read yet, a 413 above all (RFC 9112, 9.6).
        """
        with gevent.Timeout(LINGER, False):
            try:
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(READ):
                    gevent.sleep(0)  # a client that sends without a pause would have the loop for itself
            except OSError:
                pass

    def handle_request(self, listener_name: Any, req: Any, sock: Any, addr: Any) -> None:
        """Serve the request that gunicorn parsed; then take the connection away from its keep-alive loop."""
        super().handle_request(listener_name, req, sock, addr)
        drained = 0
        with gevent.Timeout(LINGER, False):
            while drained < BODY_MOST:
                try:
                    data = req.body.read(READ)
                except Exception:  # there is no end to find in what the client sends; it has its answer
                    break
                drained += len(data)
                if getattr(req.body, "failed", False):  # the application may have swallowed it
                    break
                if not data:
                    sock.left = req.unreader.buf.getvalue()
                    break
        raise StopIteration
