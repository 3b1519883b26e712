"""Takes requests of OTLP/HTTP apart (opentelemetry.io/docs/specs/otlp): what metrics, logs and traces have in common.

A request has resources, a resource has scopes, and a scope has metrics, log records or spans:

    ExportMetricsServiceRequest            ExportLogsServiceRequest     ExportTraceServiceRequest
      resourceMetrics                        resourceLogs                 resourceSpans
        resource, scopeMetrics                 resource, scopeLogs          resource, scopeSpans
          scope, metrics                         scope, logRecords            scope, spans
            gauge | sum | …: dataPoints

Each level is a `Node`: the generated class of its messages, and which of their fields are nodes again. `walk_messages`
goes down this tree. Of a message it takes the children out, unparsed, and decodes the rest, which is small; this makes
the context that the children inherit: attributes, the metric's name, the service. The innermost messages make rows.

So messages are decoded by OpenTelemetry's classes, but one at a time, for two reasons. A request of 8 MiB that were
decoded as a whole could take 300 MB. And an invalid message does not make the others invalid: it becomes a request of
its own, with what stood above it, which a replay decodes like any other (`Refused`, `join`). Where a message of
protobuf is small, its innermost children are decoded together, in half the time; if any of them is invalid, they are
taken one by one after all (`together`).

Whatever a row inherits is written once more for each row, so it is charged to the budget before (`Context.size`).
The two encodings differ in how a message is taken apart and put together again; all else here is common to them.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from sluice.contrib.formats import protobuf
from sluice.contrib.formats.lenient_json import real_or_text
from sluice.contrib.formats.otlp_json import ODD, Names, arguments, converters, lenient_arguments, rename_fields
from sluice.contrib.formats.parts import Refused, encoded_size, finite_or_text
from sluice.streams import body as bodies
from sluice.streams.body import Budget, Empty, Remainder
from sluice.streams.decoder import CHUNK_BYTES, Result, decode_parts
from sluice.streams.message import Message
from sluice.streams.record import INT64, Invalid, Record

Tags = dict[str, Any]
NUL = "text with a NUL"
# An attempt with `lenient_arguments` costs as much as one at LENIENT_BYTES and LENIENT_SHARE times the bytes of the
# message: it makes each field by itself
LENIENT_BYTES, LENIENT_SHARE = 512, 4
FIELDS_PER_RECORD = 4  # of `Limits.records`, that a message may have
MOST_TOGETHER = 5_000  # rows that are made at once: some megabytes


class Node:
    """A kind of message in a request.

    kind: the generated class.
    read: makes the context of the children, from the message without them and its own context; of a message that has
        no children, its records. Raises: Invalid.
    children: the fields that are nodes, by their names in JSON. A message that has none of them, but a field that is
        not known here, is invalid: what is in it would be lost, such as the spans of OTLP before 0.15. So is a request
        that has other fields, but no child.
    """

    def __init__(self, kind: Any, read: Callable[[Any, Any], Any], children: dict[str, Node] | None = None) -> None:
        self.kind, self.read, self.children = kind, read, children or {}
        fields = kind.DESCRIPTOR.fields_by_camelcase_name
        self.numbers = {fields[name].number: name for name in self.children}
        self.repeated = {name for name in self.children if fields[name].is_repeated}
        is_last = self.repeated == {name for name, below in self.children.items() if not below.children}
        # if all children are innermost, their fields in the generated class, and what makes records of each
        self.leaves = [(fields[name].name, below.read) for name, below in self.children.items() if is_last]
        parts = [(name, msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for name in fields]
        self.wire: Any = msgspec.defstruct(kind.DESCRIPTOR.name, parts)


class Child(NamedTuple):
    """A child of a message: its name in JSON, and its bytes. A request has no name.

    rest: these are all children from there on, undecoded.
    """

    name: str
    data: bytes
    rest: bool = False


class Protobuf:
    """The encoding application/x-protobuf.

    at_once: a message may be decoded as a whole.
    """

    at_once = True

    def split(self, node: Node, data: bytes, budget: Budget) -> tuple[bytes, Iterator[Child] | None]:
        """The fields of a message that are not its children; and these, None if it has none. Raises: Invalid.

        Once the budget is used up, the children from there on are in one piece.
        """
        own, at = [], 0
        for count, field in enumerate(protobuf.split_fields(data, budget)):
            if count >= FIELDS_PER_RECORD * budget.limits.records:
                raise Invalid(f"not OTLP: a message with more than {count} fields")
            if field.number in node.numbers:
                own.append(data[at : field.start])
                at = field.end
        return b"".join([*own, data[at:]]), self.children(node, data, budget) if own else None

    def is_known(self, node: Node, data: bytes) -> bool:
        """Whether all fields of a message are known."""
        return not len(UnknownFieldSet(node.kind.FromString(data)))

    def children(self, node: Node, data: bytes, budget: Budget) -> Iterator[Child]:
        for field in protobuf.split_fields(data):
            if name := node.numbers.get(field.number):
                if budget.left <= 0:
                    yield Child(name, data[field.start :], True)
                    return
                yield Child(name, data[field.content : field.end])

    def join(self, node: Node, own: bytes, children: list[Child]) -> bytes:
        """A message with these children."""
        known = node.kind.DESCRIPTOR.fields_by_camelcase_name
        return own + b"".join(
            child.data if child.rest else protobuf.encode_field(known[child.name].number, child.data)
            for child in children
        )

    def parse(self, node: Node, data: bytes, budget: Budget) -> Any:
        try:
            return node.kind.FromString(data)
        except DecodeError:
            raise Invalid(f"not a {node.kind.DESCRIPTOR.name} of OTLP") from None


class Json:
    """The encoding application/json: the JSON mapping of protobuf, but ids are hexadecimal, and names are camelCase.

    Its methods are those of `Protobuf`.
    """

    at_once = False

    def is_known(self, node: Node, data: bytes) -> bool:
        return msgspec.json.decode(data, type=Names).keys() <= converters(node.kind.DESCRIPTOR).keys()

    def split(self, node: Node, data: bytes, budget: Budget) -> tuple[bytes, Iterator[Child] | None]:
        wire = msgspec.json.decode(data, type=node.wire)
        sent = {name: memoryview(raw) for name in node.children if (raw := getattr(wire, name)) is not msgspec.UNSET}
        for name, value in sent.items():
            if name in node.repeated and bytes(value[:1]) not in (b"[", b"n"):
                raise Invalid(f"not OTLP: {name} is not an array")
            setattr(wire, name, msgspec.UNSET)
        return msgspec.json.encode(wire), self.children(node, sent, budget) if sent else None

    def children(self, node: Node, sent: dict[str, memoryview], budget: Budget) -> Iterator[Child]:
        for name, child in sent.items():
            if bytes(child[:1]) == b"n":  # null
                continue
            if name not in node.repeated:
                yield Child(name, bytes(child), budget.left <= 0)
                continue
            if len(child) <= CHUNK_BYTES:
                parts = msgspec.json.decode(child, type=list[msgspec.Raw])
                for at, part in enumerate(parts):
                    if budget.left <= 0:
                        yield Child(name, b",".join(map(bytes, parts[at:])), True)
                        break
                    yield Child(name, bytes(part))
                continue
            for element in bodies.split_elements(child, budget):
                if isinstance(element, Remainder):
                    yield Child(name, element[:-1], True)  # without the bracket at its end
                    break
                yield Child(name, element)

    def join(self, node: Node, own: bytes, children: list[Child]) -> bytes:
        members = [own[1:-1]] if own != b"{}" else []
        for name in node.children:
            if found := [child.data for child in children if child.name == name]:
                value = b",".join(found)
                members.append(b'"%b":%b' % (name.encode(), b"[%b]" % value if name in node.repeated else value))
        return b"{%b}" % b",".join(members)

    def parse(self, node: Node, data: bytes, budget: Budget) -> Any:
        descriptor = node.kind.DESCRIPTOR
        try:
            return node.kind(**arguments(descriptor, msgspec.json.decode(data)))
        except (TypeError, ValueError, OverflowError, msgspec.ValidationError):
            budget.attempt(LENIENT_BYTES + LENIENT_SHARE * len(data))
        try:
            return node.kind(**lenient_arguments(descriptor, json.loads(data, parse_float=real_or_text)))
        except (TypeError, ValueError, OverflowError) as error:
            raise Invalid(f"not a {descriptor.name} of OTLP: {error}") from None


class Context(NamedTuple):
    """What a message inherits: the attributes of its resource and scope, and of these the names that the scope has.

    name: of the metric. service: of a log record or span. size: of all this in a row, in bytes.
    """

    budget: Budget
    tags: Tags = {}
    scope: Tags = {}
    name: str = ""
    service: str | None = None
    size: int = 0

    def merged(self, own: Tags) -> Tags:
        """The attributes with a message's own. An inherited one with the same name and another value is renamed."""
        tags = self.tags | own
        if len(tags) < len(self.tags) + len(own):
            for name in self.tags.keys() & own.keys():
                if own[name] != self.tags[name]:
                    tags[("scope." if name in self.scope else "resource.") + name] = self.tags[name]
        return tags


