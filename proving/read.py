"""A client process of the drill that reads: its clients post positions and votes, and read them back from the views.

Standard input takes `stop`; and `rest`, after which the clients do nothing until `wake`, and then expect nothing of
what they saw before. Standard output gets a JSON line of counts every 0.1 s, with the time. At the end the process
writes the books of its clients and the result of the reads (`Reads`) to files.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import random
import select
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from proving.answers import Positions, Series, Votes, Wrong, require
from proving.load import FRESH, PATIENCE, REST, SPAN, UNANSWERED, Book, unverified

LATEST, TRAIL, BATTERIES = "/gps/latest", "/gps/trail", "/drill/batteries"
TALLIES = "/votes/tally", "/drill/tally"
METRICS = "/metrics/latest"
PATHS = (LATEST, TRAIL, BATTERIES, *TALLIES, METRICS)  # the views that the clients know how to judge
CAP, TRAIL_CAP = 10, 100  # items of a key; proving/views.py checks that they are those of the views
CHOICES = ("oreo", "fig")
BATTERY = 20  # values of the field by which /drill/batteries is unique
POLL = 0.01  # seconds between two reads of a value that is not there yet
PAUSE = 0.4  # seconds, at most, between two turns of a client


def device(run: str, client: int) -> str:
    """The device of a client; its poll has the same name."""
    return f"{run}.{client}"


@dataclass
class Reads:
    """What was answered. Times are time.monotonic(), which all processes share.

    odd: answers other than 200, and than the 404 before a key's first 200: sent, answered, path, status (0: none).
    wrong: when, path, kind, details. fresh: when a 2xx arrived, and the seconds until the value was read.
    unread: acknowledged values that could not be read until the end.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    odd: list[tuple[float, float, str, int]] = field(default_factory=list)
    wrong: list[tuple[float, str, str, str]] = field(default_factory=list)
    fresh: list[tuple[float, float]] = field(default_factory=list)
    unread: int = 0

    def add(self, other: Reads) -> None:
        """Add the reads of another client."""
        self.statuses.update(other.statuses)
        self.odd += other.odd
        self.wrong += other.wrong
        self.fresh += other.fresh
        self.unread += other.unread

    def save(self, path: Path) -> None:
        """Write it to a file."""
        path.write_text(json.dumps(vars(self)))

    @classmethod
    def load(cls, path: Path) -> Reads:
        """Read it from a file."""
        found = cls(**json.loads(path.read_text()))
        found.statuses = Counter(found.statuses)
        return found


