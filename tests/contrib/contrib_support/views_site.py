"""A private views' Redis, database and follower, and the values of views computed from the rows in the simplest way."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import redis

from proving import harness
from proving.postgres import Postgres
from sluice import settings
from sluice.contrib import views
from sluice.contrib.views import contract
from sluice.contrib.views.check import Checker
from sluice.contrib.views.kinds import feed as feeds
from sluice.contrib.views.kinds.latest import MAX_EACH, ORDER_BYTES
from sluice.settings import SCRATCH_SOCKET
from sluice.spool.claim import Claim
from sluice.store.registry import open_store
from sluice.store.store import Store
from sluice.store.types import Body
from sluice.streams.built_in import load_streams
from support.store_contract import body_with

NOON = 1_767_268_800  # 2026-01-01 12:00 UTC
RECORDS = """
from sluice import Record, stream

class Notice(Record):
    user: str
    kind: str
    object: int
    note: dict | None = None

STREAMS = {"notices": stream("notices", Notice)}
"""
VIEWS = """
from sluice.contrib.views import feed, latest, tally

VIEWS = {
    "/notices/feed": feed("notices", key="user", cap=4, member=("kind", "object")),
    "/notices/all": feed("notices", key="user", cap=3),
    "/notices/object": latest("notices", key="object"),
    "/gps/trail": feed("gps", key="device", cap=5),
    "/votes/tally": tally("votes", key="poll", by="choice", period=1),
}
"""


class Site:
    """An installation without a gateway: rows are stored by stores in this process, the follower is a real one."""

    def __init__(self, tmp: Path, postgres: Postgres | None) -> None:
        self.tmp = tmp
        (tmp / "records.py").write_text(RECORDS)
        (tmp / "views.py").write_text(VIEWS)
        self.env: dict[str, object] = {"INGEST_RECORDS": tmp / "records.py", "INGEST_VIEWS": tmp / "views.py"}
        self.url = f"sqlite:///{tmp}/ingest.db"
        if postgres:
            postgres.ask("DROP SCHEMA public CASCADE")
            postgres.ask("CREATE SCHEMA public")
            self.url = self.env["INGEST_STORE"] = postgres.url
        self.settings = settings.load_settings(harness.environment(tmp, self.env))
        self.streams = load_streams(self.settings)
        self.views = views.load_views(self.settings)
        self.store = self.connect()
        self.seq = 0
        self.claims: list[tuple[Claim, list[Body]]] = []
        self.redis: subprocess.Popen | None = None
        self.follower: subprocess.Popen | None = None
        self.running = contextlib.ExitStack()
        self.memory = 0

    @property
    def socket(self) -> str:
        return str(self.tmp / SCRATCH_SOCKET)

    def connect(self) -> Store[Any]:
        """Another worker's connection to the database."""
        return open_store(self.url, self.streams)

    def start_redis(self) -> None:
        """Start the views' Redis; it is empty."""
        self.redis = self.running.enter_context(harness.views_redis(self.tmp, maxmemory=self.memory)).process

    def start_follower(self) -> None:
        """Start the follower."""
        self.follower = self.running.enter_context(harness.follower(self.tmp, self.env)).process

    @contextlib.contextmanager
    def paused_follower(self) -> Iterator[None]:
        """A block in which the follower does nothing."""
        assert self.follower
        os.kill(self.follower.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.follower.pid, signal.SIGCONT)

    @staticmethod
    def kill(process: subprocess.Popen | None) -> None:
        """SIGKILL a process and wait for its end."""
        assert process
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def client(self) -> Any:
        """A connection to the views' Redis."""
        return redis.Redis(unix_socket_path=self.socket, socket_timeout=60)

    def claim(self, stream: str, records: Iterable[Any], items: Iterable[bytes] = ()) -> tuple[Claim, list[Body]]:
        """A claim of a body for each record; of items, it has what the decoder makes of them."""
        received = NOON * 10**6 + self.seq
        first = self.seq + 1
        bodies: list[Body] = []
        for record in records:
            self.seq += 1
            bodies.append(body_with(self.seq, received, b"%d" % self.seq, record))
        for item in items:
            self.seq += 1
            decoded = self.streams[stream].decode(item, settings_limits())
            bodies.append(Body.from_decoded(self.seq, received, item, decoded))
        return Claim(stream, f"run:{first}:{stream}", first, self.seq + 1 - first, 0, [(first, received)]), bodies

    def put(self, stream: str, records: Iterable[Any], items: Iterable[bytes] = ()) -> None:
        """Store records as a worker does."""
        claim, bodies = self.claim(stream, records, items)
        self.claims.append((claim, bodies))
        self.store.persist(claim, bodies)

    def rows(self, stream: str) -> list[dict[str, Any]]:
        """All rows of a stream, as they are in the database."""
        with self.store.transaction() as db:
            if not self.url.startswith("sqlite"):
                time = "to_char(time AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US') AS time"
                more = ", value::text AS number" if stream == "metrics" else ""
                cursor = db.execute(f'SELECT *, {time}{more} FROM "{stream}"')
                names = [column.name for column in cursor.description]
            else:
                cursor = db.execute(f'SELECT * FROM "{stream}"')
                try:
                    names = [column[0] for column in cursor.description]
                except Exception:  # apsw has no description of an empty answer
                    return []
            return [dict(zip(names, row)) for row in cursor.fetchall()]

    def expected(self, path: str) -> dict[str, Any]:
        """What a view is, by its definition."""
        view = self.views[path]
        names = self.streams[view.stream].record.__struct_fields__[1:]
        found: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows(view.stream):
            time = row["time"] if row["time"].endswith("Z") else row["time"] + "Z"
            if view.stream == "metrics" and "nanoseconds" in row:
                time = f"{time[:-1]}{row['nanoseconds']:03d}Z"
                row["value"] = row["text"] if row["type"] == "string" else Number(row["number"])
            item = {view.key: row[view.key], "time": time}
            for name in names:
                if name != view.key and row[name] is not None:
                    value = row[name]
                    if isinstance(value, str) and name in ("tags", "note"):
                        value = json.loads(value)
                    item[name] = dict(sorted(value.items())) if isinstance(value, dict) else value
            text = json.dumps(item, separators=(",", ":"), ensure_ascii=False)
            if isinstance(item.get("value"), Number):
                text = text.replace(f'"value":"{item["value"]}"', f'"value":{item["value"]}')
            found.setdefault(str(row[view.key]), []).append({"seq": row["seq"], "text": text, **item})
        return {key: define(view, items) for key, items in found.items()}

    def actual(self, path: str) -> Any:
        """What the views' Redis serves: key -> JSON texts; None: nothing."""
        view, client = self.views[path], self.client()
        assert isinstance(view, (views.Feed, views.Latest))
        generation = (client.get(contract.state_key(path)) or b"").decode()
        if generation in ("", "full"):
            return None
        found: dict[str, Any] = {}
        prefix = contract.generation_prefix(path, generation)
        names = [*client.scan_iter(prefix + "*", count=1000)]
        read = client.pipeline(transaction=False)
        for name in names:
            read.hvals(name) if isinstance(view, views.Latest) and view.each else read.get(name)
        for name, value in zip(names, read.execute()):
            key = name.decode().removeprefix(prefix)
            if isinstance(view, views.Feed):
                found[key] = [item[1].decode() for item in feeds.decode(value, bool(view.member))]
            elif view.each:
                found[key] = sorted(one[ORDER_BYTES:].decode() for one in sorted(value)[-MAX_EACH:])
            else:
                found[key] = value[ORDER_BYTES:].decode()
        if (
            client.get(contract.state_key(path)) != generation.encode()
        ):  # the keys may be gone since: a rebuild has ended
            return self.actual(path)
        return found

    def equal(self) -> bool:
        """Whether every view is what it should be. Raises: AssertionError with the first that is not."""
        for path, view in self.views.items():
            if not isinstance(view, views.Tally):
                assert self.actual(path) == self.expected(path), path
        return True

    def differences(self) -> dict[str, list[str]]:
        """What `views check` says of each view that is served."""
        checker = Checker(self.socket, self.url, self.streams, self.settings.keep)
        try:
            found = {path: checker.check(path, view) for path, view in self.views.items()}
        finally:
            checker.close()
        assert {one.state for one in found.values()} == {"served"}
        return {path: one.different for path, one in found.items() if one.different}

    def caught_up(self) -> None:
        """Wait until every view is what it should be; then `views check` must agree."""
        harness.poll(self.equal, what="views that equal the database", interval=0.05)  # a look takes longer than a turn
        assert self.differences() == {}

    def close(self) -> None:
        """End everything."""
        self.running.close()
        self.store.close()


