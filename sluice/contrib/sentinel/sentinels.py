"""The master that Redis Sentinels name."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
import time
import weakref
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from redis.exceptions import ConnectionError

from sluice.base.connect import connection, exchange
from sluice.contrib.sentinel.connections import CONNECT_SECONDS, parse_login

ASK_SECONDS = 0.2  # between two questions to a Sentinel: a failover takes about two seconds longer than this


def connect_master(address: str, timeout: float) -> tuple[Any, dict[str, Any]]:
    """The class of the connections to the master that the Sentinels of an address name, and their arguments."""
    kind, arguments = parse_login(address, timeout)
    return following(kind, address), arguments


@functools.cache
def following(kind: type[Any], address: str) -> type[Any]:
    """kind: of the connections to a host."""
    return type(f"Following{kind.__name__}", (Following, kind), {"address": address})


@functools.cache
def sentinels(address: str, process: int) -> Sentinels:
    """Those of an address, once per process: a thread does not survive a fork, and gunicorn's --preload makes the
    connection before it.
    """
    return Sentinels(address)


class SentinelAnswer(NamedTuple):
    """What one Sentinel says; the greatest answer counts, so one of a Sentinel that is cut off changes nothing.

    epoch: of the last failover. replicas: how many it might promote: they run, and replicate the master.
    """

    epoch: int
    master: tuple[str, int]
    replicas: int


class Sentinels:
    """Knows which Redis is the master: asks each Sentinel, in a thread of its own, several times a second.

    When the master changes, connections to the previous one are closed: it may accept writes that will be lost.
    """

    def __init__(self, address: str) -> None:
        url = urlsplit(address)
        login, at, hosts = url.netloc.rpartition("@")
        self.name = url.path[1:]
        self.best: SentinelAnswer | None = None  # None: no Sentinel answers
        self.replicas = 0  # of the last answer
        self.answers: dict[int, SentinelAnswer | None] = {}
        self.reason = "none has answered yet"
        self.links: weakref.WeakSet[Following] = weakref.WeakSet()
        self.changed = threading.Condition()
        self.count = hosts.count(",") + 1
        for number, host in enumerate(hosts.split(",")):
            alone = url._replace(scheme=url.scheme.partition("+")[0], netloc=login + at + host, path="").geturl()
            link = connection(alone, CONNECT_SECONDS, protocol=2)
            threading.Thread(target=self.ask, args=(number, link), name=f"sentinel-{number}", daemon=True).start()

    def master(self) -> tuple[str, int]:
        """Host and port of the master. Raises: ConnectionError if no Sentinel names it; the first time it waits."""
        with self.changed:
            self.changed.wait_for(lambda: self.best or len(self.answers) == self.count, CONNECT_SECONDS)
            if not self.best:
                raise ConnectionError(f"no Sentinel names the master of {self.name}: {self.reason}")
            return self.best.master

    def ask(self, number: int, link: Any) -> None:
        # the address that MASTER has is that of the old master until the replicas follow the new one
        verbs = "MASTER", "GET-MASTER-ADDR-BY-NAME", "REPLICAS"
        questions = [("SENTINEL", verb, self.name) for verb in verbs]
        while True:
            answer = None
            try:
                state, (host, port), replicas = exchange(link, questions)
                candidates = sum(map(is_candidate, map(reply_fields, replicas)))
                answer = SentinelAnswer(
                    int(reply_fields(state)[b"config-epoch"]), (host.decode(), int(port)), candidates
                )
            except Exception as error:  # whatever a Sentinel says, it is asked again
                self.reason = str(error) or type(error).__name__
            self.learn(number, answer)
            time.sleep(ASK_SECONDS)

    def learn(self, number: int, answer: SentinelAnswer | None) -> None:
        """Keep an answer, and close the connections to any Redis but the master."""
        with self.changed:
            self.answers[number] = answer
            self.best = max(filter(None, self.answers.values()), default=None)
            self.changed.notify_all()
            if self.best:
                for link in list(self.links):
                    link.leave_unless(self.best.master)
                self.replicas = self.best.replicas  # only now: the previous master might have fewer


class Following:
    """A connection to the master, which is left when another Redis becomes it. address: of the Sentinels."""

    address: str
    link: socket.socket | None = None

    @property
    def watch(self) -> Sentinels:
        return sentinels(self.address, os.getpid())

    @property
    def candidates(self) -> int:
        return self.watch.replicas

    def _connect(self) -> socket.socket:
        watch = self.watch
        self.host, self.port = watch.master()
        self.link = super()._connect()  # type: ignore[misc]
        with watch.changed:
            watch.links.add(self)
        assert self.link
        return self.link

    def leave_unless(self, master: tuple[str, int]) -> None:
        """End a connection to another Redis, from another thread: a reply that is waited for never comes."""
        if (self.host, self.port) != master and self.link:
            with contextlib.suppress(OSError):
                # not SSLSocket.shutdown: after it, what another thread sends is not encrypted
                socket.socket.shutdown(self.link, socket.SHUT_RDWR)


def reply_fields(reply: list[bytes]) -> dict[bytes, bytes]:
    """The fields of a reply of RESP 2."""
    return dict(zip(reply[::2], reply[1::2]))


def is_candidate(replica: dict[bytes, bytes]) -> bool:
    """Whether Sentinel might promote a replica. An old master that has not been told yet is none."""
    return (
        not {b"s_down", b"o_down", b"disconnected"} & set(replica[b"flags"].split(b","))
        and replica[b"role-reported"] == b"slave"
        and replica[b"master-link-status"] == b"ok"
        and replica[b"slave-priority"] != b"0"
    )
