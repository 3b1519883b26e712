"""Which fields of a body become nothing of a row: found by trying.

    sent      {"poll":"p","choice":"c","comment":"yes, please","voter":null}
    without   {"poll":"p","choice":"c"}                                    the same row …
    changed   {"poll":"p","choice":"c","comment":"yes, please_"}           … and so is this: no column has `comment`

A field is unknown if the rows are the same without it, and with another value: so it need not be said what each decoder
reads, and a default value that is sent is known. What is looked at is the first object of a body, or its form, after
the body is stored: decoding itself knows nothing of it. Bodies whose objects have the same fields are tried once.

At most 1 % of the CPU that the decoding of a stream takes is spent on it (SHARE). The first FIRST_SECONDS of a process
are free, so that the first body of somebody who tries something is looked at.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec

from sluice.base.counters import Counts
from sluice.base.daemon import Interrupted
from sluice.store.types import Body
from sluice.streams import body as bodies
from sluice.streams.built_in import STREAMS
from sluice.streams.encoding import inflate_body
from sluice.streams.message import parse_message
from sluice.streams.record import Limits
from sluice.streams.registry import Stream

SHARE = 0.006  # and what is not measured
FIRST_SECONDS = 0.01
MOST_SECONDS = 0.1  # that are saved up
LOOKS = 32  # at the bodies of one claim
PART_BYTES = 1 << 14  # of an object that is looked at
DEPTH = 6  # of objects in objects
PATHS = 200  # of an object
SHAPES = 512  # whose unknown fields are remembered
NAMES = 100  # of a stream, that a process counts
NAME_CHARACTERS = 64
OTHERS = "(other fields)"
EMPTY: tuple[Any, ...] = None, "", [], {}  # nothing is lost with these

Path = tuple[str, ...]
read_json = msgspec.json.Decoder().decode


class Sampler:
    """Looks at some bodies of one stream. counts: of this process."""

    def __init__(self, counts: Counts, stream: Stream) -> None:
        self.counts, self.stream = counts, stream.name
        self.decode = stream.part or stream.decode  # without a signature, which no changed body has
        # a decoder of a user's own may do anything else, too: it is called once for each body
        self.is_ours = stream.decoder is not None or is_built_in(stream)
        self.credit = FIRST_SECONDS
        self.names: set[str] = set()
        self.shapes: dict[tuple[str, tuple[Path, ...]], tuple[str, ...]] = {}

    def look(self, stored: Sequence[Body], limits: Limits, seconds: float) -> None:
        """stored: the bodies of a claim. seconds: of CPU that it took to decode them."""
        self.credit = min(self.credit + SHARE * seconds, MOST_SECONDS)
        if self.credit <= 0 or not self.is_ours:
            return
        began, count = time.thread_time(), len(stored)
        for n in range(min(count, LOOKS)):
            body = stored[n if count <= LOOKS else random.randrange(count)]  # noqa: S311
            if body.records and not body.rejects:
                self.examine(body.item, limits)
                if time.thread_time() - began >= self.credit:
                    break
        self.credit -= time.thread_time() - began

    def examine(self, item: bytes, limits: Limits) -> None:
        """Count the unknown fields of a body, if it has an object or is a form."""
        try:
            found = self.unknown(item, limits)
        except BaseException as error:  # a user's decoder may raise anything
            if isinstance(error, Interrupted):
                raise
            return
        if found is None:
            return
        self.counts.counter(f"examined {self.stream}").n += 1
        for name in dict.fromkeys(map(self.known_name, found)):
            self.counts.counter(f"unknown {self.stream} {name}").n += 1

    def known_name(self, name: str) -> str:
        """The name, cut, or OTHERS if it is one too many."""
        name = name[:NAME_CHARACTERS]
        if name not in self.names and len(self.names) >= NAMES:
            return OTHERS
        self.names.add(name)
        return name

    def unknown(self, item: bytes, limits: Limits) -> tuple[str, ...] | None:
        """The names of the unknown fields; None: there is nothing to look at. Raises: anything."""
        message = parse_message(item)
        body = message.body if message else item
        body = inflate_body(body, message.field("Content-Encoding") if message else "", limits.inflated)
        head = message.part_head() if message else b""
        encode: Callable[[Any], bytes]
        if part := first_object(body):
            sent, encode = trimmed(read_json(part), DEPTH), msgspec.json.encode
        elif b"=" in body and len(body) <= PART_BYTES:
            sent, encode = {**bodies.decode_form(body, limits)}, form_text
        else:
            return None
        shape = message.path if message else "", tuple(paths_of(sent))
        if shape not in self.shapes:
            trial = Trial(lambda: self.rows(head + encode(sent), limits))
            found = tuple(trial.unknown(sent)) if trial.rows else None
            if found is None:
                return None
            if len(self.shapes) >= SHAPES:
                self.shapes.clear()
            self.shapes[shape] = found
        return self.shapes[shape]

    def rows(self, item: bytes, limits: Limits) -> bytes:
        """The rows of an item; b"" if it has none, or is invalid."""
        decoded = self.decode(item, limits)
        return msgspec.json.encode([*decoded.records]) if decoded.records and not decoded.rejects else b""


def is_built_in(stream: Stream) -> bool:
    known = STREAMS.get(stream.name)
    return known is not None and known.decode is stream.decode


class Trial:
    """Tries an object without each of its members. decode: makes the rows of the object as it is then."""

    def __init__(self, decode: Callable[[], bytes]) -> None:
        self.decode, self.rows = decode, decode()
        self.left = PATHS

    def unknown(self, members: dict[str, Any], before: str = "") -> Iterator[str]:
        """The names of unknown fields. before: of the object in which the members are, with a dot."""
        for name, value in list(members.items()):
            self.left -= 1
            if self.left < 0:
                return
            if value in EMPTY:
                continue
            if self.is_unknown(members, name, value):
                yield before + name
            elif isinstance(value, dict):
                yield from self.unknown(value, f"{before}{name}.")
            elif isinstance(value, list) and isinstance(value[0], dict):
                yield from self.unknown(value[0], f"{before}{name}[].")

    def is_unknown(self, members: dict[str, Any], name: str, value: Any) -> bool:
        kept = dict(members)
        del members[name]
        try:
            if self.decode() != self.rows:
                return False
            members[name] = changed(value)
            return self.decode() == self.rows
        finally:
            members.clear()
            members.update(kept)


def changed(value: Any) -> Any:
    """Another value of the same type; of an object or an array, the same: without it, all of it was missing."""
    if isinstance(value, bool):
        return not value
    return value + "_" if isinstance(value, str) else value + 1 if isinstance(value, int | float) else value


def first_object(body: bytes) -> bytes:
    """The first JSON object of a body; b"": it has none, or a large one. Raises: msgspec.DecodeError."""
    if body.startswith(b"{") and len(body) <= PART_BYTES and b"\n" not in body:
        return body
    text = memoryview(body.removeprefix(bodies.BOM).lstrip())
    if text[:1].tobytes() == b"[" and (gap := bodies.GAP.match(text, 1)):
        text = text[gap.end() :]
    if text[:1].tobytes() != b"{":
        return b""
    end = bodies.end_of_value(text)
    return bytes(text[:end]) if end <= PART_BYTES else b""


def trimmed(value: Any, depth: int) -> Any:
    """A value with the first one only of several objects in an array."""
    if depth and isinstance(value, dict):
        return {name: trimmed(inner, depth - 1) for name, inner in value.items()}
    return [trimmed(value[0], depth)] if isinstance(value, list) and value and isinstance(value[0], dict) else value


def paths_of(members: Mapping[str, Any], before: Path = ()) -> Iterator[Path]:
    """The names of all members that have a value, in the order in which they were sent."""
    for name, value in members.items():
        if value not in EMPTY:
            path = (*before, name)
            yield path
            inner = value[0] if isinstance(value, list) else value
            if isinstance(inner, dict):
                yield from paths_of(inner, path)


def form_text(fields: dict[str, str]) -> bytes:
    return urlencode(fields).encode()
