"""The parts of a request in a wire format: its arrays, and what of it is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from sluice.streams.body import Budget, Remainder, reject_reason
from sluice.streams.record import Invalid, Reject

T = TypeVar("T")


class Refused(Generic[T]):
    """The parts of a request that are not stored: the invalid ones, with the first reason, and the rest."""

    __slots__ = ("invalid", "reason", "rest")

    def __init__(self) -> None:
        self.invalid: list[T] = []
        self.rest: list[T] = []
        self.reason = ""

    def refuse(self, part: T, error: Exception, budget: Budget, size: int) -> None:
        """size: bytes of the part."""
        budget.fail(size)
        self.reason = self.reason or reject_reason(error)
        self.invalid.append(part)

    def inside(self, refused: Refused[Any], join: Callable[[list[Any]], T]) -> None:
        """Add what was refused inside of a part, as one part of that. join: makes it."""
        self.reason = self.reason or refused.reason
        if refused.invalid:
            self.invalid.append(join(refused.invalid))
        if refused.rest:
            self.rest.append(join(refused.rest))

    def rejects(self, join: Callable[[list[T]], bytes]) -> list[Reject]:
        """join: makes a request of some parts."""
        rejects = [Reject(join(self.invalid), self.reason)] if self.invalid else []
        return [*rejects, Reject(join(self.rest), Remainder.reason)] if self.rest else rejects


def json_array(value: msgspec.Raw, name: str) -> bytes:
    """A value as it was sent. Raises: Invalid if it is not an array."""
    text = bytes(value)
    if not text.startswith(b"["):
        raise Invalid(f"{name} is not an array")
    return text


def array_reader(name: str) -> Callable[[bytes], bytes]:
    """What reads the array that an object has under a name. Raises: Invalid, msgspec's errors."""
    read: Callable[[bytes], Any] = msgspec.json.Decoder(msgspec.defstruct("Wrapper", [(name, msgspec.Raw)])).decode
    return lambda part: json_array(getattr(read(part), name), name)
