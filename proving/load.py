"""A client process of the drill: posts numbered events through nginx at a set rate and records each response.

Each event has a key. An event that got no 2xx is sent again until it has one, and one in ten that have one is sent
again, too: at once on another connection, or up to some minutes later.

Standard input takes `cut N` (N more clients close their connection early), `rate N` (another rate) and `stop`. Standard
output gets a JSON line of counts every 0.1 s. At the end the process writes its book, the result of each event, to a
file.
"""

from __future__ import annotations

import heapq
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

# Results of an event that are not the status of a response:
UNANSWERED, CUT, HALF = 0, 1, 2  # no response; closed after the last byte; closed before it
PATIENCE = 20.0  # seconds to wait for a response; longer than nginx waits for the gateway
REST = 0.1  # seconds before a client without a 2xx posts again
FRESH = 50  # a client takes a new connection after that many requests
SPAN = 1_000_000_000  # event n of book p has the number p * SPAN + n
SERIES = 20  # of one run, in which a view has the last event of each
REPEATED = 10  # of so many events one is sent again although it was acknowledged
REPEAT_SECONDS = (0.0, 0.0, 1.0, 30.0, 150.0)  # after the first copy or its acknowledgement; before the end
LOGGED = 8  # of so many events one is a log, if logs are deleted by age


class Book:
    """The result of each event of one process, by n. Times are time.time(); 0 if no response came."""

    def __init__(self) -> None:
        self.status = array("H")
        self.sent = array("d")
        self.answered = array("d")  # the last response
        self.copies = array("H")  # requests of the event
        # times in which one client posted and got no 2xx: from a request on, until a 2xx (monotonic)
        self.down = array("d")
        self.up = array("d")

    def post(self, now: float) -> int:
        """Add an event. Returns: its n."""
        self.status.append(UNANSWERED)
        self.sent.append(now)
        self.answered.append(0.0)
        self.copies.append(1)
        return len(self.status) - 1

    def save(self, path: Path) -> None:
        """Write the book to a file."""
        with open(path, "wb") as file:
            file.write(struct.pack("<QQ", len(self.status), len(self.down)))
            for column in self.status, self.sent, self.answered, self.copies, self.down, self.up:
                column.tofile(file)

    @classmethod
    def load(cls, path: Path) -> Book:
        """Read a book from a file."""
        book = cls()
        with open(path, "rb") as file:
            events, outages = struct.unpack("<QQ", file.read(16))
            for column in book.status, book.sent, book.answered, book.copies:
                column.fromfile(file, events)
            for column in book.down, book.up:
                column.fromfile(file, outages)
        return book


def request(run: str, number: int, more: bytes, logs: bool = False) -> bytes:
    """The POST of an event: a metric `drill` whose field is the name of the run; with `logs`, some are logs of it.

    more: header lines.
    """
    path, name = b"/metrics", run.encode()
    body = b'{"name":"drill","field":"%b","tags":{"series":"%d"},"value":%d}' % (name, number % SERIES, number)
    if logs and is_log(number):
        path, body = b"/logs", b'{"service":"%b","message":"%d"}' % (name, number)
    more += b'Idempotency-Key: "%b-%d"\r\n' % (name, number)
    return b"POST %b HTTP/1.1\r\nHost: localhost\r\n%bContent-Length: %d\r\n\r\n%b" % (path, more, len(body), body)


def is_log(number: int) -> bool:
    """Whether the event of a process that only posts is a log."""
    return number % LOGGED == 0


