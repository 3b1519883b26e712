"""The operator's command, called in this process, and bodies for it to show."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import redis as client

from proving.harness import Server, environment
from sluice import settings
from sluice.account import Publisher
from sluice.home_settings import load_for_start, load_for_verb
from sluice.ops.__main__ import main
from sluice.spool.inspector import Inspector
from sluice.spool.outlet import Outlet
from sluice.streams import registry
from sluice.streams.built_in import load_streams
from worker import Worker


def sluice(tmp: Path, *words: str, **env: object) -> tuple[int, str, str]:
    """Run a verb in this process, which saves many starts. Returns: exit status, standard output, standard error."""
    out, complaints = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        # most callers run no views' Redis
        patch.setattr(os, "environ", environment(tmp, {"INGEST_VIEWS": "off"} | env) | {"COLUMNS": "80"})
        for load in load_for_verb, load_for_start:
            patch.setattr(load, "__defaults__", (os.environ,))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(complaints):
            try:
                code = main(list(words))
            except SystemExit as end:  # argparse
                code = int(end.code or 0)
    return code, out.getvalue(), complaints.getvalue()


def status(tmp: Path, **env: object) -> tuple[int, dict[str, dict[str, Any]], list[str]]:
    """The exit status, the ledger by stream, and the trouble."""
    code, out, complaints = sluice(tmp, "status", "--json", **env)
    found = json.loads(out)
    assert complaints.splitlines() == [f"sluice: {line}" for line in found["trouble"]]
    return code, {row["stream"]: row for row in found["streams"]}, found["trouble"]


def push(server: Server, *bodies: bytes, stream: str = "votes") -> None:
    with client.Redis(unix_socket_path=str(server.socket), socket_timeout=60) as db:
        db.rpush("ingest:{%s}" % stream, *bodies)


def vote(choice: object) -> bytes:
    return json.dumps({"poll": "p", "choice": str(choice)}).encode()


def drain(tmp: Path, **env: object) -> None:
    """Run a worker in this process until the lists are empty."""
    s = settings.load_settings(environment(tmp, env))
    line = Publisher(Inspector(s.spool), load_streams(s), s.cell, keep=not s.has_own_redis)
    worker = Worker(Outlet(s.spool), s.store, load_streams(s), registry.body_limits(s), line)
    worker.run(burst=True)
    worker.stop()
    if worker.store:
        worker.store.close()
