"""Access control: each check switched on in the real nginx, with real clients."""

from __future__ import annotations

import base64
import json
import os
import re
import select
import signal
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from proving.harness import (
    ROOT,
    Server,
    answer,
    connect,
    environment,
    free_port,
    get,
    installation,
    poll,
    post,
    request,
)
from sluice import settings
from sluice.contrib.views.declared import VIEWS
from sluice.routes import ROUTES
from sluice.run import configure
from sluice.run.nginx import HOST_CHECK, PROXY_CHECK, VERSION_CHECK
from support.access import KEY, OTHER, curl, keys, passwords, private, tls
from support.nginx_front import as_one_text, front, problem

pytestmark = pytest.mark.contract

KEY_CHECK = "auth_request off; if ($sluice_forbidden) { rewrite ^ /_sluice_keyless last; }"
NO_KEY = problem("Unauthorized", 401, "The API key or the password is missing or wrong; the request had no effect.")
DENIED = problem(
    "Forbidden",
    403,
    "This client, or the page of another site that sent the request, has no access here; the request had no effect.",
)
FAST = problem(
    "Too Many Requests", 429, "Too many requests from this client; this one had no effect. Send it again later."
)


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def rejected_unread(web: Server, *fields: str) -> int:
    """Send only the head of a request; returns the status."""
    with connect(web.port) as connection:
        lines = ["POST /votes HTTP/1.1", "Host: localhost", "Content-Length: 1000", "Expect: 100-continue", *fields]
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        return int(connection.recv(12, socket.MSG_WAITALL)[9:])  # 100 would ask for the body


@pytest.mark.parametrize(
    "field",
    [
        f"X-API-Key: {KEY}", f"X-API-Key: {OTHER}", f"DD-API-KEY: {KEY}", f"X-Amz-Firehose-Access-Key: {KEY}",
        f"Authorization: Bearer {KEY}", f"Authorization: Token {KEY}", f"Authorization: Splunk {OTHER}",
        f"Authorization: ApiKey {KEY}", f"Authorization: {basic('elastic', OTHER)}",
        *(f"Authorization: {basic(user, KEY)}" for user in ("", "x", "me", "grafana-1")),
        f"Authorization: {basic(KEY, '')}",
    ],
)  # fmt: skip
def test_a_client_with_a_key_is_accepted_and_the_gateway_does_not_see_the_key(field: str, tmp: Path) -> None:
    with front(INGEST_API_KEYS=keys(tmp)) as (web, gateway):
        assert curl("-d", "x", "-H", field, f"localhost:{web.port}/votes")[::2] == (200, '{"message":"OK"}')
        assert field.split()[-1].encode() not in gateway.requests[0]


@pytest.mark.parametrize(
    "field",
    [
        "X-Other: 1", "X-API-Key:", f"X-API-Key: {KEY[:-1]}", f"X-API-Key: {KEY}0", "X-API-Key: telegraf",
        "X-API-Key: default", f"Authorization: {KEY}", f"Authorization: Bearer {KEY} x", f"Cookie: X-API-Key={KEY}",
        f"Authorization: {basic('x', KEY[:-1])}", f"Authorization: {basic('x', KEY + '0')}", "Authorization: Basic x",
        f"Authorization: {basic('x', 'telegraf')}", f"Authorization: Digest {KEY}",
    ],
)  # fmt: skip
def test_a_client_without_a_key_is_rejected_before_its_body_is_read(field: str, tmp: Path) -> None:
    with front(INGEST_API_KEYS=keys(tmp)) as (web, gateway):
        status, headers, body = curl("-d", "x", "-H", field, f"localhost:{web.port}/votes")
        assert (status, body.encode()) == (401, NO_KEY)
        assert headers["content-type"] == ["application/problem+json"]
        assert headers["www-authenticate"] == ['Bearer realm="Sluice"']
        assert rejected_unread(web, field) == 401
        assert gateway.requests == []


@pytest.mark.parametrize("query", [f"api_key={KEY}", f"a=1&api_key={OTHER}&b=2", f"db=x&u=me&p={KEY}"])
def test_a_key_in_the_query_is_a_key(query: str, tmp: Path) -> None:
    with front(INGEST_API_KEYS=keys(tmp)) as (web, gateway):
        wrong = query.replace(KEY, KEY[:-1]).replace(OTHER, OTHER[:-1])
        assert curl("-d", "x", f"localhost:{web.port}/votes?{query}")[0] == 200
        assert curl("-d", "x", f"localhost:{web.port}/votes?{wrong}")[0] == 401
        assert curl("-d", "x", "-H", "X-API-Key: wrong", f"localhost:{web.port}/votes?{query}")[0] == 401
        assert len(gateway.requests) == 1


