"""The runtimes of the gateway and the servers that an application runs on, as parameters of tests."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from proving import harness
from proving.harness import Answer, Server, environment, free_port, listening, poll

NO_PYPY = pytest.mark.skipif(not Path(harness.PYTHON["pypy"]).exists(), reason="no .venv-pypy here; bin/test makes it")
# for each change PyPy has the HTTP contract (SERVERS), and the rest at night
RUNTIMES = ["cpython", pytest.param("pypy", marks=[NO_PYPY, pytest.mark.nightly])]
SIMPLE = """
import importlib
import sys
from wsgiref.simple_server import WSGIRequestHandler, make_server
from wsgiref.validate import validator
app = importlib.import_module(sys.argv[3]).app
app = validator(app) if sys.argv[1] == "validated" else app
make_server("127.0.0.1", int(sys.argv[2]), app).serve_forever()
"""
GUNICORN = {
    "sync": "sync",
    "gthread": "gthread",
    "gevent": "gevent",
    "fastlane": "sluice.fastlane.loop.FastLane",
}
SERVERS = [
    pytest.param(name, runtime, id=f"{runtime}-{name}", marks=[NO_PYPY] if runtime == "pypy" else [])
    for runtime in ("cpython", "pypy")
    for name in ("validated", "wsgiref", *GUNICORN)
]


@contextlib.contextmanager
def simple_server(module: str, name: str, runtime: str, tmp: Path, env: Mapping[str, object]) -> Iterator[Server]:
    """wsgiref's server with the application of a module; name: `validated` or `wsgiref`."""
    port = free_port()
    command = [harness.PYTHON[runtime], "-c", SIMPLE, name, port, module]
    with harness.running(command, tmp / "simple.out", environment(tmp, env)) as process:
        server = Server(process, tmp / "simple.out", tmp, port)
        poll(listening(server, port))
        yield server


def is_problem(given: Answer, status: int) -> dict[str, str]:
    """Assert that an answer is the problem of docs/protocol/http.md with this status; returns its headers."""
    code, headers, body = given
    assert code == status, body
    assert headers["content-type"] == "application/problem+json"
    problem = json.loads(body)
    assert set(problem) == {"type", "title", "status", "detail"}
    assert (problem["type"], problem["status"]) == ("about:blank", status)
    assert problem["title"] and problem["detail"].endswith(".")
    return headers
