"""The status page, and pages of other origins, in Chromium against a whole installation."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Route, expect, sync_playwright

from proving.harness import (
    PATIENCE,
    ROOT,
    Server,
    answer,
    ask,
    environment,
    get,
    installation,
    nginx,
    poll,
    post,
    request,
    short_tmp,
)
from sluice import settings
from sluice.contrib.page import page as program

pytestmark = pytest.mark.nightly

FAILED = "Failed to load resource"  # Chromium logs every response that is not 2xx
LIVE = ROOT / "examples/live.html"
PHONE, TABLET, DESKTOP = (360, 740), (820, 1180), (1280, 800)
EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"

expect.set_options(timeout=PATIENCE * 1000)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # no sandbox: Chromium has none for root, and only our own pages are opened
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def origin() -> Iterator[int]:
    """The port of another web server, with the examples and an empty page: another origin."""

    class Shop(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            example = ROOT / "examples" / self.path.partition("?")[0].strip("/")
            self.wfile.write(example.read_bytes() if example.is_file() else b"<!doctype html><title>a shop</title>")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Shop) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture(scope="module")
def up(origin: int) -> Iterator[Server]:
    with (
        short_tmp() as tmp,
        installation(
            tmp, {"INGEST_CORS": f"/gps /gps/trail /gps/latest /votes/tally http://localhost:{origin}"}
        ) as server,
    ):
        yield server


@contextlib.contextmanager
def context(chromium: Browser, size: tuple[int, int] = DESKTOP, scheme: str = "light") -> Iterator[BrowserContext]:
    """A fresh browser window."""
    with contextlib.closing(
        chromium.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme=scheme,  # type: ignore[arg-type]
        )
    ) as window:
        window.set_default_timeout(PATIENCE * 1000)
        yield window
        for page in window.pages:  # a request on its way would fail in a handler when the window is closed
            page.unroute_all(behavior="ignoreErrors")


def opened(window: BrowserContext, up: Server) -> Page:
    """The status page, with its first figures."""
    page = window.new_page()
    page.goto(f"http://localhost:{up.port}/status")
    expect(page.locator("#ledger tbody tr")).not_to_have_count(0)
    row = page.locator("#ledger tbody tr").first
    expect(row.locator("th, td")).to_have_count(page.locator("#ledger thead th").count())
    return page


@pytest.fixture
def page(chromium: Browser, up: Server) -> Iterator[Page]:
    """The status page. An error that it throws, a dialog, or a broken Content-Security-Policy fails the test."""
    with context(chromium) as window:
        errors: list[str] = []
        window.on("weberror", lambda error: errors.append(str(error.error)))
        window.on(
            "console",
            lambda line: errors.append(line.text) if line.type == "error" and FAILED not in line.text else None,
        )
        window.on("dialog", lambda dialog: errors.append(dialog.message))
        yield opened(window, up)
        assert errors == []


def stored(up: Server, table: str, column: str) -> list[str]:
    """A column of a stream's table."""
    return [value for (value,) in ask(up.home, f"SELECT {column} FROM {table}")]


def row(page: Page, stream: str, column: int) -> str:
    return page.locator("#ledger tr", has_text=stream).locator("td").nth(column).inner_text()


# The first three tests need a new installation and depend on their order.


def test_a_new_installation_shows_that_nothing_was_received_and_what_to_try(page: Page) -> None:
    expect(page.locator("#verdict")).to_contain_text("Nothing received yet")
    expect(page.locator("#verdict")).to_contain_text("Send a test event")
    expect(page.locator("#letters-note")).to_contain_text("There are no dead letters")
    assert page.title() == "✓ Sluice"


def test_a_test_event_can_be_sent_by_keyboard_and_is_shown_as_stored(page: Page, up: Server) -> None:
    page.route("**/status.json", unknown)  # as before the table exists
    expect(page.locator("#dead .figure")).to_have_text("?")
    seen = set()
    for _ in range(20):
        page.keyboard.press("Tab")
        seen.add(focused := page.evaluate("document.activeElement.name || document.activeElement.className"))
        if focused == "body":
            break
    assert seen == {"skip", "plot", "link", "more", "path", "body"}
    page.keyboard.press("Tab")
    page.unroute_all()
    page.keyboard.press("Enter")
    expect(page.locator("#steps li").nth(0)).to_contain_text("Accepted: 200 after")
    expect(page.locator("#steps li").nth(1)).to_contain_text("Stored in the table votes")
    assert stored(up, "votes", "choice") == ["it works"]
    expect(page.locator("#stored .figure")).to_have_text("1")
    expect(page.locator("#verdict")).to_have_attribute("data-state", "good")