def test_no_path_takes_a_request_without_a_key(tmp: Path) -> None:
    paths = [
        *ROUTES,
        *VIEWS,
        "/",
        "/other",
        "/healthz",
        "/readyz",
        "/votes/",
        "//votes",
        "/_sluice_keyless",
        "/_sluice_key",
    ]
    with front(INGEST_API_KEYS=keys(tmp)) as (web, gateway):
        for path in paths:
            for more in [], ["-d", "x"], ["-d", "x", "-H", "X-API-Key: wrong"], ["-X", "PUT", "-d", "x"]:
                status = curl("--path-as-is", *more, f"localhost:{web.port}{path}")[0]
                assert status == (404 if path.startswith("/_sluice") else 401), (path, more)
        assert gateway.requests == gateway.reads == []


def test_an_address_that_may_not_send_learns_nothing_about_a_key_or_a_password(tmp: Path) -> None:
    with front(INGEST_API_KEYS=keys(tmp), INGEST_PASSWORDS=passwords(tmp), INGEST_ALLOW="127.0.0.2") as (web, gateway):
        right = ["-u", "jane:s3cret", "-H", f"X-API-Key: {KEY}"]
        for more in [], right, ["-u", "jane:wrong"], ["-H", "X-API-Key: wrong"]:
            url = f"127.0.0.1:{web.port}"
            assert [curl("-d", "x", *more, f"{url}{path}")[0] for path in ("/votes", "/gpslogger")] == [403, 403]
            assert curl("-d", "x", "--interface", "127.0.0.2", *more, url)[0] == (200 if more == right else 401)
            assert curl("--interface", "127.0.0.3", *more, f"{url}/gps/latest?device=a")[0] == 403
        assert len(gateway.requests) == 1


@pytest.mark.parametrize("check", ["keys", "passwords"])
def test_guesses_count_towards_the_rate_of_a_client(check: str, tmp: Path) -> None:
    files = {"INGEST_API_KEYS": keys(tmp)} if check == "keys" else {"INGEST_PASSWORDS": passwords(tmp)}
    with front(("rate=1r/s", "rate=1r/m"), INGEST_CLIENT_RATE=1, **files) as (web, gateway):
        paths = "/", "/votes", "/write", "/metrics", "/traccar"
        guesses = [curl("-d", "x", "-u", f"jane:{n}", "-H", f"X-API-Key: {n}", f"localhost:{web.port}{path}")[0]
                   for n, path in enumerate(paths)]  # fmt: skip
        assert guesses == [401, 401, 401, 429, 429]
        assert gateway.requests == []


@pytest.mark.parametrize("rate, on", [("", True), ("0", False), ("7", True)])
def test_unless_set_clients_with_passwords_have_a_rate(rate: str, on: bool, tmp: Path) -> None:
    text = as_one_text(settings.load_settings({"INGEST_PASSWORDS": str(passwords(tmp)), "INGEST_CLIENT_RATE": rate}))
    lines = re.findall(r"^ *limit_req(?:_zone)? .*", text, re.M)
    wanted = [f"rate={rate or 100}r/s;", f" burst={2 * int(rate or 100)} "] if on else []
    assert [word in line for word, line in zip(wanted, lines, strict=True)] == [True] * len(wanted)


def test_changed_keys_apply_after_a_hup_and_changed_passwords_at_once(tmp: Path) -> None:
    files = keys(tmp), passwords(tmp)
    with front(INGEST_API_KEYS=files[0], INGEST_PASSWORDS=files[1]) as (web, _):

        def status(key: str, password: str) -> int:
            who = ["-u", f"jane:{password}", "-H", f"X-API-Key: {key}"]
            return curl("-d", "x", *who, f"localhost:{web.port}/votes")[0]

        assert status(KEY, "s3cret") == 200
        files[0].write_text(f"{KEY[::-1]} telegraf;\n")
        files[1].write_text("jane:{PLAIN}n3w\n")
        assert [status(KEY, "s3cret"), status(KEY, "n3w")] == [401, 200]
        configure.write_secrets(
            settings.load_settings({"INGEST_HOME": str(web.home), "INGEST_API_KEYS": str(files[0])})
        )
        web.process.send_signal(signal.SIGHUP)
        poll(lambda: status(KEY[::-1], "n3w") == 200)
        poll(lambda: status(KEY, "n3w") == 401)


def test_an_influxdb_client_sends_its_token_as_a_key(tmp: Path) -> None:
    influxdb = pytest.importorskip("influxdb_client")
    with front(INGEST_API_KEYS=keys(tmp)) as (web, gateway):
        gateway.reply = b"HTTP/1.1 204 No Content\r\n\r\n"
        for token, taken in (KEY, 1), ("wrong", 1):
            with influxdb.InfluxDBClient(f"http://localhost:{web.port}", token, org="o", retries=False) as client:
                writer = client.write_api(write_options=influxdb.client.write_api.SYNCHRONOUS)
                try:
                    writer.write("b", record="m v=1")
                except influxdb.rest.ApiException as error:
                    assert (token, error.status) == ("wrong", 401)
            assert len(gateway.requests) == taken


