"""The programs of the views, and what a start checks and says of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluice.contrib.views.declared import are_on, check_declarations, load_views
from sluice.http.routes import Route
from sluice.run.first_screen import network_group
from sluice.run.programs import Part
from sluice.settings import Settings

LANE = "sluice.contrib.views.lane.ReaderLane"
EXAMPLE = "/votes/tally"


def follower_part(s: Settings) -> Part | None:
    """It fills the views, and has no work to finish."""
    if not are_on(s):
        return None
    return Part("{python} -m sluice.contrib.views.follow", units=("sluice-follower.service",))


def reader_part(s: Settings) -> Part | None:
    """It answers the views."""
    if not are_on(s):
        return None
    sockets = " ".join(f'--bind "unix:{path}"' for path in s.reader_sockets)
    command = f"{{gateway}} -m gunicorn --workers 1 -k {LANE} {sockets} sluice.contrib.views.serve:app"
    return Part(command, priority=30, stop_seconds=3, units=("sluice-reader.socket", "sluice-reader.service"))


def check_views(s: Settings, _: Mapping[str, Route], streams: Mapping[str, Any]) -> None:
    """Raises: SettingError if a view has no stream or no field."""
    check_declarations(load_views(s), streams)


def announce(s: Settings, words: dict[str, str]) -> None:
    words["reads"] = f", {network_group(s.read_allow)} may read"
    words["change"] = "INGEST_ALLOW and INGEST_READ_ALLOW change it"
    if EXAMPLE in load_views(s):
        words["example"] = f"{EXAMPLE}?poll=cookies"
