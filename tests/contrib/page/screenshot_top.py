"""Take the screenshot of `bin/sluice top` in docs/: a private installation runs half a minute, with a stopped worker.

PYTHONPATH=. .venv/bin/python tests/contrib/page/screenshot_top.py
"""

from __future__ import annotations

import os
import re
import signal
import time

from rich.console import Console

from proving.harness import environment, get, installation, post, ROOT, settings, short_tmp  # isort: skip

from sluice.contrib.page.top import CHART_COLUMNS, Dashboard
from sluice.ledger import Observer

STOPPED = range(8, 14)  # readings in which the worker is stopped, so that a backlog builds up
FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.S)  # the SVG must load nothing from other hosts


def main() -> None:
    with short_tmp() as tmp, installation(tmp) as up:
        console = Console(record=True, width=80, height=24, force_terminal=True, file=open(os.devnull, "w"))  # noqa: SIM115
        view = Dashboard(Observer(settings.load_settings(environment(tmp))), console)
        for body in b'{"poll":"cookies"', b'{"poll":"cookies","choice":7}', b'{"choice":"oreo"}':
            post(up.port, "/votes", body)
        post(up.port, "/gps", b'{"device":"bike","lat":481.3743,"lon":11.57549}')
        for look in range(CHART_COLUMNS):
            for pid in up.pids("worker"):
                os.kill(pid, signal.SIGSTOP if look in STOPPED else signal.SIGCONT)
            until = time.monotonic() + 1
            n = 0
            while time.monotonic() < until:
                n += 1
                post(up.port, "/votes", b'{"poll":"cookies","choice":"oreo"}')
                if n % 3 == 0:
                    post(up.port, "/gps", b'{"device":"bike","lat":48.13743,"lon":11.57549,"speed":6.2}')
                if n % 4 == 0:
                    post(up.port, "/write?precision=s", b"room,floor=2 temperature=21.5,door=true")
                    get(up.port, "/votes/tally?poll=cookies")
                get(up.port, f"/gps/latest?device={'bike' if n % 15 else 'unknown'}")
                get(up.port, "/gps/trail?device=bike&limit=20")
            picture = view.frame()
            if look == STOPPED[-1]:
                break
        console.print(picture)
        for pid in up.pids("worker"):
            os.kill(pid, signal.SIGCONT)
        svg = console.export_svg(title="bin/sluice top")
        (ROOT / "docs").mkdir(exist_ok=True)
        (ROOT / "docs/top.svg").write_text(FONT_FACE.sub("", svg))


if __name__ == "__main__":
    main()