class Door:
    """A connection to the port."""

    def __init__(self, port: int, tls: bool, header: str) -> None:
        name, _, value = header.partition(":")
        self.port, self.tls = port, unverified() if tls else None
        self.headers = {name: value.strip()} if name else {}
        self.connection: http.client.HTTPConnection | None = None
        self.count = 0

    def ask(self, method: str, target: str, body: bytes | None = None) -> tuple[int, Any, bytes]:
        """Send a request. Returns: status, headers, body; UNANSWERED if there is no response."""
        idle = self.connection and self.connection.sock
        if idle and select.select([idle], [], [], 0)[0]:  # the server has closed it
            self.close()
        if self.connection is None:
            self.connection = (
                http.client.HTTPSConnection("127.0.0.1", self.port, timeout=PATIENCE, context=self.tls)
                if self.tls
                else http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
            )
        self.count += 1
        try:
            self.connection.request(method, target, body, self.headers)
            response = self.connection.getresponse()
            answer = response.status, response.headers, response.read()
        except (OSError, http.client.HTTPException):
            self.close()
            return UNANSWERED, {}, b""
        if self.count % FRESH == 0:
            self.close()
        return answer

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class Orders:
    """What standard input asks for."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.rest = threading.Event()

    def listen(self) -> None:
        """Obey until `stop`, or until the end of standard input."""
        for line in sys.stdin:
            if line == "stop\n":
                return
            self.rest.set() if line == "rest\n" else self.rest.clear()


class Client:
    """One client with a device and a poll of its own."""

    def __init__(self, client: int, first: int, run: str, paths: set[str], door: Door, orders: Orders) -> None:
        """first: the number of the first client's first book; each client has two."""
        self.client, self.run, self.paths, self.door, self.orders = client, run, paths, door, orders
        self.stopping = orders.stopping
        self.device = device(run, client)
        self.numbers = first + 2 * client, first + 2 * client + 1  # of the books
        self.books = Book(), Book()  # of positions, of votes
        self.reads = Reads()
        self.random = random.Random(client)
        self.end = math.inf  # when a value that cannot be read yet is given up
        self.resting = False
        self.forget()

    def forget(self) -> None:
        """Forget what was answered."""
        self.positions = Positions(self.device, self.numbers[0], self.books[0])
        self.votes = Votes(self.device, CHOICES, self.books[1])
        self.series = Series(self.run)
        self.found: set[str] = set()  # paths that have had an answer for this client's key

    def live(self) -> None:
        """Post and read until `stopping`."""
        while not self.stopping.is_set():
            if self.orders.rest.is_set():
                self.forget()
                self.resting = True
                self.stopping.wait(REST)
                continue
            self.resting = False
            n = self.post_position()
            if n is None:
                self.stopping.wait(REST)
                continue
            self.read_back(n, time.monotonic())
            self.vote()
            for read in self.random.sample((self.trail, self.batteries, self.several, self.metrics, self.tallies), 3):
                read()
            self.stopping.wait(self.random.uniform(0, PAUSE))
        self.door.close()

    def post_position(self) -> int | None:
        """Post a position. Returns: its n if it was acknowledged."""

        def event(n: int) -> dict[str, Any]:
            found = {"device": self.device, "lat": n % 90, "lon": -(n % 180), "battery": n % BATTERY}
            if self.client % 2:  # the others have the time of their arrival
                found["time"] = datetime.now(timezone.utc).isoformat()
            return found | {"altitude": SPAN * self.numbers[0] + n}

        return self.post("/gps", self.books[0], event)

    def vote(self) -> None:
        """Post a vote."""

        def event(n: int) -> dict[str, Any]:
            return {"poll": self.device, "choice": CHOICES[n % len(CHOICES)], "voter": str(SPAN * self.numbers[1] + n)}

        self.post("/votes", self.books[1], event)

    def post(self, path: str, book: Book, event: Callable[[int], dict[str, Any]]) -> int | None:
        """Post the next event of a book. Returns: its n if it was acknowledged."""
        n = book.post(time.time())
        status = self.door.ask("POST", path, json.dumps(event(n)).encode())[0]
        book.status[n], book.answered[n] = status, time.time() if status else 0.0
        return n if 200 <= status < 300 else None

    def read_back(self, n: int, acknowledged: float) -> None:
        """Read an acknowledged position until it is there."""
        path, read = self.random.choice(((LATEST, self.latest), (TRAIL, self.trail)))
        while path in self.paths:
            if read() >= n:
                self.reads.fresh.append((acknowledged, time.monotonic() - acknowledged))
                return
            if self.orders.rest.is_set():
                return
            if time.monotonic() > self.end:
                self.reads.unread += 1
                return
            time.sleep(POLL)

    def latest(self) -> int:
        """Read the device's last position. Returns: its n; -1 if there is none."""
        found = self.read(LATEST, partial(self.positions.latest, LATEST), device=self.device)
        return -1 if found is None else found

    def trail(self) -> int:
        """Read the device's trail. Returns: the greatest n; -1 if there is none."""
        limit = self.random.choice((5, TRAIL_CAP, TRAIL_CAP))
        found = self.read(
            TRAIL, lambda items: self.positions.feed(TRAIL, items, TRAIL_CAP, limit), device=self.device, limit=limit
        )
        return -1 if found is None else found

    def batteries(self) -> None:
        """Read the last positions with different batteries."""
        self.read(
            BATTERIES,
            lambda items: self.positions.feed(BATTERIES, items, CAP, CAP, "battery"),
            device=self.device,
            limit=CAP,
        )

    def several(self) -> None:
        """Read three devices at once: this one, one that is unknown, and another client's."""
        other = device(self.run, self.client - 1)

        def judge(answer: Any) -> None:
            require(isinstance(answer, list) and len(answer) == 3, "shape", answer)
            mine, unknown, others = answer
            require(unknown is None and (others is None or others["device"] == other), "foreign", answer)
            require(mine is not None or LATEST not in self.found, "lost", answer)
            if mine is not None:
                self.positions.latest(LATEST, mine)

        self.read(LATEST, judge, device=(self.device, f"{self.device}.unknown", other))

    def tallies(self) -> None:
        """Read the poll's tallies."""
        for path in TALLIES:
            self.read(path, partial(self.votes.tally, path), poll=self.device)

    def metrics(self) -> None:
        """Read the last value of each series of the run."""
        self.read(METRICS, self.series.latest, name="drill")

    def read(self, path: str, judge: Callable[[Any], Any], **parameters: Any) -> Any:
        """Read a view. Returns: what the judge makes of the answer; None if there is no answer, or a wrong one."""
        if path not in self.paths:
            return None
        sent = time.monotonic()
        status, headers, body = self.door.ask("GET", f"{path}?{urlencode(parameters, doseq=True)}")
        now = time.monotonic()
        self.reads.statuses[str(status)] += 1
        try:
            require(status != 404 or path not in self.found, "lost", "404")
            if status == 200:
                require(headers["Content-Type"] == "application/json", "status", headers["Content-Type"])
                self.found.add(path)
                return judge(json.loads(body))
            if status != 404:
                self.reads.odd.append((sent, now, path, status))
            if status != UNANSWERED:
                require(headers["Content-Type"] == "application/problem+json", "status", status, "without its JSON")
            if status == 503:
                require(headers.get("Retry-After", "").isdigit(), "status", "503 without Retry-After")
        except Wrong as wrong:
            self.reads.wrong.append((now, f"{path} {parameters}", *wrong.args))
        except (ValueError, TypeError, KeyError) as error:
            self.reads.wrong.append((now, f"{path} {parameters}", "shape", f"{error!r}: {body[:200]!r}"))
        if status != 404:
            time.sleep(REST)
        return None


