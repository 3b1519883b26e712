"""A receiver of what Sluice posts on: a small HTTP server that takes it, or behaves badly.

Tests run it in a thread, with a rule. The drill runs it as a process, which does what the file `mode` says, and writes
each request to the file `posts`, before it answers: a kill loses no line of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from sluice.run.configure import ROOT

HANG_SECONDS = 60.0


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


# what a receiver of the drill may do
MODES = {
    "take": Reply(),
    "500": Reply(500),
    "429": Reply(429, (("Retry-After", "1"),)),
    "410": Reply(410),
    "lie": Reply(cut=True),
    "hang": Reply(503, hang=HANG_SECONDS),
}
Rule = Callable[[Post, int], Reply]


def take(post: Post, number: int) -> Reply:
    return Reply()


class Receiver:
    """rule: of the post and of how many came before it. taken: the posts that it has answered with 2xx, or cut."""

    def __init__(self, rule: Rule = take, port: int = 0) -> None:
        self.rule = rule
        self.posts: list[Post] = []
        self.taken: list[Post] = []
        self.lock = threading.Lock()
        self.released = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

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
        self.port: int = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)

    def start(self) -> None:
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
def receiving(rule: Rule = take, port: int = 0) -> Iterator[Receiver]:
    receiver = Receiver(rule, port)
    receiver.start()
    try:
        yield receiver
    finally:
        receiver.stop()


class Journal(NamedTuple):
    """A line of `posts`. mode: what the receiver did with it. row: the JSON that was posted."""

    mode: str
    key: str
    row: dict[str, Any]


class Program:
    """A receiver as a process. folder: of its files."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(exist_ok=True)
        self.become("take")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/in"

    def become(self, mode: str) -> None:
        new = self.folder / "mode.new"
        new.write_text(mode)
        new.replace(self.folder / "mode")

    def start(self) -> None:
        command = [sys.executable, "-m", "proving.receiver", str(self.folder), str(self.port)]
        self.process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)

    def kill(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()

    def journal(self) -> Iterator[Journal]:
        with contextlib.suppress(FileNotFoundError), open(self.folder / "posts") as file:
            for line in file:
                yield Journal(*json.loads(line))


def main(folder: Path, port: int) -> None:
    """The process: see `Program`."""
    out = os.open(folder / "posts", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def rule(post: Post, number: int) -> Reply:
        mode = (folder / "mode").read_text()
        os.write(out, json.dumps([mode, post.key, json.loads(post.body)]).encode() + b"\n")
        return MODES[mode]

    Receiver(rule, port).server.serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
