"""Unmodified clients by other authors, or their exact requests, through a whole installation to the rows."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import subprocess
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import cramjam
import graypy
import influxdb
import logging_loki
import pygelf
import pytest
from influxdb_client import InfluxDBClient, Point, WriteOptions, WritePrecision
from influxdb_client.client.write_api import SYNCHRONOUS

from proving import harness
from proving.harness import Server, ask, chain, request, short_tmp
from sluice.contrib.formats.loki import messages
from support.sender_configs import samples

pytestmark = pytest.mark.contract

poll = harness.poll
NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


@pytest.fixture(scope="module")
def up() -> Iterator[Server]:
    with short_tmp() as tmp, chain(tmp, {"INGEST_CORS": "/votes"}) as server:
        yield server
        command = str(harness.ROOT / "bin/sluice"), "status"
        done = subprocess.run(command, env=harness.environment(tmp), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr + done.stdout  # nothing is missing after all clients
        dead = {stream for (stream,) in ask(tmp, "SELECT DISTINCT stream FROM dead_letters")}
        assert dead <= {"gps"}  # the last will of OwnTracks; what the companion app encrypted


def sent(up: Server, head: str, body: bytes = b"") -> tuple[int, bytes]:
    """Send a request with the length of its body. Returns: the status and the body of the response."""
    lines = [line.strip() for line in head.strip().splitlines()]
    data = "\r\n".join(lines).replace("{length}", str(len(body))).encode() + b"\r\n\r\n" + body
    status, _, answer = request(up.port, data)
    return status, answer


def metrics(up: Server, name: str, rows: int) -> dict[tuple, list]:
    """The rows of a measurement, once there are `rows` of them: (time, tags, field) -> (type, value)."""
    sql = f"SELECT time, tags, field, type, value FROM metrics WHERE name = '{name}'"
    poll(lambda: len(ask(up.home, sql)) >= rows)
    found = ask(up.home, sql)
    assert len(found) == rows
    return {(time, tuple(sorted(json.loads(tags).items())), field): rest for time, tags, field, *rest in found}


def positions(up: Server, device: str) -> tuple:
    """The only position of a device: (time, lat, lon, altitude, speed, accuracy, bearing, battery)."""
    columns = "time, lat, lon, altitude, speed, accuracy, bearing, battery"
    (found,) = poll(lambda: ask(up.home, f"SELECT {columns} FROM gps WHERE device = '{device}'"))
    return found


def near(*values: float | None) -> list:
    return [None if value is None else pytest.approx(value) for value in values]


@pytest.mark.parametrize("gzip", [False, True])
def test_influxdb_client_writes_every_type_at_every_precision(gzip: bool, up: Server) -> None:
    name = f"v2 {gzip}"
    odd = 'say "hi", back\\slash and = sign'
    point = (
        Point(name)
        .tag("floor", "2, east = sun")
        .tag("ünïcode", "ja ja")
        .field("temperature", 21.5)
        .field("people", -3)
        .field("door", True)
        .field("note", odd)
        .time(NOON)
    )
    with InfluxDBClient(f"http://localhost:{up.port}", token="secret", org="o", enable_gzip=gzip) as client:
        assert client.ping()
        with client.write_api(write_options=SYNCHRONOUS) as api:
            api.write("b", record=point)
            for seconds, (precision, factor) in enumerate(
                [
                    (WritePrecision.S, 1),
                    (WritePrecision.MS, 10**3),
                    (WritePrecision.US, 10**6),
                    (WritePrecision.NS, 10**9),
                ]
            ):
                at = (int(NOON.timestamp()) + seconds + 1) * factor
                api.write(
                    "b", record=f"{name.replace(' ', chr(92) + ' ')} n={seconds}i {at}", write_precision=precision
                )
    tags = (("floor", "2, east = sun"), ("ünïcode", "ja ja"))
    noon = "2026-01-01T12:00:00.000000000Z"
    expected: dict[tuple, list] = {
        (noon, tags, "temperature"): ["float", 21.5],
        (noon, tags, "people"): ["integer", -3],
        (noon, tags, "door"): ["boolean", 1],
        (noon, tags, "note"): ["string", odd],
        **{(f"2026-01-01T12:00:0{n + 1}.000000000Z", (), "n"): ["integer", n] for n in range(4)},
    }
    assert metrics(up, name, 8) == expected
    # the token of the client is stored nowhere
    assert b"secret" not in b"".join(path.read_bytes() for path in (up.home / "redis").rglob("*.aof"))


@pytest.mark.parametrize("gzip", [False, True])
def test_influxdb_client_writes_in_batches_from_its_own_thread(gzip: bool, up: Server) -> None:
    name = f"batch {gzip}"
    errors: list[object] = []
    with InfluxDBClient(f"http://localhost:{up.port}", token="t", org="o", enable_gzip=gzip) as client:
        options = WriteOptions(batch_size=250, flush_interval=50, max_retries=0)
        with client.write_api(options, error_callback=lambda *what: errors.append(what)) as api:
            start = int(NOON.timestamp())
            for n in range(1000):
                point = Point(name).tag("host", f"h{n % 7}").field("value", n / 4)
                api.write("b", record=point.time(start + n, WritePrecision.S))
    assert errors == []
    found = metrics(up, name, 1000)
    assert sorted(value for _, value in found.values()) == [n / 4 for n in range(1000)]
    assert found["2026-01-01T12:16:39.000000000Z", (("host", "h5"),), "value"] == ["float", 249.75]
    assert ask(up.home, f"SELECT count(DISTINCT seq) FROM metrics WHERE name = '{name}'") < [(20,)]  # in batches


@pytest.mark.parametrize("gzip", [False, True])
def test_influxdb_version_1_client_writes_at_every_precision(gzip: bool, up: Server) -> None:
    name = f"v1 {gzip}"
    with contextlib.closing(influxdb.InfluxDBClient("localhost", up.port, "u", "p", database="d", gzip=gzip)) as client:
        fields = {"load": 0.64, "cores": 2, "on": False, "text": 'a "b" c'}
        point = {"measurement": name, "tags": {"host": "a b"}, "time": NOON.isoformat(), "fields": fields}
        assert client.ping() == "sluice"
        client.create_database("d")  # as Telegraf does before it writes
        assert client.write_points([point])
        for n, precision in enumerate(["s", "m", "h", "ms", "u", "n"]):
            assert client.write_points([point | {"fields": {f"p{n}": n}}], time_precision=precision)
    noon, tags = "2026-01-01T12:00:00.000000000Z", (("host", "a b"),)
    assert metrics(up, name, 10) == {
        (noon, tags, "load"): ["float", 0.64],
        (noon, tags, "cores"): ["integer", 2],
        (noon, tags, "on"): ["boolean", 0],
        (noon, tags, "text"): ["string", 'a "b" c'],
        **{(noon, tags, f"p{n}"): ["integer", n] for n in range(6)},
    }


def test_python_logging_loki_accepts_the_answer_and_its_lines_are_rows(up: Server) -> None:
    sample, _ = samples("Loki", up.port)
    names: dict[str, Any] = {"logging": logging, "logging_loki": logging_loki}
    exec(sample, names)  # noqa: S102  # our own document
    (handler,) = logging.getLogger("web").handlers
    failed: list[logging.LogRecord] = []
    handler.handleError = failed.append  # type: ignore[assignment,method-assign]
    logging.getLogger("web").error("disk %s", "full", extra={"tags": {"disk": "sda"}})
    logging.getLogger("web").removeHandler(handler)
    columns = "level, service, message, attributes"
    ((*row, attributes),) = poll(lambda: ask(up.home, f"SELECT {columns} FROM logs WHERE message = 'disk full'"))
    assert row == ["error", "web", "disk full"]
    assert json.loads(attributes) == {"logger": "web", "disk": "sda"}
    assert failed == []


@pytest.mark.parametrize("path", ["/loki/api/v1/push", "/api/prom/push"])
def test_python_logging_loki_in_its_old_version_is_stored(path: str, up: Server) -> None:
    handler = logging_loki.LokiHandler(f"http://localhost:{up.port}{path}", {"service": "old"}, version="0")
    failed: list[logging.LogRecord] = []
    handler.handleError = failed.append
    handler.handle(logging.LogRecord("web", logging.ERROR, "", 0, f"old {path}", None, None))
    sql = f"SELECT level, service, attributes FROM logs WHERE message = 'old {path}'"
    assert poll(lambda: ask(up.home, sql)) == [("error", "old", '{"logger":"web"}')]
    assert failed == []


@pytest.mark.parametrize("encoding", [(), ("Content-Encoding: snappy",)])
def test_loki_in_protobuf_gets_204(encoding: tuple[str, ...], up: Server) -> None:
    line = f"protobuf {len(encoding)}"
    one = messages.Entry(timestamp=messages.Timestamp(seconds=1767268800, nanos=5_000_000), line=line)
    body = messages.Push(streams=[messages.Stream(labels='{app="x"}', entries=[one])]).SerializeToString()
    head = ["POST /loki/api/v1/push HTTP/1.1", "Host: localhost", "Content-Type: application/x-protobuf", *encoding]
    packed = bytes(cramjam.snappy.compress_raw(body))
    assert sent(up, "\n".join([*head, "Content-Length: {length}"]), packed) == (204, b"")
    sql = f"SELECT time, attributes FROM logs WHERE message = '{line}'"
    assert poll(lambda: ask(up.home, sql)) == [("2026-01-01T12:00:00.005Z", '{"app":"x"}')]


def test_pygelf_is_a_row_with_its_fields(up: Server) -> None:
    names: dict[str, Any] = {"logging": logging, "pygelf": pygelf}
    (sample,) = samples("Graylog (GELF)", up.port)
    exec(sample.replace("getLogger()", "getLogger('pygelf')"), names)  # noqa: S102  # our own document
    logger = logging.getLogger("pygelf")
    logger.error("disk of %s", "pygelf", extra={"disk": "sda"})
    logger.removeHandler(names["handler"])
    sql = "SELECT level, service, attributes FROM logs WHERE message = 'disk of pygelf'"
    ((level, service, attributes),) = poll(lambda: ask(up.home, sql))
    assert (level, service, json.loads(attributes)["disk"]) == ("error", None, "sda")


@pytest.mark.parametrize("compress", [False, True])
def test_graypy_is_a_row_with_its_fields(compress: bool, up: Server) -> None:
    handler = graypy.GELFHTTPHandler("localhost", up.port, compress=compress, facility="web")
    record = logging.LogRecord("graypy", logging.WARNING, "file.py", 7, f"graypy {compress}", None, None, "f")
    record.disk = "sda"
    handler.handle(record)
    sql = f"SELECT level, service, attributes FROM logs WHERE message = 'graypy {compress}'"
    ((level, service, attributes),) = poll(lambda: ask(up.home, sql))
    found = json.loads(attributes)
    assert (level, service, found["disk"], found["line"]) == ("warn", "web", "sda", 7)


def test_owntracks_is_identified_by_its_headers_and_its_speed_is_in_kmh(up: Server) -> None:
    body = (
        b'{"_type":"location","BSSID":"aa:bb:cc:dd:ee:ff","SSID":"home","_id":"4f1c","acc":13,"alt":154,"batt":75,"bs":1,'
        b'"cog":182,"conn":"w","created_at":1767268803,"lat":48.137431,"lon":11.575492,"m":1,"t":"u","tid":"ph",'
        b'"topic":"owntracks/by/topic","tst":1767268800,"vac":2,"vel":54}'
    )
    head = """
        POST /owntracks HTTP/1.1
        X-Limit-U: {user}
        X-Limit-D: phone
        User-Agent: Owntracks-Android/gms/420505004
        Authorization: Basic amFuZTpzZWNyZXQ=
        Content-Type: application/json; charset=utf-8
        Content-Length: {length}
        Host: localhost
        Connection: Keep-Alive
        Accept-Encoding: gzip
    """
    assert sent(up, head.replace("{user}", "jane"), body) == (200, b"[]")
    expected = ["2026-01-01T12:00:00.000Z", *near(48.137431, 11.575492, 154, 15, 13, 182, 75)]
    assert list(positions(up, "jane/phone")) == expected
    # iOS, behind a proxy that drops the headers: identified by the topic
    bare = "POST /owntracks HTTP/1.1\nHost: localhost\nContent-Type: application/json\nContent-Length: {length}"
    assert sent(up, bare, body) == (200, b"[]")
    assert list(positions(up, "by/topic")) == expected
    # a message that is not a position has no row, and is no fault
    assert sent(up, bare, b'{"_type":"lwt","tst":1767268800,"topic":"owntracks/joe/gone"}') == (200, b"[]")
    # so is a request without a body, behind which it keeps its positions until it is accepted
    assert sent(up, bare) == (200, b"[]")


def test_overland_sends_many_positions_and_gets_its_response(up: Server) -> None:
    def feature(device: str, **more: object) -> dict:
        properties = {
            "timestamp": "2026-01-01T12:00:00Z",
            "altitude": 12,
            "speed": 4,
            "horizontal_accuracy": 30,
            "vertical_accuracy": -1,
            "motion": ["driving", "stationary"],
            "pauses": False,
            "activity": "other_navigation",
            "desired_accuracy": 100,
            "deferred": 1000,
            "significant_change": "disabled",
            "locations_in_payload": 1,
            "battery_state": "charging",
            "battery_level": 0.89,
            "device_id": device,
            "wifi": "",
            "course": 90,
        }
        point = {"type": "Point", "coordinates": [-122.030581, 37.331800]}
        return {"type": "Feature", "geometry": point, "properties": properties | more}

    many = [feature("iphone")] + [
        feature("iphone-2", speed=-1, course=-1, timestamp=f"2026-01-01T12:{n:02}:00Z") for n in range(60)
    ]
    body = json.dumps({"locations": many * 5, "current": feature("iphone")}).encode()
    assert len(body) > 150_000
    head = """
        POST /overland HTTP/1.1
        Host: localhost
        Content-Type: application/json
        Connection: keep-alive
        Accept: */*
        User-Agent: Overland/1.3.2 (iPhone; iOS 18.1; Scale/3.00)
        Content-Length: {length}
        Accept-Language: en-US;q=1
        Authorization: Bearer secret
        Accept-Encoding: gzip, deflate, br
    """
    assert sent(up, head, body) == (200, b'{"result":"ok"}')
    poll(lambda: ask(up.home, "SELECT count(*) FROM gps WHERE device = 'iphone-2'") == [(300,)])
    columns = "time, lat, lon, altitude, speed, accuracy, bearing, battery"
    assert ask(up.home, f"SELECT DISTINCT {columns} FROM gps WHERE device = 'iphone'") == [
        ("2026-01-01T12:00:00.000Z", *near(37.3318, -122.030581, 12, 4, 30, 90, 89))
    ]
    # negative: unknown
    assert ask(up.home, "SELECT DISTINCT speed, bearing FROM gps WHERE device = 'iphone-2'") == [(None, None)]


GPSLOGGER = {
    "LAT": "48.137431", "LON": "11.575492", "ALT": "519.5", "SPD": "5.25", "ACC": "5.0", "DIR": "270.0", "BATT": "87.0",
    "TIMESTAMP": "1767268800", "TIME": "2026-01-01T12:00:00.000Z", "PROV": "gps", "ACT": "STILL",
}  # fmt: skip
GPSLOGGER_VALUES = near(48.137431, 11.575492, 519.5, 5.25, 5, 270, 87)


def from_gpslogger(template: str, serial: str) -> str:
    """A text as GPSLogger sends it: with the values of its parameters."""
    values = GPSLOGGER | {"SER": serial}
    return re.sub(r"%([A-Z]+)", lambda found: values[found[1]], template)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_gpslogger_sends_everything_in_its_custom_url(method: str, up: Server) -> None:
    url = from_gpslogger(samples("GPSLogger")[0].strip().replace("=phone&", "=%SER&"), f"gpslogger {method}")
    target = url.removeprefix("http://localhost:8080").replace(" ", "%20")
    head = f"""
        {method} {target} HTTP/1.1
        Host: localhost
        Connection: Keep-Alive
        Accept-Encoding: gzip
        User-Agent: okhttp/4.12.0
    """
    assert sent(up, head + ("Content-Length: 0" if method == "POST" else ""))[0] == 200
    assert list(positions(up, f"gpslogger {method}")) == ["2026-01-01T12:00:00.000Z", *GPSLOGGER_VALUES]


def test_gpslogger_sends_the_body_that_home_assistant_wants(up: Server) -> None:
    head = """
        POST /gpslogger HTTP/1.1
        Host: localhost
        Content-Type: application/x-www-form-urlencoded
        Content-Length: {length}
    """
    assert sent(up, head, from_gpslogger(samples("GPSLogger")[1].strip(), "unknown").encode())[0] == 200
    assert list(positions(up, "unknown"))[1:] == GPSLOGGER_VALUES


def test_gpslogger_may_keep_its_default_url_if_a_device_is_added(up: Server) -> None:
    template = "/gpslogger?lat=%LAT&longitude=%LON&time=%TIME&s=%SPD&device=%SER"
    assert sent(up, f"GET {from_gpslogger(template, 'default')} HTTP/1.1\nHost: localhost")[0] == 200
    expected = near(48.137431, 11.575492, None, 5.25, None, None, None)
    assert list(positions(up, "default")) == ["2026-01-01T12:00:00.000Z", *expected]


def test_home_assistants_companion_app_is_identified_by_the_url(up: Server) -> None:
    head = """
        POST /homeassistant?device=jane%27s%20phone HTTP/1.1
        Host: localhost
        Content-Type: application/json; charset=utf-8
        Content-Length: {length}
    """
    data = {"gps": [48.137431, 11.575492], "gps_accuracy": 5, "battery": 87, "speed": 4, "altitude": 519, "course": 270}
    body = {"type": "update_location", "data": data | {"vertical_accuracy": 2, "location_name": "home"}}
    assert sent(up, head, json.dumps(body).encode())[0] == 200
    assert list(positions(up, "jane''s phone"))[1:] == near(48.137431, 11.575492, 519, 4, 5, 270, 87)
    other = {"type": "encrypted", "encrypted": True, "encrypted_data": "AbC"}
    assert sent(up, head, json.dumps(other).encode())[0] == 200
    poll(lambda: ask(up.home, "SELECT 1 FROM dead_letters WHERE reason LIKE '%encrypted%'"))


def test_home_assistant_passes_positions_on(up: Server) -> None:
    (sample,) = samples("Home Assistant")
    (payload,) = re.findall(r"payload: '(.*)'", sample)
    values = {"device": "from home assistant", "lat": "48.137431", "lon": "11.575492", "accuracy": "5", "battery": "87"}
    body = re.sub(r"{{ (\w+) }}", lambda found: values[found[1]], payload)
    assert sent(up, "POST /gps HTTP/1.1\nHost: localhost\nContent-Length: {length}", body.encode())[0] == 200
    expected = near(48.137431, 11.575492, None, None, 5, None, 87)
    assert list(positions(up, "from home assistant"))[1:] == expected


TRACCAR = (
    "id={id}&timestamp=1767268800&lat=48.137431&lon=11.575492"
    "&speed=10.0&bearing=270.0&altitude=519.5&accuracy=5.0&batt=87.0"
)
TRACCAR_ROW = ["2026-01-01T12:00:00.000Z", *near(48.137431, 11.575492, 519.5, 5.144444, 5, 270, 87)]


def test_traccar_client_up_to_8_sends_everything_in_the_query_of_an_empty_post(up: Server) -> None:
    head = f"""
        POST /traccar?{TRACCAR.format(id="123456")} HTTP/1.1
        User-Agent: Dalvik/2.1.0 (Linux; U; Android 14; Pixel 6 Build/AP2A)
        Host: localhost
        Connection: Keep-Alive
        Accept-Encoding: gzip
        Content-Type: application/x-www-form-urlencoded
        Content-Length: 0
    """
    assert sent(up, head)[0] == 200
    assert list(positions(up, "123456")) == TRACCAR_ROW


def test_traccar_client_may_send_a_form(up: Server) -> None:
    head = """
        POST /traccar HTTP/1.1
        Host: localhost
        Content-Type: application/x-www-form-urlencoded
        Content-Length: {length}
    """
    assert sent(up, head, TRACCAR.format(id="654321").encode())[0] == 200
    assert list(positions(up, "654321")) == TRACCAR_ROW


def test_traccar_client_9_sends_json_in_metres_a_second(up: Server) -> None:
    body = json.dumps(
        {
            "location": {
                "timestamp": "2026-01-01T12:00:00.000Z",
                "coords": {
                    "latitude": 48.137431,
                    "longitude": 11.575492,
                    "accuracy": 5.0,
                    "speed": 3.6,
                    "heading": 270.0,
                    "altitude": 519.5,
                },
                "is_moving": True,
                "odometer": 1234.5,
                "event": "motionchange",
                "battery": {"level": 0.87, "is_charging": False},
                "activity": {"type": "on_foot"},
                "extras": {},
            },
            "device_id": "99887766",
        }
    ).encode()
    head = """
        POST /traccar HTTP/1.1
        Content-Type: application/json; charset=UTF-8
        Content-Length: {length}
        Host: localhost
        Connection: Keep-Alive
        Accept-Encoding: gzip
        User-Agent: okhttp/4.12.0
    """
    assert sent(up, head, body)[0] == 200
    expected = ["2026-01-01T12:00:00.000Z", *near(48.137431, 11.575492, 519.5, 3.6, 5, 270, 87)]
    assert list(positions(up, "99887766")) == expected


def test_gpslogger_sends_a_template_without_a_content_type(up: Server) -> None:
    values = (
        "device=moto&lat=48.137431&lon=11.575492&time=2026-01-01T12:00:00.000Z&speed=3.5&altitude=519.5&battery=87.0"
    )
    agent = "User-Agent: GPSLogger/132 (Android 14)\nHost: localhost\nAccept-Encoding: gzip"
    assert sent(up, f"POST /gps HTTP/1.1\nContent-Length: {{length}}\n{agent}", values.encode())[0] == 200
    row = ["2026-01-01T12:00:00.000Z", *near(48.137431, 11.575492, 519.5, 3.5, None, None, 87)]
    assert list(positions(up, "moto")) == row
    # or as a query, with an empty body
    query = values.replace("moto", "auto").replace(":", "%3A")
    assert sent(up, f"POST /gps?{query} HTTP/1.1\nContent-Length: 0\n{agent}")[0] == 200
    assert list(positions(up, "auto")) == row


def test_a_browser_sends_beacons_as_text_and_as_forms(up: Server) -> None:
    head = """
        POST /votes HTTP/1.1
        Host: localhost
        Connection: keep-alive
        Content-Length: {length}
        User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:133.0) Gecko/20100101 Firefox/133.0
        Content-Type: {type}
        Accept: */*
        Origin: https://example.org
        Sec-Fetch-Site: cross-site
        Sec-Fetch-Mode: no-cors
        Sec-Fetch-Dest: empty
        Referer: https://example.org/
        Accept-Encoding: gzip, deflate, br, zstd
        Accept-Language: en-US,en;q=0.9
        Cookie: session=secret
    """
    text = json.dumps({"poll": "beacon", "choice": "text", "voter": "ünï"}, ensure_ascii=False).encode()
    assert sent(up, head.replace("{type}", "text/plain;charset=UTF-8"), text)[0] == 200
    form = b"poll=beacon&choice=form+of%20mine&voter=%C3%BCn%C3%AF"
    kind = "application/x-www-form-urlencoded;charset=UTF-8"
    assert sent(up, head.replace("{type}", kind), form)[0] == 200
    sql = "SELECT choice, voter FROM votes WHERE poll = 'beacon' ORDER BY seq"
    poll(lambda: len(ask(up.home, sql)) == 2)
    assert ask(up.home, sql) == [("text", "ünï"), ("form of mine", "ünï")]
