"""Kafka in the list's place: real brokers, gateways and workers. Nothing acknowledged is lost or stored twice.

`bin/test --nightly tests/contrib/kafka/test_kafka.py --leaders 30 -o faulthandler_timeout=0` kills the leader of
a partition 30 times.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import apsw
import pytest

from proving import harness, kafka
from proving.harness import PATIENCE, ROOT, environment, free_port, gateway, get, installation, poll, post, running
from support.posting_clients import Clients

if not kafka.available():
    pytest.skip(kafka.MISSING, allow_module_level=True)

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from sluice import settings
from sluice.contrib.kafka.admin import Address, Admin, Topic
from sluice.contrib.kafka.backlog import Backlog
from sluice.contrib.kafka.errors import KafkaUnavailable
from sluice.contrib.kafka.inlet import SENDERS, Inlet, note_failure, note_loss
from sluice.contrib.kafka.inspector import Inspector
from sluice.contrib.kafka.outlet import CONSUMER, Outlet
from sluice.http import replies
from sluice.ledger import Observer
from sluice.spool.claim import Claim
from sluice.spool.contract import TIMEOUT_SECONDS
from sluice.spool.errors import Refusal

pytestmark = pytest.mark.contract

POISON = """
import os
from sluice.streams.built_in import STREAMS as BUILT_IN

def decode(body, limits):
    if body == b"ends":
        os.abort()
    return BUILT_IN["votes"].decode(body, limits)

STREAMS = {"votes": BUILT_IN["votes"]._replace(decode=decode)}
"""
VOTE = b'{"poll":"p","choice":"%b"}'
WORKER = [sys.executable, str(ROOT / "worker.py")]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kafka.Brokers]:
    with kafka.brokers(tmp_path_factory.mktemp("kafka")) as found:
        yield found


@pytest.fixture
def url(broker: kafka.Brokers, tmp: Path) -> str:
    """Topics of the test's own."""
    return f"{broker.url}/{tmp.name}?partitions=2"


def stored(home: Path) -> list[str]:
    return [choice for (choice,) in harness.ask(home, "SELECT choice FROM votes")]


def spools(home: Path) -> list[str]:
    return sorted(spool for (spool,) in harness.ask(home, "SELECT DISTINCT epoch FROM batches_ranges"))


def sluice(tmp: Path, url: str, *words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "sluice.ops", *words]
    env = environment(tmp, {"INGEST_SPOOL": url})
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)


def ledger(tmp: Path, url: str) -> dict[str, int]:
    done = sluice(tmp, url, "status", "--json")
    rows = {row["stream"]: row for row in json.loads(done.stdout)["streams"]}
    return {name: rows["votes"][name] for name in ("accepted", "ready", "claimed", "stored", "dead", "missing")}


@contextlib.contextmanager
def worker(tmp: Path, url: str, verb: str = "run") -> Iterator[subprocess.Popen]:
    with running([*WORKER, verb], tmp / "worker.out", environment(tmp, {"INGEST_SPOOL": url})) as process:
        yield process


def drain(tmp: Path, url: str) -> None:
    with worker(tmp, url, "burst") as process:
        process.wait(PATIENCE)


@contextlib.contextmanager
def frozen_outside_transactions(pid: int, home: Path) -> Iterator[None]:
    """SIGSTOP to a worker that does not hold the lock of the SQLite database: without it, no other worker stores."""
    while True:
        with harness.stopped(pid), harness.database(home / "ingest.db", seconds=0.1) as db:
            try:
                db.execute("BEGIN IMMEDIATE")
                db.execute("ROLLBACK")
            except apsw.BusyError:
                continue
            yield
            return


def accepted(where: int | Path, body: bytes) -> None:
    """Post until it is accepted: just after the start, Kafka may need longer than a commit waits."""
    poll(lambda: post(where, "/votes", body)[0] == 200, what="acknowledged")


@pytest.mark.nightly
def test_bodies_go_from_nginx_through_kafka_into_the_database(tmp: Path, url: str) -> None:
    with installation(tmp, {"INGEST_SPOOL": url, "INGEST_RUNTIME": "cpython"}) as up:
        assert up.pids("redis") == []
        accepted(up.port, VOTE % b"a")
        accepted(up.port, b"nonsense")
        poll(
            lambda: (found := ledger(tmp, url))["stored"] and found["dead"] and not found["ready"], what="all is stored"
        )
        found = ledger(tmp, url)
        assert (found["accepted"], found["missing"]) == (found["stored"] + found["dead"], 0)
        assert found["stored"] == len(stored(tmp))
        poll(lambda: b'"a"' in get(up.port, "/votes/tally?poll=p")[2], what="a view")
        poll(lambda: b'route="/votes",status="200"} 2' in get(up.port, "/status/metrics")[2], what="the counts")
        words = sluice(tmp, url, "top", "--count", "1")
        assert (words.returncode, "gateways 1  workers 1" in words.stdout) == (0, True)
    assert "Traceback" not in up.said()