class Number(str):
    """The text of a number, as PostgreSQL has it."""


def define(view: views.View, items: list[dict[str, Any]]) -> Any:
    """The value of one key from all of its rows."""
    newest = sorted(items, key=lambda item: (item["time"], item["seq"], item["text"].encode()), reverse=True)
    if isinstance(view, views.Latest):
        if not view.each:
            return newest[0]["text"]
        series: dict[str, str] = {}
        for item in newest:
            series.setdefault(repr([item.get(name) for name in view.each]), item["text"])
        return sorted([*series.values()][:MAX_EACH])
    assert isinstance(view, views.Feed)
    ordered = sorted(items, key=lambda item: (item["time"][:26], item["text"].encode()), reverse=True)
    unique: dict[str, str] = {}
    for item in ordered:
        unique.setdefault(repr([item.get(name) for name in view.member]) if view.member else item["text"], item["text"])
    return list(unique.values())[: view.cap]


def settings_limits() -> Any:
    from sluice.streams import registry

    return registry.body_limits(settings.load_settings({}))


@contextlib.contextmanager
def site(postgres: Postgres | None) -> Iterator[Site]:
    """An installation with its Redis and follower running."""
    with harness.short_tmp() as tmp:
        found = Site(tmp, postgres)
        try:
            found.start_redis()
            found.start_follower()
            yield found
        finally:
            found.close()
