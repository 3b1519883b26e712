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
its own, with what stood above it, which a replay decodes like any other (`Refused`, `join`).

Both are rare, and to take a message apart takes five times as long as to let the class parse it with all below it. So a
message of protobuf of up to a mebibyte is parsed whole (`walk_whole`), as are the parts of a larger one. Where that
meets a message that is invalid, or the end of the budget, the message is taken apart after all, from there on: what
stood before is done, and charged alike (`Begun`).

Whatever a row inherits is written once more for each row, so it is charged to the budget before (`Context.size`).
The two encodings differ in how a message is taken apart and put together again; all else here is common to them.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from msgspec.structs import replace

from sluice.contrib.formats import protobuf
from sluice.contrib.formats.charges import charge_attempt, charge_rows
from sluice.contrib.formats.lenient_json import real_or_text
from sluice.contrib.formats.otlp_json import ODD, Names, arguments, converters, lenient_arguments, rename_fields
from sluice.contrib.formats.parts import Refused, decode_parts, encoded_size, finite_or_text
from sluice.streams import body as bodies
from sluice.streams.body import Budget, Empty, Remainder
from sluice.streams.decoder import CHUNK_BYTES, Result
from sluice.streams.message import Message
from sluice.streams.record import INT64, Invalid, Record

Tags = dict[str, Any]
NUL, OUT_OF_RANGE = "text with a NUL", "time out of range"
LATEST = INT64[-1]  # a time has 64 bits without a sign
# An attempt with `lenient_arguments` costs as much as one at LENIENT_BYTES and LENIENT_SHARE times the bytes of the
# message: it makes each field by itself
LENIENT_BYTES, LENIENT_SHARE = 512, 4
FEW = 1_000  # parsed messages of which a list is made, which takes half the time of the iterator
KEPT = 64  # dictionaries of attributes that are kept, of up to `MANY_PAIRS` each
FIELDS_PER_RECORD = 4  # of `Limits.records`, that a message may have


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
        # the fields of the children in the generated class: one that is repeated, or the members of a oneof
        self.fields = {fields[name].name: below for name, below in self.children.items()}
        self.oneof = next(
            (fields[name].containing_oneof.name for name in self.children if name not in self.repeated), ""
        )
        self.only = next(iter(self.fields), "")
        self.is_innermost = not self.children
        self.has_oneof: bool = bool(self.oneof) or any(below.has_oneof for below in self.children.values())
        self.has_leaves = not all(below.children for below in self.children.values())
        parts = [(name, msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for name in fields]
        self.wire: Any = msgspec.defstruct(kind.DESCRIPTOR.name, parts)

    def children_of(self, message: Any) -> tuple[Node, Sequence[Any]]:
        """The children of a parsed message, which are all of one kind, and that."""
        if not self.oneof:
            return self.fields[self.only], getattr(message, self.only)
        name = message.WhichOneof(self.oneof)
        return (self.fields[name], (getattr(message, name),)) if name else (self, ())


class Child(NamedTuple):
    """A child of a message: its name in JSON, and its bytes. A request has no name.

    rest: these are all children from there on, undecoded.
    """

    name: str
    data: bytes
    rest: bool = False


class Begun(NamedTuple):
    """A message of which some children are done: what it has besides them, their context, and their number."""

    own: bytes
    context: Any
    done: int


class Protobuf:
    """The encoding application/x-protobuf.

    at_once: messages may be parsed whole.
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

    def begin(self, node: Node, data: bytes, context: Any, budget: Budget, path: Sequence[int]) -> list[Begun]:
        """The messages along a path that are begun, from this one down. path: how many children of each are done.

        What would be wrong with one of them as a whole is not known before; then nothing of this message may be done.
        Raises: any exception.
        """
        begun, fields = list[Begun](), 0
        for done in path:
            own, _ = self.split(node, data, free := Budget(budget.limits))
            fields += budget.limits.records - free.left
            context = read_context(self, node, own, context, budget)
            begun.append(Begun(own, context, done))
            if len(begun) < len(path):
                name, data, _ = next(self.children(node, data, free, done))
                node = node.children[name]
        budget.left -= fields
        return begun

    def has_all(self, node: Node, data: bytes, budget: Budget) -> bool:
        """Whether the class has all children of a message: of several members of a oneof it has the last one."""
        count = 0
        for field in protobuf.split_fields(data, budget):
            if name := node.numbers.get(field.number):
                count += 1
                below = node.children[name]
                if below.has_oneof and not self.has_all(below, data[field.content : field.end], budget):
                    return False
        return count < 2 or not node.oneof

    def is_known(self, node: Node, data: bytes) -> bool:
        """Whether all fields of a message are known."""
        return not len(UnknownFieldSet(node.kind.FromString(data)))

    def children(
        self, node: Node, data: bytes, budget: Budget, done: int = 0, is_begun: bool = False
    ) -> Iterator[Child]:
        """The children behind those that are done. is_begun: the first of them is done in part."""
        for field in protobuf.split_fields(data):
            if name := node.numbers.get(field.number):
                if done:
                    done -= 1
                    continue
                if budget.left <= 0 and not is_begun:
                    yield Child(name, data[field.start :], True)
                    return
                is_begun = False
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
            charge_attempt(budget, LENIENT_BYTES + LENIENT_SHARE * len(data))
        try:
            return node.kind(**lenient_arguments(descriptor, json.loads(data, parse_float=real_or_text)))
        except (TypeError, ValueError, OverflowError) as error:
            raise Invalid(f"not a {descriptor.name} of OTLP: {error}") from None


class Context(msgspec.Struct, frozen=True, gc=False):
    """What a message inherits: the attributes of its resource and scope, and of these the names that the scope has.

    name: of the metric. service: of a log record or span. size: of all this in a row, in bytes. kept: what a decoder
        has made for messages with the same context.
    """

    budget: Budget
    tags: Tags = {}
    scope: Tags = {}
    name: str = ""
    service: str | None = None
    size: int = 0
    kept: dict[Any, Any] = {}

    def keep(self, key: Any, made: Any) -> None:
        if len(self.kept) >= KEPT:
            self.kept.clear()
        self.kept[key] = made

    def merged(self, own: Tags) -> Tags:
        """The attributes with a message's own. An inherited one with the same name and another value is renamed."""
        if not own:
            return self.tags
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
    encoding: Protobuf | Json,
    node: Node,
    message: Child,
    context: Any,
    budget: Budget,
    above: Refused[Child],
    begun: Sequence[Begun] = (),
) -> Iterator[Record]:
    """The records of a message that has children. What it has besides them is refused once, however many of them are
    invalid.

    begun: it and the messages below it that are done in part.
    """
    data = message.data
    children: Iterator[Child] | None
    if isinstance(encoding, Protobuf) and encoding.at_once and not begun and len(data) <= budget.limits.record:
        records, parts = walk_whole(encoding, node, data, context, budget)
        yield from records
        if parts is None:
            return
        begun = parts
    if begun:
        assert isinstance(encoding, Protobuf)
        own, context, done = begun[0]
        children = encoding.children(node, data, budget, done, len(begun) > 1)
    else:
        try:
            own, children = encoding.split(node, data, budget)
            if children is None and (
                (not message.name and data.strip() not in (b"", b"{}"))
                or len(data) > budget.limits.record // 4
                or not encoding.is_known(node, data)
            ):
                raise Invalid(f"not OTLP: {node.kind.DESCRIPTOR.name} without {' or '.join(node.children)}")
            context = read_context(encoding, node, own, context, budget)
        except Exception as error:
            above.refuse(message, error, budget, len(message.data))
            return
    refused = Refused[Child]()
    below_begun = begun[1:]
    for child in children or ():
        if child.rest:
            refused.rest.append(child)
            continue
        below = node.children[child.name]
        if not below.children:  # the innermost messages are charged for their records
            left = budget.left
            yield from innermost(encoding, below, child, context, budget, refused)
        else:
            budget.left -= not below_begun
            left = budget.left
            yield from walk_messages(encoding, below, child, context, budget, refused, below_begun)
            below_begun = ()
        budget.charge_part(left)
    above.inside(refused, lambda parts: Child(message.name, encoding.join(node, own, parts)))


