"""OpenTelemetry's SDKs for Python and JavaScript, unmodified, send metrics, logs and spans to a whole installation."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sized
from pathlib import Path
from typing import Any, TypeVar

import pytest

from proving import harness
from proving.harness import Server, ask, chain, installation, short_tmp
from support.answering_proxy import AnsweringProxy, closing, reply
from support.sender_configs import Write, duplicates, npm_packages, program, samples

# not in .venv: redis-py imports OpenTelemetry's SDK where it finds it, 30 ms at each start of a program
SDK = [*map(str, (harness.ROOT / ".venv-otel/lib").glob("*/site-packages"))]
if not SDK:
    pytest.skip("no SDK of OpenTelemetry: bin/provision nightly installs it", allow_module_level=True)
sys.path += SDK

from opentelemetry._logs import LogRecord, SeverityNumber  # noqa: E402
from opentelemetry.exporter.otlp.proto.http import Compression  # noqa: E402
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter  # noqa: E402
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: E402
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: E402
from opentelemetry.sdk._logs import LoggerProvider  # noqa: E402
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor  # noqa: E402
from opentelemetry.sdk.metrics import AlwaysOnExemplarFilter, MeterProvider  # noqa: E402
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: E402
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View  # noqa: E402
from opentelemetry.sdk.resources import Resource  # noqa: E402
from opentelemetry.sdk.trace import TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: E402
from opentelemetry.trace import Link, SpanKind  # noqa: E402

pytestmark = pytest.mark.nightly

poll = harness.poll
HERE = Path(__file__).parent
T = TypeVar("T", bound=Sized)


@pytest.fixture(scope="module")
def up() -> Iterator[Server]:
    with short_tmp() as tmp, installation(tmp) as server:
        yield server


def variables(port: int) -> dict[str, str]:
    """The variables that docs/INTEGRATIONS.md gives."""
    (text,) = samples("OpenTelemetry", port)[:1]
    return dict(line.split("=", 1) for line in text.splitlines())


@pytest.fixture
def configured(up: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has the documented variables."""
    for name, value in variables(up.port).items():
        monkeypatch.setenv(name, value)


def rows(up: Server, service: str) -> dict[tuple[str, str], list[tuple[Any, str, dict]]]:
    """The metrics of a service by name and field: value, type, and the tags that not all of them have."""
    sql = "SELECT name, field, value, type, tags FROM metrics WHERE tags ->> '$.\"service.name\"' = ? ORDER BY rowid"
    found: dict[tuple[str, str], list[tuple[Any, str, dict]]] = {}
    for name, field, value, kind, text in ask(up.home, sql, service):
        tags = {key: tag for key, tag in json.loads(text).items() if not key.startswith(("service.", "telemetry."))}
        found.setdefault((name, field), []).append((value, kind, tags))
    return found


def logs(up: Server, service: str) -> list[tuple]:
    """The logs of a service in their order: level, message, attributes."""
    sql = "SELECT level, message, attributes FROM logs WHERE service = ? ORDER BY rowid"
    return [(level, text, json.loads(attributes)) for level, text, attributes in ask(up.home, sql, service)]


def stored(found: Callable[[], T], count: int) -> T:
    """What is found, once there are as many."""
    poll(lambda: len(found()) >= count)
    return found()


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
@pytest.mark.usefixtures("configured")
def test_the_metrics_of_the_python_sdk_are_stored(up: Server, compression: Compression) -> None:
    service = f"python {compression.value}"
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(compression=compression))
    view = View(instrument_name="*.exponential", aggregation=ExponentialBucketHistogramAggregation())
    resource = Resource.create({"service.name": service})
    provider = MeterProvider([reader], resource, AlwaysOnExemplarFilter(), views=[view])
    meter = provider.get_meter("lib", "1.0")
    meter.create_counter("http.requests", unit="1").add(5, {"route": "/", "status": 200})
    meter.create_up_down_counter("queue").add(-3)
    meter.create_gauge("room").set(21.5)
    for kind in "explicit", "exponential":
        meter.create_histogram(f"size.{kind}").record(3.0)
    provider.shutdown()

    found = stored(lambda: rows(up, service), 11)
    scope = {"otel.scope.name": "lib", "otel.scope.version": "1.0"}
    total = {**scope, "otel.temporality": "cumulative"}
    tags = {**total, "otel.unit": "1", "otel.monotonic": "true", "route": "/", "status": "200"}
    assert found["http.requests", "value"] == [(5, "integer", tags)]
    assert found["http.requests", "start"][0][0] > 1.7e18
    assert found["queue", "value"] == [(-3, "integer", {**total, "otel.monotonic": "false"})]
    assert found["room", "value"] == [(21.5, "float", scope)]
    assert json.loads(str(found["room", "exemplar"][0][0])) == {"value": 21.5, "labels": {}}
    for kind in "explicit", "exponential":
        assert found[f"size.{kind}", "count"] == [(1, "integer", total)]
        assert found[f"size.{kind}", "sum"] == found[f"size.{kind}", "max"] == [(3.0, "float", total)]
    assert [(count, tags["le"]) for count, _, tags in found["size.explicit", "bucket"]][:3] == [
        (0, "0.0"), (1, "5.0"), (1, "10.0")
    ]  # fmt: skip
    ((low, high, count),) = json.loads(str(found["size.exponential", "histogram"][0][0]))["buckets"]
    assert low < 3 <= high and count == 1


