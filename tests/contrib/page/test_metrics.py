"""Metrics of a whole installation, read by a real Prometheus."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import redis as client
from prometheus_client.parser import text_string_to_metric_families

from proving import harness
from proving.harness import ROOT, Server, environment, get, poll, post
from sluice import settings
from sluice.ledger import Observer
from sluice.spool.contract import COUNTS
from sluice.spool.inlet import Inlet
from sluice.spool.inspector import Inspector
from support.operator_verbs import drain, push, sluice, vote

pytestmark = pytest.mark.contract

PROMETHEUS = ROOT / "deploy/prometheus"
RULES = (PROMETHEUS / "rules.yml").read_text()
NAME = re.compile(r"\bsluice_[a-z_]+")
Samples = dict[tuple[str, ...], float]


@pytest.fixture(scope="module")
def up() -> Iterator[Server]:
    """An installation that has answered some requests."""
    with harness.short_tmp() as tmp, harness.installation(tmp / "var") as server:
        for n in range(20):
            assert post(server.port, "/votes", vote(n))[0] == 200
        assert post(server.port, "/votes", b"nonsense")[0] == 200
        assert post(server.port, "/write", b"room temperature=21.5")[0] == 204
        assert post(server.port, "/nowhere", b"x")[0] == 404
        assert post(server.port, "/gps")[0] == 400
        poll(lambda: get(server.port, "/votes/tally?poll=p")[0] == 200)
        poll(lambda: scraped(server)["sluice_view_reads_total", "200", "/votes/tally"])
        yield server


def samples(text: str) -> Samples:
    """Samples by name and label values, ordered by label name."""
    return {
        (one.name, *(value for _, value in sorted(one.labels.items()))): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def scraped(server: Server) -> Samples:
    status, headers, body = get(server.port, "/status/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=")
    return samples(body.decode())


def promtool(*words: object, stdin: str = "") -> None:
    if not shutil.which("promtool"):
        pytest.skip("no promtool: bin/provision nightly installs it")
    done = subprocess.run(
        ["promtool", *map(str, words)], input=stdin, cwd=PROMETHEUS, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr.strip(), done.stderr


def test_metrics_count_what_the_gateway_and_the_worker_did(up: Server) -> None:
    def settled() -> Samples:
        found = scraped(up)
        assert found["sluice_stored_bodies_total", "votes"] == 20
        assert found["sluice_answers_total", "/votes", "200"] == 21
        assert found["sluice_persist_seconds_count", "metrics"] == 1
        assert found["sluice_view_keys", "/metrics/latest"] == 1
        return found

    found = poll(settled)
    expected = {
        ("sluice_accepted_bodies_total", "votes"): 21,
        ("sluice_taken_bodies_total", "votes"): 21,
        ("sluice_accepted_bodies_total", "metrics"): 1,
        ("sluice_dead_bodies", "votes"): 1,
        ("sluice_dead_letters", "neither JSON nor a form", "votes"): 1,
        ("sluice_missing_bodies", "votes"): 0,
        ("sluice_ready_bodies", "votes"): 0,
        ("sluice_oldest_body_age_seconds", "votes"): 0,
        ("sluice_received_bytes_total", "votes"): sum(len(vote(n)) for n in range(20)) + len(b"nonsense"),
        ("sluice_answers_total", "/write", "204"): 1,
        ("sluice_answers_total", "/gps", "400"): 1,
        ("sluice_answers_total", "", "404"): 1,
        ("sluice_commit_seconds_count",): 22,
        ("sluice_commit_bodies_sum",): 22,
        ("sluice_commit_bodies_bucket", "+Inf"): 22,
        ("sluice_store_errors_total", "votes"): 0,
        ("sluice_processes", "gateway"): 1,
        ("sluice_processes", "worker"): 1,
        ("sluice_cell_late", settings.load_settings({"INGEST_HOME": str(up.home)}).cell): 0,
        ("sluice_up", "redis"): 1,
        ("sluice_up", "database"): 1,
        ("sluice_view_served", "/votes/tally"): 1,
        ("sluice_view_served", "/gps/trail"): 1,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert found["sluice_decode_seconds_count", "votes"] == 1  # one body in 16 is timed
    assert 0 < found["sluice_commit_seconds_sum",] < 1_000  # a duration, not a time since the start of the machine
    assert found["sluice_view_refreshes_total", "/votes/tally"] >= 1
    assert found["sluice_view_lag_seconds", "/gps/latest"] >= 0
    disk = os.statvfs(up.home)
    assert found["sluice_disk_bytes",] == disk.f_blocks * disk.f_frsize
    assert abs(found["sluice_disk_free_bytes",] - disk.f_bavail * disk.f_frsize) < 1 << 30


def test_the_verb_metrics_prints_what_nginx_serves_and_promtool_accepts_it(up: Server) -> None:
    code, out, complaints = sluice(up.home, "metrics", INGEST_VIEWS="")
    assert (code, complaints) == (0, "")
    assert {name[0] for name in samples(out)} == {name[0] for name in scraped(up)}
    promtool("check", "metrics", stdin=out)


def test_counters_survive_the_end_of_a_gateway_process(up: Server) -> None:
    before = poll(lambda: scraped(up)["sluice_answers_total", "/votes", "200"])
    (master, *_) = up.pids("gateway")
    for pid in up.pids("gateway"):
        if pid != master:
            subprocess.run(["kill", "-TERM", str(pid)], check=True)
    poll(lambda: post(up.port, "/votes", vote("again"))[0] == 200)
    poll(lambda: scraped(up)["sluice_answers_total", "/votes", "200"] > before)


@pytest.mark.nightly
def test_prometheus_scrapes_the_metrics_with_the_shipped_configuration(up: Server, tmp: Path) -> None:
    text = (PROMETHEUS / "prometheus.yml").read_text()
    assert "localhost:8080" in text
    text = text.replace("localhost:8080", f"localhost:{up.port}").replace("interval: 5s", "interval: 1s")
    (tmp / "prometheus.yml").write_text(text)
    shutil.copy(PROMETHEUS / "rules.yml", tmp)
    port = harness.free_port()
    command = ["prometheus", f"--config.file={tmp}/prometheus.yml", f"--storage.tsdb.path={tmp}/data"]
    command.append(f"--web.listen-address=127.0.0.1:{port}")

    def ask(query: str) -> Any:
        with urlopen(f"http://127.0.0.1:{port}/api/v1/{query}", timeout=10) as answer:  # noqa: S310
            return json.load(answer)["data"]

    with harness.running(command, tmp / "prometheus.out", harness.environment(tmp)):
        (target,) = poll(
            lambda: [one for one in ask("targets")["activeTargets"] if one["health"] != "unknown"], what="a scrape"
        )
        assert (target["health"], target["lastError"]) == ("up", "")
        found = poll(lambda: ask("query?query=sluice_accepted_bodies_total")["result"])
        assert {one["metric"]["stream"]: one["value"][1] for one in found}["metrics"] == "1"
        names = {rule["name"] for group in ask("rules")["groups"] for rule in group["rules"]}
        assert names == set(re.findall(r"- (?:record|alert): (\S+)", RULES))


def test_promtool_accepts_the_rules_and_each_alert_fires_in_its_test() -> None:
    promtool("check", "config", "prometheus.yml")
    promtool("test", "rules", "rules_test.yml")
    alerts = set(re.findall(r"alert: (\w+)", RULES))
    assert alerts and alerts == set(re.findall(r'alertname="(\w+)"', (PROMETHEUS / "rules_test.yml").read_text()))


def test_the_dashboard_and_the_rules_query_only_metrics_that_exist(up: Server, tmp: Path) -> None:
    dashboard = json.loads((PROMETHEUS / "grafana.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    rules = [{"record": f"a:b{n}", "expr": text.replace("$__rate_interval", "1m")} for n, text in enumerate(queries)]
    (tmp / "rules.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # JSON is YAML
    promtool("check", "rules", tmp / "rules.yml")
    there = {name[0] for name in poll(lambda: scraped(up))}
    there |= {f"sluice_{name}_total" for name in ("refused_bodies", "messages_without_rows")}  # none so far
    there |= {f"sluice_sender_{name}_total" for name in ("bodies", "rejections")}  # no key has a name
    there |= {f"sluice_{name}_total" for name in ("examined_bodies", "unknown_fields")}  # none so far
    asked = " ".join(queries) + RULES
    assert (
        set(NAME.findall(re.sub(r"stream:\w+:rate1m", "", asked))) <= there
    )  # except the series that the rules record
    documented = set(re.findall(r"`(sluice_\w+)`", (ROOT / "docs/protocol/operator.md").read_text()))
    bare = {re.sub(r"_(bucket|count|sum)$", "", name) for name in there}
    assert documented == bare | {"sluice_commit_bodies"}


def test_metrics_are_served_to_this_machine_only(up: Server) -> None:
    address = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=True).stdout.split()
    if not address:
        pytest.skip("this machine has no other address")
    done = subprocess.run(
        ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", f"http://{address[0]}:{up.port}/status/metrics"],
        capture_output=True, text=True, timeout=20,
    )  # fmt: skip
    assert done.stdout == "403"


def test_without_redis_or_the_database_the_known_metrics_are_still_shown(tmp: Path) -> None:
    with harness.redis_server(tmp, appendfsync="no") as redis:
        push(redis, vote("a"))
        code, out, complaints = sluice(tmp, "metrics")
        assert (code, complaints.count("\n")) == (1, 1)
        found = samples(out)
        assert (found["sluice_up", "redis"], found["sluice_up", "database"]) == (1, 0)
        assert found["sluice_ready_bodies", "votes"] == 1
        assert ("sluice_stored_bodies_total", "votes") not in found
        drain(tmp)
    code, out, _ = sluice(tmp, "metrics")
    found = samples(out)
    assert (code, found["sluice_up", "redis"], found["sluice_up", "database"]) == (1, 0, 1)
    assert found["sluice_stored_bodies_total", "votes"] == 1
    assert ("sluice_ready_bodies", "votes") not in found


def test_refused_bodies_are_counted_by_reason(tmp: Path) -> None:
    with harness.redis_server(tmp, appendfsync="no") as redis:
        inlet = Inlet(str(redis.socket), 2)
        for n in range(5):
            inlet.commit(inlet.append("votes", vote(n)))
        inlet.report_counts(last=True)
        counted = Inspector(str(redis.socket)).counters()
        assert counted["refused votes The backlog is over its limit"] == 3
        assert counted["bytes votes"] == 2 * len(vote(0))


def test_the_counts_of_a_failed_report_are_in_the_next_one(tmp: Path) -> None:
    with harness.redis_server(tmp, appendfsync="no") as redis:
        inlet = Inlet(str(redis.socket), 100)
        inlet.commit(inlet.append("votes", vote(0)))
        with client.Redis(unix_socket_path=str(redis.socket)) as db:
            db.set(COUNTS, "not a hash")
            inlet.report_counts(last=True)
            db.delete(COUNTS)
        inlet.report_counts(last=True)
        inlet.report_counts(last=True)
        assert Inspector(str(redis.socket)).counters()["commit_bodies sum"] == 1


def test_counters_are_reported_to_a_full_redis(tmp: Path) -> None:
    with harness.redis_server(tmp, appendfsync="no") as redis:
        inlet = Inlet(str(redis.socket), 100)
        inlet.commit(inlet.append("votes", vote(0)))
        with client.Redis(unix_socket_path=str(redis.socket)) as db:
            db.config_set("maxmemory", 1)
        batch = inlet.append("votes", vote(1))
        inlet.commit(batch)
        assert batch.refused
        inlet.report_counts(last=True)
        assert Inspector(str(redis.socket)).counters()["refused votes Redis is full"] == 1


def test_failed_attempts_to_store_are_counted_and_the_claim_of_the_worker_is_shown(tmp: Path) -> None:
    env = environment(tmp, {"INGEST_STORE": "postgresql://nobody@127.0.0.1:1/nothing"})
    with harness.redis_server(tmp, appendfsync="no") as redis:
        push(redis, *map(vote, range(3)))
        with harness.running([sys.executable, ROOT / "worker.py"], tmp / "worker.out", env) as worker:
            observer = Observer(settings.load_settings(env))

            def settled() -> bool:
                figures = observer.look()
                assert (figures["streams"]["votes"]["store_errors"] or 0) > 0
                (one,) = figures["processes"] or []
                assert (one["role"], one["pid"]) == ("worker", worker.pid)
                return [(claim["stream"], claim["first"], claim["bodies"]) for claim in one["claims"]] == [
                    ("votes", 1, 3)
                ]

            poll(settled)
