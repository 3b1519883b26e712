"""What decoders of wire formats share: parts, arrays, refusals, texts and numbers that a database or JSON lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf, isfinite
from typing import Any, Generic, TypeVar

import msgspec

from sluice.contrib.formats.charges import Exhausted, charge_attempt
from sluice.contrib.formats.json_repair import repair_json
from sluice.streams import decoder
from sluice.streams.body import NOT_JSON, Budget, Remainder, reject_reason
from sluice.streams.decoder import Decode, Result
from sluice.streams.record import Invalid, Reject

T = TypeVar("T")
MANY_PAIRS, PAIR_BYTES = 100, 100
NOT_FINITE = {inf: "+Inf", -inf: "-Inf"}  # Prometheus, exposition formats; any other is "NaN"


class Refused(Generic[T]):
    """The parts of a request that are not stored: the invalid ones, with the first reason, and the rest."""

    __slots__ = ("invalid", "reason", "rest")

    def __init__(self) -> None:
        self.invalid: list[T] = []
        self.rest: list[T] = []
        self.reason = ""

    def refuse(self, part: T, error: Exception, budget: Budget, size: int) -> None:
        """size: bytes of the part."""
        budget.charge_failure(size)
        self.reason = self.reason or reject_reason(error)
        self.invalid.append(part)

    def inside(self, refused: Refused[Any], join: Callable[[list[Any]], T]) -> None:
        """Add what was refused inside of a part, as one part of that. join: makes it."""
        self.reason = self.reason or refused.reason
        if refused.invalid:
            self.invalid.append(join(refused.invalid))
        if refused.rest:
            self.rest.append(join(refused.rest))
            refused.rest.clear()  # it may be most of a body

    def rejects(self, join: Callable[[list[T]], bytes]) -> list[Reject]:
        """join: makes a request of some parts."""
        rejects = [Reject(join(self.invalid), self.reason)] if self.invalid else []
        return [*rejects, Reject(join(self.rest), Remainder.reason)] if self.rest else rejects


def json_array(value: msgspec.Raw, name: str) -> memoryview:
    """A value as it was sent, not copied: it may be all of a body. Raises: Invalid if it is not an array."""
    text = memoryview(value)
    if text[:1].tobytes() != b"[":
        raise Invalid(f"{name} is not an array")
    return text


def array_reader(name: str) -> Callable[[bytes], memoryview]:
    """What reads the array that an object has under a name. Raises: Invalid, msgspec's errors."""
    read: Callable[[bytes], Any] = msgspec.json.Decoder(msgspec.defstruct("Wrapper", [(name, msgspec.Raw)])).decode
    return lambda part: json_array(getattr(read(part), name), name)


def check_texts(*texts: str) -> None:
    """Check that every database can hold these texts. Raises: Invalid."""
    if "\0" in "".join(texts):
        raise Invalid("text with a NUL")


def finite_or_text(value: float) -> float | str:
    """A number, or Prometheus's text for one that JSON does not have."""
    return value if isfinite(value) else NOT_FINITE.get(value, "NaN")


def encoded_size(pairs: Mapping[str, object], *texts: object) -> int:
    """The bytes that a row takes for what it inherits: as JSON, where a control character takes six.

    So many pairs as no sender has also count as what each row's own dictionary takes of memory.
    """
    return len(msgspec.json.encode((pairs, *texts))) + PAIR_BYTES * max(0, len(pairs) - MANY_PAIRS)


def decode_parts(
    parts: Iterable[bytes], decode: Decode, budget: Budget, head: bytes = b"", end: bytes = b""
) -> Iterator[Result]:
    """As `sluice.streams.decoder.decode_parts`, but a part that is no JSON is mended, if that is possible."""

    def refuse(part: bytes, error: Exception) -> Iterator[Result]:
        reason = reject_reason(error)
        if not (better := mend_part(part, budget) if reason.startswith(NOT_JSON) else b""):
            yield Reject(head + part + end, reason)
            return
        for result in decode_parts((better,), decode, budget, head, end):
            if isinstance(result, Reject) and result.part == head + better + end:
                result = Reject(head + part + end, result.reason)  # with what was sent
            yield result

    return decoder.decode_parts(parts, decode, budget, head, end, refuse)


def mend_part(part: bytes, budget: Budget) -> bytes:
    """A part that is no JSON as `repair_json` makes it; b"" if that is not possible, or too much."""
    if budget.left <= 0:
        return b""
    charge_attempt(budget, len(part))
    try:
        return repair_json(part, budget)
    except Exhausted:
        return b""