def provider(service: str, **options: Any) -> LoggerProvider:
    """A LoggerProvider that exports as the variables say."""
    made = LoggerProvider(Resource.create({"service.name": service}))
    made.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(**options)))
    return made


def emit(made: LoggerProvider, *numbers: int) -> None:
    """Emit log records and export them."""
    for n in numbers:
        record = LogRecord(
            severity_number=SeverityNumber.WARN, severity_text="WARNING", body=f"line {n}", attributes={"n": n}
        )
        made.get_logger("lib").emit(record)
    made.force_flush()


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
@pytest.mark.usefixtures("configured")
def test_the_logs_of_the_python_sdk_are_stored(up: Server, compression: Compression) -> None:
    service = f"python logs {compression.value}"
    made = provider(service, compression=compression)
    emit(made, *range(1000))
    made.shutdown()
    found = stored(lambda: logs(up, service), 1000)
    level, message, attributes = found[7]
    assert (level, message) == ("warn", "line 7")
    assert {"n": 7, "level": "WARNING", "otel.scope.name": "lib"}.items() <= attributes.items()
    assert sorted(attributes["n"] for _, _, attributes in found) == list(range(1000))


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
@pytest.mark.usefixtures("configured")
def test_the_spans_of_the_python_sdk_are_stored(up: Server, compression: Compression) -> None:
    service = f"python spans {compression.value}"
    made = TracerProvider(resource=Resource.create({"service.name": service}))
    made.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(compression=compression)))
    tracer = made.get_tracer("lib", "1.0")
    with tracer.start_as_current_span("outer", kind=SpanKind.SERVER, attributes={"port": 80}) as outer:
        own = outer.get_span_context()
        inner = tracer.start_as_current_span("inner", links=[Link(own)])
        with contextlib.suppress(ValueError), inner:
            raise ValueError("no such item")
    made.shutdown()
    sql = (
        "SELECT name, kind, trace_id, span_id, parent_id, status, duration, attributes, events, links "
        "FROM spans WHERE service = ? ORDER BY name DESC"
    )
    first, second = stored(lambda: ask(up.home, sql, service), 2)
    trace, span = f"{own.trace_id:032x}", f"{own.span_id:016x}"
    assert first[:6] == ("outer", "server", trace, span, None, None)
    assert second[:3] == ("inner", "internal", trace) and second[4:6] == (span, "error") and second[6] < first[6]
    assert {"port": 80, "otel.scope.name": "lib"}.items() <= json.loads(first[7]).items()
    (raised,), (link,) = json.loads(second[8]), json.loads(second[9])
    assert (raised["name"], raised["attributes"]["exception.message"]) == ("exception", "no such item")
    assert (link["trace_id"], link["span_id"]) == (trace, span)


AFTER = {
    "503": ([reply(503, "Retry-After: 1"), reply(503, "Retry-After: 0")], 1),
    "429": ([reply(429, "Retry-After: 1")], 1),
    "502 and 504": ([reply(502, "Retry-After: 0"), reply(504, "Retry-After: 0")], 1),
    "a lost answer": ([b""], 1),
    "400": ([reply(400)], 0),
    "413": ([reply(413)], 0),
}


@pytest.mark.parametrize("kind", AFTER)
def test_the_python_sdk_sends_again_after_what_may_pass_and_drops_what_is_rejected(up: Server, kind: str) -> None:
    replies, times = AFTER[kind]
    count = len(replies)
    with closing(proxy := AnsweringProxy(up.port, list(replies))) as port:
        endpoint = variables(port)["OTEL_EXPORTER_OTLP_ENDPOINT"]
        made = provider(f"after {kind}", endpoint=f"{endpoint}/v1/logs")
        emit(made, 1)
        emit(made, 2)  # is stored behind the first one
        made.shutdown()
    assert len(proxy.answered) == count
    poll(lambda: any(text == "line 2" for _, text, _ in logs(up, f"after {kind}")))
    assert [text for _, text, _ in logs(up, f"after {kind}")] == ["line 1"] * times + ["line 2"]