def test_a_dead_letter_is_shown_with_its_reason_and_as_text_only(page: Page, up: Server) -> None:
    page.select_option("[name=path]", "/gps")
    page.fill("[name=body]", body := json.dumps({"device": EVIL, "lat": 99, "lon": 1}))
    page.click("form button")
    expect(page.locator("#steps li").nth(1)).to_contain_text("Invalid: latitude out of range")
    letter = page.locator("#letters li").first
    expect(letter).to_contain_text("latitude out of range: 99")
    expect(letter.locator(".body")).to_have_text(body)
    post(up.port, "/votes", f'{{"poll":"{EVIL}","choice":"x","voter":{EVIL!r}}}'.encode())
    post(up.port, f"/write?db=x&u=jane&p=secret&{EVIL.replace(' ', '+')}", f"{EVIL} no lines".encode())
    expect(page.locator("#dead .figure")).to_have_text("3")
    expect(page.locator("#letters li")).to_have_count(3)
    assert "secret" not in page.content()  # nor the rest of a stored head
    assert page.locator("main img, main script, #letters *:not(li, span, time)").count() == 0
    assert (row(page, "gps", 4), row(page, "gps", 5)) == ("1", "0")


def test_a_rejected_test_event_is_shown_with_its_reason(page: Page) -> None:
    page.route("**/votes", lambda route: route.continue_(method="PUT"))
    page.click("form button")
    expect(page.locator("#steps li")).to_contain_text(
        "Rejected: 405 Method Not Allowed. This path accepts only GET and POST."
    )


def test_rejected_requests_are_listed_as_text(page: Page, up: Server) -> None:
    request(up.port, f"PUT /{EVIL.replace(' ', '+')} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    expect(page.locator("#turned-away li")).not_to_have_count(0)
    page.click("#errors summary")
    expect(page.locator("#errors li").filter(has_text="404There is no stream")).to_contain_text("onerror=alert(1)")
    assert page.locator("#errors *:not(li, ol, summary, span, time)").count() == 0


def test_the_charts_can_be_read_with_mouse_and_keyboard(page: Page, up: Server) -> None:
    poll(lambda: len(json.loads((up.home / "run/status.json").read_text())["hour"]))
    expect(page.locator("#rate path.in")).not_to_have_count(0)
    chart = page.get_by_role("slider", name="Bodies per second")
    expect(page.locator("#rate .readout")).to_contain_text("now")
    chart.focus()
    page.keyboard.press("Home")
    assert chart.get_attribute("aria-valuenow") == "0"
    assert "accepted" in (chart.get_attribute("aria-valuetext") or "")
    expect(page.locator("#rate .readout")).not_to_contain_text("now")
    expect(page.locator("#rate .cursor")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(page.locator("#rate .cursor")).to_have_count(0)
    page.get_by_role("slider", name="Bodies waiting").hover()
    expect(page.locator("#backlog .cursor")).to_have_count(1)


BEYOND = """() => [...document.querySelectorAll("main *")]
    .filter((e) => e.checkVisibility() && !e.closest(".hidden, thead, svg"))
    .filter((e) => e.getBoundingClientRect().right > innerWidth)
    .map((e) => e.outerHTML)"""
CONTRAST = """() => {
  const light = (colour) => {
    const channels = colour.map((c) => ((c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2];
  };
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const pixel = (...colours) => {  // one painted over the other
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    if (element.closest(".hidden, .skip, noscript, script")) continue;
    const grounds = [];
    for (let at = element; at; at = at.parentElement) grounds.unshift(getComputedStyle(at).backgroundColor);
    const style = getComputedStyle(element);
    const text = element instanceof SVGElement ? style.fill : style.color;
    const [a, b] = [light(pixel(...grounds)), light(pixel(...grounds, text))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push([walker.currentNode.data.trim(), text, ratio]);
  }
  return found;
}"""


# [text, what is wrong with its place]. Each line of a text is a box, without the space above and below
CROWDED = """() => {
  const boxes = [], wrong = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement;
    if (!node.data.trim() || !element.checkVisibility()) continue;
    if (element.closest(".hidden, .skip, noscript, script, option")) continue;
    const head = element.closest("thead");
    if (head && getComputedStyle(head).position === "absolute") continue;  // invisible on a phone
    const range = document.createRange();
    range.selectNodeContents(node);
    const size = parseFloat(getComputedStyle(element).fontSize);
    const card = element.closest("main > section:not(#charts), figure, body");
    const outer = card.getBoundingClientRect();
    const room = card.tagName === "BODY" ? 0 : 10;
    const list = element.closest("ol")?.getBoundingClientRect() ?? { top: -Infinity, bottom: Infinity };
    for (const { left, right, top, bottom, width } of range.getClientRects()) {
      const gap = element instanceof SVGElement ? 6 : -0.5;  // pixels
      const spare = Math.max(0, (bottom - top - size) / 2);
      const box = { text: node.data.trim(), left, right, top: top + spare, bottom: bottom - spare };
      // what a list has scrolled away is not seen
      if (!width || box.top < list.top || box.bottom > list.bottom) continue;
      if (left < outer.left + room || right > outer.right - room ||
          box.top < outer.top + room / 2 || box.bottom > outer.bottom - room / 2)
        wrong.push([box.text, "at the edge of its card"]);
      for (const other of boxes)
        if (Math.min(right, other.right) - Math.max(left, other.left) > -gap &&
            Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top) > 0.5)
          wrong.push([box.text, "over " + other.text]);
      boxes.push(box);
    }
  }
  // figures that stand side by side have one height, and so do their details
  for (const kind of [".figure", ".detail"]) {
    const figures = [...document.querySelectorAll(`#picture li:not(#dead) ${kind}`)];
    const rows = Map.groupBy(figures, (one) => Math.round(one.closest("li").getBoundingClientRect().top));
    for (const row of rows.values())
      if (new Set(row.map((one) => Math.round(one.getBoundingClientRect().top))).size > 1)
        wrong.push([kind, "not level"]);
  }
  return wrong;
}"""
LONG = "a_stream_with_a_name_of_sixty_three_letters_which_is_the_longest"


def crammed(route: Route) -> None:
    """Pass status.json on with everything that the page can show, and large figures and long names."""
    answer = route.fetch()
    shown = answer.json()
    many = 987_654_321
    for row in shown["streams"]:
        row |= dict.fromkeys(("accepted", "ready", "claimed", "stored", "dead", "duplicate", "missing"), many)
        row |= {"purged": many, "deleted": many, "expired": many, "accepted_rate": 123_456.7, "taken_rate": 123_456.7}
        row["oldest_seconds"] = 300_000
    shown["streams"].append(shown["streams"][0] | {"stream": LONG, "paths": [f"/{LONG}"]})
    view = shown["views"][0] | {"path": f"/{LONG}/latest", "keys": many, "lag": 300_000, "refreshes": many}
    shown["views"].append(view | {"state": "unavailable", "reads_rate": 123_456.7})
    cell = dict.fromkeys(("accepted", "ready", "claimed", "stored", "dead", "duplicate", "missing"), many)
    shown["cells"] = [{"cell": name, "seconds": 300_000, "late": True} | cell for name in ("c1", LONG)]
    shown["senders"] = [
        {
            "sender": LONG[:63],
            "stored": {"votes": many},
            "stored_rate": 123_456.7,
            "rejected": {"429": many, "403": many},
        }
    ]
    letter = {"time": "2026-01-31T12:00:00.000Z", "stream": LONG, "seq": 1, "reason": "x" * 200, "bytes": many}
    shown["dead"] = {
        "reasons": [{"stream": LONG, "reason": "wrong type " * 20, "letters": many}],
        "more": 3,
        "letters": [letter | {"excerpt": "x" * 160}],
    }
    shown["turned_away"] = [{"answers": many, "where": f"/{LONG}", "reason": "429 Too Many Requests"}]
    shown["hours_left"] = {"disk": 30, "memory": 2}
    shown["trouble"] = []
    shown["hour"] = [[shown["time"] - 10 * n, 1e5, 123_456.7, many, 3000, 1, 1] for n in range(360, 0, -1)]
    route.fulfill(response=answer, json=shown)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, TABLET, DESKTOP], ids=["phone", "tablet", "desktop"])