def read_context(encoding: Protobuf | Json, node: Node, own: bytes, context: Any, budget: Budget) -> Any:
    """The context of the children of a message. own: the message without them. Raises: any exception."""
    context = node.read(parse_node(encoding, node, own, budget), context)
    return context_size(context) if node.has_leaves else context


def walk_whole(
    encoding: Protobuf, node: Node, data: bytes, context: Context, budget: Budget
) -> tuple[list[Record], list[Begun] | None]:
    """The records of a message that is parsed with all below it, up to the first that has to be taken apart; and the
    messages above that one, which are begun. None: all is done.
    """
    left, room = budget.left, budget.room
    records: list[Record] = []
    try:
        message = node.kind.FromString(data)
        if len(data) > budget.limits.record // 4:
            check_sizes(node, message, budget.limits.record // 4)
        # most senders write each field once, and only if it has a value
        if node.has_oneof and message.ByteSize() != len(data) and not encoding.has_all(node, data, budget):
            raise Invalid("several members of a oneof")
        path = walk_parsed(node, message, context, budget, records)
        if path is None and node.children_of(message)[1]:
            return records, None
        return records, encoding.begin(node, data, context, budget, path or ())
    except Exception:
        budget.left, budget.room = left - len(records) // 2, room  # they are made once more
        return [], []


def walk_parsed(
    node: Node, message: Any, context: Context, budget: Budget, records: list[Record]
) -> tuple[int, ...] | None:
    """Add the records of a parsed message. Charges as `walk_messages`, but for the records: who yields them does.

    Returns: None; or, if it met one that has to be taken apart, the place of it: how many children are done of each
    message above it. That one is not charged.
    """
    try:
        context = node.read(message, context)
        if node.has_leaves and not context.size:
            context = context_size(context)
    except Exception:
        return ()
    done = 0
    below, children = node.children_of(message)
    if not below.is_innermost:
        for child in children:
            if budget.left <= len(records):
                return (done,)
            budget.left -= 1
            path = walk_parsed(below, child, context, budget, records)
            if path is not None:
                budget.left += not path
                return (done, *path)
            done += 1
    else:
        read, size = below.read, context.size
        for child in children[:] if len(children) < FEW else children:
            left, room = budget.left, budget.room
            if left <= len(records):
                return (done,)
            budget.left = left - 1
            try:
                made = read(child, context)
                charge_rows(budget, len(made), size)
            except Exception:
                budget.left, budget.room = left, room
                return (done,)
            records += made
            done += 1
    if not done:
        if len(UnknownFieldSet(message)):  # what is in such a field would be lost
            return ()
        budget.left -= bodies.EMPTY_COST
    return None


def check_sizes(node: Node, message: Any, most: int) -> None:
    """Raises: Invalid if a message below has to be taken apart for its size: each has a limit without its children."""
    size = message.ByteSize()
    if size <= most:
        return
    below, children = node.children_of(message) if node.children else (node, ())
    if size - sum(child.ByteSize() for child in children) > most:
        raise Invalid("large")
    for child in children:
        check_sizes(below, child, most)


def innermost(
    encoding: Protobuf | Json, node: Node, message: Child, context: Any, budget: Budget, above: Refused[Child]
) -> Sequence[Record]:
    """`walk_messages` for a message without children."""
    try:
        budget.left -= 1
        records: Sequence[Record] = node.read(parse_node(encoding, node, message.data, budget), context)
        charge_rows(budget, len(records), context.size)
    except Exception as error:
        above.refuse(message, error, budget, len(message.data))
        return ()
    return records


def context_size(context: Context) -> Context:
    size = encoded_size(context.tags, context.name, context.service)
    return replace(context, size=size)


def parse_node(encoding: Protobuf | Json, node: Node, data: bytes, budget: Budget) -> Any:
    """A message of a bounded size. Raises: Invalid."""
    if len(data) > budget.limits.record // 4:
        raise Invalid(f"{node.kind.DESCRIPTOR.name} larger than {budget.limits.record // 4} bytes")
    return encoding.parse(node, data, budget)


def identity(sent: bytes) -> str:
    """An id in hexadecimal, or as it was sent in JSON. Raises: Invalid if a text cannot be stored."""
    return checked_text(sent[len(ODD) :].decode()) if sent.startswith(ODD) else sent.hex()


def attributes(pairs: Sequence[Any], convert: Callable[[Any], Any]) -> Tags:
    """Attributes (KeyValue) by their names. Raises: Invalid if a text cannot be stored."""
    made: Tags = {}
    for pair in pairs[:]:  # a list, which takes half the time of the iterator
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
    return replace(context, tags=context.merged(own), scope=own, kept={})


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
    if number := value.int_value:
        return str(number)
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
    if nanoseconds > LATEST:
        raise Invalid(OUT_OF_RANGE)
    return nanoseconds or None
