"""Faults of what others may change: a disk that is unmounted, a table, the settings between two lives."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from proving.destinations import Elsewhere, Parquet
from proving.faults.database import ALONE
from proving.faults.scene import Scene, fault
from proving.harness import strike
from proving.site import STREAM, Trouble, wait
from proving.store import Postgres, Sqlite


@contextlib.contextmanager
def unmounted(place: Path) -> Iterator[None]:
    """An empty directory is at a place, as when its disk is unmounted. Afterwards what was made there is removed."""
    away = place.with_name(f"{place.name}.away")
    place.rename(away)
    place.mkdir()
    try:
        yield
    finally:
        place.rename(place.with_name(f"{place.name}.below"))
        away.rename(place)


@fault(
    "mount",
    "the disk of SQLite or Parquet is unmounted and mounted, half of the time with the workers killed",
    private=True,
)
def mount(scene: Scene) -> str:
    site, seconds = scene.site, scene.random.uniform(1, 4)
    if not isinstance(site.store, Sqlite):
        return "not done: the database is no file"
    places = [site.store.path.parent, *([site.store.directory] if isinstance(site.store, Parquet) else [])]
    place, killed = scene.random.choice(places), scene.random.random() < 0.5
    with ALONE:
        if not place.exists():
            return "not done: nothing is stored yet"
        with unmounted(place):
            for pid in site.pids("worker") if killed else ():
                strike(pid, signal.SIGKILL)
            time.sleep(seconds)
        below = place.with_name(f"{place.name}.below")
        made = [path.name for path in below.rglob("*")]
        if made:
            raise Trouble(f"under the mount point {place.name} were made: {', '.join(made)}")
        below.rmdir()
    return f"{place.name}, {seconds:.1f} s{', the workers killed' * killed}"


@fault("alter", "another program alters the table of metrics, in PostgreSQL for a time", private=True)
def alter(scene: Scene) -> str:
    store, seconds = scene.site.store, scene.random.uniform(0.5, 2)
    if isinstance(store, Elsewhere):
        return "not done: the rows are in no table"
    with ALONE:
        if isinstance(store, Postgres):
            statements = scene.random.choice(
                (
                    ("ALTER COLUMN value TYPE bigint", "ALTER COLUMN value TYPE double precision"),
                    ("ALTER COLUMN value TYPE text", "ALTER COLUMN value TYPE double precision USING value::float8"),
                    ("ADD COLUMN drilled text DEFAULT 'a'", "DROP COLUMN drilled"),
                )
            )
            for statement in statements:
                wait(
                    lambda text=statement: store.do(f"ALTER TABLE {STREAM} {text}") or True, 120, "the table is altered"
                )  # type: ignore[misc]
                time.sleep(seconds)
            return f"{statements[0]}, {seconds:.1f} s"
        order = scene.random.choice(("reversed", "more"))
        wait(lambda: reordered(store, order), 120, "the table is made again")
        return f"made again, its columns {order}"


def reordered(store: Sqlite, order: str) -> bool:
    """Make the table of metrics again, its columns in another order, or with one more. Raises: Unavailable."""
    with store.writer() as db:
        db.execute("BEGIN IMMEDIATE")
        columns = [row[1:6] for row in db.execute(f"PRAGMA table_info({STREAM})")]
        columns = columns[::-1] if order == "reversed" else columns[1:] + columns[:1]
        kinds = [
            f'"{name}" {kind}{" NOT NULL" * needed}{f" DEFAULT {default}" if default is not None else ""}'
            for name, kind, needed, default, _ in columns
        ]
        names = ", ".join(f'"{name}"' for name, *_ in columns)
        made = db.execute("SELECT sql FROM sqlite_master WHERE tbl_name = ? AND type = 'index'", (STREAM,)).fetchall()
        db.execute(f"CREATE TABLE drilled ({', '.join(kinds)})")
        db.execute(f"INSERT INTO drilled (rowid, {names}) SELECT rowid, {names} FROM {STREAM} ORDER BY rowid")  # noqa: S608
        db.execute(f"DROP TABLE {STREAM}")
        db.execute(f"ALTER TABLE drilled RENAME TO {STREAM}")
        for (sql,) in made:
            db.execute(sql)
        db.execute("COMMIT")
    return True


@fault("lives", "bin/up has other keys and workers for one life, and then its own", private=True, cuts=True)
def lives(scene: Scene) -> str:
    site, before = scene.site, dict(scene.site.environ)
    others = {
        "INGEST_UNIQUE": scene.random.choice(("2d", "metrics=1d/record,gps=1d/record,votes=1d,logs=1d", "1d,logs=2d")),
        "INGEST_WORKERS": scene.random.choice(("1", "3")),
    }
    try:
        site.stop()
        site.environ |= others
        site.start()
        time.sleep(scene.random.uniform(1, 4))
    finally:
        site.stop()
        site.environ = before
        site.start()
    return ", ".join(f"{name}={value}" for name, value in others.items())