def test_no_text_is_over_another_or_at_the_edge_of_its_card(
    size: tuple[int, int], scheme: str, chromium: Browser, up: Server, tmp_path: Path
) -> None:
    def told() -> bool:
        """What is rejected before the program `page` listens is in no list."""
        post(up.port, "/nowhere", b"x")
        return b"/nowhere" in get(up.port, "/status/errors.json")[2]

    post(up.port, "/gps", b'{"device":"d","lat":99,"lon":1}')
    poll(told, interval=0.5)
    with context(chromium, size, scheme) as window:
        page = opened(window, up)
        expect(page.locator("#left")).not_to_be_empty()
        page.locator("#errors summary").click()
        expect(page.locator("#errors li")).not_to_have_count(0)
        assert page.evaluate(CROWDED) == []
        page.route("**/status.json", crammed)
        expect(page.locator("#senders tbody tr")).to_have_count(1)
        page.screenshot(path=tmp_path / "page.png", full_page=True)
        assert page.evaluate(CROWDED) == []
        assert page.evaluate(BEYOND) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_the_page_is_readable_in_light_and_dark_on_phone_and_desktop(
    size: tuple[int, int], scheme: str, chromium: Browser, up: Server, tmp_path: Path
) -> None:
    post(up.port, "/gps", b'{"device":"d","lat":99,"lon":1}')
    with context(chromium, size, scheme) as window:
        page = opened(window, up)
        expect(page.locator("#letters li")).not_to_have_count(0)
        # no element is wider than the window or cut off
        assert page.evaluate("document.documentElement.scrollWidth") == size[0]
        assert page.evaluate(BEYOND) == []
        assert page.evaluate(CONTRAST) == []  # WCAG 2, AA
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)")
        assert (sum(ground) < 3 * 128) == (scheme == "dark")
        # controls are large enough for a finger
        for control in page.locator("button:visible, select, textarea, summary").all():
            box = control.bounding_box()
            assert box and box["height"] >= 44
        shot = page.screenshot(path=tmp_path / "page.png", full_page=True)
        assert len(shot) > 20_000  # an empty page has less