@pytest.mark.nightly
def test_a_worker_that_is_frozen_or_killed_doubles_nothing(tmp: Path, url: str) -> None:
    with gateway(tmp, env={"INGEST_SPOOL": url}) as gate:
        with worker(tmp, url) as frozen, worker(tmp, url) as killed, Clients(gate.socket) as load:
            load.wait()
            poll(lambda: stored(tmp), what="a worker stores")
            killed.kill()
            with frozen_outside_transactions(frozen.pid, tmp):
                load.wait()
                last = load.acknowledged[-1]
                with worker(tmp, url):
                    poll(lambda: last in stored(tmp), what="the partitions have been given away", interval=0.2)
                    harness.strike(frozen.pid, signal.SIGCONT)
                    load.wait()
        drain(tmp, url)
    found = stored(tmp)
    assert (set(load.acknowledged) - set(found), len(found) - len(set(found))) == (set(), 0)
    assert ledger(tmp, url)["missing"] == 0


@pytest.mark.nightly
def test_the_streams_are_known_while_the_redis_of_the_figures_is_down(tmp: Path, url: str) -> None:
    with gateway(tmp, env={"INGEST_SPOOL": url}) as gate:
        accepted(gate.socket, VOTE % b"a")
        drain(tmp, url)
    reading = Observer(settings.load_settings(environment(tmp, {"INGEST_SPOOL": url}))).look()
    found = reading["streams"]["votes"]
    assert found["accepted"] == found["stored"] == len(stored(tmp)) and found["missing"] == 0
    assert (reading["processes"], reading["memory"]) == (None, None)
    assert any("Redis" in line for line in reading["trouble"])


@pytest.mark.nightly
def test_the_lines_of_a_file_are_properties_of_the_client(tmp: Path, url: str) -> None:
    file = tmp / "lines"
    url = f"{url}&properties={file}"
    for text, reason in (
        (None, "its properties cannot be read: [Errno 2] No such file or directory"),
        (b"\xff=1", "its properties cannot be read: 'utf-8' codec can't decode byte 0xff"),
        (b"a.b=1", 'No such configuration property: "a.b"'),
        (b"security.protocol=none", 'Invalid value "none" for configuration property "security.protocol"'),
    ):
        if text:
            file.write_bytes(text)
        done = sluice(tmp, url, "status")
        assert done.returncode == 1
        assert done.stderr.splitlines()[0].startswith(f"sluice: Kafka is unavailable: {reason}")
    file.write_text("# of this client\n\n client.id = mine \nmetadata.max.age.ms=5000\n")
    admin = Admin(url, "sluice")
    assert (admin.address.properties["client.id"], admin.address.properties["metadata.max.age.ms"]) == ("mine", "5000")
    with gateway(tmp, env={"INGEST_SPOOL": url}) as gate:
        accepted(gate.socket, VOTE % b"a")
        drain(tmp, url)
    assert stored(tmp) == ["a"]


@pytest.mark.nightly
def test_drain_waits_for_partitions_that_another_member_of_the_group_has(
    tmp: Path, url: str, broker: kafka.Brokers
) -> None:
    with gateway(tmp, env={"INGEST_SPOOL": url}) as gate:
        for choice in b"a", b"b", b"c", b"d":
            accepted(gate.socket, VOTE % choice)
    config = {
        "bootstrap.servers": broker.servers, "group.id": f"{tmp.name}.votes", "enable.auto.commit": False,
        "partition.assignment.strategy": "cooperative-sticky",
    }  # fmt: skip
    other = Consumer(config)  # a worker that stores nothing
    other.subscribe([f"{tmp.name}.votes"])

    def has() -> int:
        """The number of its partitions."""
        other.poll(0.1)
        return len(other.assignment())

    with contextlib.ExitStack() as stack:
        with contextlib.closing(other):
            poll(lambda: has() == 2, what="it has all partitions")
            process = stack.enter_context(worker(tmp, url, "burst"))
            poll(lambda: has() < 2, what="one is given away")
        assert process.wait(PATIENCE) == 0
    assert sorted(stored(tmp)) == ["a", "b", "c", "d"]


@pytest.mark.nightly
def test_without_an_acknowledgement_the_answer_is_503(tmp: Path, url: str, broker: kafka.Brokers) -> None:
    (only,) = broker
    with gateway(tmp, env={"INGEST_SPOOL": url}) as gate, worker(tmp, url):
        accepted(gate.socket, VOTE % b"a")
        poll(lambda: "a" in stored(tmp))
        only.kill()
        status, headers, body = post(gate.socket, "/votes", VOTE % b"perhaps")
        assert (status, headers["retry-after"]) == (503, "1")
        assert b"Kafka does not acknowledge." in body
        poll(lambda: get(gate.socket, "/readyz")[0] == 503)
        only.start()
        broker.wait()
        accepted(gate.socket, VOTE % b"c")
        poll(lambda: get(gate.socket, "/readyz")[0] == 200)
        poll(lambda: {"a", "c"} <= set(stored(tmp)), what="the worker goes on")
    drain(tmp, url)
    found = ledger(tmp, url)
    assert (found["missing"], found["ready"], found["stored"]) == (0, 0, len(stored(tmp)))
    assert len({spool.split(".")[2] for spool in spools(tmp)}) > 1, "no new leader epoch after the restart"


