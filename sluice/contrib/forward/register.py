"""Rows posted on over HTTP (INGEST_ROWS=hooks=https://HOST/PATH), by a program of its own."""

from __future__ import annotations

from sluice.registry import Contribution, Destination, Program

OPTION = r"(?:order=\w+|age=[1-9][0-9]{0,4}[smhd]|timeout=[1-9][0-9]{0,2}|parallel=[1-9][0-9]?|secret=/[^&\s#]+)"
URL = rf"https?://(?:[^/@?#\s]+@)?[^/@?#\s]+(?:[/?][^#\s]*)?(?:#{OPTION}(?:&{OPTION})*)?"
TARGET, FORM = "sluice.contrib.forward.destination:Forward", "https://HOST/PATH"

CONTRIBUTION = Contribution(
    page="protocol/forwarding.md",
    destinations={
        "https": Destination(TARGET, "", FORM, URL, beside=True),
        "http": Destination(TARGET, "", "http://HOST/PATH", URL, beside=True),
    },
    programs={"forward": Program("sluice.contrib.forward.parts:forward")},
    check="sluice.contrib.forward.parts:check",
)