def test_beacons_and_the_last_fetch_of_a_closed_page_are_stored(up: Server, chromium: Browser) -> None:
    with context(chromium) as window:
        page = window.new_page()
        page.goto(f"http://localhost:{up.port}/status")
        page.evaluate("""() => addEventListener("pagehide", () => {
            navigator.sendBeacon("/votes", '{"poll":"beacon","choice":"text"}');
            navigator.sendBeacon("/votes", new URLSearchParams({ poll: "beacon", choice: "form" }));
            fetch("/votes", { method: "POST", keepalive: true, body: '{"poll":"beacon","choice":"keepalive"}' });
        })""")
        page.goto("about:blank")
        poll(lambda: {"text", "form", "keepalive"} <= set(stored(up, "votes", "choice")))


def test_the_beacon_example_reports_how_long_the_page_was_viewed(up: Server, chromium: Browser, origin: int) -> None:
    with context(chromium) as window:
        page = window.new_page()
        page.goto(f"http://localhost:{origin}/beacon.html?sluice=http://localhost:{up.port}")
        page.goto("about:blank")
        poll(lambda: "looked" in stored(up, "metrics", "name"))


# The widths of the bars: the longest run of the bars' colour in each row, without repetitions
BARS = """() => {
  const canvas = document.querySelector("#poll");
  const { data, width, height } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const found = [];
  for (let y = 0; y < height; y++) {
    let run = 0, longest = 0;
    for (let x = 0; x < width; x++) {
      const at = 4 * (y * width + x);
      run = data[at] === 0x16 && data[at + 1] === 0x68 && data[at + 2] === 0xb8 ? run + 1 : 0;
      longest = Math.max(longest, run);
    }
    if (longest && longest !== found.at(-1)) found.push(longest);
  }
  return found;
}"""
INK = """() => {
  const canvas = document.querySelector("#device");
  return canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean);
}"""


def live(window: BrowserContext, where: str, up: Server, **names: str) -> Page:
    """The example live.html, opened from `where`. Its clock stands still but for `run_for`."""
    page = window.new_page()
    page.clock.install(time=0)
    page.clock.pause_at(1)
    page.goto(f"{where}?{urlencode({'sluice': f'http://localhost:{up.port}'} | names)}")
    return page


def positions(up: Server, device: str) -> int:
    """How many positions the trail of a device has."""
    status, _, body = get(up.port, f"/gps/trail?device={device}")
    return len(json.loads(body)) if status == 200 else 0


def test_the_live_example_draws_a_poll_and_a_trail_of_another_origin(
    up: Server, chromium: Browser, origin: int
) -> None:
    for choice in "oreo", "oreo", "oreo", "fig":
        post(up.port, "/votes", f'{{"poll":"live","choice":"{choice}"}}'.encode())
    poll(lambda: stored(up, "votes", "poll").count("live") == 4)
    with context(chromium) as window:
        page = live(window, f"http://localhost:{origin}/live.html", up, poll="live", device="walker")
        expect(page.locator("#poll + p")).to_contain_text("4 votes, 3 of them for oreo; counted at ")
        wide, narrow = page.evaluate(BARS)
        assert abs(wide - page.evaluate("document.querySelector('#poll').clientWidth - 24")) < 2
        assert abs(wide / narrow - 3) < 0.05
        expect(page.locator("#device + p")).to_have_text("There is no device walker yet.")
        assert not page.evaluate(INK)
        for n in range(1, 4):
            post(up.port, "/gps", f'{{"device":"walker","lat":48.1{n},"lon":11.5,"speed":{n}}}'.encode())
            poll(lambda n=n: positions(up, "walker") == n)  # type: ignore[misc]
            page.clock.run_for(3000)
            expect(page.locator("#device + p")).to_contain_text(f"walker: {n} position")
        expect(page.locator("#device")).to_have_attribute("aria-label", re.compile(r": 48.13, 11.5, 3 m/s\.$"))
        assert page.evaluate(INK)
        page.fill("[name=device]", "another")
        page.click("form button")
        expect(page.locator("#device + p")).to_have_text("There is no device another yet.")


def test_the_map_draws_the_last_positions_of_devices_of_another_origin(
    up: Server, chromium: Browser, origin: int
) -> None:
    for device, lat, lon in ("north", 48.2, 11.5), ("south-east", 48.1, 11.6), (EVIL, 48.15, 11.55):
        post(up.port, "/gps", json.dumps({"device": device, "lat": lat, "lon": lon}).encode())
        poll(lambda device=device: positions(up, quote(device)) == 1)  # type: ignore[misc]
    asked = urlencode(
        [
            ("sluice", f"http://localhost:{up.port}"),
            *(("device", name) for name in ("north", "south-east", EVIL, "nobody")),
        ]
    )
    with context(chromium) as window:
        page = window.new_page()
        page.goto(f"http://localhost:{origin}/map.html?{asked}")
        expect(page.locator("circle")).to_have_count(3)
        north, south_east, evil = (box for box in map(Locator.bounding_box, page.locator("circle").all()) if box)
        assert north["x"] < evil["x"] < south_east["x"] and north["y"] < evil["y"] < south_east["y"]
        expect(page.locator("svg text")).to_have_text(["north", "south-east", EVIL, re.compile(r"^\d+ k?m$")])
        expect(page.locator("#words")).to_contain_text("south-east: 48.1, 11.6 at ")
    with context(chromium) as window:
        page = window.new_page()
        page.goto(f"http://localhost:{origin}/map.html?{asked.split('&')[0]}&device=nobody")
        expect(page.locator("#words")).to_have_text("No position of nobody yet.")