def test_a_client_with_a_password_is_accepted_and_the_gateway_does_not_see_the_password(tmp: Path) -> None:
    with front(INGEST_PASSWORDS=passwords(tmp)) as (web, gateway):
        url = f"localhost:{web.port}/votes"
        assert curl("-d", "x", "-u", "jane:s3cret", url)[0] == 200
        assert b"Authorization" not in gateway.requests.pop()
        for more in ["-u", "jane:s3cre"], ["-u", "joe:s3cret"], ["-H", "Authorization: Basic x"], []:
            status, headers, body = curl("-d", "x", *more, url)
            assert (status, body.encode()) == (401, NO_KEY)
            assert headers["www-authenticate"] == ['Basic realm="Sluice"']
        assert rejected_unread(web) == 401
        assert gateway.requests == []


def test_a_request_must_pass_every_check_that_is_on(tmp: Path) -> None:
    with front(INGEST_PASSWORDS=passwords(tmp), INGEST_API_KEYS=keys(tmp)) as (web, gateway):
        key, password = ["-H", f"X-API-Key: {KEY}"], ["-u", "jane:s3cret"]
        answers = [curl("-d", "x", *more, f"localhost:{web.port}/votes")[0] for more in (key, password, key + password)]
        assert answers == [401, 401, 200]


def test_a_client_that_trusts_the_certificate_connects_with_tls_1_2_and_1_3(certificate: tuple[Path, Path]) -> None:
    with front(**tls(certificate)) as (web, gateway):
        url = f"https://localhost:{web.port}/votes"
        for version in "--tlsv1.2", "--tlsv1.3":
            done = curl("-d", "x", "--cacert", certificate[0], version, "--tls-max", version[-3:], url)
            assert done[::2] == (200, '{"message":"OK"}')
        status, _, words = curl("-d", "x", url)
        assert status == 0
        assert "certificate" in words
        status, headers, body = curl("-d", "x", url.replace("https", "http"))
        assert (status, headers["content-type"]) == (400, ["application/problem+json"])
        assert json.loads(body)["detail"] == "This port takes only HTTPS; the request had no effect."
        malformed = curl("--cacert", certificate[0], "-H", "Host;", "-H", "Transfer-Encoding: x y", "-d", "x", url)
        assert malformed[0] in (400, 501) and "HTTPS" not in malformed[2]
        assert len(gateway.requests) == 2


def test_with_tls_a_connection_has_as_many_requests_as_nginx_allows_by_itself(certificate: tuple[Path, Path]) -> None:
    """HTTP/2 counts streams, also those that the client resets at once."""
    given = {name: str(value) for name, value in tls(certificate).items()}
    lines = as_one_text(settings.load_settings(given))
    assert re.findall(r"^    keepalive_requests (\d+);  # of", lines, re.M) == ["1000"]
    assert "Strict-Transport-Security" not in re.sub(r"#.*", "", lines)
    lines = as_one_text(settings.load_settings(given | {"INGEST_PORT": "443"}))
    assert len(re.findall(r"^ +add_header Strict-Transport-Security ", lines, re.M)) == 3


