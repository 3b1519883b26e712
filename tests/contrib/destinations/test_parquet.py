"""Rows as Parquet files: each is there exactly once, whatever is killed; DuckDB and pyarrow read them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow.dataset
import pyarrow.parquet
import pytest
import redis

from contrib_support import outbox_contract
from contrib_support.outbox_contract import outbox
from proving import harness
from proving.engines import ENVIRONMENT
from proving.harness import ROOT, environment, redis_server
from proving.postgres import postgres_server
from sluice import settings
from sluice.account import shared_settings
from sluice.contrib import views
from sluice.contrib.destinations import destination, parquet
from sluice.contrib.destinations.outbox import Storing
from sluice.contrib.destinations.register import parse_rows
from sluice.contrib.destinations.registry import check_rows, open_destination, open_destinations, open_rows
from sluice.parsers import FOREVER, ByStream
from sluice.store.questions import count_overdue, find_letters, find_unpublished, forget_cell
from sluice.store.registry import open_store
from sluice.store.replay import replay_letters
from sluice.store.store import Store
from sluice.store.types import Body, Outcome, Unavailable
from sluice.streams.built_in import STREAMS
from sluice.streams.custom import stream
from sluice.streams.record import Gps, Record, Vote
from support.folders import needs
from support.sender_configs import samples
from support.store_contract import NOON, body_with, claim, decoded, today, votes

HOUR = "2026-01-01T12"


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with postgres_server() as running:
        yield running


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp: Path) -> str:
    """A database for the ledger, empty: SQLite, unless a test asks for both."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return f"sqlite:///{tmp}/ingest.db"
    server = request.getfixturevalue("server")
    server.ask("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return str(server.url)


both = pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "SETTLED_SECONDS", 0)


def row_destinations(tmp: Path, **more: str | None) -> ByStream[str | None]:
    return ByStream(f"parquet://{tmp}/rows", dict(more))


def connected(url: str, tmp: Path, streams: Any = STREAMS, **more: Any) -> Store:
    return open_store(url, streams, row_destinations=open_destinations(row_destinations(tmp), streams), **more)


@pytest.fixture
def store(url: str, tmp: Path) -> Iterator[Store]:
    with contextlib.closing(connected(url, tmp)) as store:
        yield store


def found(tmp: Path, columns: str, stream: str = "votes") -> list[tuple]:
    """Rows as DuckDB reads them, in the order of their bodies."""
    if not list((tmp / "rows" / stream).rglob("*.parquet")):
        return []
    files = f"read_parquet('{tmp}/rows/{stream}/**/*.parquet', union_by_name = true, hive_partitioning = true)"
    return duckdb.connect().sql(f"SELECT {columns} FROM {files} ORDER BY seq, 1").fetchall()


def choices(tmp: Path) -> list[str]:
    return [choice for (choice,) in found(tmp, "choice")]


def files(tmp: Path, stream: str = "votes") -> list[Path]:
    return sorted((tmp / "rows" / stream).rglob("*.parquet"))


def staged(tmp: Path) -> list[str]:
    """What is staged, except locks."""
    return [path.name for path in (tmp / "rows/.staged").rglob("*") if path.is_file() and path.name[0] != "."]


def told(store: Store, sql: str) -> list[tuple]:
    """The rows of a query on the ledger."""
    with store.transaction() as db:
        return [tuple(row) for row in db.execute(sql).fetchall()]


def tidied(store: Store, stream: str = "votes") -> int:
    """Publish and merge until nothing is left to do; the number of merges."""
    assert not outbox(store).publish(store)  # there is no more to do
    merges = 0
    while outbox(store).tidy(stream, store):
        merges += 1
    return merges


