"""The follower: reads the rows that were committed since its position, and applies them to the views' Redis.

A view is served from a generation: all its keys, with a position in the rows of its stream.

    build ──> building ──caught up: switch──> live ──> unlinked by `sweep`, once another one is live
                 │                              │
                 └── full: built again later    └── withdraw: the database or the declaration is another one

A new declaration, a database that was put back, or an operator begins a new generation beside the one that is served,
which clients read until the new one has caught up. Both are applied from the same rows while their positions are the
same (`groups`). The name of a generation begins with the fingerprint of its declaration, so that a process with
another one does not take it for its own.

The position is stored behind the rows, so a follower that is killed reads some rows again and skips none. Applying a
row twice changes nothing: a row has a place in the order of its stream, and what is older than what is there is left
out. One follower at a time holds the lease, and each script that writes checks it in Redis: so one that was stopped
for a minute, and does not know that another has taken over, changes nothing.

When Redis is full, a view in service takes no new keys (`crowd`), and the reader then does not take a key that it
lacks for an unknown one. A generation that does not fit at all is given up, and tried again later (`full`).

A failure belongs to the smallest thing that it can belong to: a row is left out of the views (see `render`), a view or
stream waits for its next try while the others go on, and `run` goes on after any error.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any

from redis.exceptions import ConnectionError, RedisError

from sluice.base import daemon
from sluice.contrib.background import waited_seconds
from sluice.contrib.views import contract, lease
from sluice.contrib.views.client import Full, LeaseLost, ViewsClient
from sluice.contrib.views.kinds.followed import Followed
from sluice.contrib.views.kinds.tally import Tally
from sluice.contrib.views.kinds.view import View
from sluice.contrib.views.link import Command, Place
from sluice.contrib.views.render import Renderer
from sluice.contrib.views.rows.registry import open_row_source
from sluice.contrib.views.rows.source import Diverged
from sluice.store.types import NotMade, Unavailable
from sluice.streams.registry import Stream

log = logging.getLogger("sluice.follower")

IDLE_SECONDS = 0.025  # between two looks at a database without news
# after a turn that waited for a processor the follower rests for twice that time: other programs need the processors
REST_FACTOR, REST_SECONDS = 2.0, 0.25  # times the wait, at most so long
CHUNK_ROWS = 20_000  # after which the position is stored
WINDOW_CALLS = 64  # of scripts, sent before their replies are read
SCAN_KEYS = 500  # of one step of the search for keys that no view needs
FIRST_SECONDS = 10.0  # in which the first worker has made the database
BACKOFF_SECONDS = (0.1, 2.0)  # between two tries while Redis or the database is away: the first, and the longest
RETRY_SECONDS = (10.0, 600.0)  # before a view that did not fit into memory is built again: the first, and the longest
# of maxmemory: a build ends above the first, so that the views in service can grow; it starts below the second
MEMORY_SHARES = (0.9, 0.8)
# of maxmemory: up to here any view may add keys; above, those that have less than an equal part of the second
ROOM_SHARES = (0.7, 0.2)
AGAIN_SHARE = 0.5  # of maxmemory: below it a view that has refused keys is built again


def pause_seconds(busy: bool, waited: float) -> float:
    """Seconds until the next turn. busy: there are more rows. waited: seconds that the turn waited for a processor."""
    return max(0.0 if busy else IDLE_SECONDS, min(REST_FACTOR * waited, REST_SECONDS))


class Generation:
    """One generation of a view: what is served, or what is built to be served."""

    def __init__(self, path: str, view: Followed, name: str, position: str, live: bool) -> None:
        self.path, self.view, self.name, self.position, self.live = path, view, name, position, live
        self.synced = False  # all rows of the last snapshot are applied
        self.retry_at = 0.0  # monotonic: the next try to apply rows, after one that failed
        self.reason = ""  # of that failure
        self.bytes = 0  # about what its keys take
        self.crowded = False  # it has refused keys

    @property
    def info(self) -> str:
        return contract.info_key(self.path, self.name)


class Follower:
    def __init__(self, socket: str, url: str, views: Mapping[str, View], streams: dict[str, Stream]) -> None:
        """socket: of the views' Redis. url: of the store."""
        self.socket = socket
        self.client = ViewsClient(socket)
        self.source = open_row_source(url, streams)
        self.views = {path: view for path, view in views.items() if isinstance(view, Followed)}
        self.counted = {path for path, view in views.items() if isinstance(view, Tally)}
        self.renderers = {
            (view.stream, view.key): Renderer(self.source, view.stream, view.key) for view in self.views.values()
        }
        # with other fields of its records a view is built anew
        self.specs = {
            path: f"{view!r} {streams[view.stream].record.__struct_fields__!r}" for path, view in self.views.items()
        }
        self.token = ""
        self.generations: list[Generation] = []
        self.retries: dict[str, tuple[float, float]] = {}  # full views: when (monotonic) to try, and the delay
        self.cursor: int | None = None
        self.beat = 0.0
        self.stopping = False
        self.wake = threading.Lock()  # unlike an Event, a signal handler may release it at any moment
        self.wake.acquire()
        self.reason: str | None = None

    def run(self) -> None:
        backoff, began = BACKOFF_SECONDS[0], time.monotonic()
        token = lambda: None if self.stopping else self.token  # noqa: E731
        threading.Thread(target=lease.keep_lease, args=(self.socket, token), name="lease", daemon=True).start()
        self.source.prepare({view.stream for view in self.views.values()})
        watchdog = daemon.Watchdog()
        waited = waited_seconds()
        while not self.stopping:
            watchdog.report_alive()
            try:
                busy = self.turn() if self.token else self.take_over()
                if not any(generation.retry_at for generation in self.generations):
                    self.say(None)
                backoff = BACKOFF_SECONDS[0]
                before, waited = waited, waited_seconds()
                self.wake.acquire(timeout=pause_seconds(busy, waited - before))
                continue
            except LeaseLost as error:
                self.token = ""
                log.info("starts over: %s", error)
            except ConnectionError as error:
                self.token = ""
                self.say(f"the views' Redis is unavailable: {error}")
            except Unavailable as error:
                if not isinstance(error, NotMade) or time.monotonic() >= began + FIRST_SECONDS:
                    self.say(f"the database is unavailable: {error}")
            except Exception as error:  # a defect of what was read, or of this program, must not end all views
                self.say(f"an error, tried again: {type(error).__name__}: {error}", error)
            self.wake.acquire(timeout=backoff)
            backoff = min(backoff * 2, BACKOFF_SECONDS[1])
        with contextlib.suppress(RedisError, LeaseLost):
            self.write(("DEL", contract.HOLDER))
        self.client.close()
        self.source.close()

    def stop(self) -> None:
        """End `run`. Call it once."""
        self.stopping = True
        self.wake.release()

    def say(self, reason: str | None, error: Exception | None = None) -> None:
        """Log a failure when it begins or changes, and its end. error: its traceback is logged."""
        if reason != self.reason:
            self.reason = reason
            log.warning("%s", reason, exc_info=error) if reason else log.info("recovered")

    def take_over(self) -> bool:
        """Take the lease and load the positions; False if another follower has it."""
        self.token, self.beat = lease.take_lease(self.client), 0.0
        if not self.token:
            return False
        try:
            self.load()
        except BaseException:
            self.token = ""  # else some views would not be followed
            raise
        return True

    def load(self) -> None:
        """Continue with the generations in Redis, or begin new ones."""
        self.generations, retries, self.retries = [], self.retries, {}
        for path in self.views:
            state, building = self.client.ask(("GET", contract.state_key(path)), ("GET", contract.building(path)))
            for name, live in (state, True), (building, False):
                if name and name.startswith(contract.fingerprint(self.views[path]).encode()):
                    info = contract.info_key(path, name.decode())
                    fields = "spec", "position", "bytes", "refused"
                    spec, position, size, refused = self.client.ask(("HMGET", info, *fields))[0]
                    if position is not None and spec == self.specs[path].encode():
                        generation = Generation(path, self.views[path], name.decode(), position.decode(), live)
                        self.generations.append(generation)
                        generation.bytes = int(size or 0)
                        if int(refused or 0):
                            self.crowd(generation)
            mine = [generation for generation in self.generations if generation.path == path]
            if state and state != contract.FULL and not any(generation.live for generation in mine):
                self.withdraw([path])  # of another declaration
            if state == contract.FULL and not mine:
                at, delay = retries.get(path, (0.0, RETRY_SECONDS[0]))  # if the lease was lost, as before
                self.retries[path] = min(at, time.monotonic() + delay), delay
            elif not mine:
                self.build(path)
        self.cursor = 0

    def build(self, path: str) -> None:
        """Begin a new generation of a view, and give up one that is being built."""
        self.generations = [generation for generation in self.generations if generation.live or generation.path != path]
        name, position = contract.fingerprint(self.views[path]) + secrets.token_hex(4), self.source.start()
        generation = Generation(path, self.views[path], name, position, False)
        begun = "HSET", generation.info, "spec", self.specs[path], "position", position, "keys", 0, "rows", 0
        self.write(("SET", contract.building(path), name), begun)
        self.generations.append(generation)
        self.retries.pop(path, None)
        self.cursor = 0

    def write(self, *commands: tuple[str | bytes | int, ...]) -> None:
        """Run all of these commands. Raises: LeaseLost, with none of them run, unless this process has the lease."""
        self.client.ask(lease.write_fenced(self.token, *commands))

    def withdraw(self, paths: Iterable[str]) -> None:
        """Stop serving views whose data is not of this database or declaration."""
        paths = set(paths)
        self.write(("UNLINK", *map(contract.state_key, paths), *map(contract.building, paths)))
        self.generations = [generation for generation in self.generations if generation.path not in paths]

    def turn(self) -> bool:
        """One look at the database; whether to look again at once."""
        if time.monotonic() >= self.beat:
            self.heartbeat()
        now = time.time()
        if self.source.news():
            for generation in self.generations:
                generation.synced = False
        busy = False
        if groups := self.groups():
            with self.source.snapshot():
                for group in groups:
                    try:
                        busy |= self.advance(group, now)
                    except (ConnectionError, LeaseLost):
                        raise
                    except Exception:
                        for generation in group:
                            generation.retry_at = time.monotonic() + BACKOFF_SECONDS[1]
                        raise
            for generation in list(self.generations):
                if generation.synced and not generation.live:
                    self.switch(generation)
        return self.sweep() or busy

    def groups(self) -> list[list[Generation]]:
        """Generations that read the same rows now; those in service first."""
        groups: dict[tuple[str, str], list[Generation]] = {}
        now = time.monotonic()
        for generation in sorted(self.generations, key=lambda generation: not generation.live):
            if not generation.synced and generation.retry_at <= now:
                groups.setdefault((generation.view.stream, generation.position), []).append(generation)
        return list(groups.values())

    def advance(self, group: list[Generation], now: float) -> bool:
        """Apply one chunk of rows; whether there are more. now: seconds since 1970, before the snapshot."""
        stream, position = group[0].view.stream, group[0].position
        for generation in group:
            generation.retry_at = 0.0
        try:
            changes = self.source.changes(stream, position, CHUNK_ROWS)
        except Diverged as error:
            log.warning("%s: rebuilding its views: the database is not the one that was followed: %s", stream, error)
            paths = [path for path, view in self.views.items() if view.stream == stream]
            self.withdraw(paths)
            for path in paths:
                self.build(path)
            return True
        rows = 0
        for piece in changes.pieces:
            if piece:
                rows += len(piece)
                self.apply(group, piece)
        group = [generation for generation in group if generation in self.generations and not generation.retry_at]
        if group and (rows or changes.position != position or not changes.more):
            synced = () if changes.more else ("synced", int(now * 1000))
            self.write(
                *(("HSET", generation.info, "position", changes.position, *synced) for generation in group),
                *(("HINCRBY", generation.info, "rows", rows) for generation in group),
            )
        for generation in group:
            generation.position, generation.synced = changes.position, not changes.more
            if generation.reason:
                generation.reason = ""
                log.info("%s: recovered", generation.path)
        return changes.more

    def apply(self, group: list[Generation], rows: list[Any]) -> None:
        items = {}
        for generation in group:
            if generation not in self.generations or generation.retry_at:
                continue
            renderer = self.renderers[generation.view.stream, generation.view.key]
            try:
                if generation.view.key not in items:
                    items[generation.view.key] = renderer.items(rows)
                reduced = generation.view.reducer(renderer)
                reduced.add(items[generation.view.key])
                used, size = self.client.memory()
                if not generation.live and used > MEMORY_SHARES[0] * size:
                    raise Full
                window: list[Command] = []
                free = free_bytes(generation, self.generations, len(self.views), used, size)
                read = partial(self.read, window)
                for command in reduced.commands(generation.path, generation.name, self.token, free, read):
                    window.append(command)
                    if len(window) == WINDOW_CALLS:
                        self.client.ask(*window)
                        window.clear()
                grown, refused = self.client.ask(*window, ("HMGET", generation.info, "bytes", "refused"))[-1]
                generation.bytes = int(grown or 0)
                if int(refused or 0) and not generation.crowded:
                    log.error("%s takes no new keys: the memory is full; raise INGEST_VIEWS_MEMORY", generation.path)
                    self.crowd(generation)
            except Full:
                self.client.ask(("UNWATCH",))
                generation.retry_at = time.monotonic() + BACKOFF_SECONDS[0]
                self.full(largest_view(self.generations) if generation.live else generation)
            except (ConnectionError, LeaseLost):
                raise
            except Exception as error:
                self.client.ask(("UNWATCH",))
                generation.retry_at = time.monotonic() + BACKOFF_SECONDS[1]
                if repr(error) != generation.reason:
                    generation.reason = repr(error)
                    log.warning("%s: rows are not applied: %s", generation.path, error, exc_info=error)

    def read(self, window: list[Command], keys: list[str]) -> list[Place | None]:
        """Send the commands in the window, and read strings behind them, for a transaction that writes them again."""
        places: list[Place | None]
        *_, holder, places = self.client.ask(
            *window, ("WATCH", contract.TAKEN), ("GET", contract.HOLDER), ("MGET", *keys)
        )
        window.clear()
        if holder != self.token.encode():
            self.client.close()  # else the key stays watched, and the first transaction under the next lease fails
            raise LeaseLost("another follower has the lease, or Redis was emptied")
        return places

    def crowd(self, generation: Generation) -> None:
        """Say that a view has refused keys, so that nobody takes a missing one for an unknown one."""
        generation.crowded = True
        if generation.live:
            self.retries.setdefault(generation.path, (time.monotonic() + RETRY_SECONDS[0], RETRY_SECONDS[0]))
            self.write(("SET", contract.crowded_key(generation.path), generation.name))

    def full(self, generation: Generation) -> None:
        """A generation does not fit. If no other is in service the view answers 503 until one that fits is built."""
        path = generation.path
        self.generations.remove(generation)
        _, delay = self.retries.get(path, (0.0, RETRY_SECONDS[0]))
        self.retries[path] = time.monotonic() + delay, min(2 * delay, RETRY_SECONDS[1])
        if any(other.path == path and other.live for other in self.generations):
            log.error("%s is served as before, its rebuild is given up: the memory is full", path)
            self.write(("UNLINK", contract.building(path)))
        else:
            self.generations = [other for other in self.generations if other.path != path]
            log.error("%s is not served: the memory is full; raise INGEST_VIEWS_MEMORY", path)
            self.write(("SET", contract.state_key(path), contract.FULL), ("DEL", contract.building(path)))
        self.cursor = 0  # its keys go

    def switch(self, generation: Generation) -> None:
        """Serve a generation that has caught up."""
        path = generation.path
        generation.live = True
        self.retries.pop(path, None)
        if generation.crowded:
            self.crowd(generation)
        self.write(("SET", contract.state_key(path), generation.name), ("DEL", contract.building(path)))
        self.generations = [other for other in self.generations if other.path != path or other is generation]
        self.cursor = 0
        log.info("%s: built", path)

    def heartbeat(self) -> None:
        """Renew the lease, say that the views are in step, and see what is asked for."""
        self.beat = time.monotonic() + lease.BEAT_SECONDS
        milliseconds = int(time.time() * 1000)
        infos = [generation.info for generation in self.generations if generation.synced]
        _, asked = self.client.ask(lease.write_fenced(self.token), ("SMEMBERS", contract.REBUILD))
        if infos and not self.source.news():
            self.write(*(("HSET", info, "synced", milliseconds) for info in infos))
        else:
            for generation in self.generations:
                generation.synced = False
        for path in {name.decode(errors="replace") for name in asked} & self.views.keys():
            log.info("%s: rebuilding: it was asked for", path)
            self.build(path)
        if asked:
            self.client.ask(("SREM", contract.REBUILD, *asked))
        for path in due_retries(self.retries, self.generations, self.client):
            delay = self.retries[path][1]
            self.build(path)
            self.retries[path] = float("inf"), delay  # until it fits or not

    def sweep(self) -> bool:
        """One step of deleting keys that no generation in use has; whether there are more steps."""
        if self.cursor is None:
            return False
        cursor, keys = self.client.ask(("SCAN", self.cursor, "COUNT", SCAN_KEYS))[0]
        used = {(generation.path, generation.name) for generation in self.generations}
        if gone := [key for key in keys if not is_needed(key, used, self.views, self.counted)]:
            self.write(("UNLINK", *gone))
        self.cursor = int(cursor) or None
        return True


