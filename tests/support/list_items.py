"""List items for the decoders of the built-in streams, and their results."""

from __future__ import annotations

from sluice import settings
from sluice.streams import registry
from sluice.streams.built_in import STREAMS
from sluice.streams.record import Limits, Reject

LIMITS = registry.body_limits(settings.load_settings({}))


def decode(stream: str, item: bytes, limits: Limits = LIMITS) -> list:
    """The records and rejects. A reject of a whole item is all there is of it."""
    results = [*STREAMS[stream].decode(item, limits)]
    rejects = [result for result in results if isinstance(result, Reject)]
    assert not any(reject.whole and (len(results) > 1 or reject.part != item) for reject in rejects)
    return results


def reject_reason(stream: str, item: bytes, limits: Limits = LIMITS) -> str:
    """The reason of an item that is one reject as a whole."""
    (reject,) = decode(stream, item, limits)
    assert reject == Reject(item, reject.reason, True)
    return reject.reason


def kept(body: bytes, target: str = "/owntracks", *fields: str) -> bytes:
    """A kept HTTP message."""
    return "\r\n".join([f"POST {target} HTTP/1.1", *fields, "", ""]).encode() + body