def decode(root: Node, body: bytes, message: Message, budget: Budget) -> Iterator[Result]:
    """The records of a request. JSON may have one request per line, as OpenTelemetry's file exporter writes it.

    Raises: Invalid if it is no request; Empty if there is nothing in it.
    """
    body = body.removeprefix(bodies.BOM)
    declared = message.field("content-type").lower().startswith("application/json")
    if not declared and not body.startswith(b"{"):
        return decode_request(Protobuf(), root, body, budget)

    def checked(text: bytes) -> Iterator[Result]:
        bodies.check_json(text)
        return decode_request(Json(), root, rename_fields(text, budget), budget)

    try:
        return checked(body.strip())
    except Invalid:
        if not declared or b"\n" not in body.strip():  # a line of its own might be taken for protobuf
            raise
        return decode_parts(bodies.split_lines(body, budget), checked, budget)


def decode_request(encoding: Protobuf | Json, root: Node, data: bytes, budget: Budget) -> Iterator[Result]:
    """The records of one request. Raises: Empty if there is nothing in it."""
    refused = Refused[Child]()
    has_record = False
    for record in walk_messages(encoding, root, Child("", data), Context(budget), budget, refused):
        has_record = True
        yield record
    yield from refused.rejects(lambda parts: parts[0].data)  # there is one
    if not (has_record or refused.invalid or refused.rest):
        raise Empty