@pytest.mark.nightly
def test_a_topic_that_was_made_again_is_a_new_spool(tmp: Path, url: str, broker: kafka.Brokers) -> None:
    (only,), admin = broker, AdminClient({"bootstrap.servers": broker.servers})
    with gateway(tmp, env={"INGEST_SPOOL": url}) as gate, worker(tmp, url):
        accepted(gate.socket, VOTE % b"0")
        only.kill()  # so that the partitions get another leader epoch, and the new topic has a lower one
        only.start()
        broker.wait()
        accepted(gate.socket, VOTE % b"a")
        poll(lambda: {"0", "a"} <= set(stored(tmp)))  # of two partitions: what is not read yet goes with the topic
        for future in admin.delete_topics([f"{tmp.name}.votes"]).values():
            future.result()
        for n in range(1, 4):
            accepted(gate.socket, VOTE % b"%d" % n)
        poll(lambda: {"1", "2", "3"} <= set(stored(tmp)), what="the new topic is read")
    assert len({spool.split(".")[0] for spool in spools(tmp)}) == 2
    assert ledger(tmp, url)["missing"] == 0


@pytest.mark.nightly
@pytest.mark.parametrize("running", [False, True], ids=["no worker runs", "a worker runs"])
def test_bodies_with_the_offsets_of_lost_ones_are_stored(
    running: bool, tmp: Path, url: str, broker: kafka.Brokers
) -> None:
    (only,), url = broker, url.replace("partitions=2", "partitions=1")
    with gateway(tmp, env={"INGEST_SPOOL": url}) as gate:
        for n in range(10):
            accepted(gate.socket, VOTE % b"old-%d" % n)
        drain(tmp, url)
        with worker(tmp, url) if running else contextlib.nullcontext():
            only.kill()
            assert only.cut(f"{tmp.name}.votes", 0, 5) >= 5
            only.start()
            broker.wait()
            for n in range(8):
                accepted(gate.socket, VOTE % b"new-%d" % n)
            every = {f"old-{n}" for n in range(10)} | {f"new-{n}" for n in range(8)}
            if running:
                poll(lambda: every == set(stored(tmp)), what="all is stored")
        drain(tmp, url)
    assert set(stored(tmp)) == every
    count = len(stored(tmp))  # one more for each that was posted again after a 503
    found = {"accepted": count, "ready": 0, "claimed": 0, "stored": count, "dead": 0, "missing": 0}
    assert ledger(tmp, url) == found


@pytest.mark.nightly
def test_what_is_stored_is_not_stored_again_after_the_offsets_of_the_group_have_expired(
    tmp: Path, url: str, broker: kafka.Brokers
) -> None:
    with gateway(tmp, env={"INGEST_SPOOL": url}) as gate:
        accepted(gate.socket, VOTE % b"a")
        drain(tmp, url)
        before = stored(tmp)
        for future in broker.admin.delete_consumer_groups([f"{tmp.name}.votes"]).values():
            future.result()
        accepted(gate.socket, VOTE % b"b")
        drain(tmp, url)
    assert (stored(tmp), ledger(tmp, url)["missing"]) == ([*before, "b"], 0)


def taken(outlet: Outlet) -> list[bytes]:
    """The next items, settled."""
    outlet.has_work([])
    claim = poll(lambda: outlet.has_work(["votes"]) and outlet.claim("votes"))
    assert claim
    items = list(outlet.read_items(claim))
    outlet.settle(claim)
    return items


def test_a_worker_that_begins_anew_goes_on_with_the_record_behind_the_last_settled_one(tmp: Path, url: str) -> None:
    url, figures = url.replace("partitions=2", "partitions=1"), str(tmp / "run/views.sock")
    with harness.views_redis(tmp), gateway(tmp, env={"INGEST_SPOOL": url}) as gate:
        for some in ([b"a"], [b"b", b"c"]):
            for body in some:
                accepted(gate.socket, body)
            outlet, seen = Outlet(url, figures), list[bytes]()
            while some[-1] not in seen:
                seen += taken(outlet)
            assert sorted({*seen}) == some
            poll(lambda: outlet.has_work(["votes"]) and not outlet.sources["votes"].uncommitted)  # noqa: B023
            outlet.close()