def test_the_live_example_obeys_retry_after(up: Server, chromium: Browser, origin: int) -> None:
    post(up.port, "/votes", b'{"poll":"patient","choice":"oreo"}')
    poll(lambda: "patient" in stored(up, "votes", "poll"))
    asked = []
    problem = {"title": "Service Unavailable", "status": 503, "detail": "Try again."}

    def refuse(route: Route) -> None:
        asked.append(route.request.url)
        fields = {
            "Retry-After": str(6 + len(asked)),
            "Access-Control-Allow-Origin": "*",
            "Access-Control-Expose-Headers": "Retry-After",
        }
        route.fulfill(status=503, json=problem, headers=fields)

    with context(chromium) as window:
        window.route("**/votes/tally*", refuse)
        page = live(window, f"http://localhost:{origin}/live.html", up, poll="patient", device="patient")
        expect(page.locator("#poll + p")).to_have_text("503 Service Unavailable: Try again. Next try in 7 s.")
        expect(page.locator("#device + p")).to_have_text("There is no device patient yet.")
        post(up.port, "/gps", b'{"device":"patient","lat":48.1,"lon":11.5}')
        poll(lambda: positions(up, "patient") == 1)
        page.clock.run_for(6999)
        expect(page.locator("#device + p")).to_contain_text("patient: 1 position")  # has asked again meanwhile
        assert len(asked) == 1
        page.clock.run_for(1751)  # a quarter of 7 s: the random part
        expect(page.locator("#poll + p")).to_contain_text("Next try in 8 s.")
        window.unroute_all()
        page.clock.run_for(10_000)
        expect(page.locator("#poll + p")).to_contain_text("1 vote, 1 of them for oreo")


def test_the_live_example_says_that_its_origin_is_not_allowed(up: Server, chromium: Browser) -> None:
    with context(chromium) as window:
        page = live(window, LIVE.as_uri(), up)
        expect(page.locator("#poll + p")).to_contain_text("does its INGEST_CORS have /votes/tally?")


def test_a_page_of_another_origin_posts_only_to_allowed_paths(up: Server, chromium: Browser, origin: int) -> None:
    ask = """async ([port, path]) => {
        const answer = await fetch(`http://localhost:${port}${path}`, {
            method: "POST", headers: { "Content-Type": "application/json" }, keepalive: true,
            body: '{"device":"elsewhere","lat":1,"lon":2}',
        }).catch(() => null);
        return answer && [answer.status, await answer.json()];
    }"""
    with context(chromium) as window:
        page = window.new_page()
        page.goto(f"http://localhost:{origin}/")
        assert page.evaluate(ask, [up.port, "/gps"]) == [200, {"message": "OK"}]
        assert page.evaluate(ask, [up.port, "/metrics"]) is None  # the preflight was denied
        # a text beacon needs no preflight; its page learns only that it was sent
        beacon = f"""navigator.sendBeacon("http://localhost:{up.port}/votes", '{{"poll":"b","choice":"afar"}}')"""
        assert page.evaluate(beacon) is True
        assert page.evaluate(f"fetch('http://localhost:{up.port}/status/status.json').catch(() => 'no')") == "no"
        poll(lambda: "elsewhere" in stored(up, "gps", "device") and "afar" in stored(up, "votes", "choice"))


def test_a_page_of_another_site_posts_nothing(up: Server, chromium: Browser, origin: int) -> None:
    ask = """([url, method]) => fetch(url, { method, mode: "no-cors", body: method === "POST" ? "x" : null })"""
    with context(chromium) as window:
        page = window.new_page()
        page.goto(f"http://127.0.0.1:{origin}/")
        for method, path in ("POST", "/votes"), ("POST", "/gpslogger"), ("GET", "/gpslogger?lat=1&lon=2"):
            with page.expect_response("**") as answered:
                page.evaluate(ask, [f"http://localhost:{up.port}{path}", method])
            assert answered.value.status == 403


def view(page: Page, path: str, column: int) -> Locator:
    return page.locator("#views tbody tr", has_text=path).locator("td").nth(column)


def test_each_view_is_shown_with_its_reads_hits_and_lag(page: Page, up: Server) -> None:
    post(up.port, "/gps", b'{"device":"seen","lat":1,"lon":2}')
    post(up.port, "/votes", b'{"poll":"seen","choice":"x"}')
    poll(lambda: get(up.port, "/gps/latest?device=seen")[0] == 200)
    poll(lambda: get(up.port, "/votes/tally?poll=seen")[0] == 200)

    def shown() -> bool:
        for _ in range(10):
            get(up.port, "/gps/latest?device=seen")
        return view(page, "/gps/latest", 2).inner_text() == "100 %"  # over the last readings

    poll(shown)
    assert view(page, "/gps/latest", 0).inner_text() == "served"
    assert re.fullmatch(r"[\d.]+ /s", view(page, "/gps/latest", 1).inner_text())
    assert int(view(page, "/gps/latest", 3).inner_text()) >= 1
    expect(view(page, "/gps/latest", 4)).to_have_text(re.compile(r"^[\d.]+ s$"))
    expect(view(page, "/votes/tally", 4)).to_have_text(re.compile(r"^[\d.]+ s$"))
    expect(view(page, "/votes/tally", 5)).not_to_have_text("–")
    expect(view(page, "/gps/latest", 5)).to_have_text("–")


