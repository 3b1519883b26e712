"""Views that stop the start."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from proving.harness import (
    ROOT,
    environment,
)


def refused(env: dict[str, object], tmp: Path) -> tuple[int, str]:
    """The status and the words of a bin/up that does not start."""
    done = subprocess.run([ROOT / "bin/up"], env=environment(tmp, env), capture_output=True, text=True, timeout=60)
    assert done.stdout == ""
    return done.returncode, done.stderr


@pytest.mark.contract
def test_a_view_of_an_unknown_field_is_one_line_and_status_2(tmp: Path) -> None:
    (tmp / "mine.py").write_text(
        "from sluice.contrib.views import latest\nVIEWS = {'/mine': latest('gps', key='none')}"
    )
    status, words = refused({"INGEST_VIEWS": tmp / "mine.py"}, tmp / "home")
    assert (status, words) == (2, "sluice: INGEST_VIEWS is invalid: '/mine': the stream 'gps' has no field 'none'.\n")
    assert not (tmp / "home").exists()
