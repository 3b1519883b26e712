"""The SQLite store: the tests of every store, and those of SQLite alone."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from proving.harness import ROOT, short_tmp
from sluice.store.registry import open_store
from sluice.store.sqlite.file import check_place, start_log
from sluice.store.store import Store
from sluice.store.tables import column_kind
from sluice.store.types import Outcome, Unavailable
from sluice.streams.built_in import STREAMS
from sluice.streams.custom import stream
from sluice.streams.record import Gps, Log, Metric, Record, Vote
from sluice.streams.schema import parts_of, stored_types
from support.folders import needs
from support.sqlite_store import SqliteStore
from support.store_contract import NOON, StoreTests, body_with, claim, decoded, votes
from support.worker_contract import WorkerTests


def kind_of_column(hint: Any) -> Any:
    return column_kind({kind for part in parts_of(hint) for kind in stored_types(part)})


TABLES = ("", "_ranges", "_folded", "_expired", "_epochs", "_cells", "_objects")


def test_a_store_makes_its_tables_unless_it_is_told_not_to(tmp_path: Path) -> None:
    with contextlib.closing(open_store(f"sqlite:///{tmp_path}/a.db", STREAMS)) as made:
        assert made.persist(*votes("a")) == Outcome(1, 0)
    with pytest.raises(Unavailable):
        open_store(f"sqlite:///{tmp_path}/b.db", STREAMS, make=False)
    (tmp_path / "c.db").touch()  # a worker has just begun with it
    with pytest.raises(Unavailable, match="c.db: there are no tables yet"):
        open_store(f"sqlite:///{tmp_path}/c.db", STREAMS, make=False)


class TestSqlite(StoreTests):
    @pytest.fixture
    def backend(self) -> Iterator[SqliteStore]:
        with short_tmp() as tmp:
            yield SqliteStore(tmp)

    @needs("formats")
    def test_values_are_as_the_protocol_says(self, backend: SqliteStore, store: Store) -> None:
        lines = b'm on=t,off=false,u=18446744073709551615u,s="x" -1\nm old=1 0'
        store.persist(claim("metrics", 1), decoded(STREAMS["metrics"], [lines]))
        assert backend.ask("SELECT field, value, typeof(value), type, time FROM metrics ORDER BY rowid") == [
            ("on", 1, "integer", "boolean", "1969-12-31T23:59:59.999999999Z"),
            ("off", 0, "integer", "boolean", "1969-12-31T23:59:59.999999999Z"),
            ("u", "18446744073709551615", "text", "unsigned", "1969-12-31T23:59:59.999999999Z"),
            ("s", "x", "text", "string", "1969-12-31T23:59:59.999999999Z"),
            ("old", 1.0, "real", "float", "1970-01-01T00:00:00.000000000Z"),
        ]

    def test_a_stream_of_ones_own_may_have_nanoseconds(self, backend: SqliteStore) -> None:
        class Tick(Record, kw_only=True):
            price: float

        ticks = stream("ticks", Tick, precision="ns")
        with contextlib.closing(open_store(backend.url, {"ticks": ticks})) as store:
            body = b'{"price":1,"time":1767268800123456789}'
            assert store.persist(claim("ticks", 1), decoded(ticks, [body])) == Outcome(1, 0)
        assert backend.ask("SELECT time, price FROM ticks") == [("2026-01-01T12:00:00.123456789Z", 1.0)]

    def test_the_tables_are_those_of_the_protocol(self, backend: SqliteStore, store: Store) -> None:
        columns = {
            name: ", ".join(row[1] for row in backend.ask(f"PRAGMA table_info({name})"))
            for name in (*STREAMS, "dead_letters", *(f"batches{one}" for one in TABLES))
        }
        protocol = (ROOT / "docs/protocol/database.md").read_text()
        for name, listed in columns.items():
            assert f"| `{name}` | `{listed}` |" in protocol
        for record in Metric, Gps, Vote, Log:  # in the order of the record type
            assert (
                ", ".join(x.name for x in msgspec.structs.fields(record))
                in columns[record.__name__.lower() + ("s" if record is not Gps else "")]
            )

    @pytest.mark.parametrize("more", ["", ", mine TEXT DEFAULT 'mine'"])
    def test_an_existing_table_may_have_its_columns_in_any_order(self, more: str, backend: SqliteStore) -> None:
        with contextlib.closing(apsw.Connection(str(backend.path))) as db:
            db.execute(f"CREATE TABLE votes (choice, seq, voter{more}, time, poll, batch, received_at)")
        store = open_store(backend.url, STREAMS)
        assert store.persist(*votes("a", "b")) == Outcome(2, 0)
        store.close()
        (first, _) = backend.ask(
            f"SELECT poll, choice, voter, batch, seq{', mine' * bool(more)} FROM votes ORDER BY seq"
        )
        assert first == ("p", "a", None, 1, 1, *["mine"] * bool(more))
        assert backend.ask("SELECT count(*) FROM votes WHERE received_at LIKE '20%Z' AND time = received_at") == [(2,)]

    def test_a_column_that_is_added_has_its_type(self, backend: SqliteStore, store: Store) -> None:
        types = "SELECT name, type FROM pragma_table_info('gps') ORDER BY name"
        whole = backend.ask(types)
        assert {("device", "TEXT"), ("lat", "REAL"), ("battery", "REAL"), ("seq", "INTEGER")} <= set(whole)
        with contextlib.closing(apsw.Connection(str(backend.path))) as db:
            db.execute("DROP TABLE gps; CREATE TABLE gps (received_at TEXT)")
        open_store(backend.url, STREAMS).close()
        assert backend.ask(types) == whole

    @pytest.mark.parametrize(
        "change",
        [
            "ALTER TABLE gps DROP COLUMN altitude; ALTER TABLE gps ADD COLUMN altitude REAL",
            "ALTER TABLE gps RENAME COLUMN speed TO x; ALTER TABLE gps RENAME COLUMN altitude TO speed; "
            "ALTER TABLE gps RENAME COLUMN x TO altitude",
            "CREATE TABLE new AS SELECT batch, speed, altitude, accuracy, bearing, battery, lon, lat, device, time, "
            "received_at, seq, sender FROM gps; DROP TABLE gps; ALTER TABLE new RENAME TO gps",
        ],
    )
    def test_values_stay_in_their_columns_when_another_program_changes_the_table(
        self, change: str, backend: SqliteStore, store: Store
    ) -> None:
        body = b'{"device":"d","lat":1,"lon":2,"altitude":3,"speed":4,"accuracy":5,"bearing":6,"battery":7}'
        store.persist(claim("gps", 1), decoded(STREAMS["gps"], [body]))
        backend.ask(change)
        store.persist(claim("gps", 1, 2), decoded(STREAMS["gps"], [body], 2))
        columns = "device, lat, lon, altitude, speed, accuracy, bearing, battery"
        assert backend.ask(f"SELECT {columns} FROM gps WHERE seq = 2") == [("d", 1, 2, 3, 4, 5, 6, 7)]

    @pytest.mark.parametrize(
        "before, after, sent",
        [
            (int, str, "007"), (int, str, "12345678901234567890"), (float, str, "1"), (str, int, 7), (str, float, 1.5),
            (int, float, 2.0), (float, int, 7), (int, int | str, "007"), (bool, str, "1"), (int, dict, {"a": 1}),
        ],
    )  # fmt: skip
    def test_a_field_with_another_type_is_not_converted(
        self, before: Any, after: Any, sent: Any, backend: SqliteStore
    ) -> None:
        def connected(kind: Any) -> tuple[Store, Any]:
            record: Any = msgspec.defstruct("Own", [("a", kind)], bases=(Record,), kw_only=True)
            own = stream("own", record)
            return open_store(backend.url, {"own": own, "votes": STREAMS["votes"]}), own.record

        connected(before)[0].close()
        store, record = connected(after)
        bodies = [body_with(1, NOON, b"", record(a=sent))]
        with pytest.raises(Unavailable, match="column a of table own has the type .*: rename it"):
            store.persist(claim("own", 1), bodies)
        assert store.persist(*votes("a")).records == 1
        backend.ask("ALTER TABLE own RENAME COLUMN a TO a_before")
        assert store.persist(claim("own", 1), bodies).records == 1
        ((found,),) = backend.ask("SELECT a FROM own")
        assert (found if kind_of_column(after) is not object else json.loads(found)) == sent
        assert type(found) is (str if kind_of_column(after) is object else type(sent))

    def test_a_table_may_have_types_that_convert_nothing(self, backend: SqliteStore) -> None:
        backend.ask(
            "CREATE TABLE gps (received_at DATETIME, time DATETIME, device VARCHAR(9), lat DOUBLE PRECISION, "
            "lon FLOAT, altitude, speed, accuracy, bearing, battery, batch BIGINT, seq UNSIGNED BIG INT, sender CLOB)"
        )
        store = open_store(backend.url, STREAMS)
        assert store.persist(claim("gps", 1), decoded(STREAMS["gps"], [b'{"device":"1","lat":1,"lon":2}'])).records == 1
        assert backend.ask("SELECT device, lat, lon, typeof(received_at), typeof(time) FROM gps") == [
            ("1", 1.0, 2.0, "text", "text")
        ]

    def test_a_table_that_is_gone_has_no_old_rows(self, backend: SqliteStore, store: Store) -> None:
        with contextlib.closing(apsw.Connection(str(backend.path))) as db:
            db.execute("DROP TABLE votes")
        assert store.expire_stream("votes", NOON) is False

    def test_the_last_row_of_a_stream_is_not_deleted_by_age(self, backend: SqliteStore, store: Store) -> None:
        """Otherwise the next row would get its rowid, and the follower would not see it."""
        store.persist(*votes("a", "b"))
        while store.expire_stream("votes", 1 << 51):
            pass
        store.persist(*votes("c", first=3))
        assert backend.ask("SELECT rowid, choice FROM votes") == [(2, "b"), (3, "c")]

    def test_every_commit_is_synced_to_disk(self, store: Any) -> None:
        assert store.db.execute("PRAGMA journal_mode").get == "wal"
        assert store.db.execute("PRAGMA synchronous").get == 2  # FULL

    def test_a_full_database_is_unavailable_until_it_has_room(
        self, backend: SqliteStore, store: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store, "leave_reserve", lambda db: None)  # it sets another limit
        full = store.db.execute("PRAGMA page_count").get + 2
        store.db.execute(f"PRAGMA max_page_count={full}")
        with pytest.raises(Unavailable, match="full"):
            store.persist(*votes(*["x" * 1000] * 100))
        assert self.choices(backend) == []
        assert store.persist(*votes("a")) == Outcome(1, 0)  # opened anew, without that limit

    def test_a_read_only_database_is_unavailable(self, store: Any) -> None:
        store.db.execute("PRAGMA query_only=1")  # permissions do not hold for root; the error is the same
        with pytest.raises(Unavailable, match="readonly"):
            store.persist(*votes("a"))
        assert store.persist(*votes("a")) == Outcome(1, 0)

    def test_a_missing_directory_is_created_or_the_database_is_unavailable(self, backend: SqliteStore) -> None:
        deep = backend.path.parent / "a/b/c.db"
        store = open_store(f"sqlite:///{deep}", STREAMS)
        assert store.persist(*votes("a")) == Outcome(1, 0)
        store.close()
        assert deep.parent.stat().st_mode & 0o77 == 0
        with pytest.raises(Unavailable):
            open_store(f"sqlite:///{deep}/d/e.db", STREAMS)

    def test_a_file_that_is_not_a_database_is_unavailable_and_stays_unchanged(self, backend: SqliteStore) -> None:
        backend.path.write_bytes(b"somebody's letters " * 100)
        with pytest.raises(Unavailable, match="not a database"):
            open_store(backend.url, STREAMS)
        assert backend.path.read_bytes() == b"somebody's letters " * 100

    def test_a_corrupt_database_is_unavailable_and_buries_nothing(self, backend: SqliteStore, store: Store) -> None:
        store.persist(*votes(*range(2000)))
        store.close()
        with open(backend.path, "r+b") as file:
            size = file.seek(0, 2)
            for page in range(4096, size, 4096):
                file.seek(page)
                file.write(os.urandom(200))
        with pytest.raises(Unavailable, match="malformed|corrupt|schema"):
            open_store(backend.url, STREAMS).persist(*votes("a", first=2001))
        assert not (backend.path.parent / "ingest.db-journal").exists()

    def test_a_trigger_that_rolls_back_the_transaction_stores_nothing(self, backend: SqliteStore, store: Store) -> None:
        backend.ask(
            "CREATE TRIGGER t BEFORE INSERT ON votes WHEN new.choice = 'z' BEGIN SELECT RAISE(ROLLBACK, 'not now'); END"
        )
        for _ in range(2):
            with pytest.raises(Unavailable, match="not now"):
                store.persist(*votes("a", "z", "b"))
        assert self.choices(backend) == []
        backend.ask("DROP TRIGGER t")
        assert store.persist(*votes("a", "z", "b")) == Outcome(3, 0)

    def test_an_operator_command_creates_no_database(self, backend: SqliteStore) -> None:
        with pytest.raises(Unavailable, match="no database yet"):
            open_store(backend.url, STREAMS, make=False)
        assert not backend.path.exists()

    @pytest.mark.parametrize("suffix", ["", "-wal"])
    def test_nothing_is_stored_in_a_file_that_was_removed_until_it_is_put_back(
        self, suffix: str, backend: SqliteStore, store: Store
    ) -> None:
        store.persist(*votes("a"))
        here, kept = Path(f"{backend.path}{suffix}"), backend.path.parent / "kept"
        here.rename(kept)
        for _ in range(2):
            with pytest.raises(Unavailable, match="removed or replaced while it was in use"):
                store.persist(*votes("b", first=2))
        assert not here.exists()
        kept.rename(here)
        assert store.persist(*votes("b", first=2)) == Outcome(0, 0, again=True)  # its commit is in that file
        assert self.choices(backend) == ["a", "b"]

    def test_no_new_database_begins_beside_the_log_of_one_that_is_away(
        self, backend: SqliteStore, store: Store
    ) -> None:
        store.persist(*votes("a"))
        kept = backend.path.parent / "kept"
        backend.path.rename(kept)
        with pytest.raises(Unavailable, match="is gone, but .*-wal has rows of it"):
            open_store(backend.url, STREAMS)
        assert not backend.path.exists()
        kept.rename(backend.path)
        open_store(backend.url, STREAMS).close()
        assert self.choices(backend) == ["a"]
        store.close()

    def test_nothing_is_stored_while_another_file_has_the_place_of_the_database(
        self, backend: SqliteStore, store: Store
    ) -> None:
        store.persist(*votes("a"))
        other = backend.path.parent / "other.db"
        open_store(f"sqlite:///{other}", STREAMS).close()
        other.rename(backend.path)
        with pytest.raises(Unavailable, match="removed or replaced"):
            store.persist(*votes("b", first=2))
        store.close()  # as a restart does
        assert store.persist(*votes("b", first=2)) == Outcome(1, 0)
        assert self.choices(backend) == ["b"]

    def test_an_error_in_between_does_not_make_a_worker_use_another_file(
        self, backend: SqliteStore, store: Store
    ) -> None:
        store.persist(*votes("a"))
        kept = backend.path.parent / "kept"
        backend.path.rename(kept)
        backend.path.mkdir()
        with pytest.raises(Unavailable):
            store.persist(*votes("b", first=2))
        assert store.db
        store.db.close()  # the next statement fails, as after a full disk
        backend.path.rmdir()
        for _ in range(3):
            with pytest.raises(Unavailable):
                store.persist(*votes("b", first=2))
        assert not backend.path.exists()

    def test_an_operator_command_finds_the_file_that_is_there_now(self, backend: SqliteStore, store: Store) -> None:
        reader = open_store(backend.url, STREAMS, make=False)
        store.persist(*votes("a"))
        assert reader.read_ledger("votes").bodies == 1
        store.close()
        for suffix in "", "-wal", "-shm":
            Path(f"{backend.path}{suffix}").rename(backend.path.parent / f"former.db{suffix}")
        open_store(backend.url, STREAMS).close()
        with pytest.raises(Unavailable):
            reader.read_ledger("votes")
        assert reader.read_ledger("votes").bodies == 0
        reader.close()

    def test_the_log_is_cut_after_a_long_reader(
        self, backend: SqliteStore, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sluice.store.sqlite.file.LOG_BYTES", 1 << 20)
        reader = open_store(backend.url, STREAMS, make=False)
        with reader.transaction(read=True) as db:
            reader.run_sql(db, "SELECT count(*) FROM batches")
            for first in range(1, 40):
                store.persist(*votes("x" * 100_000, first=first))
            store.fold_batches()  # it does not wait for the reader
            assert self.log_size(backend) > 2 << 20
        store.fold_batches()
        assert self.log_size(backend) == 0
        reader.close()
        assert len(self.choices(backend)) == 39

    def test_the_log_is_cut_after_a_rollback(
        self, backend: SqliteStore, store: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sluice.store.sqlite.file.LOG_BYTES", 1 << 20)
        other = open_store(backend.url, STREAMS)
        store.db.execute("PRAGMA cache_size=10")  # what does not fit is written to the log before the commit

        def interrupted(*given: Any) -> None:
            raise RuntimeError

        monkeypatch.setattr(store, "add_records", interrupted)  # behind the rows, before the commit
        with pytest.raises(RuntimeError):
            store.persist(*votes(*["x" * 100_000] * 40))
        assert self.log_size(backend) > 2 << 20
        other.fold_batches()
        assert self.log_size(backend) == 0
        other.close()

    def log_size(self, backend: SqliteStore) -> int:
        return Path(f"{backend.path}-wal").stat().st_size

    def test_a_network_file_system_and_one_without_shared_memory_are_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mounts = tmp_path / "mountinfo"
        monkeypatch.setattr("sluice.store.sqlite.file.MOUNTS", mounts)
        there = tmp_path / "on a server"
        line = "36 35 98:0 / {} rw,noatime master:1 - {} server:/x rw\n"
        mounts.write_text(line.format("/", "ext4") + line.format(str(there).replace(" ", "\\040"), "nfs4"))
        with pytest.raises(Unavailable, match=r"on a network file system \(nfs4\)"):
            open_store(f"sqlite:///{there}/below/ingest.db", STREAMS)
        open_store(f"sqlite:///{tmp_path}/ingest.db", STREAMS).close()
        for name in b"donn\xe9es", "donn\u00e9es".encode(), b"a\\b", b"a\rb", b"a\x85b", b"a b\tc\nd":
            there = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
            escaped = b"".join(b"\\%03o" % x if x in b" \t\n\\" else bytes([x]) for x in os.fsencode(there))
            mounts.write_bytes(
                line.format("/", "ext4").encode() + line.encode().replace(b"{}", escaped, 1).replace(b"{}", b"nfs4")
            )
            open_store(f"sqlite:///{tmp_path}/ingest.db", STREAMS).close()
            with pytest.raises(Unavailable, match=r"on a network file system \(nfs4\)"):
                check_place(str(there / "below"))
        with pytest.raises(Unavailable, match="only journal_mode=memory"):
            start_log(apsw.Connection(":memory:"), ":memory:")


class TestWorkerWithSqlite(WorkerTests):
    @pytest.fixture
    def backend(self, tmp: Path) -> SqliteStore:
        return SqliteStore(tmp)