def test_every_log_record_of_the_python_sdk_is_stored_once_although_one_answer_in_ten_is_lost(tmp: Path) -> None:
    with chain(tmp) as up, closing(proxy := AnsweringProxy(up.port, [], cut=10)) as port:
        made = provider("cut", endpoint=f"{variables(port)['OTEL_EXPORTER_OTLP_ENDPOINT']}/v1/logs")
        for n in range(40):
            emit(made, n)
        made.shutdown()
        poll(lambda: len(logs(up, "cut")) >= 40 and duplicates(up) == proxy.lost)
        assert proxy.lost == len(proxy.accepted) - len(set(proxy.accepted)) == 4
        assert [attributes["n"] for _, _, attributes in logs(up, "cut")] == [*range(40)]


@pytest.fixture(scope="module")
def sender() -> Iterator[Path]:
    """send.mjs with its packages."""
    if not shutil.which("npm"):
        pytest.skip("npm is not installed")
    with npm_packages(HERE / "otel") as tmp:
        yield tmp / "send.mjs"


@pytest.mark.usefixtures("configured")
def test_every_log_record_is_stored_exactly_once_although_the_worker_is_killed(
    up: Server, request: pytest.FixtureRequest, kills: int
) -> None:
    made = provider("kills")

    def python(numbers: range) -> str:
        emit(made, *numbers)
        return "ok"

    senders: dict[str, Write] = {"kills": python}
    with contextlib.ExitStack() as stack:
        if shutil.which("npm"):
            command = ["node", request.getfixturevalue("sender"), "proto", "javascript kills"]
            senders["javascript kills"] = stack.enter_context(program(*command))
        for n in range(kills):
            (worker,) = poll(lambda: up.pids("worker"))
            for send in senders.values():
                assert send(range(n * 100, n * 100 + 100)) == "ok"
            os.kill(worker, signal.SIGKILL)
            poll(lambda worker=worker: worker not in up.pids("worker"))  # type: ignore[misc]
    made.shutdown()
    for name in senders:
        poll(lambda name=name: len(logs(up, name)) >= kills * 100)  # type: ignore[misc]
        assert sorted(attributes["n"] for _, _, attributes in logs(up, name)) == list(range(kills * 100))
    assert ask(up.home, "SELECT reason FROM dead_letters") == []


def send(sender: Path, port: int, encoding: str, service: str) -> None:
    subprocess.run(
        ["node", sender, encoding, service],
        env=os.environ | variables(port), check=True, timeout=120, capture_output=True, input=b"0 10\n",
    )  # fmt: skip


@pytest.mark.parametrize("encoding", ["http", "proto"])
def test_the_metrics_and_logs_of_the_javascript_sdk_are_stored(up: Server, sender: Path, encoding: str) -> None:
    service = f"javascript {encoding}"
    send(sender, up.port, encoding, service)
    found = stored(lambda: rows(up, service), 11)
    scope = {"otel.scope.name": "js", "otel.scope.version": "1.0"}
    tags = {**scope, "otel.temporality": "cumulative", "otel.monotonic": "true", "otel.unit": "1"}
    ((value, _, given),) = found["http.requests", "value"]
    assert (value, given) == (5, {**tags, "route": "/", "status": "200"})
    assert [(value, given) for value, _, given in found["room", "value"]] == [(21.5, scope)]
    assert [count for count, _, given in found["size.explicit", "bucket"] if given["le"] in ("0.0", "5.0")] == [0, 1]
    ((low, high, count),) = json.loads(str(found["size.exponential", "histogram"][0][0]))["buckets"]
    assert low < 3 <= high and count == 1
    sent = stored(lambda: logs(up, service), 10)
    assert [(level, text) for level, text, _ in sent] == [("warn", f"line {n}") for n in range(10)]
    assert {"n": 9, "tags": ["a", {"b": 1.5}], "otel.scope.name": "js"}.items() <= sent[9][2].items()


def test_every_log_record_of_the_javascript_sdk_is_stored_once_although_one_answer_in_ten_is_lost(
    up: Server, sender: Path
) -> None:
    def numbers() -> list[int]:
        return sorted(attributes["n"] for _, _, attributes in logs(up, "cut javascript"))

    with closing(proxy := AnsweringProxy(up.port, [], cut=10)) as port:
        command = ["node", sender, "proto", "cut javascript"]
        with program(*command, env=os.environ | variables(port)) as write:
            count = proxy.sent_in_steps(numbers, write)
            assert write(range(count, count + 1)) == "ok"
        poll(lambda: count in numbers())
        assert proxy.repeated() >= proxy.lost
    assert numbers() == [*range(count + 1)]


@pytest.mark.parametrize("kind", AFTER)
def test_the_javascript_sdk_does_the_same(up: Server, sender: Path, kind: str) -> None:
    replies, times = AFTER[kind]
    service = f"javascript after {kind}"
    with closing(proxy := AnsweringProxy(up.port, list(replies))) as port:
        send(sender, port, "proto", service)  # the metrics, then the logs
    assert len(proxy.answered) == len(replies)
    poll(lambda: len(logs(up, service)) == 10 and len(rows(up, service).get(("room", "value"), [])) >= times)
    assert [value for value, _, _ in rows(up, service).get(("room", "value"), [])] == [21.5] * times
