"""The program that posts rows, and what a start checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sluice.contrib.forward.signing import Secrets
from sluice.contrib.forward.target import Target
from sluice.http.routes import Route
from sluice.run.programs import Part
from sluice.settings import SettingError, Settings, without_password
from sluice.streams.registry import Stream

SCHEMES = "http://", "https://"


def urls(s: Settings) -> Iterator[str]:
    """The URLs of receivers in INGEST_ROWS, which is unknown without the folder of destinations."""
    rows = getattr(s, "rows", None)
    for url in sorted({*rows.values()} - {None}) if rows else ():
        if url.removeprefix("store+").startswith(SCHEMES):
            yield url


def forward(s: Settings) -> Part | None:
    if not any(urls(s)):
        return None
    return Part("{python} -m sluice.contrib.forward.program", units=("sluice-forward.service",))


def check(s: Settings, _: Mapping[str, Route], streams: Mapping[str, Stream]) -> None:
    """Raises: SettingError for an order that a stream does not have, or a secret that cannot be used."""
    for url in urls(s):
        shown = f"INGEST_ROWS={without_password(url)!r} is invalid"
        try:
            target = Target.of(url.removeprefix("store+"))
            if target.secret:
                Secrets(target.secret).read()
        except (OSError, ValueError) as error:
            raise SettingError(f"{shown}: {getattr(error, 'strerror', None) or error}.") from None
        for name, stream in streams.items():
            if s.rows.for_stream(name) == url and target.order and target.order not in stream.record.__struct_fields__:
                known = ", ".join(stream.record.__struct_fields__[1:])
                raise SettingError(f"{shown}: order={target.order} is no field of {name}, which has {known}.")
