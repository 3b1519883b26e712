"""Faults of the database and of the destinations of rows; copies of it, and their return."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from proving.destinations import Elsewhere, Parquet
from proving.faults.programs import gone
from proving.faults.scene import Scene, fault
from proving.harness import stopped, strike
from proving.site import Site, Trouble, wait
from proving.store import Postgres, Sqlite, Store
from sluice.spool.contract import LEASE_SECONDS


@fault("store-locked", "another client holds the lock of the database")
def store_locked(scene: Scene) -> str:
    seconds = scene.random.choice((0.5, 2, 6))  # a worker waits 5 s for the lock
    with scene.site.store.locked():
        time.sleep(seconds)
    return f"{seconds:.1f} s"


@fault("store-away", "the database is moved away; the workers that have it open are killed", private=True)
def store_away(scene: Scene) -> str:
    seconds = scene.random.uniform(1, 4)
    with scene.site.store.away(scene.site.parents("worker")):
        time.sleep(seconds)
    return f"{seconds:.1f} s"


@fault("file-gone", "SQLite's file is removed while the workers use it, and put back", private=True)
def file_gone(scene: Scene) -> str:
    site, seconds = scene.site, scene.random.uniform(1, 4)
    if not isinstance(site.store, Sqlite):
        return "not done: the database is no file"
    assert site.process
    with stopped(site.process.pid), site.store.removed():  # nothing is started, which would make a new database
        time.sleep(seconds)
    return f"{seconds:.1f} s"


@fault("long-reader", "another program reads the database in one long transaction")
def long_reader(scene: Scene) -> str:
    store, seconds = scene.site.store, scene.random.uniform(2, 8)
    with contextlib.ExitStack() as stack:
        if isinstance(store, Sqlite):
            next(stack.enter_context(store.ask("SELECT id FROM batches")), None)
        else:
            db = stack.enter_context(store.session())
            stack.enter_context(db.transaction())
            db.execute("SELECT (SELECT max(id) FROM batches), (SELECT max(batch) FROM logs)")
        time.sleep(seconds)  # it sees one snapshot, and holds locks of the tables
    return f"{seconds:.1f} s"


@fault("store-full", "the files of the database reach a size limit, as on a full disk")
def store_full(scene: Scene) -> str:
    if not scene.site.private and isinstance(scene.site.store, Postgres):
        return "not done: the drill does not own the tables"
    seconds = scene.random.uniform(1, 4)
    with scene.site.store.full(scene.site.parents("worker")):
        time.sleep(seconds)
    return f"{seconds:.1f} s"


ZONE = {"TimeZone": "'America/New_York'"}
STRICT = {"statement_timeout": "'2s'", "DateStyle": "'German'", "standard_conforming_strings": "off"}


@fault("timezone", "the server of the database is in New York, and all connect anew", private=True)
def timezone(scene: Scene) -> str:
    return sessions(scene, ZONE)


@fault("strict-sessions", "sessions begin with a limit of 2 s, German dates and escapes in strings", private=True)
def strict_sessions(scene: Scene) -> str:
    return sessions(scene, STRICT)


def sessions(scene: Scene, settings: Mapping[str, str]) -> str:
    store, seconds = scene.site.store, scene.random.uniform(2, 6)
    if not isinstance(store, Postgres):
        return "not done: only PostgreSQL has sessions"
    with store.beginning_with(settings):
        time.sleep(seconds)
    return f"{seconds:.1f} s"


@fault("rows-away", "SIGKILL to the destination of the rows, if they go elsewhere; it starts again", private=True)
def rows_away(scene: Scene) -> str:
    engine = scene.site.engine
    if engine is None:
        return "not done: the drill has started no destination"
    engine.kill()
    time.sleep(scene.random.uniform(0, 2))
    begun = time.monotonic()
    engine.start()
    return f"answers after {time.monotonic() - begun:.1f} s"


WAITS = "SELECT count(*) FROM batches_objects WHERE reason <> ''"


@fault("settings", "INGEST_ROWS moves while the destination is away, and back", private=True, cuts=True)
def moved(scene: Scene) -> str:
    site, store, before = scene.site, scene.site.store, dict(scene.site.environ)
    if not isinstance(store, Elsewhere):
        return "not done: the rows are in tables"
    other = site.home / "other-rows"
    if not store.others:
        store.others.append(Parquet(site.settings.store, f"parquet://{other}", {}))
    if site.engine:
        site.engine.kill()
        time.sleep(scene.random.uniform(0.5, 2))  # a claim is stored, whose rows wait
    try:
        site.stop()
        site.environ |= {"INGEST_ROWS": f"parquet://{other}"}
        site.start()
        time.sleep(scene.random.uniform(1, 3))
        waits = store.number(WAITS)
    finally:
        site.stop()
        site.environ = before
        if site.engine:
            site.engine.start()
        site.start()
    wait(lambda: not store.number(WAITS), 120, "what has waited is published")
    return f"{waits} objects waited"


@fault("expire", "`sluice expire` beside the workers, which delete old logs too", private=True)
def expire(scene: Scene) -> str:
    wait(lambda: not scene.site.command("expire").returncode, 60, "old rows are deleted")
    return ""


NOT_ALONE = "not done: the database has more than the drill's tables, or rows are elsewhere"


ALONE = threading.Lock()  # of faults that change what the other one has stored


def copied(site: Site, seconds: float = 60) -> Path:
    """A backup of the database. Raises: Trouble, subprocess.TimeoutExpired."""
    file = site.home / "copy"
    wait(lambda: not site.command("backup", str(file), seconds=seconds).returncode, 60, "a backup")
    if isinstance(site.store, Sqlite):
        explained(Sqlite(f"sqlite:///{file}"), site.streams, "the copy")
    return file


def explained(store: Store, streams: Iterable[str], name: str) -> None:
    """Check that all bodies in a database are whole. Raises: Trouble."""
    for stream in streams:
        if found := store.unexplained(stream):
            raise Trouble(f"{stream} in {name}: {found} bodies are neither rows nor dead letters")


@fault("backup", "`sluice backup` while bodies are stored, once killed, once completed", private=True)
def backup(scene: Scene) -> str:
    site, seconds = scene.site, scene.random.uniform(0.2, 1)
    if not site.store.alone():
        return NOT_ALONE
    with contextlib.suppress(subprocess.TimeoutExpired):
        copied(site, seconds)
    file = copied(site)
    size = file.stat().st_size
    for path in site.home.glob("copy*"):
        path.unlink()
    return f"killed after {seconds:.1f} s; {size:,} bytes"


@fault("odd-row", "another program writes a row that no view can have, and deletes it later", private=True)
def odd_row(scene: Scene) -> str:
    store, seconds = scene.site.store, scene.random.uniform(1, 3)
    if "gps" not in scene.site.streams:
        return "not done: there are no views"
    when = "soon" if isinstance(store, Sqlite) else "3000-01-01"
    write = f"SELECT received_at, '{when}', 'odd', 1, 2, batch, 0 FROM gps LIMIT 1"  # noqa: S608
    with ALONE:
        for statement in (
            f"INSERT INTO gps (received_at, time, device, lat, lon, batch, seq) {write}",
            "DELETE FROM gps WHERE device = 'odd'",
        ):
            wait(lambda sql=statement: do(store, sql), 60, "the database is written")  # type: ignore[misc]
            time.sleep(seconds)
    return f"{seconds:.1f} s"


def do(store: Store, statement: str) -> bool:
    """Execute a statement as another program does. Raises: Unavailable."""
    if isinstance(store, Postgres):
        store.do(statement)
    elif isinstance(store, Sqlite):
        with store.writer() as db:
            db.execute(statement)
    return True


@contextlib.contextmanager
def without_workers(site: Site) -> Iterator[None]:
    """No worker runs, and no claim that is stored waits to be settled. Raises: Trouble."""
    assert site.process
    for _ in range(20):
        site.parents("worker")
        with stopped(site.process.pid):  # it starts no worker
            pids = site.pids("worker")
            for pid in pids:
                strike(pid, signal.SIGTERM)
            wait(lambda pids=pids: all(map(gone, pids)), 60, "the end of the workers")  # type: ignore[misc]
            if not any(site.store.persisted(claim, stream) for stream in site.streams for claim in site.claims(stream)):
                yield
                return
        time.sleep(LEASE_SECONDS / 2)  # a killed worker has left one; another worker settles it
    raise Trouble("stored claims are not settled")


@fault("restore", "`sluice restore` of a copy while no worker runs, half of the time after a killed one", private=True)
def restore(scene: Scene) -> str:
    site, store = scene.site, scene.site.store
    if not store.alone():
        return NOT_ALONE

    def events(above: int) -> set[int]:
        return {number for stream in site.streams for number, _ in store.rows(stream, scene.run, above)}

    with ALONE:
        above = store.batches()[1] - 100  # one with a lower id may be committed later
        file = copied(site)
        time.sleep(scene.random.uniform(0.5, 3))
        with scene.resting():
            with without_workers(site):
                explained(store, site.streams, "the database")
                before, bodies = events(above), {stream: store.bodies(stream) for stream in site.streams}
                words, killed = ("restore", "--replace", str(file)), ""
                if scene.random.random() < 0.5:
                    seconds = scene.random.uniform(0.2, 1)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        site.command(*words, seconds=seconds)
                    killed = f"killed after {seconds:.1f} s, then "
                    kept = events(above)
                done = site.command(*words)
                if done.returncode:
                    raise Trouble(f"restore: {done.stderr.strip()}")
                after = events(above)
                if killed and kept not in (before, after):
                    raise Trouble("a killed restore has changed the database")
                explained(store, site.streams, "the restored database")
                site.away |= before - after
                site.gone += Counter({stream: bodies[stream] - store.bodies(stream) for stream in site.streams})
                said = re.findall(r"^(\w+): (\d+) bodies were stored after", done.stdout, re.M)
                if {stream: int(count) for stream, count in said} != +site.gone:
                    raise Trouble(f"restore says {dict(said)}; the copies had less than the database: {+site.gone}")
            renew_views(site)
    for path in site.home.glob("copy*"):
        path.unlink()
    return f"{killed}without {len(before - after)} events"


@fault("file-swapped", "a copy has the place of SQLite's file while the workers use it; it is put back", private=True)
def file_swapped(scene: Scene) -> str:
    site, seconds = scene.site, scene.random.uniform(1, 4)
    if not isinstance(site.store, Sqlite):
        return "not done: the database is no file"
    if not site.store.alone():
        return NOT_ALONE
    assert site.process
    with ALONE:
        file = copied(site)
        with scene.resting():  # meanwhile the follower reads the copy
            stored = site.store.batches()[1]
            with stopped(site.process.pid), site.store.replaced(file):  # nothing is started, which would use the copy
                copy = site.store.batches()[1]
                time.sleep(seconds)
                if site.store.batches()[1] != copy:
                    raise Trouble("a worker has stored into a file that was put in the place of its own")
            renew_views(site)
    for path in site.home.glob("copy*"):
        path.unlink()
    return f"{seconds:.1f} s, {stored - copy} batches older"


def renew_views(site: Site) -> None:
    """Wait until the views are those of a restored database; drop the tallies, which would last for their period."""
    if not site.views:
        return
    from sluice.contrib.views import Tally
    from sluice.contrib.views.contract import kept_key

    tallies = [kept_key(path, view, "*") for path, view in site.views.items() if isinstance(view, Tally)]

    def forget() -> bool:
        for pattern in tallies:
            site.views_redis.delete("", *site.views_redis.scan_iter(pattern))
        return True

    wait(forget, 60, "the views' Redis answers")
    wait(lambda: not any(site.different().values()), 120, "the views are those of the restored database")
