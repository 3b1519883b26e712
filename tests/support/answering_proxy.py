"""A proxy that gives some answers itself: how unmodified senders behave after an error or a lost answer."""

from __future__ import annotations

import contextlib
import itertools
import re
import socketserver
import threading
from collections.abc import Callable, Iterator

from proving.harness import poll, request

HOP = "connection", "content-length", "transfer-encoding"


class AnsweringProxy(socketserver.ThreadingTCPServer):
    """A proxy that answers the first requests itself, with one of `replies` each, and forwards all others.

    replies: whole answers; an empty one forwards the request and closes the connection instead of answering.
    cut: of so many further requests, the last one is forwarded and gets no answer; 0: all get one.
    answered: the bodies of the requests that got one of `replies`. accepted: those that got 2xx behind the proxy, in
    their order, as they were sent. lost: how many of these answers the sender did not get.
    """

    daemon_threads = allow_reuse_address = True

    def __init__(self, port: int, replies: list[bytes], cut: int = 0) -> None:
        self.answered: list[bytes] = []
        self.accepted: list[bytes] = []
        self.lost = self.forwarded = 0
        proxy, lock = self, threading.Lock()

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while line := self.rfile.readline():
                    head = line
                    while not head.endswith(b"\r\n\r\n"):
                        head += self.rfile.readline()
                    fields = dict(re.findall(rb"\r\n([\w-]+): *([^\r]*)", head.lower()))
                    if b"content-length" in fields:
                        body = sent = self.rfile.read(int(fields[b"content-length"]))
                    else:
                        sent, body = self.chunks()
                    with lock:
                        reply = replies.pop(0) if replies else None
                        proxy.answered += [body] if reply is not None else []
                        if reply is None:
                            proxy.forwarded += 1
                            reply = b"" if cut and proxy.forwarded % cut == 0 else None
                    if reply:
                        self.wfile.write(reply)
                        continue
                    status, headers, content = request(port, head + sent)
                    if status < 300:
                        with lock:
                            proxy.accepted.append(body)
                            proxy.lost += reply is not None
                    if reply is not None:
                        return
                    passed = "".join(f"{n}: {value}\r\n" for n, value in headers.items() if n not in HOP)
                    lines = f"HTTP/1.1 {status} Any\r\n{passed}Content-Length: {len(content)}\r\n\r\n"
                    self.wfile.write(lines.encode() + content)

            def chunks(self) -> tuple[bytes, bytes]:
                """A chunked body as it is sent, and its content."""
                sent = content = b""
                while True:
                    line = self.rfile.readline()
                    chunk = self.rfile.read(int(line, 16) + 2)
                    sent, content = sent + line + chunk, content + chunk[:-2]
                    if len(chunk) == 2:
                        return sent, content

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def repeated(self, numbers: Callable[[bytes], set[int]] | None = None) -> int:
        """How many of the accepted bodies were sent before. numbers: of a body; it is a copy if none of them is new."""
        if not numbers:
            return len(self.accepted) - len(set(self.accepted))
        seen, copies = set[int](), 0
        for body in self.accepted:
            copies += numbers(body) <= seen
            seen |= numbers(body)
        return copies

    def sent_in_steps(self, stored: Callable[[], list[int]], write: Callable[[range], object], step: int = 10) -> int:
        """Write `step` at a time, each once those before are stored, until three answers are lost; how many in all."""
        for first in itertools.count(0, step):
            write(range(first, first + step))
            poll(lambda: len(stored()) >= first + step, seconds=60, interval=0.05)  # noqa: B023
            if self.lost >= 3:
                return first + step
        raise AssertionError


@contextlib.contextmanager
def closing(server: socketserver.TCPServer) -> Iterator[int]:
    """The port of a server, which ends with the block."""
    with server:
        yield server.server_address[1]
        server.shutdown()


def reply(status: int, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status} Any", *headers, "Content-Length: 0", "", ""]).encode()