def unverified() -> ssl.SSLContext:
    """TLS without verification: the certificate names the host, and the drill connects to 127.0.0.1."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class Client:
    """A client with at most one open request."""

    __slots__ = ("again", "buffer", "n", "posts", "ready", "since", "sock")

    def __init__(self) -> None:
        self.sock: socket.socket | None = None
        self.n = -1  # the event of the open request; -1: none
        self.again = -1  # an event without a 2xx, which it sends again; -1: none
        self.buffer = b""
        self.posts = 0
        self.ready = 0.0
        self.since = 0.0  # when it posted for the first time after its last 2xx; 0: it has not


class Crowd:
    """All clients of this process."""

    def __init__(
        self,
        port: int,
        number: int,
        clients: int,
        run: str,
        tls: bool = False,
        header: str = "",
        patience: float = PATIENCE,
        logs: bool = False,
        repeated: bool = True,
    ) -> None:
        """tls: the port speaks TLS. header: a header line for each request, such as an API key, or "".

        patience: seconds that a client waits for a response. logs: see `request`. repeated: acknowledged events too are
        sent again.
        """
        self.port, self.base, self.run, self.logs = port, number * SPAN, run, logs
        self.tls = unverified() if tls else None
        self.header = f"{header}\r\n".encode("latin-1") if header else b""
        self.book = Book()
        self.poller = select.epoll()
        self.by_fd: dict[int, Client] = {}
        self.idle = deque(Client() for _ in range(clients))
        self.resting: deque[Client] = deque()
        self.patience = patience
        self.acknowledged = self.rejected = self.unanswered = self.refused = self.cuts = 0
        self.random = random.Random(number)
        self.share = 1 / REPEATED if repeated else 0.0
        self.repeats: list[tuple[float, int]] = []  # a heap: when, and which event to send again

    def connect(self) -> socket.socket | None:
        """A new connection; None if it fails."""
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

    def post(self, client: Client, now: float, n: int = -1) -> bool:
        """Send the next event, or event `n` again. Returns: False if the connection failed and nothing was sent."""
        client.since = client.since or now
        if client.sock is None:
            client.sock = self.connect()
            if client.sock is None:
                self.refused += 1
                client.again = n
                self.rest(client, now)
                return False
            self.by_fd[client.sock.fileno()] = client
            self.poller.register(client.sock.fileno(), select.EPOLLIN)
        client.posts += 1
        client.again = -1
        if n < 0:
            n = self.book.post(time.time())
            if self.random.random() < self.share:
                heapq.heappush(self.repeats, (now + self.random.choice(REPEAT_SECONDS), n))
        else:
            self.book.copies[n] += 1
        client.n = n
        client.buffer = b""
        client.ready = now + self.patience
        try:
            more = self.header + (b"Connection: close\r\n" if client.posts % FRESH == 0 else b"")
            client.sock.send(request(self.run, self.base + client.n, more, self.logs))
        except OSError:
            self.lose(client, now)
        return True

    def read(self, client: Client, now: float) -> None:
        """Read what has arrived; record a complete response."""
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
        status, n = int(head[9:12]), client.n
        if status < 300 or not 200 <= self.book.status[n] < 300:
            self.book.status[n] = status
            self.book.answered[n] = time.time()
        client.n = -1
        if b"\r\nconnection: close" in fields:
            self.disconnect(client)
        if status < 300:
            self.acknowledged += 1
            self.served(client, now)
            self.idle.append(client)
        else:
            self.rejected += 1
            client.again = n
            self.rest(client, now)

    def served(self, client: Client, now: float) -> None:
        """A client got a 2xx: note how long it had none, if that is worth noting."""
        if now - client.since > REST:
            self.book.down.append(client.since)
            self.book.up.append(now)
        client.since = 0.0

    def lose(self, client: Client, now: float) -> None:
        """The connection has ended; the result of an open request is unknown."""
        if client.n < 0:  # an idle connection; the client is in a queue already
            self.disconnect(client)
            return
        self.unanswered += 1
        client.again, client.n = client.n, -1
        self.disconnect(client)
        self.rest(client, now)

    def disconnect(self, client: Client) -> None:
        if client.sock is not None:
            del self.by_fd[client.sock.fileno()]
            self.poller.unregister(client.sock.fileno())
            client.sock.close()
            client.sock = None

    def rest(self, client: Client, now: float) -> None:
        client.ready = now + REST
        self.resting.append(client)

    def cut(self) -> None:
        """An additional client closes its connection before or just after the last byte, by FIN or by RST."""
        sock = self.connect()
        if sock is None:
            return
        n = self.book.post(time.time())
        data = request(self.run, self.base + n, self.header, self.logs)
        kind = self.random.choice((CUT, CUT, HALF))
        self.book.status[n] = kind
        self.cuts += 1
        try:
            if self.random.random() < 0.5:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST
            sock.send(data if kind == CUT else data[: self.random.randrange(1, len(data))])
        except OSError:
            pass
        sock.close()

    def counts(self) -> str:
        return json.dumps(
            {
                "sent": len(self.book.status),
                "acknowledged": self.acknowledged,
                "rejected": self.rejected,
                "unanswered": self.unanswered,
                "refused": self.refused,
                "cut": self.cuts,
            }
        )

    def run_until_stopped(self, rate: float) -> None:
        """Post until `stop` arrives; then post what was due until then, and wait for the responses."""
        os.set_blocking(0, False)
        self.poller.register(0, select.EPOLLIN)
        posted, behind, reported = 0, False, 0.0
        now = begun = time.monotonic()
        end = math.inf  # when `stop` arrived
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
                    if words[:1] == ["rate"]:
                        rate, begun, posted = float(words[1]), now, 0
                    for count in words[1::2] if words[:1] == ["cut"] else []:
                        for _ in range(int(count)):
                            self.cut()
                    if not words:
                        self.poller.unregister(0)
            while self.resting and self.resting[0].ready <= now:
                self.idle.appendleft(self.resting.popleft())  # a client that retries goes first
            # what was due during an outage is posted afterwards, as fast as clients become free
            due = (min(now, end) - begun) * rate
            while self.idle and self.idle[0].again >= 0 and now < end + PATIENCE:
                client = self.idle.popleft()
                self.post(client, now, client.again)
            while self.idle and self.repeats and self.repeats[0][0] <= now < end:
                self.post(self.idle.popleft(), now, heapq.heappop(self.repeats)[1])
            while posted < due and self.idle and self.idle[0].again < 0 and now < end + PATIENCE:
                posted += self.post(self.idle.popleft(), now)
            behind = (posted < due or any(client.again >= 0 for client in self.resting)) and now < end + PATIENCE
            for client in [client for client in self.by_fd.values() if client.n >= 0 and client.ready <= now]:
                self.lose(client, now)
            if now - reported > 0.1:
                reported = now
                print(self.counts(), flush=True)
        print(self.counts(), flush=True)


def main(
    port: str,
    number: str,
    clients: str,
    rate: str,
    run: str,
    path: str,
    tls: str = "",
    patience: str = str(PATIENCE),
    logs: str = "",
    repeated: str = "repeated",
) -> None:
    """Post as process `number`; write the book to `path`. The header is in the environment: it may hold a key."""
    header = os.environ.get("SLUICE_DRILL_HEADER", "")
    crowd = Crowd(
        int(port), int(number), int(clients), run, bool(tls), header, float(patience), bool(logs), bool(repeated)
    )
    crowd.run_until_stopped(float(rate))
    crowd.book.save(Path(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
