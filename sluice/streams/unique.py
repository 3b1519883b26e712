"""Keys: what makes two bodies, or two records, one, so that what a sender sends again is stored once.

    a body with Idempotency-Key, webhook-id, …    hash(sender, name of the field, key)                 16 bytes
    a body of a stream with a rule of its own     hash(sender, what `Stream.key` makes of its records)
    the same, for a limited time                  step of the time | hash(sender, content, step)       4 + 12 bytes
    a body of telemetry, each record timed        seconds of the first record | hash(sender, content)  4 + 12 bytes
    a record, with a time among its fields        seconds of the record | hash(sender, fields, values) 4 + 12 bytes
    a record, else                                hash(sender, fields, values)                         16 bytes
    anything else                                 no key: each one is stored

- **A given key** is Idempotency-Key (draft-ietf-httpapi-idempotency-key-header-07), webhook-id (Standard Webhooks),
  X-GitHub-Delivery, or CloudEvents' ce-source with ce-id. It counts whatever the body says, also if it is rejected: but
  not if the signature is wrong, because whoever knows the key could then take it from its sender.
- **The content** is a key only if each record has its own time: then two bodies with the same content mean the same. Of
  votes, two may be equal and count twice (`Stream.content`).
- **Keys of records** are for senders that group anew what they send again (`Stream.unique`, INGEST_UNIQUE=…/record).

A key is one of the sender whose named API key came with it: what another one sends is not the same, whatever it says.

A key that has a time begins with it, so that what is sent at one time has its keys in one place of the index. Keys
without order would each change another page of it.

Stored keys outlive a version, so what is hashed, and how, must not change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache
from hashlib import sha256
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from sluice.http.request import KEYED, idempotency_key
from sluice.streams.encoding import compressed_beginnings, inflate_body
from sluice.streams.message import KEPT, KEYED_OBJECT, Message, lower_fields, parse_message, raw_field, sender_of
from sluice.streams.record import Invalid, Limits, Record, Reject
from sluice.streams.times import SECOND, in_utc

GIVEN_BYTES = 16  # of the hash of a key that was given: all of the key
# Hashes are SHA-256: with the processor's instructions for it, 9 kB take half the time of BLAKE2b (python -m timeit)
CONTENT_BYTES = 12  # of the hash of a content, behind the seconds of its time in four bytes: 16 together
SPECIAL = frozenset(
    (b"P", *(magic[:1] for magic in compressed_beginnings()))
)  # how kept messages and compressed bodies begin
# Header fields that decide what a body means, as its path and its query string do; others may differ in a retry
DECIDING = "X-Limit-U", "X-Limit-D"
KEYED_BYTES = tuple(name.lower().encode() for name in KEYED)
FORGED = "signature: "  # how the reason begins of a body that is not its sender's; it does not take its key


class Rule(NamedTuple):
    """What is one in a stream.

    seconds: that a key is kept. content: a body without a key is its own, also if its records have keys: so a change of
    the rule makes nothing new of what is younger than it. fields: of a record: two records with the same values are
    one; (): all fields; None: records have no keys. key: makes the key of a body of its records, b"" for none;
    then neither its content nor what its sender gave is one. recent: leaves out of bodies those that came shortly
    before, given the `store.keys.Keys` of their transaction, in which it counts them; None: none did.
    """

    seconds: int
    content: bool = False
    fields: tuple[str, ...] | None = None
    key: Callable[[Sequence[Record]], bytes] | None = None
    recent: Callable[[Any, Sequence[Any]], Sequence[Any]] | None = None

    def body_keys(self, bodies: Sequence[Any], limits: Limits) -> list[bytes | None]:
        """`body_key` of each of these, which have item, records and rejects."""
        plain = self.key is None and self.content
        keys = list[bytes | None]()
        last, seconds = None, b""
        for body in bodies:
            item, records = body.item, body.records
            if not plain or len(records) != 1 or item[:1] in SPECIAL:
                keys.append(self.body_key(item, records, body.rejects, limits))
                continue
            # as `content_key`, without the calls: most bodies are one plain object
            if (time := records[0].time) is None:
                keys.append(None)
                continue
            if (second := time // SECOND) != last:
                last, seconds = second, (second & 0xFFFFFFFF).to_bytes(4, "big")
            keys.append(seconds + sha256(item).digest()[:CONTENT_BYTES])
        return keys

    def body_key(
        self, item: bytes, records: Sequence[Record], rejects: Sequence[Reject], limits: Limits
    ) -> bytes | None:
        """The key of a body; None: it has none. records, rejects: that it was decoded to, all of them."""
        if self.key is not None:
            given = self.key(records)
            return sha256(sent_by(item) + given).digest()[:GIVEN_BYTES] if given else None
        if item[:1] not in SPECIAL:
            return content_key(records, sha256(item)) if self.content and records else None
        if not records and (not rejects or rejects[0].reason.startswith(FORGED)):
            return None
        if keyed := KEYED_OBJECT.match(item):  # as below
            who = keyed[4] + b"\r" if keyed[4] else b""
            return sha256(b"%bidempotency-key\n%b" % (who, keyed[2] or keyed[3])).digest()[:GIVEN_BYTES]
        try:
            message = parse_message(item) if item.startswith(KEPT) else None
            who = sent_by(item)
            if message and (given := given_key(message)):
                return sha256(who + given).digest()[:GIVEN_BYTES]
            if not self.content or not records:
                return None
            body = message.body if message else item  # without its compression: the head of a gzip file has a time
            body = inflate_body(body, message.field("Content-Encoding") if message else "", limits.inflated)
        except Invalid:  # the decoder says why
            return None
        means = who
        if message:
            means += message.start + b"".join(raw_field(message.fields, name) + b"\n" for name in DECIDING)
        return content_key(records, sha256(means + body))


def content_key(records: Sequence[Record], digest: Any) -> bytes | None:
    """The key of a content. digest: of all that it means."""
    for record in records:
        if record.time is None:
            return None
    return timed_key(records[0].time, digest.digest())


def timed_key(time: int | None, digest: bytes) -> bytes | None:
    """time: nanoseconds since 1970; None: of arrival."""
    return None if time is None else (time // SECOND & 0xFFFFFFFF).to_bytes(4, "big") + digest[:CONTENT_BYTES]


def sent_by(item: bytes) -> bytes:
    """What the keys of an item begin with before they are hashed: its sender; b"" if it has none."""
    name = sender_of(item)
    return name.encode("latin-1") + b"\r" if name else b""  # neither a key nor a request line has a CR


def given_key(message: Message) -> bytes:
    """The key that the sender of a message gave, with the name of its field; b"" if there is none."""
    fields = lower_fields(message.fields)
    for name in KEYED_BYTES:
        if b"\r\n" + name + b":" not in fields:
            continue
        value = raw_field(message.fields, name.decode())
        if name == b"idempotency-key":
            value = idempotency_key(value.decode("latin-1")).encode()
        elif name == b"ce-id":
            source = raw_field(message.fields, "ce-source")
            value = source + b"\n" + value if source and value else b""
        if value:
            return name + b"\n" + value
    return b""


@cache
def record_key(fields: tuple[str, ...], unit: int = 1) -> Callable[[Any, bytes], bytes | None]:
    """What makes the key of a record, given `sent_by`; None: a record without a time or such a value has none.

    unit: nanoseconds of the last digit of a time that is stored.
    """
    encode = msgspec.json.Encoder(order="deterministic").encode
    values = attrgetter(*fields) if fields else lambda record: record
    timed = not fields or "time" in fields
    named = "\n".join((*fields, "")).encode()  # the same value of another field, before or later, is another key

    def key(record: Record, who: bytes) -> bytes | None:
        if timed and record.time and record.time % unit:
            record = replace(record, time=record.time - record.time % unit)
        found = values(record)
        if found is None or (len(fields) > 1 and None in found):
            return None
        if len(fields) == 1:
            found = as_stored(found)
        elif fields:
            found = [*map(as_stored, found)]
        text = encode(found)
        if not fields and b"-0.0" in text:
            text = encode(without_signs(record))
        digest = sha256(who + named + text).digest()
        return timed_key(record.time, digest) if timed else digest[:GIVEN_BYTES]

    return key


def without_signs(record: Record) -> Record:
    """The record with 0.0 for each -0.0 of its columns; within JSON they are two."""
    named = ((name, getattr(record, name)) for name in record.__struct_fields__)
    return replace(record, **{name: 0.0 for name, value in named if value.__class__ is float and value == 0})


def as_stored(value: Any) -> Any:
    """A value as the database has it, if JSON has several forms of that."""
    if value.__class__ is float:
        return value + 0.0  # -0.0 is 0.0
    if value.__class__ is not datetime:
        return value
    try:
        return in_utc(value)
    except OverflowError:  # the database rejects it
        return value
