"""Clients behind a proxy: whose address is believed, and what a proxy on this machine opens to them: nothing."""

from __future__ import annotations

import re

import pytest

from proving.harness import ROOT
from sluice import settings
from sluice.contrib.access.nginx import local
from support.access import curl
from support.folders import needs
from support.nginx_front import front

FAR, OTHER = "203.0.113.9", "198.51.100.1"
FIELDS = [
    "X-Forwarded-For", "Forwarded", "X-Real-IP", "Via", "X-Forwarded-Proto", "X-Forwarded-Host", "CF-Connecting-IP",
    "True-Client-IP", "X-Client-IP",
]  # fmt: skip


def status(port: int, path: str, *fields: str, source: str = "127.0.0.1") -> int:
    """That of a GET, or of a POST to /votes. source: the address from which it comes."""
    more = ["-d", "x"] if path == "/votes" else []
    words = [word for field in fields for word in ("-H", field)]
    return curl(*more, *words, "--interface", source, f"127.0.0.1:{port}{path}")[0]


@pytest.mark.contract
def test_the_address_of_a_client_is_the_last_that_no_proxy_has() -> None:
    with front(INGEST_PROXIES="127.0.0.2", INGEST_ALLOW=FAR) as (web, gateway):
        for reported, wanted in {
            FAR: 200, f"{OTHER}, {FAR}": 200, f"{FAR}, 127.0.0.2": 200,
            f"{FAR}, {OTHER}": 403, f"{FAR}, 127.0.0.3": 403, f"{FAR}, unknown": 403, OTHER: 403, "": 403,
        }.items():  # fmt: skip
            field = f"X-Forwarded-For: {reported}"
            assert status(web.port, "/votes", field, source="127.0.0.2") == wanted, reported
            assert status(web.port, "/votes", field, source="127.0.0.3") == 403
        for name in FIELDS[1:]:  # no other field is believed
            assert status(web.port, "/votes", f"{name}: {FAR}", source="127.0.0.2") == 403
        # what is told of a client, too
        gateway.requests.clear()
        status(web.port, "/x", f"X-Forwarded-For: {FAR}", source="127.0.0.2")
        assert f"X-Real-IP: {FAR}\r\n".encode() in gateway.requests[0]


@pytest.mark.contract
def test_a_limit_counts_the_clients_behind_a_proxy() -> None:
    with front(INGEST_PROXIES="127.0.0.1", INGEST_ALLOW="all", INGEST_CLIENT_RATE=1) as (web, _):
        far = [status(web.port, "/votes", f"X-Forwarded-For: 127.0.0.1, {FAR}") for _ in range(6)]
        assert far[:3] == [200] * 3 and 429 in far
        assert status(web.port, "/votes", f"X-Forwarded-For: {OTHER}") == 200


@needs("page", "views")
@pytest.mark.contract
def test_who_comes_through_a_proxy_on_this_machine_is_not_on_this_machine() -> None:
    paths = "/status", "/status/status.json", "/votes/tally?poll=a"
    with front() as (web, gateway):
        (web.home / "run/status.json").write_text("{}")
        for path in paths:
            assert status(web.port, path) == 200
            assert {name: status(web.port, path, f"{name}: 127.0.0.1") for name in FIELDS} == dict.fromkeys(FIELDS, 403)
        assert len(gateway.reads) == 1
        assert status(web.port, "/votes", f"X-Forwarded-For: {FAR}") == 200  # it may send, as before
    with front(INGEST_READ_ALLOW="all", INGEST_STATUS_ALLOW="all") as (web, _):
        assert status(web.port, "/votes/tally?poll=a", f"X-Forwarded-For: {FAR}") == 200
        assert status(web.port, "/status", f"X-Forwarded-For: {FAR}") == 200


@needs("page", "views")
@pytest.mark.contract
def test_a_proxy_that_is_believed_lets_in_whom_the_address_lets_in() -> None:
    allowed = f"127.0.0.0/8 {FAR}"
    with front(INGEST_PROXIES="127.0.0.1", INGEST_READ_ALLOW=allowed, INGEST_STATUS_ALLOW=allowed) as (web, _):
        for path in "/status", "/votes/tally?poll=a":
            for reported, wanted in {
                "127.0.0.1": 200, "127.0.0.1, 127.0.0.1": 200, FAR: 200, f"127.0.0.1, {FAR}, 127.0.0.1": 200,
                OTHER: 403, f"127.0.0.1, {OTHER}": 403, f"{FAR}, {OTHER}, 127.0.0.1": 403,
                "unknown": 403, "127.0.0.1, unknown": 403, "unknown, 127.0.0.1": 403, f"{OTHER}, 127.0.0.7": 403,
            }.items():  # fmt: skip
                assert status(web.port, path, f"X-Forwarded-For: {reported}") == wanted, (path, reported)
            # another program here is no proxy
            assert status(web.port, path, "X-Forwarded-For: 127.0.0.1", source="127.0.0.2") == 403
            assert status(web.port, path, "Forwarded: for=127.0.0.1") == 403
            assert status(web.port, path) == 200


def test_only_addresses_of_this_machine_count_as_this_machine() -> None:
    assert list(local(["10.0.0.0/8", "127.0.0.5", "127.0.0.0/9", "::/1"])) == ["127.0.0.5/32", "127.0.0.0/9", "::1/128"]


@pytest.mark.parametrize("text", ["all", "0.0.0.0/0", "10.0.0.1 ::/0", "proxy.example"])
def test_nobody_can_believe_everybody(text: str) -> None:
    with pytest.raises(settings.SettingError, match="INGEST_PROXIES="):
        settings.load_settings({"INGEST_PROXIES": text})


@needs("page")
def test_an_operator_learns_that_a_proxy_is_not_believed() -> None:
    from sluice.contrib.page.rejections import rejection_reason

    assert rejection_reason({"status": 403, "foreign": "", "forwarded": "forwarded"}).endswith(
        "proxy on this machine (INGEST_PROXIES)"
    )
    assert rejection_reason({"status": 403, "foreign": "", "forwarded": ""}) == "the address has no access"


@needs("page")
def test_no_link_of_the_page_has_an_absolute_path() -> None:
    files = ROOT / "sluice/contrib/page/status"
    for file in files.iterdir():
        assert not re.search(r"""(?:href|src)=["']?/|fetch\([`"']/|url\(["']?/""", file.read_text()), file.name


@needs("page")
@pytest.mark.contract
def test_the_links_of_the_page_lead_to_its_files_with_and_without_a_slash() -> None:
    links = re.findall(r'(?:href|src)="([^#"]+)"', (ROOT / "sluice/contrib/page/status/index.html").read_text())
    with front() as (web, _):
        (web.home / "run/status.json").write_text("{}")
        for link in links:
            assert [status(web.port, f"/{folder}{link}") for folder in ("", "status/")] == [200, 200], link
            assert status(web.port, f"/status/{link}", source="127.0.0.2") == 403
