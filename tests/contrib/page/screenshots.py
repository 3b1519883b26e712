"""Take the screenshots of the status page in docs/: a private installation runs three minutes, with a stopped worker.

The browser comes through nginx with TLS and the prefix /ingest/, as docs/BEHIND-A-PROXY.md has it, and opens the rows
of a stream.

PYTHONPATH=.:tests .venv/bin/python tests/contrib/page/screenshots.py
"""

from __future__ import annotations

import base64
import itertools
import math
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from proving.harness import ROOT, Server, get, installation, post, short_tmp
from support.proxy_recipes import nginx, started

SECONDS = 200
STOPPED = range(90, 125)  # seconds in which the worker is stopped, so that a backlog builds up
INVALID = (b'{"poll":"cookies"', b'{"poll":"cookies","choice":7}', b'{"choice":"oreo"}')
HEIGHT = "document.documentElement.scrollHeight"
ROWS = "scrollY + document.querySelector('#rows tbody tr:nth-child(3)').getBoundingClientRect().bottom"
SIZES = {"desktop": (1280, 800), "phone": (390, 844)}


def traffic(up: Server, stop: threading.Event) -> None:
    """Post and read until `stop`."""
    start = time.monotonic()
    for second in itertools.count():
        for pid in up.pids("worker"):
            os.kill(pid, signal.SIGSTOP if second in STOPPED else signal.SIGCONT)
        for n in range(int(40 + 25 * math.sin(second / 25) + 11 * (second * 7 % 5) / 5)):
            post(up.port, "/votes", b'{"poll":"cookies","choice":"oreo"}')
            if n % 3 == 0:
                post(up.port, "/gps", b'{"device":"bike","lat":48.13743,"lon":11.57549,"speed":6.2}')
                get(up.port, f"/gps/latest?device={'bike' if n % 15 else 'unknown'}")
            if n % 4 == 0:
                post(up.port, "/write?precision=s", b"room,floor=2 temperature=21.5,door=true")
                get(up.port, "/votes/tally?poll=cookies")
            if n % 8 == 0:
                get(up.port, "/gps/trail?device=bike&limit=20")
        if second % 40 == 20:
            post(up.port, "/votes", INVALID[second // 40 % 3])
            post(up.port, "/gps", b'{"device":"bike","lat":481.3743,"lon":11.57549}')
            post(up.port, "/vote", b'{"poll":"cookies","choice":"oreo"}')
        if stop.wait(max(0, start + second + 1 - time.monotonic())):
            break


def certificate(tmp: Path) -> Path:
    """A certificate for localhost with its key, which the browser does not know."""
    ask = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    file = tmp / "both.pem"
    subprocess.run(["openssl", *ask.split(), "-out", file, "-keyout", file], check=True, capture_output=True)
    return file


def take(page: Page, file: str, height: str) -> None:
    """The page down to `height`, an expression; WebP takes a third of PNG's bytes."""
    how: dict[str, Any] = {"format": "webp", "quality": 70, "captureBeyondViewport": True}
    width = page.evaluate("innerWidth")
    how["clip"] = {"x": 0, "y": 0, "width": width, "height": page.evaluate(height), "scale": 1}
    taken = page.context.new_cdp_session(page).send("Page.captureScreenshot", how)
    (ROOT / "docs" / file).write_bytes(base64.b64decode(taken["data"]))


def main() -> None:
    with (
        short_tmp() as tmp,
        short_tmp() as before,
        installation(tmp, started()) as up,
        nginx(before, up.port, certificate(before)) as port,
        sync_playwright() as playwright,
    ):
        stop = threading.Event()
        thread = threading.Thread(target=traffic, args=(up, stop))
        thread.start()
        time.sleep(SECONDS)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (width, height) in SIZES.items():
            for scheme in "light", "dark":
                page = browser.new_page(
                    viewport={"width": width, "height": height},
                    color_scheme=scheme,
                    device_scale_factor=1.5 if name == "phone" else 1,
                    ignore_https_errors=True,
                )
                page.goto(f"https://localhost:{port}/ingest/status")
                page.click("form button")
                page.wait_for_selector("#steps li:has-text('Stored'), #steps li:has-text('Processed')")
                page.click("#ledger button:text-is('votes')")
                page.wait_for_selector("#rows tbody tr")
                take(page, f"status-{name}-{scheme}.webp", HEIGHT)
                if (name, scheme) == ("desktop", "light"):  # of README.md
                    take(page, "status.webp", ROWS)
                page.close()
        browser.close()
        stop.set()
        thread.join()


if __name__ == "__main__":
    main()