def test_views_that_are_not_served_or_behind_are_reported_and_without_views_none_is_shown(page: Page) -> None:
    def changed(**figures: object) -> None:
        def change(route: Route) -> None:
            answer = route.fetch()
            shown = answer.json()
            shown["views"] = [one | figures for one in shown["views"][:1]] if figures else []
            route.fulfill(response=answer, json=shown)

        page.unroute_all()
        page.route("**/status.json", change)

    changed(state="full")
    expect(page.locator("#verdict h2")).to_have_text("/gps/latest cannot be read")
    expect(page.locator("#verdict p")).to_contain_text("raise INGEST_VIEWS_MEMORY")
    changed(lag=3000)
    expect(page.locator("#verdict h2")).to_have_text("The views are 50 min behind")
    changed(lag=3000, refreshes=1)  # a tally
    expect(page.locator("#verdict")).to_have_attribute("data-state", "good")
    changed()
    expect(page.locator("#views")).to_be_hidden()
    expect(page.locator("#verdict")).to_have_attribute("data-state", "good")


def test_the_cells_of_a_database_are_shown_when_there_are_several(page: Page) -> None:
    expect(page.locator("#cells")).to_be_hidden()
    other = dict.fromkeys(("accepted", "claimed", "stored", "dead", "missing"), 0) | {"ready": 1234}

    def change(route: Route) -> None:
        answer = route.fetch()
        shown = answer.json()
        shown["cells"].append({"cell": "c2", "seconds": 40, "late": True} | other)
        route.fulfill(response=answer, json=shown)

    page.route("**/status.json", change)
    expect(page.locator("#cells tbody tr")).to_have_count(2)
    expect(page.locator("#cells tbody tr", has_text="c2").locator("td").nth(0)).to_have_text("40 s ago")
    expect(page.locator("#verdict h2")).to_have_text("c2 was not seen for 40 s")
    expect(page.locator("#verdict p")).to_contain_text("1,234 bodies waited there.")


def test_what_waits_for_its_destination_and_what_cannot_be_stored_is_reported(page: Page) -> None:
    def changed(**figures: object) -> None:
        def change(route: Route) -> None:
            answer = route.fetch()
            shown = answer.json()
            shown["streams"] = [row | (figures if row["stream"] == "votes" else {}) for row in shown["streams"]]
            route.fulfill(response=answer, json=shown)

        page.unroute_all()
        page.route("**/status.json", change)

    why = "clickhouse://host:8123/db: ClickHouse: Connection refused"
    changed(unpublished=12, unpublished_seconds=40, unpublished_reason=why, error="the same")
    expect(page.locator("#verdict h2")).to_have_text("Rows of votes wait for their destination")
    expect(page.locator("#verdict p")).to_contain_text(f"12 bodies for 40 s. {why}")
    changed(error="the database is unavailable: permission denied for table votes")
    expect(page.locator("#verdict h2")).to_have_text("votes cannot be stored")
    expect(page.locator("#verdict p")).to_contain_text("wait in Redis. votes: the database is unavailable: permission")
    changed()
    expect(page.locator("#verdict")).to_have_attribute("data-state", "good")


# The next tests stop and kill processes, so they come last.


def test_while_the_views_redis_is_stopped_only_the_views_are_unavailable(page: Page, up: Server) -> None:
    (redis,) = up.pids("views")[:1]
    os.kill(redis, signal.SIGSTOP)
    try:
        expect(view(page, "/gps/latest", 0)).to_have_text("unavailable")
        expect(page.locator("#verdict")).to_contain_text("The views' Redis is unavailable.")
        assert post(up.port, "/votes", b'{"poll":"p","choice":"meanwhile"}')[0] == 200
        poll(lambda: "meanwhile" in stored(up, "votes", "choice"))
    finally:
        os.kill(redis, signal.SIGCONT)
    expect(page.locator("#verdict")).to_have_attribute("data-state", "good")
    expect(view(page, "/gps/latest", 0)).to_have_text("served")


def test_a_backlog_without_progress_and_a_stopped_gateway_are_reported(page: Page, up: Server) -> None:
    (worker,) = up.pids("worker")[:1]
    os.kill(worker, signal.SIGSTOP)
    try:
        for _ in range(20):
            assert post(up.port, "/votes", b'{"poll":"p","choice":"late"}')[0] == 200
        expect(page.locator("#ready .figure")).to_have_text("20")
        expect(page.locator("#ready .detail")).to_contain_text("oldest: ")
        # as if LATE seconds had passed
        page.route("**/status.json", partial(later, waited=60))
        expect(page.locator("#verdict h2")).to_have_text("Nothing is being stored")
        expect(page.locator("#verdict p")).to_contain_text("20 bodies wait")
        page.unroute_all()
    finally:
        os.kill(worker, signal.SIGCONT)
    expect(page.locator("#verdict")).to_have_attribute("data-state", "good")
    gateway = up.pids("gateway")
    for pid in gateway:
        os.kill(pid, signal.SIGSTOP)
    try:
        expect(page.locator("#verdict h2")).to_have_text("The gateway is unavailable: no writes are accepted")
    finally:
        for pid in gateway:
            os.kill(pid, signal.SIGCONT)
    expect(page.locator("#verdict")).to_have_attribute("data-state", "good")


