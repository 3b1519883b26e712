"""The built-in streams with their wire formats, and those of the user's module. Only the worker's side has them."""

from __future__ import annotations

from sluice import extension, settings
from sluice.formats.registry import FORMATS
from sluice.streams import gps, logs, metrics, votes
from sluice.streams.decoder import JsonDecoder
from sluice.streams.format import Format
from sluice.streams.record import Gps, Log, Metric, Vote
from sluice.streams.registry import Stream
from sluice.streams.schema import case_conflict, stream_problem


def formats(stream: str) -> list[Format]:
    """The wire formats of a stream."""
    return [known for known in FORMATS if known.stream == stream]


STREAMS: dict[str, Stream] = {
    "metrics": Stream("metrics", Metric, metrics.MetricsDecoder(formats("metrics")).decode),
    "gps": Stream("gps", Gps, gps.GpsDecoder(formats("gps")).decode),
    "logs": Stream("logs", Log, logs.LogsDecoder(formats("logs")).decode),
    "votes": Stream("votes", Vote, JsonDecoder(votes.Plain, votes.build, formats("votes")).decode),
}


def load_streams(config: settings.Settings) -> dict[str, Stream]:
    """The built-in streams and those of the user's module, which may replace them.

    Raises: SettingError if the module cannot be imported, has no STREAMS, or has a stream that no database can hold; or
    if INGEST_KEEP or INGEST_ROWS names a stream that does not exist.
    """
    if not config.records:
        return checked(dict(STREAMS), config)
    own = extension.dictionary("INGEST_RECORDS", config.records, "STREAMS")
    if not all(isinstance(stream, Stream) for stream in own.values()):
        problem = "STREAMS has a value that is no sluice.Stream"
    else:
        streams = STREAMS | own
        problems = (stream_problem(name, stream) for name, stream in own.items())
        problem = next(filter(None, problems), "") or case_conflict(streams)
        if not problem:
            return checked(streams, config)
    raise settings.SettingError(f"INGEST_RECORDS={config.records!r} is invalid: {problem}.")


def checked(streams: dict[str, Stream], config: settings.Settings) -> dict[str, Stream]:
    """These streams. Raises: SettingError if INGEST_KEEP or INGEST_ROWS names another one."""
    for setting, named, known in (
        ("INGEST_KEEP", config.keep.streams, [*streams, settings.DEAD]),
        ("INGEST_ROWS", config.rows.streams, [*streams]),
    ):
        for name in named:
            if name not in known:
                raise settings.SettingError(f"{setting}: there is no stream {name!r}; there are {', '.join(known)}.")
    return streams
