"""What a stream is: name, record type, and the decoder that makes records of list items; and a user's streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sluice import registry
from sluice.settings import BATCH, Settings
from sluice.streams import custom
from sluice.streams.decoder import JsonDecoder
from sluice.streams.format import Format
from sluice.streams.lines import LineDecoder
from sluice.streams.record import Decoded, Limits, Record
from sluice.streams.unique import Recent, Rule

Decode = Callable[[bytes, Limits], Decoded]


class Stream(NamedTuple):
    """A stream: its name, its record type and its decoder.

    record: the type of all its records; the fields are the columns, `time` first.
    decode: `decode(item, limits)` returns what is `Decoded` of a list item, which is a body or a kept HTTP message,
        with a Reject for each part that cannot be stored. If nothing can be, it is exactly one Reject with `whole`. It
        never raises, and depends on nothing but its arguments.
    part: Decodes the fragment stored in a partial dead letter; defaults to `decode`.
    precision: "ms", or "ns" for times to the nanosecond.
    typed: its column `value` has values of several types, which `type` names, and `tags` is a map: see `Metric`.
    decoder: of which `decode` is the whole, if the bodies are JSON of which it may leave out fields.
    content, unique, key, recent: see `Rule`. rule: with INGEST_UNIQUE; None: nothing has a key.
    """

    name: str
    record: type[Record]
    decode: Decode
    part: Decode | None = None
    precision: str = "ms"
    content: bool = False
    unique: tuple[str, ...] | None = None
    key: Callable[[Sequence[Record]], bytes] | None = None
    recent: Callable[[bytes, Sequence[Record]], Recent | None] | None = None
    rule: Rule | None = None
    typed: bool = False
    decoder: JsonDecoder | None = None


def stream(
    name: str,
    record_type: type[Record],
    parse: Callable[[bytes], Record] | None = None,
    unique: Sequence[str] = (),
    precision: str = "ms",
    path: str = "",
    extra: bool = False,
) -> Stream:
    """A user-defined stream: docs/ADDING-A-STREAM.md.

    The bodies are JSON objects, arrays, NDJSON or forms with the fields of the record type, or CloudEvents whose `data`
    is such an object; with `parse`, lines of any other format.

    parse: makes one record from one line, without the white space around it. Raises: ValueError, whose text becomes
        the reason of the dead letter. Empty lines are skipped. Compression, heads and limits are handled before it.
    precision: "ns" stores times to the nanosecond.
    unique: fields; of the records that have the same values of them within INGEST_UNIQUE, one is stored.
    path: of its routes, with parts that vary: /ttn/{application}/*. A field of such a name, a str with a default, has
        that part of the request's path.
    extra: a column `extra` has, as JSON, the fields that the record type does not name.
    Raises: TypeError if the record type is not a subclass of Record or, with `parse`, not keyword-only, or lacks one of
        the unique fields or of those of the path.
    """
    record = custom.as_columns(record_type) if parse is None else custom.checked(record_type)
    columns = {name: custom.column(name, record_type.__struct_fields__) for name in record_type.__struct_fields__}
    if isinstance(unique, str) or not {*unique} <= columns.keys():
        raise TypeError(f"unique={unique!r} is no tuple of fields of {record_type.__name__}")
    fields = tuple(columns[name] for name in unique) if parse is None else tuple(unique)
    if parse is None:
        decoder = next(registry.load_hooks("own_decoder"), JsonDecoder)(*custom.wire_of(record))
        decode = decoder.fast_path()
    elif record.__struct_fields__[0] != "time":
        # a metaclass that sets kw_only loses CPython's vectorcall: 460 instead of 110 ns
        raise TypeError(f"the record type {record_type.__name__} needs kw_only=True: its first field must be time")
    else:
        decode, decoder = LineDecoder(record, parse).decode, None
    made = Stream(name, record, decode, None, precision, unique=fields or None, decoder=decoder)
    if extra:
        keep = next(registry.load_hooks("extra"), None)
        if keep is None:
            raise TypeError(f"extra=True: nothing here keeps the unknown fields of the stream {name!r}")
        made = keep(made)
    return made._replace(decode=custom.with_path(made.decode, path, made.record)) if path else made


def formats_of(stream: str) -> list[Format]:
    """The wire formats of a stream."""
    return [known for known in registry.declared_formats() if known.stream == stream]


def body_limits(config: Settings) -> Limits:
    """The limits of one body."""
    return Limits(BATCH * config.max_body)
