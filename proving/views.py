"""The views of a private drill beside the built-in ones: those whose code or period no built-in view has."""

from __future__ import annotations

from proving.read import CAP, TRAIL, TRAIL_CAP
from sluice.contrib.views import VIEWS as BUILT_IN
from sluice.contrib.views import feed, tally

VIEWS = {
    "/drill/batteries": feed("gps", key="device", cap=CAP, member=("battery",)),
    "/drill/tally": tally("votes", key="poll", by="choice", period=2),
}

assert BUILT_IN[TRAIL] == feed("gps", key="device", cap=TRAIL_CAP)  # what proving/read.py expects