@pytest.mark.parametrize(
    "offer",
    [
        {"maximum_version": ssl.TLSVersion.TLSv1},
        {"minimum_version": ssl.TLSVersion.TLSv1_1, "maximum_version": ssl.TLSVersion.TLSv1_1},
        {"maximum_version": ssl.TLSVersion.TLSv1_2, "ciphers": "AES128-SHA:AES128-GCM-SHA256:ECDHE-ECDSA-AES128-SHA"},
    ],
    ids=["tls_1_0", "tls_1_1", "ciphers_without_forward_secrecy_or_authentication"],
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_weaker_protocols_and_ciphers_are_rejected(offer: dict[str, object], certificate: tuple[Path, Path]) -> None:
    context = ssl.create_default_context(cafile=str(certificate[0]))
    context.set_ciphers(str(offer.pop("ciphers", "ALL:@SECLEVEL=0")))  # the client accepts it
    context.minimum_version = ssl.TLSVersion.TLSv1
    for name, value in offer.items():
        setattr(context, name, value)
    with (
        front(**tls(certificate)) as (web, _),
        connect(web.port) as plain,
        pytest.raises(ssl.SSLError, match="(?i)alert"),
    ):
        context.wrap_socket(plain, server_hostname="localhost")


def test_only_addresses_on_the_list_are_accepted() -> None:
    with front(INGEST_ALLOW="127.0.0.2, 127.3.0.0/16 ::1") as (web, gateway):
        url = f"127.0.0.1:{web.port}/votes"
        asked = {"127.0.0.2": 200, "127.3.4.5": 200, "127.0.0.1": 403, "127.0.0.3": 403}
        for address, status in asked.items():
            done = curl("-d", "x", "--interface", address, "-H", "X-Forwarded-For: 127.0.0.2", url)
            assert done[0] == status
        assert done[1]["content-type"] == ["application/problem+json"]
        assert done[2].startswith('{"type":"about:blank","title":"Forbidden","status":403,')
        assert rejected_unread(web) == 403
        assert len(gateway.requests) == 2


def test_only_addresses_on_the_list_of_readers_may_read_the_views() -> None:
    networks = "127.0.0.2, 127.3.0.0/16 ::1"
    with front(INGEST_READ_ALLOW=networks, INGEST_ALLOW="127.0.0.9") as (web, gateway):
        url = f"127.0.0.1:{web.port}/gps/latest?device=bike"
        asked = {"127.0.0.2": 200, "127.3.4.5": 200, "127.0.0.1": 403, "127.0.0.9": 403}
        for address, status in asked.items():
            done = curl("--interface", address, url)
            assert done[0] == status
        assert done[1]["content-type"] == ["application/problem+json"]
        assert done[2] == DENIED.decode()
        assert (len(gateway.reads), gateway.requests) == (2, [])
        assert gateway.reads[0].startswith(b"GET /gps/latest?device=bike HTTP/1.1\r\n")
        # the other list is for posts
        for address, status in ("127.0.0.2", 403), ("127.0.0.9", 200):
            assert curl("-d", "x", "--interface", address, f"127.0.0.1:{web.port}/gps")[0] == status


@pytest.mark.parametrize("networks, statuses", [("", [200, 403]), ("none", [403, 403]), ("0.0.0.0/0", [200, 200])])
def test_only_this_machine_may_read_unless_set(networks: str, statuses: list[int]) -> None:
    with front(INGEST_READ_ALLOW=networks) as (web, _):
        url = f"127.0.0.1:{web.port}/votes/tally?poll=cookies"
        assert [curl("--interface", address, url)[0] for address in ("127.0.0.1", "127.0.0.2")] == statuses


def test_reading_needs_the_keys_and_passwords_of_writing(tmp: Path) -> None:
    with front(INGEST_API_KEYS=keys(tmp), INGEST_PASSWORDS=passwords(tmp)) as (web, gateway):
        key, password = ["-H", f"X-API-Key: {KEY}"], ["-u", "jane:s3cret"]
        url = f"localhost:{web.port}/gps/latest?device=bike"
        answers = [curl(*more, url) for more in ([], key, password, key + password)]
        assert [status for status, _, _ in answers] == [401, 401, 401, 200]
        assert answers[0][2].encode() == NO_KEY
        assert len(gateway.reads) == 1
        assert KEY.encode() not in gateway.reads[0] and b"Authorization" not in gateway.reads[0]


def test_reads_and_posts_count_together_against_the_rate_of_a_client() -> None:
    with front(INGEST_CLIENT_RATE=1) as (web, gateway):
        answers = [get(web.port, "/gps/latest?device=a") if n % 2 else post(web.port, "/gps", b"x") for n in range(20)]
        late = [given for given in answers if given[0] != 200]
        assert {(status, body) for status, _, body in late} == {(429, FAST)}
        assert len(gateway.reads) + len(gateway.requests) == 20 - len(late) < 20


def test_a_client_beyond_its_rate_gets_429_and_another_client_is_not_affected() -> None:
    with front(INGEST_CLIENT_RATE=1) as (web, gateway):
        answers = [post(web.port, "/votes", b"x") for _ in range(20)]
        # the burst is two; on a slow machine a second may pass
        assert [status for status, _, _ in answers[:3]] == [200, 200, 200]
        late = [given for given in answers if given[0] != 200]
        assert {(status, headers["content-type"], body) for status, headers, body in late} == {
            (429, "application/problem+json", FAST)
        }
        assert int(late[0][1]["retry-after"]) > 0
        assert curl("-d", "x", "--interface", "127.0.0.2", f"127.0.0.1:{web.port}/votes")[0] == 200
        assert len(gateway.requests) == 21 - len(late)
        poll(lambda: post(web.port, "/votes", b"x")[0] == 200)


def test_a_client_beyond_its_concurrent_requests_gets_429_and_another_client_is_not_affected() -> None:
    with front(INGEST_CLIENT_CONNECTIONS=2) as (web, gateway):
        half = b"POST /votes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nx"
        with connect(web.port) as one, connect(web.port) as two, connect(web.port) as three:
            for connection in one, two, three:
                connection.sendall(half)
            (late,), _, _ = select.select([one, two, three], [], [], 10)
            status, headers, body = answer(late)
            assert (status, headers["content-type"], body) == (429, "application/problem+json", FAST)
            assert int(headers["retry-after"]) > 0
            assert post(web.port, "/votes", b"x")[0] == 429
            assert curl("-d", "x", "--interface", "127.0.0.2", f"127.0.0.1:{web.port}/votes")[0] == 200
            for connection in {one, two, three} - {late}:
                connection.sendall(b"y")
                assert answer(connection)[0] == 200
        poll(lambda: post(web.port, "/votes", b"x")[0] == 200)
        assert len(gateway.requests) == 4


def preflight(
    web: Server, path: str, origin: str, *more: object, method: str = "POST"
) -> tuple[int, dict[str, list[str]], str]:
    ask = ["-H", f"Origin: {origin}", "-H", f"Access-Control-Request-Method: {method}"]
    return curl("-X", "OPTIONS", *ask, *more, f"localhost:{web.port}{path}")


def cors(headers: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: value for name, value in headers.items() if name.startswith("access-control-") or name == "vary"}


def test_a_page_of_a_listed_origin_may_post_to_a_listed_path_and_nginx_answers_the_preflight(tmp: Path) -> None:
    origin = "https://shop.example"
    with front(INGEST_CORS=f"/votes /gps /reports {origin} http://localhost:3000", INGEST_API_KEYS=keys(tmp)) as (
        web,
        gateway,
    ):
        status, headers, body = preflight(web, "/votes?x=1", origin)
        assert (status, body, gateway.requests) == (204, "", [])
        assert cors(headers) == {
            "access-control-allow-origin": [origin],
            "access-control-allow-methods": ["POST"],
            "access-control-allow-headers": ["*, Authorization"],
            "access-control-max-age": ["7200"],
            "access-control-expose-headers": ["Retry-After"],
            "vary": ["Origin"],
        }
        for path in "/gps", "/reports":
            assert preflight(web, path, "http://localhost:3000")[0] == 204
        for number, more in enumerate(([], ["-H", f"X-API-Key: {KEY}"])):
            status, headers, _ = curl("-d", "x", "-H", f"Origin: {origin}", *more, f"localhost:{web.port}/votes")
            assert (status, len(gateway.requests)) == ((401, 0), (200, 1))[number]
            assert cors(headers) == {
                "access-control-allow-origin": [origin],
                "access-control-expose-headers": ["Retry-After"],
                "vary": ["Origin"],
            }


def test_a_page_of_a_listed_origin_may_read_a_listed_view(tmp: Path) -> None:
    origin = "https://shop.example"
    with front(INGEST_CORS=f"/votes /votes/tally {origin}", INGEST_API_KEYS=keys(tmp)) as (web, gateway):
        status, headers, body = preflight(web, "/votes/tally?poll=cookies", origin, method="GET")
        assert (status, body, gateway.reads) == (204, "", [])
        assert cors(headers) == {
            "access-control-allow-origin": [origin],
            "access-control-allow-methods": ["GET"],
            "access-control-allow-headers": ["*, Authorization"],
            "access-control-max-age": ["7200"],
            "access-control-expose-headers": ["Retry-After"],
            "vary": ["Origin"],
        }
        assert cors(preflight(web, "/votes", origin)[1])["access-control-allow-methods"] == ["POST"]
        for number, more in enumerate(([], ["-H", f"X-API-Key: {KEY}"])):
            url = f"localhost:{web.port}/votes/tally?poll=cookies"
            status, headers, _ = curl("-H", f"Origin: {origin}", *more, url)
            assert (status, len(gateway.reads)) == ((401, 0), (200, 1))[number]
            assert cors(headers)["access-control-allow-origin"] == [origin]
        assert "access-control-allow-origin" not in preflight(web, "/gps/latest", origin, method="GET")[1]


@pytest.mark.parametrize(
    "path, origin",
    [
        ("/metrics", "https://shop.example"), ("/votes/x", "https://shop.example"), ("/votes", "https://shopxexample"),
        ("/votes", "https://shop.example.org"), ("/votes", "http://shop.example"), ("/votes", "https://a.shop.example"),
        ("/x?/votes", "https://shop.example"), ("/votes", "null"), ("/votes", "https://shop.example /votes"),
    ],
)  # fmt: skip
def test_other_origins_and_paths_get_no_cors_permission(path: str, origin: str) -> None:
    with front(INGEST_CORS="/votes,https://shop.example") as (web, gateway):
        for done in (
            preflight(web, path, origin),
            curl("-d", "x", "-H", f"Origin: {origin}", f"localhost:{web.port}{path}"),
        ):
            assert (done[0], "access-control-allow-origin" in done[1]) == (403, False)
        assert gateway.requests == []


def test_without_an_origin_in_the_setting_any_origin_may_post(tmp: Path) -> None:
    with front(INGEST_CORS="/votes") as (web, _):
        for origin in "https://any.example", "null":
            assert cors(preflight(web, "/votes", origin)[1])["access-control-allow-origin"] == [origin]
        # a request without an Origin gets no CORS fields
        assert "access-control-allow-origin" not in curl("-d", "x", f"localhost:{web.port}/votes")[1]


PAGES = [
    ("", {}, 200), ("", {"Sec-Fetch-Site": "none"}, 200), ("a.example", {}, 200),
    # at a name that is not this server's, as in DNS rebinding
    ("a.example", {"Origin": "http://a.example:PORT"}, 403), ("192.0.2.1", {"Origin": "http://192.0.2.1:PORT"}, 200),
    ("", {"Origin": "http://localhost:PORT"}, 200), ("", {"Origin": "https://localhost:PORT"}, 200),
    ("", {"Origin": "http://localhost"}, 403), ("", {"Origin": "null"}, 403), ("", {"Origin": "http://b.example"}, 403),
    ("sluice.example", {"Origin": "https://sluice.example:PORT"}, 200),
    # behind a proxy with TLS that passes another Host
    ("", {"Origin": "https://a.example", "Sec-Fetch-Site": "same-origin"}, 200),
    ("", {"Origin": "https://a.example", "Sec-Fetch-Site": "cross-site"}, 403),
    ("", {"Sec-Fetch-Site": "cross-site"}, 403),
]  # fmt: skip


@pytest.mark.parametrize(("host", "fields", "status"), PAGES)
def test_a_page_of_another_site_may_not_send(host: str, fields: dict[str, str], status: int) -> None:
    remote = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
    with front(INGEST_CORS="/gps https://shop.example", INGEST_HOSTS="Sluice.example") as (web, gateway):
        more = header(host, web.port, fields)
        posts = [curl("-d", "x", *more, f"127.0.0.1:{web.port}{path}")[0] for path in ("/votes", "/gpslogger", "/gps")]
        posts.append(curl("-d", "x", *more, *header(host, web.port, remote), f"127.0.0.1:{web.port}/api/v1/write")[0])
        posts.append(curl(*more, f"127.0.0.1:{web.port}/gpslogger?lat=1")[0])
        assert posts == [status] * 5
        assert len(gateway.requests) == 5 * (status == 200)
        for site in {}, {"Sec-Fetch-Site": "cross-site"}:  # an origin that INGEST_CORS lists
            listed = header(host, web.port, {"Origin": "https://shop.example", **site})
            asked = [curl("-d", "x", *listed, f"127.0.0.1:{web.port}{path}")[0] for path in ("/gps", "/votes")]
            assert asked == [200, 403]


BROWSER = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/140.0", "Accept-Language": "de, en"}
SILENT = [
    (BROWSER, 403), (BROWSER | {"Referer": "http://evil.example/"}, 403),
    (BROWSER | {"Referer": "http://localhost:1/"}, 403), (BROWSER | {"Referer": "http://localhost:PORT/status"}, 200),
    # neither Origin nor site, and no browser
    ({"User-Agent": "Dalvik/2.1.0 (Linux; U; Android 14)", "Accept-Language": "de"}, 200),
    ({"User-Agent": "Mozilla/5.0 (Windows NT; Windows NT 10.0) WindowsPowerShell/5.1"}, 200),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "status"), SILENT)
