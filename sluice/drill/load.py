"""One of the drill's client processes: posts numbered events through nginx at a set rate and notes every answer.

Standard input takes `cut N` (that many clients cut off in the middle) and `stop`; standard output gets one JSON line of
counts every tenth of a second. At the end the book is written to a file: what became of each event, by its number.
"""

from __future__ import annotations

import json
import math
import os
import random
import select
import socket
import ssl
import struct
import sys
import time
from array import array
from collections import deque
from pathlib import Path

# what became of an event, where it is not the status of its answer
UNANSWERED, CUT, HALF = 0, 1, 2  # no answer came; hung up after the last byte; hung up before the last byte
PATIENCE = 20.0  # seconds for an answer; more than nginx's for the gateway
REST = 0.1  # seconds before a client that was refused or hung up on tries again
FRESH = 50  # every so many posts a client comes with a connection of its own
SPAN = 1_000_000_000  # event n of process p has the number p * SPAN + n


class Book:
    """What one client process knows of each event it posted, by n: times are time.time(), 0 where no answer came."""

    def __init__(self) -> None:
        self.status = array("H")
        self.sent = array("d")
        self.answered = array("d")

    def post(self, now: float) -> int:
        """Enter another event; its n."""
        self.status.append(UNANSWERED)
        self.sent.append(now)
        self.answered.append(0.0)
        return len(self.status) - 1

    def save(self, path: Path) -> None:
        """Write it to a file."""
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(self.status)))
            for column in self.status, self.sent, self.answered:
                column.tofile(file)

    @classmethod
    def load(cls, path: Path) -> Book:
        """Read it from a file."""
        book = cls()
        with open(path, "rb") as file:
            (count,) = struct.unpack("<Q", file.read(8))
            for column in book.status, book.sent, book.answered:
                column.fromfile(file, count)
        return book


def request(run: str, number: int, more: bytes) -> bytes:
    """The POST of an event: a metric called drill, whose field is the drill's own name. more: header lines."""
    body = b'{"name":"drill","field":"%b","value":%d}' % (run.encode(), number)
    return b"POST /metrics HTTP/1.1\r\nHost: localhost\r\n%bContent-Length: %d\r\n\r\n%b" % (more, len(body), body)


