"""What a body becomes: the record types of the built-in streams, and the refusal of what cannot be one."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Record(msgspec.Struct, kw_only=True):
    """The base of every record. Fields are columns, in this order.

    time: nanoseconds since 1970 UTC; None: the time of arrival will be taken.
    """

    time: int | None = None


# gc=False: a record holds no cycle, and a batch of 100,000 of them need not be walked by the collector
class Metric(Record, kw_only=True, gc=False):
    """One field of one point.

    value: a float is finite, an integer fits 64 bits with sign, a boolean is 1 or 0;
        an unsigned integer beyond 2**63-1 is the text of its digits.
    type: float, integer, unsigned, string or boolean.
    tags: may be shared with other records; not to be changed.
    """

    name: str
    tags: dict[str, str]
    field: str
    value: float | int | str
    type: str


class Gps(Record, kw_only=True, gc=False):
    """One position: degrees, metres, metres a second, degrees from north, percent. None: unknown."""

    device: str
    lat: float
    lon: float
    altitude: float | None = None
    speed: float | None = None
    accuracy: float | None = None
    bearing: float | None = None
    battery: float | None = None


class Vote(Record, kw_only=True, gc=False):
    """One vote."""

    poll: str
    choice: str
    voter: str | None = None


class Reject(NamedTuple):
    """A record that cannot be stored.

    part: what to bury: the whole item if `whole`, else a body that holds this record alone and that the same
        decoder takes again.
    reason: one line for a person, the kind first, at most 200 characters.
    whole: nothing of the body could be stored.
    """

    part: bytes
    reason: str
    whole: bool


class Limits(NamedTuple):
    """What one body may cost the worker; see `limits` in registry.py.

    inflated: bytes that it may inflate to.
    records: how many of them; a bad one counts as 50.
    record: bytes of one record whose type does not bound its memory; a line of line protocol may have a quarter.
    fields: of one form.
    """

    inflated: int
    records: int
    record: int
    fields: int


class Invalid(ValueError):
    """Something that cannot be stored; its text is the reason."""