def test_a_page_of_another_site_may_not_get_what_writes(fields: dict[str, str], status: int) -> None:
    """An image of a page without TLS: browsers send neither an Origin nor a site."""
    with front() as (web, gateway):
        for path in "/traccar?id=a&lat=1&lon=2", "/gpslogger?lat=1&lon=2":
            assert curl(*header("", web.port, fields), f"127.0.0.1:{web.port}{path}")[0] == status
        evil = header("evil.example", web.port, BROWSER | {"Referer": f"http://evil.example:{web.port}/"})
        assert curl(*evil, f"127.0.0.1:{web.port}/traccar?id=a")[0] == 403
        assert curl("-d", "x", *header("", web.port, fields), f"127.0.0.1:{web.port}/traccar")[0] == 200
        assert len(gateway.requests) == 2 + 2 * (status == 200) - 1


def test_a_request_of_http_1_0_needs_no_host() -> None:
    with front() as (web, gateway):
        assert request(web.port, b"POST /votes HTTP/1.0\r\nContent-Length: 1\r\n\r\nx")[0] == 200
        assert b"\r\nHost: none.invalid\r\n" in gateway.requests[0]


def header(host: str, port: int, fields: dict[str, str]) -> list[str]:
    """curl's options for a request to a host with these header fields."""
    lines = [f"{name}: {text.replace('PORT', str(port))}" for name, text in fields.items()]
    return [word for line in (f"Host: {host or 'localhost'}:{port}", *lines) for word in ("-H", line)]


