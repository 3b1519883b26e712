"""Addresses of PostgreSQL that stop the start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from proving.harness import (
    ROOT,
    environment,
)
from sluice import settings
from sluice.run import up


@pytest.mark.nightly
@pytest.mark.parametrize(
    "url, problem",
    [
        ("postgresql://h/d?sslmod=require", "PostgreSQL has no parameter sslmod."),
        ("postgresql://u:p@ss@h/d", "in the password, write each @ : / ? # % as %40 %3A %2F %3F %23 %25."),
        ("postgresql://u:p%zz@h/d", "in the password, write each"),
    ],
)
def test_an_address_that_no_postgresql_has_stops_every_program(url: str, problem: str, tmp: Path) -> None:
    with pytest.raises(settings.SettingError) as caught:
        up.check_modules(settings.load_settings({"INGEST_STORE": url}))
    assert problem in str(caught.value)
    if "sslmod" not in url:
        return
    env = environment(tmp, {"INGEST_STORE": url})
    modules = ("sluice.contrib.views.follow", "sluice.contrib.page.page", "sluice.contrib.page.exporter")
    for command in (["worker.py", "run"], *(["-m", name] for name in modules), ["-m", "sluice.ops", "dead"]):
        done = subprocess.run([sys.executable, *command], env=env, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (2, f"sluice: {caught.value}\n"), command
