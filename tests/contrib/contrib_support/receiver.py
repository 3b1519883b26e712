"""A receiver of what is posted on: a small HTTP server that takes it, or behaves badly."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Post(NamedTuple):
    path: str
    fields: dict[str, str]
    body: bytes
    at: float  # monotonic

    @property
    def key(self) -> str:
        return self.fields["idempotency-key"]


class Reply(NamedTuple):
    """What the receiver does with a request. cut: it closes the connection in place of an answer. hang: seconds."""

    status: int = 200
    fields: tuple[tuple[str, str], ...] = ()
    cut: bool = False
    hang: float = 0.0


class Receiver:
    """rule: of the post and of how many came before it. taken: the posts that it has answered with 2xx, or cut."""

    def __init__(self, rule: Callable[[Post, int], Reply] = lambda post, number: Reply(), port: int = 0) -> None:
        self.rule = rule
        self.posts: list[Post] = []
        self.taken: list[Post] = []
        self.lock = threading.Lock()
        self.released = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                fields = {name.lower(): value for name, value in self.headers.items()}
                post = Post(self.path, fields, body, time.monotonic())
                with receiver.lock:
                    number = len(receiver.posts)
                    receiver.posts.append(post)
                reply = receiver.rule(post, number)
                if reply.hang:
                    receiver.released.wait(reply.hang)
                if reply.cut or 200 <= reply.status < 300:
                    with receiver.lock:
                        receiver.taken.append(post)
                if reply.cut:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                    return
                self.send_response(reply.status)
                for name, value in (*reply.fields, ("Content-Length", "0")):
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, format: str, *values: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 128

            def handle_error(self, request: Any, address: Any) -> None:
                pass

        self.server = Server(("127.0.0.1", port), Handler)
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/in"

    @property
    def keys(self) -> list[str]:
        return [post.key for post in self.taken]

    def stop(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@contextmanager
def receiving(rule: Callable[[Post, int], Reply] = lambda post, number: Reply(), port: int = 0) -> Iterator[Receiver]:
    receiver = Receiver(rule, port)
    try:
        yield receiver
    finally:
        receiver.stop()