NAMED = {"localhost": 200, "LOCALHOST.": 200, "127.0.0.1": 200, "[::1]": 200, "192.168.0.7": 200, "evil.example": 421,
         "localhost.evil.example": 421, "1.2.3.4.evil.example": 421, "sluice.example": 421, "sluiceXexample": 421,
         os.uname().nodename.upper(): 200, f"{os.uname().nodename}.evil.example": 421}  # fmt: skip


PRIVATE_READS = ["/gps/latest?device=a", "/votes/tally?poll=a", "/status", "/status/", "/status/page.js",
                 "/status/status.json", "/status/rows.json", "/status/metrics"]  # fmt: skip


@pytest.mark.parametrize("target", PRIVATE_READS)
def test_what_this_machine_may_read_is_read_at_its_own_names_only(target: str) -> None:
    def asked(**env: object) -> dict[str, int]:
        with front(**env) as (web, gateway):
            for name in "status", "rows":
                (web.home / f"run/{name}.json").write_text("{}")
            done = {host: curl(*header(host, web.port, {}), f"127.0.0.1:{web.port}{target}") for host in NAMED}
            assert all(json.loads(text)["status"] == 421 for status, _, text in done.values() if status == 421)
            # nothing serves the metrics here
            return {host: 200 if status == 502 else status for host, (status, _, _) in done.items()}

    assert asked() == NAMED
    assert asked(INGEST_HOSTS="sluice.example") == NAMED | {"sluice.example": 200}
    # where everybody may read, a page may, too
    assert set(asked(INGEST_READ_ALLOW="all", INGEST_STATUS_ALLOW="all").values()) == {200}