def untrusting() -> ssl.SSLContext:
    """TLS to this machine, whose certificate is made out to another name."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class Client:
    """One client: at most one request under way."""

    __slots__ = ("buffer", "n", "posts", "ready", "sock")

    def __init__(self) -> None:
        self.sock: socket.socket | None = None
        self.n = -1  # the event under way
        self.buffer = b""
        self.posts = 0
        self.ready = 0.0


class Crowd:
    """All clients of this process."""

    def __init__(self, port: int, number: int, clients: int, run: str, tls: bool = False, header: str = "") -> None:
        """tls: the port speaks it. header: a line to send with each request, such as a key, or none."""
        self.port, self.base, self.run = port, number * SPAN, run
        self.tls = untrusting() if tls else None
        self.header = f"{header}\r\n".encode("latin-1") if header else b""
        self.book = Book()
        self.poller = select.epoll()
        self.by_fd: dict[int, Client] = {}
        self.idle = deque(Client() for _ in range(clients))
        self.resting: deque[Client] = deque()
        self.acknowledged = self.refused = self.unanswered = self.cuts = 0
        self.random = random.Random(number)

    def connect(self) -> socket.socket | None:
        """A new connection, or None if nobody takes it."""
        sock = socket.socket()
        sock.settimeout(1.0)
        try:
            sock.connect(("127.0.0.1", self.port))
            if self.tls:
                sock = self.tls.wrap_socket(sock)
        except OSError:
            sock.close()
            return None
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        return sock

    def post(self, client: Client, now: float) -> bool:
        """Send the next event; False if nobody listens, and nothing was sent."""
        if client.sock is None:
            client.sock = self.connect()
            if client.sock is None:
                self.rest(client, now)
                return False
            self.by_fd[client.sock.fileno()] = client
            self.poller.register(client.sock.fileno(), select.EPOLLIN)
        client.posts += 1
        client.n = self.book.post(time.time())
        client.buffer = b""
        client.ready = now + PATIENCE
        try:
            more = self.header + (b"Connection: close\r\n" if client.posts % FRESH == 0 else b"")
            client.sock.send(request(self.run, self.base + client.n, more))
        except OSError:
            self.lose(client, now)
        return True

    def read(self, client: Client, now: float) -> None:
        """Read what came; note the answer once it is whole."""
        assert client.sock
        try:
            data = client.sock.recv(65536)
            while isinstance(client.sock, ssl.SSLSocket) and client.sock.pending():
                data += client.sock.recv(65536)
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except OSError:
            data = b""
        client.buffer += data
        head, end, body = client.buffer.partition(b"\r\n\r\n")
        if not data or client.n < 0:
            self.lose(client, now)
            return
        if not end:
            return
        fields = head.lower()
        at = fields.find(b"\r\ncontent-length:")
        if at >= 0 and len(body) < int(fields[at + 17 :].split(b"\r\n", 1)[0]):
            return
        status = int(head[9:12])
        self.book.status[client.n] = status
        self.book.answered[client.n] = time.time()
        client.n = -1
        if b"\r\nconnection: close" in fields:
            self.hang_up(client)
        if status < 300:
            self.acknowledged += 1
            self.idle.append(client)
        else:
            self.refused += 1
            self.rest(client, now)

    def lose(self, client: Client, now: float) -> None:
        """The connection ended; if a request was under way, nobody knows what became of it."""
        if client.n < 0:  # an idle connection: its client is in a queue already
            self.hang_up(client)
            return
        self.unanswered += 1
        client.n = -1
        self.hang_up(client)
        self.rest(client, now)

    def hang_up(self, client: Client) -> None:
        if client.sock is not None:
            del self.by_fd[client.sock.fileno()]
            self.poller.unregister(client.sock.fileno())
            client.sock.close()
            client.sock = None

    def rest(self, client: Client, now: float) -> None:
        client.ready = now + REST
        self.resting.append(client)

    def cut(self) -> None:
        """One more client, who hangs up before or right behind the last byte, politely or not."""
        sock = self.connect()
        if sock is None:
            return
        n = self.book.post(time.time())
        data = request(self.run, self.base + n, self.header)
        kind = self.random.choice((CUT, CUT, HALF))
        self.book.status[n] = kind
        self.cuts += 1
        try:
            if self.random.random() < 0.5:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            sock.send(data if kind == CUT else data[: self.random.randrange(1, len(data))])
        except OSError:
            pass
        sock.close()

    def counts(self) -> str:
        return json.dumps(
            {
                "sent": len(self.book.status),
                "acknowledged": self.acknowledged,
                "refused": self.refused,
                "unanswered": self.unanswered,
                "cut": self.cuts,
            }
        )

    def run_until_stopped(self, rate: float) -> None:
        """Post until told to stop; then post what was due by then, and wait for the answers."""
        os.set_blocking(0, False)
        self.poller.register(0, select.EPOLLIN)
        posted, behind, said = 0, False, 0.0
        now = begun = time.monotonic()
        end = math.inf  # when it was told to stop
        while now < end or behind or any(client.n >= 0 for client in self.by_fd.values()):
            events = self.poller.poll(0.004)
            now = time.monotonic()
            for fd, _ in events:
                client = self.by_fd.get(fd)
                if client is not None:
                    self.read(client, now)
                elif fd == 0:
                    words = os.read(0, 4096).decode().split()
                    if not words or "stop" in words:
                        end = min(end, now)
                    for count in words[1::2] if words[:1] == ["cut"] else []:
                        for _ in range(int(count)):
                            self.cut()
                    if not words:
                        self.poller.unregister(0)
            while self.resting and self.resting[0].ready <= now:
                self.idle.append(self.resting.popleft())
            # an outage is no excuse: what was due meanwhile is posted as soon as clients are free, all at once
            due = (min(now, end) - begun) * rate
            while posted < due and self.idle and now < end + PATIENCE:
                posted += self.post(self.idle.popleft(), now)
            behind = posted < due and now < end + PATIENCE
            if now - said > 0.1:
                said = now
                for client in [client for client in self.by_fd.values() if client.n >= 0 and client.ready <= now]:
                    self.lose(client, now)
                print(self.counts(), flush=True)
        print(self.counts(), flush=True)


def main(port: str, number: str, clients: str, rate: str, run: str, path: str, tls: str = "") -> None:
    """Post as process `number`; the book goes to `path`. The environment has what others must not see: a key."""
    crowd = Crowd(int(port), int(number), int(clients), run, bool(tls), os.environ.get("SLUICE_DRILL_HEADER", ""))
    crowd.run_until_stopped(float(rate))
    crowd.book.save(Path(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
