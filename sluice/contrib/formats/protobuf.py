"""The messages of Prometheus and Loki; splits protobuf in bounded memory, and uncompresses snappy, for OTLP too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from sluice.contrib.formats.charges import BRACKETS, charge_work, inflate_part
from sluice.contrib.formats.remote_write_counts import Uncounted, read_varint
from sluice.streams.body import Budget
from sluice.streams.record import Invalid

# cd sluice/contrib/formats && protoc -I. -o messages.binpb loki.proto prometheus.proto
# Unlike the Python that protoc can generate, descriptors fit every version of the library.
DESCRIPTORS = Path(__file__).with_name("messages.binpb")
FEW_FIELDS, FIELD_BYTES = 100_000, 16  # a message may have so many fields, and one more for each 16 bytes
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5  # wire types


class Field(NamedTuple):
    """A field of a message: its number, and the offsets of its tag, of its content and of its end."""

    number: int
    start: int
    content: int
    end: int


def load_messages(name: str, undecoded: str = "") -> SimpleNamespace:
    """The classes of the messages and enums in NAME.proto, by their names.

    undecoded: MESSAGE.FIELD, a field of messages that is left as their bytes.
    """
    pool = DescriptorPool()
    for each in FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file:
        for message in each.message_type:
            for field in message.field:
                if f"{message.name}.{field.name}" == undecoded:
                    field.type = FieldDescriptorProto.TYPE_BYTES
                    field.ClearField("type_name")
        pool.Add(each)
    file = pool.FindFileByName(f"{name}.proto")
    classes = {key: GetMessageClass(message) for key, message in file.message_types_by_name.items()}
    return SimpleNamespace(**classes, **{key: EnumTypeWrapper(enum) for key, enum in file.enum_types_by_name.items()})


def parse_message(kind: Any, data: bytes) -> Any:
    """A message of this class. Raises: Invalid."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise Invalid(f"not protobuf: {error}") from None


def split_fields(message: bytes, budget: Budget | None = None) -> Iterator[Field]:
    """The fields whose content has a length: messages, strings, packed numbers. Skips all others.

    The library decodes a message as a whole, and an empty one of 2 bytes takes 100 bytes of memory. So the
    decoders let them decode one repeated message at a time. Raises: Invalid if it is not a protobuf message, or has
    more fields than one of this size needs: to look for the next one takes as long for two bytes as for a series.
    budget: pays for them. Raises: Exhausted.
    """
    at, size = 0, len(message)
    left = most = FEW_FIELDS + size // FIELD_BYTES
    try:
        while at < size:
            left -= 1
            if budget and not (most - left) % BRACKETS:
                charge_work(budget, 1)
            if left < 0:
                raise Invalid(f"a message with more than {most} fields")
            tag, content = message[at], at + 1
            if tag >= 0x80:
                tag, content = read_varint(message, content)
            kind, end = tag & 7, content
            if kind == LENGTH:
                length, content = message[content], content + 1
                if length >= 0x80:
                    length, content = read_varint(message, content)
                end = content + length
            elif kind == VARINT:
                end = content + 1
                if message[content] >= 0x80:
                    _, end = read_varint(message, end)
            elif kind in (FIXED32, FIXED64):
                end = content + (8 if kind == FIXED64 else 4)
            else:
                raise Invalid("not protobuf: unknown wire type")
            if end > size:
                raise Invalid("not protobuf: truncated")
            if kind == LENGTH:
                yield Field(tag >> 3, at, content, end)
            at = end
    except IndexError:
        raise Invalid("not protobuf: truncated") from None
    except Uncounted:
        raise Invalid("not protobuf: number too long") from None


def encode_field(number: int, content: bytes) -> bytes:
    """A field with this number and content, as it stands in a message."""
    length, written = len(content), bytearray([number << 3 | LENGTH])
    while length >= 0x80:
        written.append(length & 0x7F | 0x80)
        length >>= 7
    written.append(length)
    return bytes(written) + content


def uncompress(data: bytes, budget: Budget) -> bytes:
    """The content of a snappy block. Raises: Invalid if it is damaged, or has more content than a body may."""
    return inflate_part(budget, data, "snappy", grows=True)