def test_every_location_refuses_pages_of_other_sites_or_names_of_strangers(tmp: Path) -> None:
    text = as_one_text(settings.load_settings({"INGEST_API_KEYS": str(keys(tmp))}))
    locations = re.findall(r"^( +)location (\S+(?: \S+)?) \{\n(.*?)^\1\}", text, re.M | re.S)
    assert len(locations) > 30
    for _, name, lines in locations:
        if "proxy_pass http://sluice_gateway" in lines:
            assert "if ($sluice_foreign) {" in lines, name
            assert KEY_CHECK in lines, name
        elif "proxy_pass http://sluice_reader" in lines:  # the key is checked after the address
            assert "auth_request off;" not in lines and "deny all;" in lines and PROXY_CHECK in lines, name
        elif "proxy_pass" in lines or "alias" in lines:
            assert HOST_CHECK in lines and PROXY_CHECK in lines and "deny all;" in lines, name
        assert "auth_request off;" not in lines or KEY_CHECK in lines or "/status" in name
    assert text.count("alias ") == 4  # three of them nested
    text = as_one_text(settings.load_settings({}))
    assert text.count(HOST_CHECK) == text.count("allow 127.0.0.1;") + 3


def test_where_a_key_is_needed_a_view_is_read_at_any_name(tmp: Path) -> None:
    with front(INGEST_API_KEYS=keys(tmp)) as (web, _):
        more = header("evil.example", web.port, {"X-API-Key": KEY})
        assert curl(*more, f"127.0.0.1:{web.port}/gps/latest?device=a")[0] == 200
        assert curl(*more, f"127.0.0.1:{web.port}/status/")[0] == 421
        assert curl(f"127.0.0.1:{web.port}/status/")[0] == 200  # needs no key


def test_without_these_settings_nginx_has_none_of_their_directives() -> None:
    text = as_one_text(settings.load_settings({}))
    for other in (
        "if ($request_method = GET)",
        'if ($sluice_remote_write = "")',
        "if ($sluice_foreign)",
        HOST_CHECK,
        PROXY_CHECK,
        VERSION_CHECK,
    ):
        text = text.replace(other, "")
    assert not re.search(r"\bif \(|auth_|limit_(req|conn)(?!_status)|ssl|Access-Control", re.sub(r"#.*", "", text))