def unknown(route: Route) -> None:
    """Pass status.json on with an unknown number of dead bodies."""
    answer = route.fetch()
    shown = answer.json()
    for stream in shown["streams"]:
        stream["dead"] = None
    route.fulfill(response=answer, json=shown)


def later(route: Route, waited: float = 0, old: float = 0) -> None:
    """Pass status.json on with bodies that have waited `waited` seconds longer, and figures `old` seconds older."""
    answer = route.fetch()
    shown = answer.json()
    shown["time"] -= old
    for stream in shown["streams"]:
        if stream["oldest_seconds"] is not None:
            stream["oldest_seconds"] += waited
    route.fulfill(response=answer, json=shown)


def test_without_redis_the_page_reports_that_no_writes_are_accepted(page: Page, up: Server) -> None:
    (redis,) = up.pids("redis")[:1]
    os.kill(redis, signal.SIGSTOP)
    try:
        expect(page.locator("#verdict h2")).to_have_text("Redis is unavailable: no writes are accepted")
        expect(page.locator("#accepted .figure")).to_have_text("?")
        expect(page.locator("#ready")).not_to_contain_text("nothing waits")
        expect(page.locator("#ledger tbody td[data-name=Oldest]").first).to_have_text("?")
    finally:
        os.kill(redis, signal.SIGCONT)
    expect(page.locator("#verdict")).to_have_attribute("data-state", "good")


def test_old_figures_are_marked_and_a_killed_page_process_keeps_its_hour(page: Page, up: Server) -> None:
    path = up.home / "run/status.json"
    before = poll(lambda: json.loads(path.read_text())["hour"])
    (writer,) = up.pids("page")
    os.kill(writer, signal.SIGKILL)
    written = path.stat().st_mtime_ns
    page.route("**/status.json", partial(later, old=60))  # more than STALE
    expect(page.locator("#verdict h2")).to_contain_text("These figures are")
    page.unroute_all()
    expect(page.locator("#verdict")).to_have_attribute("data-state", "good")
    poll(lambda: path.stat().st_mtime_ns > written)
    assert json.loads(path.read_text())["hour"][: len(before)] == before


def test_the_page_is_served_to_this_machine_only_unless_allowed() -> None:
    def look(port: int, source: str, target: str) -> int:
        with socket.create_connection(("127.0.0.1", port), PATIENCE, (source, 0)) as connection:
            connection.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            return answer(connection)[0]

    for allow, one, other in ("", 200, 403), ("127.0.0.2, 10.0.0.0/8", 403, 200), ("none", 403, 403):
        env = {"INGEST_STATUS_ALLOW": allow}
        with short_tmp() as tmp, nginx(tmp, env) as web:
            (tmp / "run/status.json").write_text("{}")
            for target in "/status", "/status/", "/status/page.js", "/status/status.json":
                assert look(web.port, "127.0.0.1", target) == one
                assert look(web.port, "127.0.0.2", target) == other
            status, headers, body = post(web.port, "/status/", b"x")
            assert (status, headers.get("allow")) == ((405, "GET, HEAD") if one == 200 else (403, None))
            assert json.loads(body)["status"] == status
            if one == 200:
                assert json.loads(body)["detail"] == "This path accepts only GET and HEAD."
    with pytest.raises(settings.SettingError, match="INGEST_STATUS_ALLOW='everybody' is invalid"):
        settings.load_settings({"INGEST_STATUS_ALLOW": "everybody"})


def test_the_page_loads_nothing_from_other_hosts(up: Server) -> None:
    for target, kind in ("/status", "text/html"), ("/status/page.js", "text/javascript"):
        status, headers, body = get(up.port, target)
        assert (status, headers["content-type"]) == (200, f"{kind}; charset=utf-8")
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
        assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-cache")
        assert b"http://www.w3.org" in body or b"http" not in body


@pytest.mark.parametrize(
    "target", ["/status/status.json", "/status/errors.json", "/status/rows.json", "/status/metrics"]
)
def test_figures_are_kept_by_no_cache(target: str, up: Server) -> None:
    poll(lambda: get(up.port, target)[0] == 200)
    status, headers, _ = get(up.port, target)
    assert (status, headers["cache-control"], headers["x-content-type-options"]) == (200, "no-store", "nosniff")


