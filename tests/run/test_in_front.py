"""The proxies of docs/BEHIND-A-PROXY.md before a whole installation, with TLS and a prefix, as the page prints them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from proving.harness import ROOT, Server, environment, get, installation, poll
from sluice.run.configure import replaced
from support.access import curl
from support.folders import needs
from support.proxy_recipes import PAGE, Front, caddy, haproxy, nginx, started

pytestmark = [pytest.mark.nightly, needs("access", "page", "views", "formats")]

VOTE = '{"poll":"p","choice":"c"}'
ELSEWHERE = "127.0.0.2"  # a client that is not this machine: only 127.0.0.1 is


@pytest.fixture
def pem(certificate: tuple[Path, Path], tmp_path: Path) -> Path:
    """A certificate for localhost with its key."""
    file = tmp_path / "both.pem"
    file.write_text(certificate[0].read_text() + certificate[1].read_text())
    file.chmod(0o600)
    return file


@pytest.fixture(scope="module")
def up() -> Iterator[Server]:
    from proving.harness import short_tmp

    with short_tmp() as tmp, installation(tmp, started()) as server:
        yield server


@pytest.mark.parametrize("front", [nginx, caddy, haproxy], ids=["nginx", "caddy", "haproxy"])
def test_posts_views_page_and_access_work_behind_a_proxy_and_forged_addresses_do_not(
    front: Front, up: Server, pem: Path, tmp_path: Path
) -> None:
    with front(tmp_path, up.port, pem) as port:
        url = f"https://localhost:{port}/ingest"

        def ask(path: str, *more: object, source: str = "127.0.0.1", forged: str = "") -> tuple[int, str]:
            field = ["-H", f"X-Forwarded-For: {forged}"] if forged else []
            there = [
                "-H",
                "Expect:",
                "--cacert",
                pem,
                "--resolve",
                f"localhost:{port}:127.0.0.1",
                "--interface",
                source,
            ]
            status, _, text = curl(*there, *field, *more, f"{url}{path}")
            return status, text

        assert ask("/votes", "-d", VOTE) == ask("/votes", "-d", VOTE, source=ELSEWHERE) == (200, '{"message":"OK"}')
        # a batch below and a body above the limits
        large = tmp_path / "large"
        large.write_text("m value=1\n" * 700_000)
        assert ask("/write", "--data-binary", f"@{large}")[0] == 204
        assert ask("/votes", "--data-binary", f"@{large}")[0] == 413
        large.write_text("x" * (9 << 20))
        assert ask("/write", "--data-binary", f"@{large}")[0] == 413
        # reading: by the address of the client, whatever it says
        poll(lambda: '"c":' in ask("/votes/tally?poll=p")[1])
        for path in "/status", "/status/", "/status/page.js", "/status/status.json", "/votes/tally?poll=p":
            assert ask(path)[0] == 200, path
            assert ask(path, source=ELSEWHERE)[0] == ask(path, source=ELSEWHERE, forged="127.0.0.1")[0] == 403, path
        for field in "Forwarded: for=127.0.0.1", "X-Real-IP: 127.0.0.1":
            assert ask("/status", "-H", field, source=ELSEWHERE)[0] == 403
        links = re.findall(r'(?:href|src)="([^#"]+)"', ask("/status")[1])
        assert {ask(f"/{link}")[0] for link in links} == {200}
        # what is told of a client has its address
        ask("/nowhere", "-d", "x", source=ELSEWHERE, forged="203.0.113.9")
        poll(lambda: f'"sender":"{ELSEWHERE}"'.encode() in get(up.port, "/status/errors.json")[2])
        assert b"203.0.113.9" not in get(up.port, "/status/errors.json")[2]


def test_the_page_works_in_a_browser_below_a_prefix(up: Server, pem: Path, tmp_path: Path) -> None:
    from playwright.sync_api import expect, sync_playwright

    with nginx(tmp_path, up.port, pem) as port, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for scheme, size in ("light", (1280, 800)), ("dark", (390, 844)):
            page = browser.new_page(
                color_scheme=scheme,  # type: ignore[arg-type]
                viewport={"width": size[0], "height": size[1]}, ignore_https_errors=True,
            )  # fmt: skip
            page.goto(f"https://localhost:{port}/ingest/status")
            expect(page.locator("#verdict")).to_have_attribute("data-state", "good", timeout=30_000)
            page.click("form button")
            expect(page.locator("#steps")).to_contain_text("Stored in the table", timeout=30_000)
            page.click("#ledger button:text-is('votes')")
            expect(page.locator("#rows tbody tr").first).to_contain_text("status page", timeout=30_000)
            page.screenshot(path=tmp_path / f"{scheme}.png", full_page=True)
        browser.close()


def test_the_hook_of_certbot_puts_the_new_certificate_in_place(
    certificate: tuple[Path, Path], pem: Path, tmp: Path
) -> None:
    (script,) = [text for text in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S) if "RENEWED_LINEAGE" in text]
    lineage, etc = tmp / "lineage", tmp / "etc-sluice"
    lineage.mkdir()
    etc.mkdir()
    subject = ["-subj", "/CN=renewed", "-addext", "subjectAltName=DNS:localhost", "-days", "2", "-nodes"]
    keyed = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    files: list[str | Path] = ["-out", lineage / "fullchain.pem", "-keyout", lineage / "privkey.pem"]
    subprocess.run(["openssl", "req", "-x509", *keyed, *subject, *files], check=True, capture_output=True)
    shutil.copy(pem, etc / "tls.pem")
    hook = replaced(
        script, ("/etc/sluice/", f"{etc}/"), ("chown sluice", f"chown {os.geteuid()}"),
        ("systemctl reload nginx", f"{ROOT}/bin/sluice reload --nginx --notice 0"),
    )  # fmt: skip
    (tmp / "hook").write_text(hook)
    with installation(tmp / "home", {"INGEST_TLS_CERTIFICATE": etc / "tls.pem"}, ready=False) as server:
        url = f"https://localhost:{server.port}/readyz"
        poll(lambda: curl("--cacert", pem, url)[0] == 200, 60)
        env = environment(tmp / "home") | {"RENEWED_LINEAGE": str(lineage)}
        subprocess.run(["sh", tmp / "hook"], env=env, check=True, capture_output=True, timeout=60)
        poll(lambda: curl("--cacert", lineage / "fullchain.pem", url)[0] == 200)
        assert (etc / "tls.pem").stat().st_mode & 0o777 == 0o600