@pytest.mark.nightly
def test_bin_up_starts_with_all_checks_on(tmp: Path, certificate: tuple[Path, Path]) -> None:
    env = {
        "INGEST_API_KEYS": keys(tmp), "INGEST_PASSWORDS": passwords(tmp),
        **tls(certificate), "INGEST_ALLOW": "127.0.0.0/8 ::1",
        "INGEST_CLIENT_RATE": 1000, "INGEST_CLIENT_CONNECTIONS": 100, "INGEST_CORS": "/votes",
    }  # fmt: skip
    with installation(tmp / "home", env, ready=False) as up:
        url = f"https://localhost:{up.port}"
        ask = ["--cacert", certificate[0], "-u", "jane:s3cret", "-H", f"X-API-Key: {KEY}"]
        poll(lambda: curl(*ask, f"{url}/readyz")[0] == 200)
        screen = poll(lambda: (said := up.said()).partition("log files")[2] and said)
        assert f" {url} " in screen
        assert f"' {url}/votes\n" in screen
        assert curl(*ask, "-d", '{"poll":"p","choice":"c"}', f"{url}/votes")[::2] == (200, '{"message":"OK"}')
        tally = f"{url}/votes/tally?poll=p"
        poll(lambda: '"choices":{"c":1}' in curl(*ask, tally)[2])
        assert curl("-k", f"{url}/readyz")[0] == curl("-k", tally)[0] == 401
        curl("-k", *ask, f"{url}/nowhere")
        curl("-k", "-H", "X: " + "y" * 9000, f"{url}/votes")
        # what nginx rejects is counted, apart from what the gateway rejects
        wanted = {("nginx", "401 Unauthorized"), ("nginx", "431 Request Header Fields Too Large"),
                  ("other paths", "404 Not Found")}  # fmt: skip

        def turned_away() -> set[tuple[str, str]]:
            shown = json.loads(curl(*ask, f"{url}/status/status.json")[2])
            return {(row["where"], row["reason"]) for row in shown["turned_away"]}

        poll(lambda: wanted <= turned_away())
        assert ("nginx", "404 Not Found") not in turned_away()


def refused(env: dict[str, object], tmp: Path) -> tuple[int, str]:
    """Run a bin/up that does not start; returns its status and standard error."""
    surroundings = environment(tmp / "home", {"INGEST_PORT": free_port()} | env)
    done = subprocess.run([ROOT / "bin/up"], env=surroundings, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "line, why",
    [
        ("default jane;", "not `KEY NAME;`"), (f"{KEY} telegraf", "not `KEY NAME;`"), ("abc jane;", "not `KEY NAME;`"),
        (f'"" jane; {KEY} x;', "not `KEY NAME;`"), (f"{KEY[::-1]}{KEY} jane;", "not `KEY NAME;`"),
        (f"{KEY.upper()} joe;", "a duplicate key"),
    ],
)  # fmt: skip
def test_an_invalid_line_in_the_file_of_keys_is_reported_without_the_key(line: str, why: str, tmp: Path) -> None:
    path = private(tmp / "keys", f"{KEY} telegraf;\n{line}\n")
    status, words = refused({"INGEST_API_KEYS": path}, tmp)
    assert status == 2
    assert f"INGEST_API_KEYS: line 2 of {path} is {why}" in words
    assert KEY.lower() not in words.lower()


@pytest.mark.parametrize("name", ["INGEST_API_KEYS", "INGEST_PASSWORDS", "INGEST_TLS_KEY"])
def test_a_file_of_secrets_that_is_missing_or_readable_by_everyone_is_reported_in_one_line(
    name: str, tmp: Path, certificate: tuple[Path, Path]
) -> None:
    path = tmp / "secrets"
    env: dict[str, object] = {"INGEST_TLS_CERTIFICATE": certificate[0]} if name == "INGEST_TLS_KEY" else {}
    env[name] = path
    assert refused(env, tmp) == (
        2, f"sluice: {name}='{path}' cannot be read: No such file or directory.\n"
    )  # fmt: skip
    private(path, f"{KEY} telegraf;\n").chmod(0o644)
    assert refused(env, tmp) == (
        2, f"sluice: {name}='{path}' is accessible to every user of this machine: chmod 600 it.\n"
    )  # fmt: skip


def test_a_certificate_without_a_key_is_reported_in_one_line(tmp: Path, certificate: tuple[Path, Path]) -> None:
    alone = private(tmp / "alone.pem", certificate[0].read_text())
    status, words = refused({"INGEST_TLS_CERTIFICATE": alone}, tmp)
    assert status == 2
    assert words == f"sluice: INGEST_TLS_CERTIFICATE='{alone}' has no private key: INGEST_TLS_KEY names its file.\n"


def test_a_certificate_and_its_key_may_be_in_one_file(tmp: Path, certificate: tuple[Path, Path]) -> None:
    both = private(tmp / "both.pem", "".join(file.read_text() for file in certificate))
    with front(INGEST_TLS_CERTIFICATE=both) as (web, _):
        assert curl("-d", "x", "--cacert", certificate[0], f"https://localhost:{web.port}/votes")[0] == 200


def test_a_certificate_that_nginx_rejects_is_reported_in_one_line(tmp: Path, certificate: tuple[Path, Path]) -> None:
    wrong = private(tmp / "wrong.pem", "no certificate")
    status, words = refused(tls((wrong, certificate[1])), tmp)
    assert status == 1
    assert words.startswith(f'sluice: nginx rejects its configuration: cannot load certificate "{wrong}"')