def crash(failed: threading.ExceptHookArgs) -> None:
    """End the process when a client has failed: the drill must not pass without its reads."""
    threading.__excepthook__(failed)
    os._exit(1)


def main(port: str, clients: str, first: str, run: str, folder: str, paths: str, tls: str = "") -> None:
    """Post and read with that many clients until `stop`; write the results to `folder`. first: see `Client`.

    paths: the views, with commas. The header is in the environment: it may hold a key.
    """
    threading.excepthook = crash
    orders, header = Orders(), os.environ.get("SLUICE_DRILL_HEADER", "")
    known = set(paths.split(","))
    doors = [Door(int(port), bool(tls), header) for _ in range(int(clients))]
    crowd = [Client(number, int(first), run, known, door, orders) for number, door in enumerate(doors)]
    threads = [threading.Thread(target=client.live) for client in crowd]
    listener = threading.Thread(target=orders.listen, daemon=True)
    for thread in listener, *threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if not listener.is_alive() and not orders.stopping.is_set():
            for client in crowd:
                client.end = time.monotonic() + PATIENCE
            orders.stopping.set()
        counts: dict[str, float] = {"at": time.monotonic()}
        counts["read"] = sum(client.reads.statuses["200"] for client in crowd)
        counts["read_back"] = sum(len(client.reads.fresh) for client in crowd)
        counts["resting"] = sum(client.resting for client in crowd)
        counts["wrong"] = sum(len(client.reads.wrong) for client in crowd)
        print(json.dumps(counts), flush=True)
        time.sleep(0.1)
    total = Reads()
    for client in crowd:
        total.add(client.reads)
        for number, book in zip(client.numbers, client.books):
            book.save(Path(folder) / f"book-{number}")
    total.save(Path(folder) / "reads")


if __name__ == "__main__":
    main(*sys.argv[1:])
