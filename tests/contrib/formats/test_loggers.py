"""Loggers and other small clients, unmodified, through a proxy that refuses some requests and swallows an answer.

Those that are programs of their own are in test_refusals.py. docs/INTEGRATIONS.md says what is seen.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import graypy
import logging_loki
import pygelf
import pytest

from proving import harness
from proving.harness import ROOT, Server, ask, chain, short_tmp
from support.answering_proxy import AnsweringProxy, closing, reply
from support.sender_configs import Write, npm_packages, program

pytestmark = pytest.mark.nightly

poll = partial(harness.poll, interval=0.05)
HERE = Path(__file__).parent / "loggers"


@pytest.fixture(scope="module")
def up() -> Iterator[Server]:
    mine = {"INGEST_ROUTES": ROOT / "examples/my_routes.py", "INGEST_RECORDS": ROOT / "examples/my_records.py"}
    with short_tmp() as tmp, chain(tmp, mine) as server:
        yield server


@pytest.fixture(scope="module")
def packages() -> Iterator[Path]:
    with npm_packages(HERE) as folder:
        yield folder


@contextlib.contextmanager
def handled(handler: logging.Handler, library: str) -> Iterator[Write]:
    """A handler of Python's logging."""
    handler.handleError = lambda record: None  # type: ignore[method-assign]  # it would print a traceback

    def write(numbers: range) -> str:
        for n in numbers:
            handler.handle(logging.LogRecord("web", logging.INFO, "", 0, f"{library} {n}", None, None))
        return "ok"

    with contextlib.closing(handler):
        yield write


def python(library: str, port: int) -> AbstractContextManager[Write]:
    where = f"127.0.0.1:{port}"
    handler: logging.Handler = {
        "pygelf": lambda: pygelf.GelfHttpHandler(host="127.0.0.1", port=port, path="/gelf"),
        "graypy": lambda: graypy.GELFHTTPHandler("127.0.0.1", port),
        "python-logging-loki": lambda: logging_loki.LokiHandler(f"http://{where}/loki/api/v1/push", {}, version="1"),
        "HTTPHandler": lambda: logging.handlers.HTTPHandler(where, "/logs", "POST"),
    }[library]()
    return handled(handler, library)


IN_PYTHON = "pygelf", "graypy", "python-logging-loki", "HTTPHandler"
IN_NODE = (
    "winston", "winston, batch", "winston 2", "pino-http-send", "pino-loki", "winston-loki", "prometheus-remote-write",
    "cloudevents", "logtail", "uptime-kuma",
)  # fmt: skip
ANSWERS = {
    "503": reply(503, "Retry-After: 1"), "429": reply(429, "Retry-After: 1"), "413": reply(413), "400": reply(400),
    "a lost answer": b"",
}  # fmt: skip
AGAIN = dict.fromkeys(("pino-http-send", "logtail"), ANSWERS.keys())  # after what they send again; the others: nothing


def numbers(up: Server, library: str) -> list[int]:
    """What is stored of a library, sorted."""
    texts = ask(up.home, "SELECT message FROM logs UNION ALL SELECT sku FROM orders UNION ALL SELECT body FROM hooks")
    values = ask(up.home, "SELECT name || ' ' || CAST(value AS INTEGER) FROM metrics WHERE field = 'value'")
    found = [re.search(rf"{library} (\d+)(?! ?\d)", text) for (text,) in texts + values]
    return sorted(int(match[1]) for match in found if match)


@pytest.mark.parametrize("library", IN_PYTHON + IN_NODE)
def test_what_a_library_sends_again_is_stored_once_and_what_it_drops_holds_nothing_up(
    library: str, up: Server, request: pytest.FixtureRequest
) -> None:
    start: Callable[[int], AbstractContextManager[Write]] = partial(python, library)
    if library in IN_NODE:
        if not shutil.which("npm"):
            pytest.skip("no npm")
        folder = request.getfixturevalue("packages")
        start = partial(program, "node", folder / "send.mjs", library, cwd=folder)
    replies: list[bytes] = []
    expected = []
    with closing(proxy := AnsweringProxy(up.port, replies)) as port, start(port) as write:
        for n, (kind, answer) in enumerate(ANSWERS.items()):
            replies.append(answer)
            assert write(range(2 * n, 2 * n + 1)) == "ok"
            poll(lambda n=n: len(proxy.answered) == n + 1)  # type: ignore[misc]
            kept = answer == b"" or kind in AGAIN.get(library, ())
            expected += [2 * n, 2 * n + 1] if kept else [2 * n + 1]
            assert write(range(2 * n + 1, 2 * n + 2)) == "ok"
            poll(lambda: numbers(up, library) == expected)  # noqa: B023
        repeated = "a lost answer" in AGAIN.get(library, ())
        poll(lambda: proxy.repeated() == repeated)
    assert numbers(up, library) == expected