def free_bytes(generation: Generation, all_of_them: list[Generation], views: int, used: int, size: int) -> int:
    """Bytes that new keys of a generation may take. Those of the one that it will replace do not count."""
    path = generation.path
    replaced = sum(other.bytes for other in all_of_them if other.path == path and other is not generation)
    free, share = (int(part * size) for part in ROOM_SHARES)
    return max(free - used + replaced, share // views - generation.bytes)


def due_retries(
    retries: Mapping[str, tuple[float, float]], generations: list[Generation], client: ViewsClient
) -> list[str]:
    """The views to be built again now: their time has come, and there is room."""
    paths = [path for path, (at, _) in retries.items() if time.monotonic() >= at]
    used, size = client.memory() if paths else (0, 0)
    served = {generation.path for generation in generations if generation.live}
    return [path for path in paths if used < size * (AGAIN_SHARE if path in served else MEMORY_SHARES[1])]


def largest_view(generations: list[Generation]) -> Generation:
    """Of the views in service the one that goes when Redis is full."""
    return max(generations, key=lambda generation: generation.live * generation.bytes)


def is_needed(key: bytes, used: set[tuple[str, str]], views: Collection[str], counted: Collection[str]) -> bool:
    """Whether a key belongs to a generation in use or to a declared view."""
    kind, _, rest = key.decode(errors="surrogateescape").partition(":")
    path, _, more = rest.partition(":")
    if kind in ("v", "g"):
        return (path, more.partition(":")[0]) in used
    if kind in ("s", "n", "c"):
        return path in views
    return kind not in ("w", "a") or path in counted
