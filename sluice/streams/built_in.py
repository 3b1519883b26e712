"""The built-in streams with their wire formats, and those of the user's module. Only the worker's side has them."""

from __future__ import annotations

from sluice import extension, registry, settings
from sluice.parsers import DEAD
from sluice.streams import gps, logs, metrics, votes
from sluice.streams.decoder import JsonDecoder
from sluice.streams.guard import GUARD
from sluice.streams.record import Gps, Log, Metric, Vote
from sluice.streams.registry import Stream
from sluice.streams.schema import case_conflict, stream_problem
from sluice.streams.unique import Rule

METRICS = metrics.MetricsDecoder(metrics.Plain, metrics.build_metric)
GPS = JsonDecoder(gps.Plain, gps.build_position)
LOGS = logs.LogsDecoder(dict, logs.build_log)
VOTES = votes.VotesDecoder(votes.Plain, votes.build_vote)
STREAMS: dict[str, Stream] = {
    "metrics": Stream(
        "metrics", Metric, METRICS.fast_path(), precision="ns", content=True, typed=True, decoder=METRICS
    ),
    "gps": Stream("gps", Gps, GPS.fast_path(Gps), content=True, decoder=GPS),
    "logs": Stream("logs", Log, LOGS.fast_path(), content=True),
    # two voters may say the same in the same second
    "votes": Stream("votes", Vote, VOTES.fast_path(Vote), decoder=VOTES),
} | {name: registry.load_target(target) for name, target in registry.declared_entries("streams").items()}


def load_streams(config: settings.Settings) -> dict[str, Stream]:
    """The built-in streams and those of the user's module, which may replace them.

    Raises: SettingError if the module cannot be imported, has no STREAMS, or has a stream that no database can hold; or
    if INGEST_KEEP or INGEST_UNIQUE names a stream that does not exist.
    """
    own = extension.load_dictionary("INGEST_RECORDS", config.records, "STREAMS")
    built_in = STREAMS
    for extend in registry.load_hooks("built_in"):
        built_in = extend(built_in, config)
    streams = built_in | own
    problems = (stream_problem(name, stream) for name, stream in own.items())
    if problem := next(filter(None, problems), "") or case_conflict(streams):
        raise settings.SettingError(f"INGEST_RECORDS={config.records!r} is invalid: {problem}.")
    for setting, named, known in (
        ("INGEST_KEEP", config.keep.streams, [*streams, DEAD]),
        ("INGEST_UNIQUE", config.unique.streams, [*streams]),
    ):
        for name in named:
            if name not in known:
                raise settings.SettingError(
                    f"{setting}: there is no stream {name!r}; there are {', '.join(sorted(known))}."
                )
    streams |= {name: GUARD.guard_stream(stream) for name, stream in own.items()}
    return {
        name: stream._replace(rule=stream_rule(stream, *config.unique.for_stream(name)))
        for name, stream in streams.items()
    }


def stream_rule(stream: Stream, seconds: int, by_record: bool) -> Rule | None:
    """The rule of a stream with INGEST_UNIQUE. Raises: SettingError."""
    if by_record and not stream.content:
        raise settings.SettingError(
            f"INGEST_UNIQUE={stream.name}=…/record: equal records of {stream.name} may be two; the stream says which "
            "fields make them one, with stream(…, unique=…)."
        )
    fields = () if by_record else stream.unique
    return Rule(seconds, stream.content, fields, stream.key, stream.recent) if seconds else None
