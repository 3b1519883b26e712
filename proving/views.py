"""The views of a private drill beside the built-in ones: those whose code or period no built-in view has."""

from __future__ import annotations

from sluice.contrib.views import feed, tally

CAP = 10

VIEWS = {
    "/drill/batteries": feed("gps", key="device", cap=CAP, member=("battery",)),
    "/drill/tally": tally("votes", key="poll", by="choice", period=2),
}