def test_rows_and_dead_letters_are_written_in_groups(tmp: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.contrib.destinations.outbox.GROUP_RECORDS", 8)
    buried: list[int] = []
    with contextlib.closing(
        open_store(url, STREAMS, row_destinations=open_destinations(row_destinations(tmp), STREAMS))
    ) as store:
        bury = store.bury_rejects

        def counted(*given: Any) -> int:
            buried.append(bury(*given))
            return buried[-1]

        monkeypatch.setattr(store, "bury_rejects", counted)
        assert store.persist(*votes(*range(17), *[""] * 10)) == Outcome(17, 10)
    (file,) = files(tmp)
    written = pyarrow.parquet.ParquetFile(file).metadata
    assert [written.row_group(n).num_rows for n in range(written.num_row_groups)] == [8, 8, 1]
    assert buried == [0, 0, 7, 3]


# --- What arrives as what --------------------------------------------------------------------------------------------


@pytest.mark.contract
@both
def test_votes_have_the_columns_of_their_table_and_the_hour(store: Store, tmp: Path) -> None:
    body = b'{"poll":"p","choice":"a","voter":"v","time":"2026-01-01T13:30:00.1239+01:00"}'
    assert store.persist(claim("votes", 2, first=7), decoded(STREAMS["votes"], [body, b"poll=p&choice=b"], 7)) == (
        *(2, 0),
        False,
    )
    batch = told(store, "SELECT id FROM batches")[0][0]
    columns = "epoch_us(received_at), epoch_us(time), poll, choice, voter, batch, seq, hour"
    assert found(tmp, columns) == [
        (NOON, NOON + 1_800_123_900, "p", "a", "v", batch, 7, HOUR),
        (NOON + 1_000_000, NOON + 1_000_000, "p", "b", None, batch, 8, HOUR),
    ]
    (read,) = pyarrow.dataset.dataset(files(tmp)[0]).filter(pyarrow.dataset.field("seq") == 7).to_table().to_pylist()
    assert read["received_at"].isoformat() == "2026-01-01T12:00:00+00:00" and read["choice"] == "a"
    assert told(store, "SELECT bodies, records FROM batches") == [(2, 2)]


@pytest.mark.contract
@both
def test_the_streams_have_no_tables_in_the_database(store: Store, url: str, tmp: Path) -> None:
    store.persist(*votes("a"))
    catalogue = "sqlite_master" if url.startswith("sqlite") else "(SELECT relname AS name FROM pg_class)"
    assert told(store, f"SELECT name FROM {catalogue} AS t WHERE name IN ('votes', 'gps', 'metrics', 'logs')") == []


@needs("formats")
def test_metrics_keep_nanoseconds_tags_and_exact_numbers(store: Store, tmp: Path) -> None:
    lines = (
        b'm,a=b,c=d on=t,n=3i,big=9007199254740993i,u=18446744073709551615u,f=0.1,s="x" 1700000000123456789\nm old=1'
    )
    store.persist(claim("metrics", 1), decoded(STREAMS["metrics"], [lines]))
    columns = "field, value, type, text, epoch_ns(time), tags"
    tags, at = {"a": "b", "c": "d"}, 1_700_000_000_123_456_789
    assert sorted(found(tmp, columns, "metrics")) == [
        ("big", 9007199254740992.0, "integer", "9007199254740993", at, tags),
        ("f", 0.1, "float", None, at, tags),
        ("n", 3.0, "integer", None, at, tags),
        ("old", 1.0, "float", None, NOON * 1000, {}),
        ("on", 1.0, "boolean", None, at, tags),
        ("s", None, "string", "x", at, tags),
        ("u", 18446744073709551616.0, "unsigned", "18446744073709551615", at, tags),
    ]


def test_attributes_of_logs_are_json(store: Store, tmp: Path) -> None:
    body = b'{"message":"disk full","level":"ERROR","disks":[{"bytes":123456789012345678901234567890}]}'
    store.persist(claim("logs", 1), decoded(STREAMS["logs"], [body]))
    ((level, message, attributes),) = found(tmp, "level, message, attributes", "logs")
    assert (level, message) == ("error", "disk full")
    assert json.loads(attributes) == {"disks": [{"bytes": 123456789012345678901234567890}]}


@pytest.mark.contract
@both
def test_rejects_are_buried_in_the_database(store: Store, tmp: Path) -> None:
    outcome = store.persist(
        claim("votes", 3), decoded(STREAMS["votes"], [b"poll=p&choice=a", b"{", b"poll=p&choice=b"])
    )
    assert outcome == Outcome(2, 1)
    assert choices(tmp) == ["a", "b"]
    (letter,) = find_letters(store)
    assert (letter.body, letter.seq, letter.whole) == (b"{", 2, True)
    assert store.read_ledger("votes").bodies == 3 and store.read_ledger("votes").dead == 1


class Count(Record, kw_only=True):
    name: str
    number: int


COUNTS = {"counts": stream("counts", Count)}


@pytest.mark.contract
@both
@pytest.mark.parametrize("group", [1, 3, 1000])
def test_a_value_that_does_not_fit_becomes_a_dead_letter_and_the_others_are_stored(
    url: str, tmp: Path, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.contrib.destinations.outbox.GROUP_RECORDS", group)
    # what a decoder of one's own may yield
    entries = [body_with(n, NOON, b"%d" % n, Count(name="n", number=1 << 63 if n == 5 else n)) for n in range(1, 10)]
    with contextlib.closing(connected(url, tmp, COUNTS)) as store:
        assert store.persist(claim("counts", 9), entries) == Outcome(8, 1)
        (letter,) = find_letters(store)
        assert letter.seq == 5 and letter.reason.startswith("rejected by the destination: ")
    assert found(tmp, "number, seq", "counts") == [(n, n) for n in range(1, 10) if n != 5]


@pytest.mark.parametrize("odd", [1.5, 2.0, "7"])
def test_a_number_that_is_no_integer_is_buried_where_a_field_is_one(url: str, tmp: Path, odd: Any) -> None:
    entries = [body_with(n, NOON, b"%d" % n, Count(name="n", number=odd if n == 2 else n)) for n in (1, 2, 3)]
    with contextlib.closing(connected(url, tmp, COUNTS)) as store:
        assert store.persist(claim("counts", 3), entries) == Outcome(2, 1)
        assert [(letter.seq, letter.body) for letter in find_letters(store)] == [(2, b"2")]
    assert found(tmp, "number", "counts") == [(1,), (3,)]


def test_a_claim_of_rejects_alone_makes_no_object(store: Store, tmp: Path) -> None:
    assert store.persist(claim("votes", 1), decoded(STREAMS["votes"], [b"{"])) == Outcome(0, 1)
    assert not files(tmp) and not staged(tmp) and told(store, "SELECT * FROM batches_objects") == []


class Further(Gps, kw_only=True):
    floor: int | None = None


@pytest.mark.contract
@pytest.mark.parametrize("library", ["duckdb", "pyarrow", pytest.param("polars", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("first", ["the older", "the newer"])
def test_the_lines_of_the_documents_read_files_of_two_versions(library: str, first: str, url: str, tmp: Path) -> None:
    python = sys.executable if library != "polars" else str(ENVIRONMENT / "bin/python")
    if not Path(python).exists() or subprocess.run([python, "-c", f"import {library}"], check=False).returncode:
        pytest.skip(f"without {library}, which bin/provision engines installs")
    for number, kind in enumerate((Gps, Further) if first == "the older" else (Further, Gps), 1):
        with contextlib.closing(connected(url, tmp, {"gps": stream("gps", kind)})) as store:
            more: Any = {"floor": 3} if kind is Further else {}
            record = kind(device="bike", lat=1.0, lon=2.0, **more)
            store.persist(claim("gps", 1, number), [Body(number, NOON + number * 3_600_000_000, b"", [record])])
    _, *programs = samples("Parquet")
    (program,) = [each for each in programs if f"{library}." in each]
    *before, last = program.strip().replace("/srv", str(tmp)).replace("max(time)", "max(floor)").splitlines()
    shown = (
        "print(next(getattr(found, name) for name in ('to_pylist', 'to_dicts', 'fetchall') if hasattr(found, name))())"
    )
    needed = "glob, polars" if library == "polars" else f"glob, pyarrow.dataset, {library}"
    text = "\n".join([f"import {needed}", *before, f"found = {last}", shown])
    said = subprocess.check_output([python, "-c", text], text=True)
    assert "bike" in said and re.search(r"\b3\b", said)


# --- Exactly once ----------------------------------------------------------------------------------------------------


@pytest.mark.contract
@both
def test_a_claim_that_comes_again_is_stored_once(store: Store, tmp: Path) -> None:
    store.persist(*votes("a", "b"))
    assert store.persist(*votes("a", "b")) == Outcome(0, 0, again=True)
    longer = claim("votes", 3)._replace(id="votes:1:7")  # of a Redis that went back
    assert store.persist(longer, votes("a", "b", "c")[1]) == Outcome(1, 0)
    assert choices(tmp) == ["a", "b", "c"]
    assert not staged(tmp)


def test_an_object_is_invisible_until_its_transaction_has_committed(
    store: Store, tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    note = Storing.note

    def look(*given: Any) -> None:
        seen.append((len(staged(tmp)), len(files(tmp))))
        note(*given)

    monkeypatch.setattr(Storing, "note", look)
    store.persist(*votes("a"))
    assert seen == [(1, 0)]
    assert (len(staged(tmp)), len(files(tmp))) == (0, 1)


@pytest.mark.contract
@both
def test_an_attempt_that_fails_leaves_nothing(store: Store, tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        assert staged(tmp)
        raise KeyError

    with monkeypatch.context() as patched, pytest.raises(KeyError):
        patched.setattr(Storing, "note", fail)
        store.persist(*votes(1, 2))
    assert not staged(tmp) and not files(tmp) and told(store, "SELECT * FROM batches_objects") == []
    assert store.persist(*votes("a")) == Outcome(1, 0)


PREPARED = """
import contextlib
from sluice.contrib.destinations import outbox, parquet
from sluice.store.sqlite import store as sqlite
from sluice.contrib.postgres import store as postgres
parquet.SETTLED_SECONDS = 0
"""
MOMENTS = {
    "before a row is written": "parquet.File.add = die",
    "after a row is written": "die_after(parquet.File, 'add')",
    "when the object is on disk": "die_after(parquet.File, 'finish')",
    "when it is noted": "die_after(outbox.Storing, 'note')",
    "when the transaction has committed": "parquet.Parquet.publish = die",
    "when it is published": "die_after(parquet.Parquet, 'publish')",
    "when the note of the one before is deleted": "store.persist(*store_contract.votes('before', first=100)); "
    "die_after(outbox, 'forget_notes')",
}


def killed(url: str, tmp: Path, program: str) -> None:
    """Run a program that kills itself."""
    outbox_contract.killed(url, f"parquet://{tmp}/rows", PREPARED + program)


@pytest.mark.nightly
@pytest.mark.parametrize("moment", MOMENTS)
@both
def test_rows_are_there_once_after_a_kill(moment: str, url: str, tmp: Path) -> None:
    killed(url, tmp, f"{MOMENTS[moment]}; store.persist(*store_contract.votes('a', 'b'))")
    with contextlib.closing(connected(url, tmp)) as store:
        if "postgres" in url:  # the server notices a moment later that the client is gone
            harness.poll(lambda: store.persist(*votes("a", "b")) or True)
        else:
            store.persist(*votes("a", "b"))
        tidied(store)
        assert choices(tmp) == ["a", "b"] + ["before"] * ("before" in MOMENTS[moment])
        assert not staged(tmp)
        assert store.read_ledger("votes").bodies == len(choices(tmp))
        outbox(store).publish(store)
        assert told(store, "SELECT * FROM batches_objects") == []


@pytest.mark.contract
def test_a_file_that_waits_stays_while_another_directory_is_named(url: str, tmp: Path) -> None:
    """Also that of a cell which shares the database, and has a directory of its own."""
    killed(url, tmp, "parquet.Parquet.publish = die; store.persist(*store_contract.votes('a', 'b'))")
    other = parse_rows(f"parquet://{tmp}/other")
    with contextlib.closing(open_store(url, STREAMS, row_destinations=open_destinations(other, STREAMS))) as store:
        store.persist(*votes("c", first=3))
        with pytest.raises(Unavailable, match=f"wait for parquet://{tmp}/rows: INGEST_ROWS does not name it now"):
            outbox(store).publish(store)
        outbox(store).tidy("votes", store)
        assert [one.bodies for one in find_unpublished(store)] == [2]
    assert choices(tmp) == [] and len(staged(tmp)) == 1
    with contextlib.closing(connected(url, tmp)) as store:
        tidied(store)
        assert choices(tmp) == ["a", "b"] and find_unpublished(store) == []
        assert store.read_ledger("votes").bodies == 3


@pytest.mark.contract
def test_a_file_that_waits_stays_while_another_database_is_named(url: str, tmp: Path) -> None:
    killed(url, tmp, "parquet.Parquet.publish = die; store.persist(*store_contract.votes('a', 'b'))")
    with contextlib.closing(connected(f"sqlite:///{tmp}/other.db", tmp)) as other:
        other.persist(*votes("c", first=3))
        tidied(other)
    assert choices(tmp) == ["c"] and len(staged(tmp)) == 1
    with contextlib.closing(connected(url, tmp)) as store:
        tidied(store)
    assert choices(tmp) == ["a", "b", "c"] and not staged(tmp)


@pytest.mark.contract
def test_what_waits_for_the_destination_of_another_cell_is_left_to_it(url: str, tmp: Path) -> None:
    killed(url, tmp, "parquet.Parquet.publish = die; store.persist(*store_contract.votes('a', 'b'))")
    with contextlib.closing(connected(url, tmp)) as theirs:
        theirs.publish_figures("theirs", {"settings": shared_settings(STREAMS, FOREVER, outbox(theirs))}, ())
    other = parse_rows(f"parquet://{tmp}/other")
    with contextlib.closing(open_store(url, STREAMS, row_destinations=open_destinations(other, STREAMS))) as ours:
        assert not outbox(ours).publish(ours) and find_unpublished(ours) == []
        assert forget_cell(ours, "theirs")
        with pytest.raises(Unavailable, match=f"wait for parquet://{tmp}/rows: INGEST_ROWS does not name it now"):
            outbox(ours).publish(ours)


def test_what_a_living_attempt_has_written_stays(store: Store, tmp: Path) -> None:
    one = outbox(store).destinations["votes"].open(NOON)
    one.add(1, destination.Rows([body_with(1, NOON, b"", Vote(poll="p", choice="a"))]))
    one.finish()
    tidied(store)
    assert len(staged(tmp)) == 1
    one.close(delete=False)
    tidied(store)
    assert not staged(tmp)


def test_what_cannot_be_published_now_is_published_later(store: Store, tmp: Path) -> None:
    (tmp / "rows").mkdir()
    (tmp / "rows/votes").write_text("in the way")
    assert store.persist(*votes("a")) == Outcome(1, 0)
    with pytest.raises(Unavailable, match="votes"):
        outbox(store).publish(store)
    outbox(store).tidy("gps", store)
    (tmp / "rows/votes").unlink()
    assert choices(tmp) == []
    tidied(store)
    assert choices(tmp) == ["a"]


def test_an_object_that_is_missing_keeps_its_note_and_holds_up_nothing(
    store: Store, tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = Storing.note

    def lose(*given: Any) -> None:
        note(*given)
        (tmp / "rows/.staged/votes").rename(tmp / "lost")

    with monkeypatch.context() as patched:
        patched.setattr(Storing, "note", lose)
        store.persist(*votes("a"))
    for _ in range(2):
        with pytest.raises(Unavailable, match="an object of these rows is missing"):
            outbox(store).publish(store)
    store.persist(*votes("b", first=2))
    assert choices(tmp) == ["b"]
    assert [(one.bodies, one.reason) for one in find_unpublished(store)] == [(1, "an object of these rows is missing")]
    for path in (tmp / "lost").iterdir():
        path.rename(tmp / "rows/.staged/votes" / path.name)
    tidied(store)
    assert choices(tmp) == ["a", "b"] and find_unpublished(store) == []


@contextlib.contextmanager
def unmounted(tmp: Path) -> Iterator[Path]:
    """An empty directory in the place of the destination's, as if its disk were not mounted. Nothing is made there."""
    place, away = tmp / "rows", tmp / "disk"
    place.rename(away)
    place.mkdir()
    yield place
    assert not list(place.rglob("*"))
    place.rmdir()
    away.rename(place)


def test_rows_that_could_not_be_published_wait_for_their_disk(
    store: Store, tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(parquet.os, "rename", fail)
        store.persist(*votes("a"))
    with unmounted(tmp):
        with pytest.raises(Unavailable, match="put it back"):
            outbox(store).publish(store)
        with pytest.raises(Unavailable, match="put it back"):
            outbox(store).tidy("votes", store)
    tidied(store)
    assert choices(tmp) == ["a"]


def test_nothing_is_stored_while_the_disk_is_away_from_a_running_worker(store: Store, tmp: Path) -> None:
    store.persist(*votes("a"))
    with unmounted(tmp):
        for act in (
            lambda: store.persist(*votes("b", first=2)),
            lambda: outbox(store).tidy("votes", store),
            lambda: store.expire_stream("votes", NOON),
            lambda: outbox(store).addresses(),
        ):
            with pytest.raises(Unavailable, match="put it back"):
                act()
        (tmp / "rows/.id").write_text("another disk")
        with pytest.raises(Unavailable, match="put it back"):
            store.persist(*votes("b", first=2))
        (tmp / "rows/.id").unlink()
    store.persist(*votes("b", first=2))
    assert choices(tmp) == ["a", "b"]


@pytest.mark.contract
@both
def test_nothing_is_made_where_the_disk_is_missing_at_the_start(url: str, tmp: Path) -> None:
    with contextlib.closing(connected(url, tmp)) as store:
        store.persist(*votes("a"))
    with unmounted(tmp):
        with contextlib.closing(connected(url, tmp)) as store:
            for act in (
                lambda: store.persist(*votes("b", first=2)),
                lambda: outbox(store).tidy("votes", store),
                lambda: store.expire_stream("votes", NOON),
                lambda: outbox(store).addresses(),
            ):
                with pytest.raises(Unavailable, match="mount its disk"):
                    act()
        (tmp / "rows").rmdir()
        with contextlib.closing(connected(url, tmp)) as store, pytest.raises(Unavailable, match="mount its disk"):
            store.persist(*votes("b", first=2))
        (tmp / "rows").mkdir()
    with contextlib.closing(connected(url, tmp)) as store:
        store.persist(*votes("b", first=2))
    assert choices(tmp) == ["a", "b"]


def test_a_worker_that_has_not_stored_yet_learns_that_another_one_has(store: Store, url: str, tmp: Path) -> None:
    with contextlib.closing(connected(url, tmp)) as other:
        outbox(other).publish(other)
        store.persist(*votes("a"))
        with unmounted(tmp), pytest.raises(Unavailable, match="mount its disk"):
            other.persist(*votes("b", first=2))


def test_an_empty_id_begins_anew(url: str, tmp: Path) -> None:
    with contextlib.closing(connected(url, tmp)) as store:
        store.persist(*votes("a"))
    shutil.rmtree(tmp / "rows")
    (tmp / "rows").mkdir()
    (tmp / "rows/.id").touch()
    with contextlib.closing(connected(url, tmp)) as store:
        store.persist(*votes("b", first=2))
    assert choices(tmp) == ["b"]


def test_a_note_of_an_older_database_ends_if_its_file_was_merged(store: Store, tmp: Path) -> None:
    stored(store, 3)
    address = outbox(store).destinations["votes"].address()
    before = [("votes", f"{HOUR}/{path.stem}", address, 1, "2026-01-01T12:00:00.000Z", "") for path in files(tmp)]
    tidied(store)
    assert len(files(tmp)) == 1
    store.persist(*votes("b", first=4))
    tidied(store)  # what was merged is merged again
    assert len(files(tmp)) == 1
    with store.transaction() as db:
        for row in before:
            store.run_sql(db, "INSERT INTO batches_objects VALUES (?, ?, ?, ?, ?, ?)", row)
    outbox(store).publish(store)
    assert find_unpublished(store) == [] and told(store, "SELECT * FROM batches_objects") == []


def test_what_other_programs_put_there_is_named_once_and_stays(
    store: Store, tmp: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored(store, 2)
    table = tmp / "rows/votes"
    for name in "hour=x", "hour=__HIVE_DEFAULT_PARTITION__":
        (table / name).mkdir()
    (table / f"hour={HOUR}/empty.parquet").touch()
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), table / f"hour={HOUR}/other.parquet")
    tidied(store)
    tidied(store)
    assert len(files(tmp)) == 3
    assert store.expire_stream("votes", NOON + 3_600_000_000) is False
    assert store.read_ledger("votes").deleted == 2
    assert {path.name for path in files(tmp)} == {"empty.parquet", "other.parquet"}
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4 and all("is not ours" in line for line in said)


@pytest.mark.contract
@both
def test_rows_whose_commit_was_not_answered_are_published_before_the_next_ones(
    store: Store, tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = store.transaction

    @contextlib.contextmanager
    def unanswered() -> Iterator[Any]:
        with transaction() as db:
            yield db
        raise Unavailable("connection lost")

    with monkeypatch.context() as patched, pytest.raises(Unavailable):
        patched.setattr(store, "transaction", unanswered)
        store.persist(*votes("a"))
    assert choices(tmp) == []
    assert store.persist(*votes("a")) == Outcome(0, 0, again=True)
    assert choices(tmp) == ["a"]


def test_a_directory_that_cannot_be_written_postpones_the_claim(store: Store, tmp: Path) -> None:
    (tmp / "rows").write_text("in the way")
    with pytest.raises(Unavailable, match="rows"):
        store.persist(*votes("a"))
    (tmp / "rows").unlink()
    assert store.persist(*votes("a")) == Outcome(1, 0)
    assert choices(tmp) == ["a"]


@pytest.mark.contract
@both
def test_an_object_of_a_stream_that_has_no_destination_any_more_is_reported(url: str, tmp: Path) -> None:
    killed(url, tmp, "parquet.Parquet.publish = die; store.persist(*store_contract.votes('a'))")
    nowhere = open_destinations(ByStream(None, {}), STREAMS)
    waits = "rows of votes wait for parquet:.*: INGEST_ROWS does not name it now"
    with (
        contextlib.closing(open_store(url, STREAMS, row_destinations=nowhere)) as store,
        pytest.raises(Unavailable, match=waits),
    ):
        nowhere.publish(store)
    with contextlib.closing(connected(url, tmp)) as store:
        outbox(store).publish(store)
    assert choices(tmp) == ["a"]


@pytest.mark.contract
@both
def test_dead_letters_are_replayed_into_the_destination(store: Store, tmp: Path) -> None:
    store.persist(claim("votes", 2), decoded(STREAMS["votes"], [b"{", b"poll=p&choice=a"]))
    (letter,) = find_letters(store)
    mended = letter._replace(body=b"poll=p&choice=b")
    assert replay_letters(store, [mended], today, dry=True).stored == 1
    assert choices(tmp) == ["a"] and not staged(tmp)
    assert replay_letters(store, [mended], today).stored == 1
    assert found(tmp, "choice, seq") == [("b", 1), ("a", 2)]
    assert find_letters(store) == [] and replay_letters(store, [mended], today).stored == 0


# --- Merging ---------------------------------------------------------------------------------------------------------


def stored(store: Store, claims: int) -> list[str]:
    """Store claims of one vote each; their choices."""
    for number in range(1, claims + 1):
        store.persist(*votes(number, first=number))
    return [str(number) for number in range(1, claims + 1)]


def test_the_files_of_a_past_hour_are_merged(store: Store, tmp: Path) -> None:
    expected = stored(store, 20)
    assert len(files(tmp)) == 20
    batches = found(tmp, "batch, seq")
    assert tidied(store) == 1
    assert len(files(tmp)) == 1 and choices(tmp) == expected and found(tmp, "batch, seq") == batches
    assert tidied(store) == 0
    store.persist(*votes("late", first=21))  # into an hour that was merged
    assert tidied(store) == 1
    assert len(files(tmp)) == 1 and choices(tmp) == [*expected, "late"]
    assert [path.name for path in (tmp / "rows/.staged/votes").iterdir() if path.name[0] != "."] == []


@pytest.mark.nightly
def test_a_worker_that_merges_long_rows_takes_bounded_memory(tmp: Path) -> None:
    env = {"INGEST_ROWS": f"logs=parquet://{tmp}/rows"}
    rows = open_destinations(settings.load_settings(env).rows, STREAMS)
    with contextlib.closing(open_store(f"sqlite:///{tmp}/ingest.db", STREAMS, row_destinations=rows)) as store:
        for first in range(1, 51):
            lines = [
                {"message": str(n), "trace": os.urandom(300).hex(), "stack": f"at {n} " * 80} for n in range(1_500)
            ]
            body = "\n".join(map(json.dumps, lines)).encode()
            store.persist(claim("logs", 1, first), decoded(STREAMS["logs"], [body], first))
    assert len(files(tmp, "logs")) == 50
    with redis_server(tmp, appendfsync="no"):
        command = [sys.executable, ROOT / "worker.py"]
        with harness.running(command, tmp / "worker.out", environment(tmp, env)) as worker:
            harness.poll(lambda: len(files(tmp, "logs")) == 1)
            peak = int(Path(f"/proc/{worker.pid}/status").read_text().partition("VmHWM:")[2].split()[0])
    assert peak < 150_000
    assert len(found(tmp, "seq", "logs")) == 75_000


def test_files_of_the_present_hour_are_merged_when_they_are_many(
    store: Store, tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "MANY_FILES", 5)
    monkeypatch.setattr(parquet, "hour_end", lambda hour: float("inf"))
    stored(store, 4)
    assert tidied(store) == 0
    store.persist(*votes("5", first=5))
    assert tidied(store) == 1
    assert choices(tmp) == ["1", "2", "3", "4", "5"] and len(files(tmp)) == 1


def test_what_is_merged_at_a_time_is_bounded_and_the_other_files_stay(
    store: Store, tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "MANY_FILES", 5)
    monkeypatch.setattr(parquet, "hour_end", lambda hour: float("inf"))
    stored(store, 5)
    first = files(tmp)[0]
    monkeypatch.setattr(parquet, "MERGED_BYTES", first.stat().st_size + 1)
    before = {path.name: path.stat().st_ino for path in files(tmp)}
    assert tidied(store) == 1
    after = {path.name: path.stat().st_ino for path in files(tmp)}
    assert len(after) == 4 and len(before.items() & after.items()) == 3
    assert sorted(choices(tmp)) == ["1", "2", "3", "4", "5"]


def test_a_large_file_is_not_merged(store: Store, tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(store, 3)
    monkeypatch.setattr(parquet, "SMALL_BYTES", 1)
    assert tidied(store) == 0 and len(files(tmp)) == 3


@pytest.mark.contract
def test_an_object_with_a_note_is_not_merged(url: str, tmp: Path) -> None:
    killed(url, tmp, "die_after(parquet.Parquet, 'publish'); store.persist(*store_contract.votes('a'))")
    with contextlib.closing(connected(url, tmp)) as store:
        (noted,) = files(tmp)
        for first in 2, 3:
            store.persist(*votes(first, first=first))
        outbox(store).published.clear()
        store.persist(*votes("4", first=4))
        while outbox(store).tidy("votes", store):
            pass
        assert noted in files(tmp) and len(files(tmp)) == 4
        tidied(store)
        assert noted not in files(tmp)
    assert choices(tmp) == ["a", "2", "3", "4"]


@pytest.mark.nightly
def test_a_reader_finds_each_row_once_while_files_are_merged(store: Store, tmp: Path) -> None:
    stop = threading.Event()
    wrong: list[object] = []
    least, reads = 0, 0

    def read() -> None:
        nonlocal least, reads
        while not stop.is_set():
            try:
                seqs = pyarrow.dataset.dataset(tmp / "rows/votes", format="parquet").to_table(columns=["seq"])["seq"]
            except (FileNotFoundError, pyarrow.ArrowInvalid):  # listed before, opened after the exchange
                continue
            got = sorted(seqs.to_pylist())
            if got != list(range(1, len(got) + 1)) or len(got) < least:
                wrong.append(got)
            least, reads = len(got), reads + 1

    store.persist(*votes(1))
    reader = threading.Thread(target=read)
    reader.start()
    try:
        merges = 0
        for number in range(2, 302):
            store.persist(*votes(number, first=number))
            if number % 3 == 0:
                merges += tidied(store)
        harness.poll(lambda: reads > 20)
    finally:
        stop.set()
        reader.join()
    assert not wrong and merges >= 100 and len(choices(tmp)) == 301


@pytest.mark.contract
@pytest.mark.parametrize(
    "moment", ["parquet.exchange = die", "die_after(parquet, 'exchange')", "parquet.os.link = die"]
)
def test_a_merge_may_be_killed(moment: str, url: str, tmp: Path) -> None:
    program = (
        "[store.persist(*store_contract.votes(n, first=n)) for n in range(1, 6)]; "
        "store.row_destinations.publish(store); parquet.MERGED_BYTES = 2500"
    )
    killed(url, tmp, f"{program}; {moment}; store.row_destinations.tidy('votes', store)")
    assert choices(tmp) == ["1", "2", "3", "4", "5"]
    with contextlib.closing(connected(url, tmp)) as store:
        tidied(store)
    assert choices(tmp) == ["1", "2", "3", "4", "5"] and len(files(tmp)) == 1
    assert not staged(tmp)


class Longer(Vote, kw_only=True):
    weight: float | None = None


class Other(Record, kw_only=True):
    poll: int
    choice: str
    voter: str | None = None


def votes_of(kind: type[Record]) -> dict[str, Any]:
    return {"votes": stream("votes", kind)}


def test_files_with_fewer_columns_are_merged_with_later_ones(url: str, tmp: Path) -> None:
    with contextlib.closing(connected(url, tmp)) as store:
        store.persist(*votes("a"))
    own = votes_of(Longer)
    with contextlib.closing(connected(url, tmp, own)) as store:
        body = b'{"poll":"p","choice":"b","weight":2.5}'
        store.persist(claim("votes", 1, first=2), decoded(own["votes"], [body], 2))
        assert found(tmp, "choice, weight") == [("a", None), ("b", 2.5)]
        assert tidied(store) == 1
    assert len(files(tmp)) == 1 and found(tmp, "choice, weight") == [("a", None), ("b", 2.5)]


def test_files_whose_columns_have_other_types_stay_apart(url: str, tmp: Path) -> None:
    with contextlib.closing(connected(url, tmp)) as store:
        store.persist(*votes("a"))
    own = votes_of(Other)
    with contextlib.closing(connected(url, tmp, own)) as store:
        store.persist(claim("votes", 1, first=2), decoded(own["votes"], [b'{"poll":7,"choice":"b"}'], 2))
        assert tidied(store) == 0
    assert len(files(tmp)) == 2 and choices(tmp) == ["a", "b"]


# --- Deletion by age -------------------------------------------------------------------------------------------------


@pytest.mark.contract
@both
def test_old_files_are_deleted_and_their_rows_counted(store: Store, tmp: Path) -> None:
    stored(store, 3)
    after = NOON + 3_600_000_000
    assert count_overdue(store, "votes", after - 1_000_000) == 0
    assert count_overdue(store, "votes", after) == 3 and len(files(tmp)) == 3
    assert store.expire_stream("votes", after) is False
    assert not files(tmp) and not list((tmp / "rows/votes").iterdir())
    assert store.read_ledger("votes").deleted == 3
    stored(store, 3)  # the claims come again
    assert not files(tmp)


def test_a_file_with_a_row_that_is_not_old_stays(store: Store, tmp: Path) -> None:
    bodies = [b"poll=p&choice=a"] * 2
    entries = decoded(STREAMS["votes"], bodies)
    late = [msgspec.structs.replace(body, received=body.received + (body.seq - 1) * 7_200_000_000) for body in entries]
    store.persist(claim("votes", 2), late)
    store.expire_stream("votes", NOON + 3_600_000_000)
    assert len(found(tmp, "seq")) == 2
    store.expire_stream("votes", NOON + 3 * 3_600_000_000)
    assert found(tmp, "seq") == []


# --- The setting and the programs ------------------------------------------------------------------------------------


def test_the_setting_names_destinations_of_streams() -> None:
    load = settings.load_settings
    assert load({}).rows == ByStream(None, {})
    rows = load({"INGEST_ROWS": "parquet:///a/b, votes=store logs=parquet:///c"}).rows
    assert [rows.for_stream(name) for name in ("gps", "votes", "logs")] == ["parquet:///a/b", None, "parquet:///c"]


@pytest.mark.parametrize("text", ["parquet:", "parquet://a", "ftp://b/c", "gps=store,gps=store", "gps", "store,store"])
def test_other_destinations_are_refused(text: str) -> None:
    with pytest.raises(settings.SettingError, match="INGEST_ROWS=.* expected store"):
        check_rows(settings.load_settings({"INGEST_ROWS": text}).rows, STREAMS)


def test_a_field_with_the_name_of_a_column_of_the_destination_is_refused() -> None:
    class Shop(Record):
        name: str
        Hour: int = 0
        object: str = ""

    streams = {"shops": stream("shops", Shop)}
    for url, name in ("parquet:///a", "hour"), ("s3://a/b", "hour"), ("clickhouse://h:1/d", "object"):
        with pytest.raises(settings.SettingError, match=f"for shops: it has a field {name}, and the destination has"):
            check_rows(settings.load_settings({"INGEST_ROWS": url}).rows, streams)
    for url in "kafka://h:1", "store":
        check_rows(settings.load_settings({"INGEST_ROWS": url}).rows, streams)


def test_a_stream_that_does_not_exist_is_refused() -> None:
    s = settings.load_settings({"INGEST_ROWS": "trips=parquet:///a"})
    with pytest.raises(settings.SettingError, match="INGEST_ROWS: there is no stream 'trips'; there are gps, "):
        open_rows(s, STREAMS)


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "sluice.contrib.destinations.parquet")
    with pytest.raises(settings.SettingError, match="INGEST_ROWS=parquet:///a needs pyarrow: bin/provision parquet"):
        open_destination("parquet:///a", STREAMS["gps"])


def test_built_in_views_follow_only_tables_and_an_own_view_of_other_rows_is_refused(tmp: Path) -> None:
    found = views.load_views(settings.load_settings({"INGEST_ROWS": "gps=parquet:///a,votes=parquet:///a"}))
    assert [*found] == ["/metrics/latest"]
    module = tmp / "own_views.py"
    module.write_text('from sluice.contrib.views import latest\nVIEWS = {"/gps/own": latest("gps", key="device")}\n')
    with pytest.raises(settings.SettingError, match="'/gps/own': INGEST_ROWS sends the rows of gps elsewhere"):
        views.load_views(settings.load_settings({"INGEST_ROWS": "gps=parquet:///a", "INGEST_VIEWS": str(module)}))


@pytest.mark.contract
def test_a_worker_stores_one_stream_there_and_the_other_in_its_table(tmp: Path) -> None:
    with redis_server(tmp, appendfsync="no") as server:
        env = environment(tmp, {"INGEST_SPOOL": server.socket, "INGEST_ROWS": f"votes=parquet://{tmp}/rows"})
        with redis.Redis(unix_socket_path=str(server.socket)) as db:
            for number in range(500):
                db.rpush("ingest:{votes}", json.dumps({"poll": "p", "choice": str(number)}), "{")
                db.rpush("ingest:{gps}", json.dumps({"device": "d", "lat": number / 10, "lon": 1}))
        for count, status in (500, 1), (501, 0):  # 1: there are dead letters
            done = subprocess.run(
                [sys.executable, ROOT / "worker.py", "burst"], env=env, capture_output=True, text=True
            )
            assert done.returncode == status, done.stderr
            assert sorted(map(int, choices(tmp))) == [*range(count)]
            with redis.Redis(unix_socket_path=str(server.socket)) as db:
                db.rpush("ingest:{votes}", json.dumps({"poll": "p", "choice": str(count)}))
        shown = subprocess.run([ROOT / "bin/sluice", "status", "--json"], env=env, capture_output=True, check=True)
    assert harness.ask(tmp, "SELECT count(*) FROM gps") == [(500,)]
    assert harness.ask(tmp, "SELECT count(*) FROM dead_letters WHERE stream = 'votes'") == [(500,)]
    (counts,) = (one for one in json.loads(shown.stdout)["streams"] if one["stream"] == "votes")
    assert (counts["missing"], counts["ready"]) == (0, 1)
