"""Named keys: a rate, streams and a name for each, through a real nginx."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyarrow.dataset import dataset

from proving import harness, kafka
from proving.harness import installation
from sluice import settings
from sluice.base.counters import Counts
from sluice.contrib.access import key_usage, keys
from sluice.settings import SettingError
from sluice.store.store import key_names as senders_of
from sluice.store.types import Body
from sluice.streams.message import sender_of
from support import operator_verbs
from support.access import KEY, OTHER, curl, private
from support.nginx_front import front
from support.posting_clients import Threads

poll = harness.poll
THIRD = "third0123456789abcdef0123456789abcdef"
VOTE = '{"poll":"p","choice":"c"}'


def post(port: int, path: str, key: str, *more: str) -> int:
    return curl("-d", VOTE, "-H", f"X-API-Key: {key}", *more, f"localhost:{port}{path}")[0]


@pytest.mark.nightly
def test_a_key_has_a_rate_and_streams_of_its_own_and_changes_without_a_restart(tmp: Path) -> None:
    file = private(
        tmp / "keys", f"{KEY} name=acme rate=1 streams=votes  # hourly\n{OTHER} name=other\n{THIRD} plain;\n"
    )
    with installation(tmp / "home", {"INGEST_API_KEYS": file}, ready=False) as up:
        poll(lambda: curl("-H", f"X-API-Key: {OTHER}", f"localhost:{up.port}/readyz")[0] == 200)
        poll((tmp / "home/run/rejected.sock").exists)  # what nginx tells earlier is lost
        assert [post(up.port, "/votes", KEY) for _ in range(3)] == [200] * 3  # a burst of twice the rate
        poll(lambda: post(up.port, "/votes", KEY) == 429)
        late = curl("-d", VOTE, "-H", f"X-API-Key: {KEY}", f"localhost:{up.port}/votes")
        assert late[0] == 200 or late[1]["retry-after"] == ["1"]
        assert [post(up.port, path, key) for path in ("/votes", "/gps") for key in [OTHER, THIRD] * 9] == [200] * 36
        poll(lambda: post(up.port, "/gps?x=/votes", KEY) == 403)
        for path in "/gps", "/GPS", "/votes/../gps", "/votes/x", "//gps", "/g%70s":
            assert post(up.port, path, KEY, "--path-as-is") in (403, 429)
        for path in "/votes/", "//votes":
            assert post(up.port, path, KEY, "--path-as-is") in (200, 429)
        poll(lambda: curl("-H", f"X-API-Key: {KEY}", f"localhost:{up.port}/gps/latest?device=x")[0] == 404)

        def told() -> set[tuple[int, str, str]]:
            rows = json.loads(operator_verbs.sluice(tmp / "home", "errors", "--json")[1])
            return {(row["status"], row["sender"], row["reason"]) for row in rows}

        poll(
            lambda: (
                {
                    (429, "acme 127.0.0.1", "the rate of the key, or INGEST_CLIENT_RATE"),
                    (403, "acme 127.0.0.1", "the key may not post to this path"),
                }
                <= {(status, sender.replace("::1", "127.0.0.1"), reason) for status, sender, reason in told()}
            )
        )
        # a file with plain keys and one with names are exchanged while bin/up runs
        (pid,) = up.pids("nginx")[:1]
        file.write_text(f"{KEY[::-1]} plain;\n")
        assert operator_verbs.sluice(tmp / "home", "reload", "--nginx", "--notice", "0")[0] == 0
        poll(lambda: post(up.port, "/gps", KEY[::-1]) == 200)
        poll(lambda: post(up.port, "/gps", KEY) == 401)
        file.write_text(f"{KEY} name=acme streams=/gps\n")
        assert operator_verbs.sluice(tmp / "home", "reload", "--nginx", "--notice", "0")[0] == 0
        poll(lambda: (post(up.port, "/gps", KEY), post(up.port, "/votes", KEY)) == (200, 403))
        assert pid in up.pids("nginx")
        file.write_text(f"{KEY} name=acme rate=many\n")
        assert operator_verbs.sluice(tmp / "home", "reload", "--nginx", "--notice", "0")[0] != 0
        assert post(up.port, "/gps", KEY) == 200


@pytest.mark.contract
def test_the_gateway_gets_the_name_of_the_key_and_none_that_a_client_sends(tmp: Path) -> None:
    file = private(tmp / "keys", f"{KEY} name=acme\n{THIRD} plain;\n")
    forged = ["-H", "Sluice-Sender: forged", "-H", "Sluice_Sender: forged"]
    for setting, key, name in (
        ({"INGEST_API_KEYS": file}, KEY, b"acme"),
        ({"INGEST_API_KEYS": file}, THIRD, b""),
        ({}, "", b""),
    ):
        with front(**setting) as (web, gateway):
            assert post(web.port, "/owntracks", key, *forged) == 200
            request = gateway.requests.pop()
            assert b"forged" not in request
            assert (b"Sluice-Sender: acme\r\n" in request) == (name == b"acme")
            assert request.lower().count(b"sluice-sender") == bool(name)


@pytest.mark.contract
def test_a_key_and_its_name_may_be_as_long_as_a_line_allows(tmp: Path) -> None:
    key, name = "k" * 46, "n" * 63
    file = private(tmp / "keys", f"{key} name={name} rate=9 streams=votes\n")
    with front(INGEST_API_KEYS=file) as (web, gateway):
        assert post(web.port, "/votes", key) == 200
        assert f"Sluice-Sender: {name}\r\n".encode() in gateway.requests.pop()
        assert post(web.port, "/gps", key) == 403


@pytest.mark.contract
@pytest.mark.parametrize("allow", ["all", "private"])
def test_a_name_may_be_a_word_of_nginx_or_begin_like_an_escape(allow: str, tmp: Path) -> None:
    names = "default", "include", "hostnames", "volatile", "tom", "nick", "rob", "_", "0.@-"
    known = {f"{n}{KEY[1:]}": name for n, name in enumerate(names)}
    file = private(tmp / "keys", "".join(f"{key} name={name} rate=1 streams=votes\n" for key, name in known.items()))
    with front(("rate=1r/s", "rate=1r/m"), INGEST_API_KEYS=file, INGEST_ALLOW=allow) as (web, gateway):
        for key, name in known.items():
            assert [post(web.port, path, key) for path in ("/votes", "/gps", "/votes")] == [200, 403, 200]
            assert f"Sluice-Sender: {name}\r\n".encode() in gateway.requests.pop()
            assert post(web.port, "/votes", key) == 429


@pytest.mark.nightly
def test_rows_have_the_name_of_the_key_and_no_client_can_forge_it(tmp: Path) -> None:
    file = private(tmp / "keys", f"{THIRD} plain;\n")
    env = {"INGEST_API_KEYS": file, "INGEST_ROWS": f"votes=parquet://{tmp}/rows"}

    def send(path: str, body: str, key: str, *more: str) -> int:
        return curl("--data-binary", body, "-H", f"X-API-Key: {key}", *more, f"localhost:{up.port}{path}")[0]

    def stored(device: str) -> set[str]:
        return {who for (who,) in harness.ask(up.home, "SELECT sender FROM gps WHERE device = ?", device)}

    def gps(device: str) -> str:
        return f'{{"device":"{device}","lat":1,"lon":2}}'

    with installation(tmp / "home", env, ready=False) as up:
        poll(lambda: send("/gps", gps("before"), THIRD) == 200)
        poll(lambda: "" in stored("before"))
        file.write_text(f"{KEY} name=acme\n{OTHER} name=other\n{THIRD} plain;\n")
        assert operator_verbs.sluice(tmp / "home", "reload", "--nginx", "--notice", "2")[0] == 0
        assert send("/gps", gps("a"), KEY) == 200
        for pid in [*up.pids("worker"), *up.pids("gateway")]:
            harness.strike(pid, signal.SIGKILL)
        poll(lambda: send("/gps", gps("b"), OTHER) == 200)
        forged = "-H", "Sluice-Sender: acme", "-H", "Sluice_Sender: acme"
        assert send("/gps", gps("c"), THIRD, *forged) == 200
        assert send("/gps", gps("d"), OTHER, *forged) == 200
        for start in "POST /gps HTTP/1.1", "POST /gps":
            assert send("/gps", f"{start}\r\nSluice-Sender: acme\r\n\r\n{gps('e')}", OTHER) == 200
        assert send("/write", "m v=1", KEY) == 204
        assert send("/metrics", '{"name":"m","value":1}', OTHER, "-H", "Idempotency-Key: k1") == 200
        assert send("/gps", '{"device":"f","lat":99,"lon":2}', KEY) == 200
        for key in KEY, OTHER:
            assert send("/votes", VOTE, key) == 200
        wanted: dict[str, set[str]] = {"a": {"acme"}, "b": {"other"}, "c": {""}, "d": {"other"}, "e": {"other"}}
        poll(lambda: all(map(stored, "abcd")))
        poll(lambda: harness.ask(up.home, "SELECT count(*) FROM gps WHERE device = 'e'") == [(2,)])
        assert {device: stored(device) for device in wanted} == wanted
        poll(lambda: {*harness.ask(up.home, "SELECT sender FROM metrics")} == {("acme",), ("other",)})
        asked = "SELECT body FROM dead_letters WHERE CAST(body AS TEXT) LIKE '%\"f\"%'"
        (letter,) = poll(lambda: harness.ask(up.home, asked))[0]
        assert sender_of(letter) == "acme"  # also when it is decoded again
        files = tmp / "rows/votes"
        poll(lambda: files.is_dir() and dataset(files, partitioning="hive").count_rows() == 2)
        assert {*dataset(files, partitioning="hive").to_table()["sender"].to_pylist()} == {"acme", "other"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not kafka.available():
        pytest.skip(kafka.MISSING)
    with kafka.brokers(tmp_path_factory.mktemp("kafka")) as found:
        yield found.url


class Named(Threads):
    """A client for each key, which posts bodies with its name to a table and to files, each until it is accepted.

    accepted: the number of its last body, by name. failed: other answers than 200.
    """

    def __init__(self, port: int, keys: dict[str, str]) -> None:
        self.port = port
        self.stop = threading.Event()
        self.accepted = dict.fromkeys(keys, 0)
        self.failed: set[int] = set()
        self.threads = [threading.Thread(target=self.run, args=pair) for pair in keys.items()]

    def run(self, name: str, key: str) -> None:
        while not self.stop.is_set():
            number = self.accepted[name] + 1
            headers = {"X-API-Key": key, "Idempotency-Key": f"{name}-{number}"}
            vote = f'{{"poll":"{name}","choice":"{number}"}}'
            gps = f'{{"device":"{name}","lat":1,"lon":2,"speed":{number}}}'
            for path, body in ("/votes", vote), ("/gps", gps):
                poll(partial(self.is_accepted, path, body.encode(), headers), interval=0.01)
            self.accepted[name] = number

    def is_accepted(self, path: str, body: bytes, headers: dict[str, str]) -> bool:
        try:
            status = harness.post(self.port, path, body, headers)[0]
        except (OSError, EOFError):  # the connection broke
            return False
        self.failed |= {status} - {200}
        return status == 200

    def more(self) -> None:
        before = dict(self.accepted)
        poll(lambda: all(self.accepted[name] > n + 5 for name, n in before.items()))


@pytest.mark.nightly
@pytest.mark.parametrize("spool", ["redis", "kafka"])
def test_each_row_has_its_sender_through_kills(spool: str, tmp: Path, request: pytest.FixtureRequest) -> None:
    names = {"acme": KEY, "other": OTHER}
    file = private(tmp / "keys", "".join(f"{key} name={name}\n" for name, key in names.items()))
    env = {"INGEST_API_KEYS": file, "INGEST_ROWS": f"votes=parquet://{tmp}/rows"}
    if spool == "kafka":
        env["INGEST_SPOOL"] = f"{request.getfixturevalue('broker')}/{tmp.name}?partitions=2"
    with installation(tmp / "home", env, ready=False) as up:
        poll(lambda: curl("-H", f"X-API-Key: {KEY}", f"localhost:{up.port}/readyz")[0] == 200)
        with Named(up.port, names) as load:
            for program in ["worker", "gateway", "worker", *(["redis"] if spool == "redis" else []), "nginx"]:
                load.more()
                for pid in up.pids(program):
                    harness.strike(pid, signal.SIGKILL)
            load.more()
        assert load.failed <= {502, 503, 504}
        files = tmp / "rows/votes"
        wanted = load.accepted
        rows = "SELECT device, sender, CAST(speed AS INTEGER) FROM gps"
        poll(lambda: len(harness.ask(up.home, rows)) >= sum(wanted.values()))
        poll(lambda: dataset(files, partitioning="hive").count_rows() >= sum(wanted.values()))
        each = sorted((name, name, number) for name, last in wanted.items() for number in range(1, last + 1))
        assert sorted(harness.ask(up.home, rows)) == each
        found = dataset(files, partitioning="hive").to_table().to_pylist()
        assert sorted((row["poll"], row["sender"], int(row["choice"])) for row in found) == each


@pytest.mark.nightly
def test_bodies_and_rejections_are_counted_by_name(tmp: Path) -> None:
    file = private(tmp / "keys", f"{KEY} name=acme rate=1 streams=votes\n{OTHER} name=other\n{THIRD} plain;\n")

    def figures() -> dict[str, Any]:
        shown = json.loads(harness.get(up.port, "/status/status.json")[2])
        return {row.pop("sender"): row for row in shown["senders"]}

    with installation(tmp / "home", {"INGEST_API_KEYS": file}, ready=False) as up:
        poll(lambda: post(up.port, "/votes", THIRD) == 200)
        poll((tmp / "home/run/rejected.sock").exists)  # what nginx tells earlier is lost
        mine: list[int] = []
        while mine.count(429) < 5:
            mine.append(post(up.port, "/votes", KEY))
        assert post(up.port, "/gps", OTHER) == 200  # a dead letter
        assert [post(up.port, "/votes", OTHER) for _ in range(5)] == [200] * 5
        while mine[-1] != 403:
            mine.append(post(up.port, "/gps", KEY))

        def counted() -> bool:
            found = figures()
            assert found.keys() <= {"acme", "other"}
            return (
                found["other"]["stored"] == {"gps": 1, "votes": 5}
                and found["acme"]["stored"] == {"votes": mine.count(200)}
                and found["acme"]["rejected"].get("403") == 1
                and found["acme"]["rejected"]["429"] == mine.count(429)
                and found["other"]["stored_rate"] == 0
            )

        poll(counted)
        text = harness.get(up.port, "/status/metrics")[2].decode()
        assert 'sluice_sender_bodies_total{sender="other",stream="votes"} 5.0' in text
        assert 'sluice_sender_rejections_total{sender="acme",status="403"} 1.0' in text


def test_so_many_names_are_counted_and_no_more(tmp: Path) -> None:
    counts = Counts()
    of = key_usage.KeyUsage(counts)
    for n in range(2 * key_usage.SENDERS):
        of.stored("votes", [f"n{n}"])
    file = tmp / "names"
    file.write_text("n999\nn998\nnever\n")
    of.rejected(429, "n998")
    assert len(counts.totals()) == key_usage.SENDERS + 2
    rows = key_usage.usage_rows(counts.totals() | {"answered 200 /votes": 1}, file)
    assert len(rows) == key_usage.SHOWN + 1
    assert rows[0] == {
        "sender": key_usage.OTHERS,
        "stored": {"votes": 2 * key_usage.SENDERS - key_usage.SHOWN},
        "rejected": {},
    }
    shown = {row["sender"]: row for row in rows}
    assert shown["n998"] == {"sender": "n998", "stored": {"votes": 1}, "rejected": {"429": 1}}
    assert "n999" in shown
    assert keys.NAME.fullmatch(key_usage.OTHERS) is None


START = b"POST /x HTTP/1.1\r\n"


@pytest.mark.parametrize(
    "item, name",
    [
        (b"{}", ""), (START, ""), (START + b"Sluice-Sender: a\r\n\r\n{}", "a"),
        (START + b"A: b\r\nSluice-Sender: a\r\n\r\n{}", "a"),
        (START + b"A: b\r\n\r\n\r\nSluice-Sender: a\r\n", ""),
        (START + b"\r\n\r\nSluice-Sender: a\r\n\r\n", ""),
        (START + b"X-Sluice-Sender: a\r\n\r\n", ""),
        (b"POST /x\r\nSluice-Sender: a\r\n\r\n", ""),
    ],
)  # fmt: skip
def test_only_a_field_of_a_head_names_the_sender(item: bytes, name: str) -> None:
    assert sender_of(item) == name
    bodies = [Body(seq, 0, body, ()) for seq, body in enumerate((b"{}", item, b""), 7)]
    assert senders_of(bodies) == ({8: name} if name else {})


@pytest.mark.contract
def test_an_address_that_may_not_send_does_not_use_up_the_rate_of_a_name(tmp: Path) -> None:
    file = private(tmp / "keys", f"{KEY} name=acme rate=1\n")
    with front(("rate=1r/s", "rate=1r/m"), INGEST_API_KEYS=file, INGEST_ALLOW="127.0.0.2") as (web, _):
        url = f"127.0.0.1:{web.port}"
        ask = ["-d", "x", "-H", f"X-API-Key: {KEY}"]
        assert [curl(*ask, url)[0] for _ in range(9)] == [403] * 9
        assert [curl(*ask, "--interface", "127.0.0.2", url)[0] for _ in range(4)] == [200, 200, 200, 429]


@pytest.mark.parametrize(
    "line, words",
    [
        (f"{KEY} name=a b", "is not `KEY NAME;`"), (f"{KEY} rate=1", "has no valid name="),
        (f"{KEY} name=a name=b", "a word twice"), (f"{KEY} name=a rate=x", "no whole number"),
        (f"{KEY} name=a streams=nowhere", "names nowhere"), (f'{KEY} name=a";', "is not"),
        (f"{KEY} name=a$x", "has no valid name="), (f"{KEY} name=b\n{OTHER} name=b rate=2", "has another rate"),
        (f"{KEY} name=b\n{OTHER} name=B", "has another name"), (f"{KEY} a;\n{KEY.upper()} b;", "duplicate"),
    ],
)  # fmt: skip
def test_a_malformed_line_is_refused(line: str, words: str, tmp: Path) -> None:
    s = settings.load_settings({"INGEST_HOME": str(tmp), "INGEST_API_KEYS": str(private(tmp / "keys", line))})
    with pytest.raises(SettingError, match=words):
        keys.load_keys(s)


@pytest.mark.parametrize(
    "content, words",
    [
        (f"{KEY} name=a\n\0\0\0\0", "has a NUL byte"), (f"\ufeff{KEY} name=a\n", "has a byte order mark"),
        ("", "has no key"), ("# none\n", "has no key"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_text_or_has_no_key_is_refused(content: str, words: str, tmp: Path) -> None:
    s = settings.load_settings({"INGEST_HOME": str(tmp), "INGEST_API_KEYS": str(private(tmp / "keys", content))})
    with pytest.raises(SettingError, match=words):
        keys.load_keys(s)


def test_only_a_file_is_a_file_of_keys(tmp: Path) -> None:
    os.mkfifo(tmp / "pipe", 0o600)
    (tmp / "folder").mkdir(0o700)
    (tmp / "link").symlink_to(tmp / "nothing")
    for name, words in ("pipe", "is no file"), ("folder", "Is a directory"), ("link", "No such file"):
        with pytest.raises(SettingError, match=words):
            keys.load_keys(settings.load_settings({"INGEST_HOME": str(tmp), "INGEST_API_KEYS": str(tmp / name)}))
    for end in "\r\n", "\n", "":  # of the last line
        file = private(tmp / "keys", f"{OTHER} b;\r\n{KEY} name=a rate=2{end}")
        assert [key.name for key in keys.load_keys(settings.load_settings({"INGEST_API_KEYS": str(file)}))] == ["", "a"]
