"""Clients that post without a pause, for tests that restart programs meanwhile."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Self

from proving.harness import connect, poll, post


class Load(threading.Thread):
    """Posts without a pause through one connection, or a new one each time; counts the 200s, lists the failures."""

    def __init__(self, port: int, fresh: bool) -> None:
        super().__init__(daemon=True)
        self.port, self.fresh = port, fresh
        self.taken, self.ended = 0, threading.Event()
        self.failed: list[str] = []

    def run(self) -> None:
        connection = connect(self.port, 30)
        while not self.ended.is_set():
            try:
                if self.fresh:
                    connection.close()
                    connection = connect(self.port, 30)
                status = post(connection, "/votes", b'{"poll":"p","choice":"a"}')[0]
                self.taken += status == 200
                self.failed += [str(status)] if status != 200 else []
            except (OSError, EOFError) as error:
                self.failed.append(repr(error))
                connection = connect(self.port, 30)
        connection.close()


class Threads:
    """The threads of clients, which run inside `with`, until `stop` is set."""

    stop: threading.Event
    threads: list[threading.Thread]

    def __enter__(self) -> Self:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()


class Clients(Threads):
    """Clients in threads; each body is sent once, whatever its answer.

    patience: seconds that they wait for an answer. acknowledged: bodies with 200. times: when their answers came
    (monotonic).
    """

    def __init__(self, where: Path | int, clients: int = 4, patience: float = 60) -> None:
        self.where, self.patience = where, patience
        self.stop = threading.Event()
        self.acknowledged: list[str] = []
        self.times: list[float] = []
        self.threads = [threading.Thread(target=self.post, args=(n,)) for n in range(clients)]

    def post(self, number: int) -> None:
        count = 0
        connection = connect(self.where, self.patience)
        while not self.stop.wait(0.005):
            count += 1
            name = f"{number}-{count}"
            try:
                status = post(connection, "/votes", b'{"poll":"p","choice":"%b"}' % name.encode())[0]
            except TimeoutError:
                connection.close()
                connection = connect(self.where, self.patience)
                continue
            assert status in (200, 503)
            if status == 200:
                self.acknowledged.append(name)
                self.times.append(time.monotonic())
        connection.close()

    def wait(self) -> None:
        """Wait for some more acknowledgements."""
        before = len(self.times)
        poll(lambda: len(self.times) > before + 10, what="acknowledgements")

    def longest_gap(self, since: float) -> float:
        """The longest time without an acknowledgement, seconds."""
        times = sorted([since, *(at for at in self.times if at > since)])
        return max(after - before for before, after in zip(times, times[1:]))