@pytest.mark.nightly
@pytest.mark.parametrize("replaced", [False, True], ids=["log cut", "topic made again"])
def test_records_with_the_offsets_of_settled_ones_are_neither_skipped_nor_deleted(
    replaced: bool, tmp: Path, url: str, broker: kafka.Brokers
) -> None:
    (only,), url = broker, url.replace("partitions=2", "partitions=1")
    topic, figures = f"{tmp.name}.votes", str(tmp / "run/views.sock")
    with harness.views_redis(tmp), gateway(tmp, env={"INGEST_SPOOL": url}) as gate:
        outlet = Outlet(url, figures)
        accepted(gate.socket, b"old")
        assert set(taken(outlet)) == {b"old"}
        if replaced:
            for future in broker.admin.delete_topics([topic]).values():
                future.result()
        else:
            only.kill()
            assert only.cut(topic, 0, 0)
            only.start()
            broker.wait()
        accepted(gate.socket, b"new")
        outlet.sources["votes"].commit()  # as if it was late: the group's offset is that of a lost record
        outlet.trim()
        outlet.close()
        outlet = Outlet(url, figures)
        assert set(taken(outlet)) == {b"new"}
        outlet.close()


@pytest.mark.nightly
def test_a_worker_that_hangs_keeps_its_partitions_from_the_others_for_a_while_only(
    tmp: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's threads go on, so the group takes it for alive, and waits for its answer."""
    name, figures = "max.poll.interval.ms", str(tmp / "run/views.sock")
    monkeypatch.setitem(CONSUMER, name, CONSUMER[name] // 8)  # type: ignore[operator]
    with harness.views_redis(tmp), gateway(tmp, env={"INGEST_SPOOL": url}) as gate:
        hung, other = Outlet(url, figures), Outlet(url, figures)
        accepted(gate.socket, b"a")
        taken(hung)
        poll(lambda: hung.has_work(["votes"]) and hung.sources["votes"].assigned == {0, 1})
        accepted(gate.socket, b"b")
        while b"b" not in taken(other):
            pass

        def shared() -> bool:
            for outlet in hung, other:
                outlet.has_work(["votes"])
            return bool(hung.sources["votes"].assigned)

        poll(shared, what="it has a partition again")
        for outlet in hung, other:
            outlet.close()


def test_a_worker_with_much_to_store_gives_partitions_away_meanwhile(tmp: Path, url: str) -> None:
    figures = str(tmp / "run/views.sock")
    with harness.views_redis(tmp), gateway(tmp, env={"INGEST_SPOOL": url}) as gate:
        busy, other = Outlet(url, figures), Outlet(url, figures)
        accepted(gate.socket, b"a")
        poll(lambda: busy.has_work(["votes"]) and busy.has_more("votes"))

        def shared() -> bool:
            for outlet in busy, other:
                outlet.has_work(["votes"])
            return bool(other.sources["votes"].assigned)

        poll(shared, what="the other one has a partition")
        for outlet in busy, other:
            outlet.close()


def test_a_full_backlog_is_refused_until_workers_have_stored_it(tmp: Path, url: str) -> None:
    with harness.views_redis(tmp):
        inlet, outlet = Inlet(url, str(tmp / "run/views.sock"), 5_000), Outlet(url, str(tmp / "run/views.sock"))

        sizes = []

        def push() -> object:
            group = inlet.append("votes", b"x" * 100)
            inlet.commit(group)
            if not group.refused:
                sizes.append(100)
            return group.refused

        refused = poll(push)
        assert refused["votes"].reason == "The backlog is over its limit."  # type: ignore[index]
        assert 1 <= refused["votes"].retry_after <= 60  # type: ignore[index]
        outlet.has_work([])
        poll(lambda: outlet.has_work(["votes"]) and outlet.has_more("votes"))
        while claim := outlet.claim("votes"):
            assert list(outlet.read_items(claim)) == [b"x" * 100] * claim.count
            outlet.settle(claim)
            outlet.has_work(["votes"])
        poll(lambda: not push())
        outlet.close()
        inlet.report_counts(last=True)
        assert Inspector(url, str(tmp / "run/views.sock")).counters()["bytes votes"] == sum(sizes)


def altered(url: str, **config: str) -> None:
    """Change the configuration of the topic of the votes, as another program does.

    The broker publishes a change to its logs after it shows it, and one change after the other: once it shows a second
    one, the first is in force.
    """
    address = Address.of(url)
    name = address.topic("votes")
    client = AdminClient(address.properties)  # it ends what it was asked when it goes
    for changes in config, {"segment_index_bytes": str(random.randrange(1 << 20, 1 << 24))}:
        wanted = {key.replace("_", "."): value for key, value in changes.items()}
        entries = [ConfigEntry(*pair, incremental_operation=AlterConfigOpType.SET) for pair in wanted.items()]
        for done in client.incremental_alter_configs(
            [ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)]
        ).values():
            done.result()

        def shown(wanted: dict[str, str] = wanted) -> bool:
            (asked,) = client.describe_configs([ConfigResource(ResourceType.TOPIC, name)]).values()
            present = asked.result()
            return all(present[key].value == value for key, value in wanted.items())

        poll(shown, what="the change in the topic's configuration")


@pytest.mark.nightly
def test_partitions_are_raised_while_bodies_come_and_none_is_refused(tmp: Path, url: str) -> None:
    figures = str(tmp / "run/views.sock")
    with harness.views_redis(tmp):
        inlet, outlet = Inlet(url, figures, 1 << 30), Outlet(url, figures)
        count = 0

        def push() -> None:
            nonlocal count
            groups = [inlet.append("votes", b"%d" % (count + n)) for n in range(3)]
            for group in groups:
                inlet.commit(group)
                assert group.done and group.refused is None
            count += 3

        push()
        outlet.has_work([])
        poll(lambda: outlet.has_work(["votes"]) and outlet.has_more("votes"))
        address = Address.of(url)
        name = address.topic("votes")
        client = AdminClient(address.properties)
        client.create_partitions([NewPartitions(name, 4)])[name].result()
        backlog = inlet.backlogs["votes"]
        while len(backlog.topic.replicas) < 4:
            push()
        for _ in range(4 * SENDERS):  # each producer comes to each partition
            push()
        ends = [at.end for at in Inspector(url, figures).admin.positions(backlog.topic)]
        assert len(ends) == 4 and all(ends) and sum(ends) == count
        taken: list[bytes] = []

        def take() -> bool:
            outlet.has_work(["votes"])
            while claim := outlet.claim("votes"):
                taken.extend(outlet.read_items(claim))
                outlet.settle(claim)
            return len(taken) == count

        poll(take, PATIENCE)
        assert sorted(map(int, taken)) == [*range(count)]
        outlet.close()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_body_that_the_topic_does_not_take_is_refused_alone(when: str, tmp: Path, url: str) -> None:
    figures = str(tmp / "run/views.sock")
    with harness.views_redis(tmp):
        Admin(url).topic(Address.of(url).topic("votes"))
        if when == "before":
            altered(url, max_message_bytes="20000")
        inlet = Inlet(url, figures, 1 << 30)
        small = [b"%05d" % n * 200 for n in range(300)]  # 300 kB: more than the topic takes at once
        if when == "meanwhile":
            inlet.commit(inlet.append("votes", b"first"))
            altered(url, max_message_bytes="20000")
            alone = inlet.append("votes", b"x" * 30_000)
            inlet.commit(alone)
            assert alone.refused and alone.refused["votes"].retry_after == 1  # nobody knew it
        groups = [inlet.append("votes", item) for item in (*small[:150], b"x" * 30_000, *small[150:])]
        large = groups.pop(150)
        for group in groups:
            inlet.commit(group)
        assert [group.refused for group in groups] == [None] * 300
        assert large.refused and large.refused["votes"].retry_after == 0
        status, _, detail = reply_of(large.refused["votes"])
        assert status.startswith("413 ") and "at most 19900 bytes" in detail
        topic = Admin(url).describe(Address.of(url).topic("votes"))
        assert topic and sum(at.end for at in Admin(url).positions(topic)) == 300 + (when == "meanwhile")


def reply_of(refusal: Refusal) -> tuple[str, list, str]:
    reply = replies.unavailable(*refusal)
    return reply.status, reply.headers, b"".join(reply.chunks).decode()


def test_what_a_record_is_refused_for_is_no_reason_to_refuse_the_others_of_its_topic(tmp: Path, url: str) -> None:
    """As when the leader of a partition dies after it has acknowledged some records of a commit."""
    figures = str(tmp / "run/views.sock")
    with harness.views_redis(tmp):
        inlet = Inlet(url, figures, 1 << 30)
        inlet.commit(inlet.append("votes", b"first"))
        groups = [inlet.append("votes", item) for item in (b"a", b"b", b"c")]
        for sender in inlet.senders:
            produce = sender.produce

            def failing(*given: Any, sender: Any = sender, produce: Any = produce) -> None:
                produce(*given)
                topic = inlet.backlogs["votes"].topic.name
                note_failure(sender.refused, KafkaError(KafkaError._MSG_TIMED_OUT), Reported(topic, b"b"))  # type: ignore[arg-type]

            sender.produce = failing  # type: ignore[assignment, method-assign]
        for group in groups:
            inlet.commit(group)
        assert [group.refused for group in groups[::2]] == [None, None]
        assert groups[1].refused and groups[1].refused["votes"].retry_after == 1


class Reported(NamedTuple):
    """A message of a delivery report."""

    of: str
    body: bytes

    def topic(self) -> str:
        return self.of

    def value(self) -> bytes:
        return self.body


def test_a_topic_that_deletes_what_is_not_stored_is_named(
    tmp: Path, url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.contrib.kafka.outlet.CONFIG_SECONDS", 0.0)
    monkeypatch.setattr("sluice.contrib.kafka.inlet.CONFIG_SECONDS", 0.1)
    figures = str(tmp / "run/views.sock")
    with harness.views_redis(tmp):
        inlet, outlet, inspector = Inlet(url, figures, 1 << 30), Outlet(url, figures), Inspector(url, figures)
        inlet.commit(inlet.append("votes", b"first"))
        outlet.has_work([])
        poll(lambda: outlet.has_work(["votes"]) and outlet.has_more("votes"))
        assert inspector.take_snapshot("votes").warning == "" and not caplog.records
        altered(url, retention_ms="4000")
        warning = inspector.take_snapshot("votes").warning
        assert "retention.ms=4000, so Kafka may delete bodies that are not stored: kafka-configs.sh" in warning
        outlet.sources["votes"].check()
        poll(lambda: inlet.backlogs["votes"].config.unsafe)
        said = [record.getMessage() for record in caplog.records if "retention" in record.getMessage()]
        assert said == [warning] * 2
        altered(url, retention_ms="-1", cleanup_policy="compact")
        assert "cleanup.policy=compact" in inspector.take_snapshot("votes").warning
        outlet.close()
        with contextlib.closing(Outlet(url, figures)) as later:
            later.has_work(["votes"])
        assert "cleanup.policy=compact" in caplog.text  # at the start


def test_an_offset_is_committed_again_until_that_succeeds(tmp: Path, url: str) -> None:
    figures = str(tmp / "run/views.sock")
    with harness.views_redis(tmp), gateway(tmp, env={"INGEST_SPOOL": url}) as gate:
        accepted(gate.socket, VOTE % b"a")
        outlet, inspector = Outlet(url, figures), Inspector(url, figures)
        outlet.has_work([])
        poll(lambda: outlet.has_work(["votes"]) and outlet.has_more("votes"))
        claim = outlet.claim("votes")
        assert claim
        source = outlet.sources["votes"]
        consumer, lost = source.consumer, []
        source.consumer = SimpleNamespace(commit=lambda offsets: lost.extend(offsets))  # type: ignore[assignment]
        outlet.settle(claim)
        source.consumer = consumer
        assert (len(lost), inspector.take_snapshot("votes").ready) == (1, 1)
        poll(lambda: outlet.has_work(["votes"]) and not inspector.take_snapshot("votes").ready)
        outlet.close()


@pytest.mark.nightly
def test_a_body_that_ends_every_worker_is_buried_and_the_others_are_stored(tmp: Path, url: str) -> None:
    (tmp / "own.py").write_text(POISON)
    url = url.replace("partitions=2", "partitions=1")
    env = {"INGEST_SPOOL": url, "INGEST_RECORDS": tmp / "own.py"}

    def burst() -> int:
        with running([*WORKER, "burst"], tmp / "worker.out", environment(tmp, env)) as process:
            return process.wait(PATIENCE)

    with gateway(tmp, env={"INGEST_SPOOL": url}) as gate:
        for body in VOTE % b"a", VOTE % b"b", b"ends", VOTE % b"c":
            accepted(gate.socket, body)
        # two that begin with the bodies, two that store it alone, and the one that buries it
        assert [burst() for _ in range(5)] == [-signal.SIGABRT] * 4 + [1]
        accepted(gate.socket, VOTE % b"d")
        assert burst() == 0
        for verb in ["bury", "--yes", "votes", "0:99"], ["bury", "--yes", "votes", "7"]:
            assert sluice(tmp, url, *verb).stderr == f"sluice: votes: no body {verb[-1]} is claimed.\n"
        end = sum(at.end for at in Inspector(url, "").admin.positions(Admin(url).topic(f"{tmp.name}.votes")))
        for body in VOTE % b"e", b"ends", VOTE % b"f":
            accepted(gate.socket, body)
        assert burst() == -signal.SIGABRT
        assert sluice(tmp, url, "bury", "--yes", "votes", f"0:{end + 2}").stdout == "votes: 1 bodies buried\n"
        assert burst() == 0
        accepted(gate.socket, b"ends")
        assert burst() == -signal.SIGABRT
        assert sluice(tmp, url, "bury", "--yes", "votes").stdout == "votes: 1 bodies buried\n"
        assert burst() == 0
    assert [*dict.fromkeys(stored(tmp))] == ["a", "b", "c", "d", "e", "f"]
    assert harness.ask(tmp, "SELECT body, reason FROM dead_letters ORDER BY id") == [
        (b"ends", "the worker ended while it decoded this body"),
        *[(b"ends", "buried by the operator")] * 2,
    ]
    assert ledger(tmp, url)["missing"] == 0


def test_an_attempt_that_could_not_be_counted_was_none(tmp: Path, url: str) -> None:
    """Each failure would otherwise be held against a body that was not decoded, and the third would bury it."""

    def refuse(**_: object) -> None:
        raise KafkaException(KafkaError(KafkaError.REBALANCE_IN_PROGRESS))

    figures = str(tmp / "run/views.sock")
    with harness.views_redis(tmp), gateway(tmp, env={"INGEST_SPOOL": url}) as gate:
        accepted(gate.socket, VOTE % b"a")
        outlet = Outlet(url, figures)
        outlet.has_work([])
        claim = poll(lambda: outlet.has_work(["votes"]) and outlet.claim("votes"))
        assert claim
        source = outlet.sources["votes"]
        consumer = source.consumer
        source.consumer = SimpleNamespace(commit=refuse)  # type: ignore[assignment]
        for _ in range(2):
            with pytest.raises(KafkaUnavailable):
                outlet.count_attempt(claim)
        source.consumer = consumer
        assert [outlet.count_attempt(claim), outlet.count_attempt(claim, -1)] == [1, 0]
        outlet.close()


@pytest.mark.nightly
def test_a_worker_does_not_wait_for_a_coordinator_that_is_frozen(
    tmp: Path, url: str, broker: kafka.Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    with gateway(tmp, env={"INGEST_SPOOL": url}) as gate:
        accepted(gate.socket, VOTE % b"a")
        outlet, ended, said = Outlet(url, str(tmp / "run/views.sock")), threading.Event(), list[str]()
        outlet.has_work([])
        poll(lambda: outlet.has_work(["votes"]) and outlet.has_more("votes"))

        def work() -> None:
            claim = outlet.claim("votes")
            assert claim and claim.deliveries == 1
            with pytest.raises(KafkaUnavailable) as refused:
                outlet.count_attempt(claim)
            said.append(str(refused.value))
            ended.set()

        with harness.stopped(broker[0].server.pid):
            threading.Thread(target=work, daemon=True).start()
            assert ended.wait(PATIENCE)
        # on a busy machine the client may have given up the claim's commit by itself
        if said[0].endswith("the commit before has no answer yet"):
            assert "votes: the group does not confirm a commit: no answer within 3 s" in caplog.text
        else:
            assert said[0].endswith("no answer within 3 s")
        poll(outlet.sources["votes"].pending.done)
        outlet.close()


def test_a_topic_that_one_broker_does_not_know_yet_was_not_deleted(
    tmp: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with gateway(tmp, env={"INGEST_SPOOL": url}) as gate:
        accepted(gate.socket, VOTE % b"a")
        outlet, asked = Outlet(url, str(tmp / "run/views.sock")), []
        describe = outlet.admin.describe

        def lagging(name: str) -> Topic | None:
            asked.append(name)
            return None if 1 < len(asked) < 5 else describe(name)  # the first one is that of the gateway's

        outlet.admin.describe = lagging  # type: ignore[assignment]
        claim = poll(lambda: outlet.has_work(["votes"]) and outlet.claim("votes"))
        assert isinstance(claim, Claim)
        assert outlet.read_items(claim) == [VOTE % b"a"] and len(asked) > 4
        assert "was deleted" not in caplog.text
        outlet.close()


@pytest.mark.parametrize("verb", ["purge --yes", "release --yes"])
def test_a_verb_that_kafka_has_itself_is_refused_in_one_line(verb: str, tmp: Path, url: str) -> None:
    done = sluice(tmp, url, *verb.split(), "votes")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "Kafka" in done.stderr


def test_peek_and_tail_show_bodies_with_partition_and_number(tmp: Path, url: str) -> None:
    with gateway(tmp, env={"INGEST_SPOOL": url}) as gate:
        accepted(gate.socket, b"w")
        command = [sys.executable, "-m", "sluice.ops", "tail", "votes", "--count", "3"]
        env = environment(tmp, {"INGEST_SPOOL": url})
        with running(command, tmp / "tail.out", env) as tail:
            poll(lambda: "sluice: votes: from " in (tmp / "tail.out").read_text())
            for body in b"x", b"y", b"z":
                assert post(gate.socket, "/votes", body)[0] == 200
            assert tail.wait(PATIENCE) == 0
        lines = [line.split() for line in (tmp / "tail.out").read_text().splitlines()[1:]]
        assert {line[2] for line in lines} == {"x", "y", "z"}
        assert [line[1] for line in lines] == ["ready"] * 3
        peeked = [line.split() for line in sluice(tmp, url, "peek", "votes").stdout.splitlines()]
        assert {tuple(line) for line in lines} < {tuple(line) for line in peeked}
        assert len(sluice(tmp, url, "peek", "votes", "--limit", "2").stdout.splitlines()) == 2


def test_commits_go_where_no_broker_is_suspected(url: str) -> None:
    inlet = Inlet(url, "", 1 << 30)
    replicas = [frozenset(pair) for pair in ({1, 2}, {2, 3}, {3, 1}, {1, 2}, {2, 3}, {3, 1})]
    leaders, every = [1, 2, 3, 2, 3, 1], list(range(6))
    votes, gps = (
        Backlog(name, Topic(name, "id", replicas, leaders, every, {}), 10**9, 10**9) for name in ("votes", "gps")
    )
    inlet.backlogs = {"votes": votes, "gps": gps}

    def brokers(now: float, backlog: Backlog = votes, others: frozenset[int] = frozenset()) -> frozenset[int] | None:
        chosen = backlog.choose(inlet.suspects(now), others)
        return None if chosen is None else replicas[chosen]

    assert {brokers(100.0) for _ in range(6)} == set(replicas)  # in turn
    rest = frozenset({2, 3})  # of the same commit
    assert {brokers(100.0, others=rest) for _ in range(6)} == {rest}
    votes.busy = {0: 100.0}  # a commit waits for 1 and 2: only one of them leads the others
    assert {leaders[votes.choose(inlet.suspects(100.1), frozenset()) or 0] for _ in range(6)} == {3}
    votes.busy = {0: 100.0, 1: 100.1}  # a commit waits for 1 and 2, a later one for 2 and 3
    assert {brokers(100.2, gps) for _ in range(6)} == {frozenset({3, 1})}
    votes.busy |= {2: 100.19, 5: 100.19}  # all that can go on
    assert {brokers(100.2) for _ in range(6)} == {None}
    del votes.busy[2], votes.busy[5]
    inlet.heard = {2: 100.15, 3: 100.15}  # it has acknowledged an even later one
    assert {brokers(100.2) for _ in range(6)} == {rest}
    votes.busy, votes.failed = {}, {0: 103.0}
    assert {brokers(103.5, gps) for _ in range(6)} == {rest}
    assert len({brokers(104.1, gps) for _ in range(6)}) == 3  # again
    note_loss(inlet.lost, KafkaError(KafkaError._TRANSPORT, "h:9092/2: Disconnected"))
    (now,) = inlet.lost.values()
    assert {brokers(now) for _ in range(6)} == {frozenset({3, 1})}
    inlet.heard = {2: now + 0.1}
    assert len({brokers(now + 0.2) for _ in range(6)}) == 3


def test_a_suspect_that_accepts_no_connection_is_lost(url: str) -> None:
    inlet = Inlet(url, "", 1 << 30)
    with socket.create_server(("127.0.0.1", 0)) as alive:
        addresses = {1: ("127.0.0.1", free_port()), 2: alive.getsockname(), 3: ("127.0.0.1", free_port())}
        backlog = Backlog("votes", Topic("votes", "id", [frozenset({1, 2})], [1], [0], addresses), 10**9, 10**9)
        inlet.backlogs = {"votes": backlog}
        inlet.look_at_suspects(Admin(url))
        assert inlet.lost == {}
        backlog.busy = {0: time.monotonic() - 0.2}  # a commit waits for 1 and 2
        inlet.look_at_suspects(Admin(url))
    assert inlet.lost.keys() == {1}


def leader(cluster: kafka.Brokers, replicas: int, chance: random.Random) -> kafka.Broker:
    """The broker that leads a random partition of the votes, once all replicas are in sync."""
    admin = AdminClient({"bootstrap.servers": cluster.servers})

    def found() -> int:
        partitions = admin.list_topics("ingest.votes", TIMEOUT_SECONDS).topics["ingest.votes"].partitions.values()
        in_sync = all(len(one.isrs) == replicas and one.leader > 0 for one in partitions)
        return in_sync and chance.choice([one.leader for one in partitions])

    return cluster[poll(found, what="all replicas in sync") - 1]


@pytest.mark.nightly
@pytest.mark.parametrize("replicas", [2, 3])
def test_leaders_killed_under_load_lose_and_double_nothing_acknowledged(
    tmp: Path, request: pytest.FixtureRequest, record_property: Callable[[str, object], None], tmp_path: Path,
    replicas: int,
) -> None:  # fmt: skip
    times = request.config.getoption("--leaders")
    if not times:
        pytest.skip("needs three brokers: --leaders N")
    chance = random.Random()
    gaps: list[float] = []
    with kafka.brokers(tmp_path, 3) as cluster:
        url = f"{cluster.url}?partitions=3&replicas={replicas}"
        with (
            gateway(tmp, env={"INGEST_SPOOL": url}) as gate,
            worker(tmp, url),
            Clients(gate.socket, clients=16, patience=0.5) as load,
        ):
            for _ in range(times):
                load.wait()
                victim = leader(cluster, replicas, chance)
                since = load.times[-1]
                victim.kill()
                load.wait()
                victim.start()
                cluster.wait()
                load.wait()
                gaps.append(load.longest_gap(since))
        wanted = set(load.acknowledged)
        leader(cluster, replicas, chance)  # until all replicas are in sync again, the last records cannot be read
        drain(tmp, url)
        found = stored(tmp)
        left = ledger(tmp, url)
    lost, doubled = len(wanted - set(found)), len(found) - len(set(found))
    gaps.sort()
    head = ("replicas", "leaders killed", "seconds without acknowledgements: median", "longest")
    row = (str(replicas), str(times), f"{gaps[len(gaps) // 2]:.1f}", f"{gaps[-1]:.1f}")
    record_property("row", (f"{len(wanted)} acknowledged bodies, {lost} lost, {doubled} doubled", head, row))
    assert (lost, doubled, left["missing"]) == (0, 0, 0)
    assert "Traceback" not in gate.said()