def walk_messages(
    encoding: Protobuf | Json, node: Node, message: Child, context: Any, budget: Budget, above: Refused[Child]
) -> Iterator[Record]:
    """The records of a message that has children. What it has besides them is refused once, however many of them are
    invalid.
    """
    data = message.data
    if node.leaves and encoding.at_once and (records := together(node, data, context, budget)):
        yield from records
        return
    try:
        own, children = encoding.split(node, data, budget)
        if children is None and (
            (not message.name and data.strip() not in (b"", b"{}"))
            or len(data) > budget.limits.record // 4
            or not encoding.is_known(node, data)
        ):
            raise Invalid(f"not OTLP: {node.kind.DESCRIPTOR.name} without {' or '.join(node.children)}")
        context = node.read(parse_node(encoding, node, own, budget), context)
        if not all(below.children for below in node.children.values()):
            context = context_size(context)
    except Exception as error:
        above.refuse(message, error, budget, len(message.data))
        return
    refused = Refused[Child]()
    for child in children or ():
        if child.rest:
            refused.rest.append(child)
        else:
            below = node.children[child.name]
            budget.left -= bool(below.children)  # the innermost messages are charged for their records
            left = budget.left
            inside = walk_messages if below.children else innermost
            yield from inside(encoding, below, child, context, budget, refused)
            budget.pay(left)
    above.inside(refused, lambda parts: Child(message.name, encoding.join(node, own, parts)))