def test_the_hour_is_limited_to_an_hour_and_shows_unknown_values() -> None:
    hour = program.Hour([])

    def look(second: int, accepted: int | None, ready: int | None) -> None:
        claimed = None if ready is None else 0
        hour.add(second, [{"accepted": accepted, "ready": ready, "claimed": claimed, "oldest_seconds": None}])

    for second in range(5000):
        known = second // 10 != 400
        look(second, 3 * second if known else None, second if known else None)
    assert len(hour.rows) == 360
    assert hour.rows[-1] == [4990, 3.0, 2.0, 4990, 0, None, None]
    assert [row[0] for row in hour.rows if row[1:3] == [None, None]] == [4000, 4010]
    look(10, 0, 0)  # the clock was set back, and Redis was emptied
    look(20, 10, 0)
    assert list(hour.rows) == [[10, None, None, 4999, 0, None, None], [20, 1.0, 1.0, 0, 0, None, None]]


def test_the_hours_left_follow_from_the_rate_of_the_last_rows() -> None:
    def rows(*free: int | None) -> list[list[int | None]]:
        return [[10 * n, left] for n, left in enumerate(free)]

    assert program.hours_left(rows(7300, 7290, 7270, 7240, 7210, 7200), 1, 3, 9) == 0.91  # at the mean rate
    assert program.hours_left(rows(99, 1, 7400, 7300, 7200), 1, 3, 3) == 0.2
    assert program.hours_left(rows(7300, None, 7250, 7200), 1, 3, 9) == 0.62
    assert program.hours_left(rows(7300, 7200), 1, 3, 9) is None
    assert program.hours_left(rows(7200, 7200, 7200), 1, 3, 9) is None
    assert program.hours_left(rows(7200, 7300, 7400), 1, 3, 9) is None
    sixth = program.SLOTS // 6
    disk = [7200 + 360 - n for n in range(program.SLOTS)]  # a byte in ten seconds
    assert program.hours_left(rows(*disk), 1, 300, 360) == 20
    assert program.hours_left(rows(*disk[: program.SLOTS * 4 // 5]), 1, 300, 360) is None  # not from minutes
    for start in range(0, 5 * sixth, 7):  # another program writes for five minutes
        burst = [free - 5000 * min(max(n - start, 0), 30) for n, free in enumerate(disk)]
        assert program.hours_left(rows(*(10**9 + free for free in burst)), 1, 300, 360) is None
    assert program.hours_left(rows(1 << 50, (1 << 50) - 1, (1 << 50) - 2), 1, 3, 9) is None  # in many years


def test_what_is_soon_full_is_shown_and_reported(page: Page) -> None:
    expect(page.locator("#left")).to_have_text(
        re.compile(r"^Disk: [\d.]+ [GT]iB free.*Redis's memory: 102\d[\d.]* MiB free")
    )

    def changed(**hours: float | None) -> None:
        def change(route: Route) -> None:
            answer = route.fetch()
            route.fulfill(response=answer, json=answer.json() | {"hours_left": hours})

        page.unroute_all()
        page.route("**/status.json", change)

    changed(disk=30, memory=None)
    expect(page.locator("#left")).to_contain_text("free, full in 30 h at the rate of the last hour. Redis")
    expect(page.locator("#verdict")).to_have_attribute("data-state", "good")
    changed(disk=20, memory=1.5)
    expect(page.locator("#verdict h2")).to_have_text("The disk is full in 20 h")
    changed(disk=20, memory=0.5)
    expect(page.locator("#verdict h2")).to_have_text("Redis is full in 30 min")


def test_an_invalid_setting_is_reported_in_one_line(tmp_path: Path) -> None:
    env = environment(tmp_path, {"INGEST_RECORDS": "no_such_module"})
    done = subprocess.run(
        [sys.executable, "-m", "sluice.contrib.page.page"],
        env=env,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_the_last_rows_and_dead_letters_of_a_stream_are_one_click_away_and_text_only(
    size: tuple[int, int], scheme: str, chromium: Browser, up: Server
) -> None:
    mark = f"{size[0]}{scheme}"
    post(up.port, "/votes", json.dumps({"poll": mark, "choice": EVIL}).encode())
    post(up.port, "/votes", json.dumps({"poll": mark, "choice": 7, "voter": EVIL}).encode())
    with context(chromium, size, scheme) as window:
        page = opened(window, up)
        expect(page.locator("#rows")).to_be_hidden()
        page.click("#ledger button:text-is('votes')")
        row = page.locator("#rows tbody tr").filter(has_text=mark)
        expect(row).to_contain_text(EVIL)
        letter = page.locator("#rows li").filter(has_text=mark)
        expect(letter).to_contain_text("got `int` - at `$.choice`")
        expect(letter.locator(".body")).to_contain_text(EVIL)
        assert (
            page.locator("#rows *:not(h2, h3, p, table, thead, tbody, tr, th, td, ol, li, span, time, button)").count()
            == 0
        )
        assert page.evaluate("document.documentElement.scrollWidth") == size[0]
        assert (page.evaluate(CONTRAST), page.evaluate(CROWDED)) == ([], [])
        post(up.port, "/votes", json.dumps({"poll": mark, "choice": "later"}).encode())  # it is followed
        expect(page.locator("#rows tbody tr").filter(has_text="later")).not_to_have_count(0)
        page.click("#ledger button:text-is('gps')")
        expect(page.locator("#rows-title")).to_have_text("Last rows of gps")
        page.click("#rows > button")
        expect(page.locator("#rows")).to_be_hidden()
