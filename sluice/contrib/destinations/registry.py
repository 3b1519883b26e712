"""The destinations of INGEST_ROWS, which registers declare. One is imported when its scheme is used."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sluice import registry, settings
from sluice.contrib.destinations.destination import Destination
from sluice.contrib.destinations.outbox import Outbox
from sluice.contrib.destinations.register import BESIDE
from sluice.http.routes import Route
from sluice.parsers import ByStream
from sluice.registry import Destination as Kind
from sluice.registry import NotInstalled
from sluice.settings import Settings
from sluice.streams.registry import Stream


def open_rows(s: Settings, streams: Mapping[str, Stream]) -> Outbox:
    """Raises: SettingError, also for a stream that does not exist."""
    check_streams(s, streams)
    return open_destinations(s.rows, streams)


def check_destinations(s: Settings, _: Mapping[str, Route], streams: Mapping[str, Stream]) -> None:
    """Raises: SettingError."""
    check_streams(s, streams)
    check_rows(s.rows, streams)


def check_streams(s: Settings, streams: Mapping[str, Stream]) -> None:
    for name in s.rows.streams:
        if name not in streams:
            known = ", ".join(sorted(streams))
            raise settings.SettingError(f"INGEST_ROWS: there is no stream {name!r}; there are {known}.")


def open_destinations(rows: ByStream[str | None], streams: Mapping[str, Stream]) -> Outbox:
    """Where the rows of these streams go that are in no table, and what waits there. Raises: SettingError."""
    urls = {name: url for name in streams if (url := rows.for_stream(name))}
    copied = {name for name, url in urls.items() if url.startswith(BESIDE)}
    return Outbox({name: open_destination(url, streams[name]) for name, url in urls.items()}, copied)


def check_rows(rows: ByStream[str | None], streams: Mapping[str, Stream]) -> None:
    """Check the URLs of INGEST_ROWS, without the libraries of their destinations. Raises: SettingError."""
    for name, stream in streams.items():
        if url := rows.for_stream(name):
            kind_of(url, stream)


def kind_of(url: str, stream: Stream) -> Kind:
    """The kind of destination that a URL names. Raises: SettingError if a stream cannot have it."""
    kinds: dict[str, Kind] = registry.declared_entries("destinations")
    place = url.removeprefix(BESIDE)
    kind = kinds.get(place.partition(":")[0])
    shown = f"INGEST_ROWS={settings.without_password(url)!r} is invalid for {stream.name}"
    if kind is not None and place != url and not kind.beside:
        raise settings.SettingError(f"{shown}: this destination takes rows instead of their table, not beside it.")
    if kind is None or not re.fullmatch(kind.pattern, place, re.ASCII) or kind.stream not in ("", stream.name):
        forms = ", ".join(kind.form for kind in kinds.values())
        raise settings.SettingError(f"{shown}: expected store or one of {forms}.")
    if kind.column and kind.column in map(str.lower, stream.record.__struct_fields__):
        raise settings.SettingError(f"{shown}: it has a field {kind.column}, and the destination has such a column.")
    return kind


def open_destination(url: str, stream: Stream) -> Destination:
    """The destination of a URL. Raises: SettingError if it is invalid, or a library is not installed."""
    try:
        destination: Destination = kind_of(url, stream).load()(url.removeprefix(BESIDE), stream)
    except NotInstalled as error:
        raise settings.SettingError(f"INGEST_ROWS={settings.without_password(url)} {error}") from None
    return destination
