"""A client that posts without a pause, for tests that restart programs meanwhile."""

from __future__ import annotations

import threading

from sluice.drill.harness import connect, post


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
