"""Fields of a body that no column has: counted by name, and kept where a stream says so."""

from __future__ import annotations

from sluice import parsers
from sluice.registry import Contribution, Setting

CONTRIBUTION = Contribution(
    page="ADDING-A-STREAM.md#fields-that-no-column-has",
    settings={
        "extra": Setting(
            parsers.words_parser(str.isidentifier, "names of streams, such as gps votes"), "",
            "built-in streams that keep unknown fields in a column",
        )
    },
    built_in="sluice.contrib.unknown_fields.extra:extend_streams",
    extra="sluice.contrib.unknown_fields.extra:keep_extra",
    samplers="sluice.contrib.unknown_fields.sample:Sampler",
    figures={"unknown_fields": "sluice.contrib.unknown_fields.figures:UnknownFields"},
    status="sluice.contrib.unknown_fields.figures:status_lines",
)  # fmt: skip