def together(node: Node, data: bytes, context: Context, budget: Budget) -> list[Record]:
    """The records of a message of protobuf that is no larger than a child may be, decoded as a whole in half the time.

    []: it has none, or they are not all valid, or too many; to decode the children one by one finds which are.
    """
    if len(data) > budget.limits.record // 4:
        return []
    left, room = budget.left, budget.room
    records: list[Record] = []
    try:
        message = node.kind.FromString(data)
        context = context_size(node.read(message, context))
        for name, read in node.leaves:
            for child in getattr(message, name):
                budget.left -= 1
                made = read(child, context)
                budget.repeat(len(made), context.size)
                records += made
                if len(records) >= budget.left or len(records) > MOST_TOGETHER:  # `repeat` may use it up
                    raise Invalid("too many")
    except Exception:
        budget.left, budget.room = left - len(records) // 2, room  # they are made once more
        return []
    return records


def innermost(
    encoding: Protobuf | Json, node: Node, message: Child, context: Any, budget: Budget, above: Refused[Child]
) -> Sequence[Record]:
    """`walk_messages` for a message without children."""
    try:
        budget.left -= 1
        records: Sequence[Record] = node.read(parse_node(encoding, node, message.data, budget), context)
        budget.repeat(len(records), context.size)
    except Exception as error:
        above.refuse(message, error, budget, len(message.data))
        return ()
    return records


def context_size(context: Context) -> Context:
    return context._replace(size=encoded_size(context.tags, context.name, context.service))


def parse_node(encoding: Protobuf | Json, node: Node, data: bytes, budget: Budget) -> Any:
    """A message of a bounded size. Raises: Invalid."""
    if len(data) > budget.limits.record // 4:
        raise Invalid(f"{node.kind.DESCRIPTOR.name} larger than {budget.limits.record // 4} bytes")
    return encoding.parse(node, data, budget)


def identity(sent: bytes) -> str:
    """An id in hexadecimal, or as it was sent in JSON. Raises: Invalid if a text cannot be stored."""
    return checked_text(sent[len(ODD) :].decode()) if sent.startswith(ODD) else sent.hex()


def attributes(pairs: Iterable[Any], convert: Callable[[Any], Any]) -> Tags:
    """Attributes (KeyValue) by their names. Raises: Invalid if a text cannot be stored."""
    made: Tags = {}
    for pair in pairs:
        key, value = pair.key, pair.value
        content = value.string_value  # of most of them; no conversion changes it
        if "\0" in key or "\0" in content:
            raise Invalid(NUL)
        made[key] = content or convert(value)
    return made


def scope_context(convert: Callable[[Any], Any], message: Any, context: Context) -> Context:
    """The context below a scope. Its name and version are attributes, as OpenTelemetry names them elsewhere."""
    scope = message.scope
    own = attributes(scope.attributes, convert)
    for name, value in ("otel.scope.name", scope.name), ("otel.scope.version", scope.version):
        if value:
            own[name] = checked_text(value)
    return context._replace(tags=context.merged(own), scope=own)


def any_value(value: Any) -> Any:
    """An AnyValue as a JSON value. Bytes are base64; a number that JSON does not have is a text."""
    if content := value.string_value:  # of most of them
        return checked_text(content)
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    content = getattr(value, kind)
    if kind == "double_value":
        return finite_or_text(content)
    if kind == "array_value":
        return [any_value(element) for element in content.values]
    if kind == "kvlist_value":
        return attributes(content.values, any_value)
    return b64encode(content).decode() if kind == "bytes_value" else content


def any_text(value: Any) -> str:
    """An AnyValue as a text: a string as it is, anything else as JSON."""
    content = any_value(value)
    if isinstance(content, str):
        return content
    return "" if content is None else msgspec.json.encode(content).decode()


def checked_text(text: str) -> str:
    """The text, if every database can hold it. Raises: Invalid."""
    if "\0" in text:
        raise Invalid(NUL)
    return text


def checked_time(nanoseconds: int) -> int | None:
    """A time; None if it is not known. Raises: Invalid."""
    if nanoseconds not in INT64:
        raise Invalid("time out of range")
    return nanoseconds or None
