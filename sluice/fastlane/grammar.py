"""Recognises plain requests, and declines all others.

A second parser of HTTP is a risk: where two parsers of one connection differ, one request can be smuggled in the body
of another. So this one never repairs and never guesses. Either a head matches the grammar below, and then gunicorn
would make the same environ of it (tests/fastlane/test_grammar.py compares), or it is declined, and gunicorn's parser
gets all of its bytes, as if this one did not exist. The names are those of RFC 9110 and 9112:

    head    = line CRLF 1*(field CRLF) CRLF                 at most `max_head` bytes, `max_fields` fields
    line    = ("POST" / "GET") SP path ["?" query] SP "HTTP/1.1"
    path    = *("/" 1*(ALPHA / DIGIT / "." / "_" / "~" / "-")) ["/"]
    query   = *(%x21-22 / %x24-7E)                          printable ASCII without SP and "#"
    field   = token ":" *(HTAB / %x20-7E / %x80-FF)         no "_" in the token, no name twice

with one Host, one Content-Length of up to ten digits in a POST and none in a GET, a Connection that is "close" or
"keep-alive" if there is one, and none of DECLINED. What is left out needs a decision that the standards leave open, or
that servers take differently: an encoded path (%2F), one that begins with "//" and may be an authority, the absolute
form, chunks, trailers, repeated and folded fields, bare CR or LF, HTTP/1.0.

Most heads are never parsed. A sender repeats its head, and behind nginx senders' heads are equal, so the lane keeps
what it made of one, in four steps that each cost more than the one before (`parse`):

1. the same bytes: a look into a dictionary, by the caller;
2. the same bytes but for the query of a GET, the Idempotency-Key of a POST, or what else differs between two POSTs of
   one shape: an id, a signature, a length (`Template`). The values are checked and replaced;
3. the same shape (`shape`): the line without its query, and per field its name, with its value only if that decides
   something: DECIDING, or what is not a plain Content-Length. Other values are checked to be printable, and those that
   the application wants go into the environ;
4. a new shape: the grammar above, once (`parse_new`).

A head goes into the dictionary when it comes for the second time: one with an id of its own comes once. Keys of the
steps cannot be confused: those of 2 and 3 lack a CRLF that each head has, and the templates of a line are found by it
and a CR, which no shape has.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from io import BytesIO
from typing import Any

from gunicorn.http.wsgi import base_environ

CACHED_HEADS = 1024  # 3 kB each
MAX_TEMPLATES = 8  # of one request line
MAX_CACHED_BYTES = 1024  # a longer head is not cached
TOKEN = rb"[!#$%&'*+.^`|~0-9A-Za-z-]+"  # RFC 9110, 5.6.2, without "_", which gunicorn may drop or reject
# The path needs no decoding and cannot be read as an authority; the query is printable ASCII without a fragment.
LINE = re.compile(rb"(POST|GET) ((?:/[A-Za-z0-9._~-]+)*/?)(?:\?([!\"$-~]*))? HTTP/1\.1")
FIELDS = re.compile(rb"((?:" + TOKEN + rb":[\t -~\x80-\xff]*\r\n)+)\r\n")
FIELD = re.compile(rb"(" + TOKEN + rb"):([\t -~\x80-\xff]*)\r\n")
LENGTH = re.compile(r"0|[1-9][0-9]{0,9}")
DECLINED = frozenset((b"TRANSFER-ENCODING", b"EXPECT", b"UPGRADE", b"HTTP2-SETTINGS", b"TRAILER", b"TE"))
DECIDING = frozenset(("HTTP_HOST", "HTTP_CONNECTION", "CONTENT_TYPE", "HTTP_CONTENT_ENCODING"))

# The environ without the body, the length of the body in bytes, and whether the connection stays open
ParsedHead = tuple[dict[str, Any], int, bool]
# The cache of a listener. A head that came twice is there as a `ParsedHead` with an environ of its own; one that came
# once is there with None. The environs of steps 2 and 3 have the values of the request that came last. By the line of a
# POST there is a list of templates
Heads = dict[bytes, Any]
PRINTABLE = bytes([9, *range(32, 127), *range(128, 256)])
QUERY = bytes([33, 34, *range(36, 127)])
KEY = b"\r\nIdempotency-Key: "  # as nginx passes it; other spellings are parsed as other fields are


class Template:
    """POSTs of one shape: the bytes that all of them have, and the fields whose values differ.

    places: of the lines with such a field. begin: the bytes before the first value. pieces: those behind each value.
    wanted: the numbers of the values that the environ has, and their keys. is_repeated: only lengths differ, so a head
    may come again.
    """

    __slots__ = "begin", "environ", "is_repeated", "keep_alive", "length", "pieces", "places", "shape", "wanted"

    def __init__(
        self, lines: list[bytes], places: set[int], shape: bytes, known: dict[bytes, str], parsed: ParsedHead
    ) -> None:
        """known: see `Grammar`."""
        self.places, self.shape = places, shape
        environ, self.length, self.keep_alive = parsed
        self.environ = environ.copy()
        keys = []
        pieces = [lines[0]]
        for at, line in enumerate(lines[1:], 1):
            if at in places:
                name = line.partition(b":")[0]
                keys.append(known[name])
                pieces[-1] += b"\r\n" + name + b":"
                pieces.append(b"")
            else:
                pieces[-1] += b"\r\n" + line
        self.begin, *self.pieces = pieces
        self.wanted = [(number, key) for number, key in enumerate(keys) if key]
        self.is_repeated = keys == ["CONTENT_LENGTH"]

    def fill(self, head: bytes) -> ParsedHead | None:
        """Set the values of a head in the environ. None: it differs in more than these, or one is malformed."""
        if not head.startswith(self.begin):
            return None
        at = len(self.begin)
        values = []
        for piece in self.pieces:
            end = head.find(piece, at)
            if end < 0:
                return None
            values.append(head[at:end])
            at = end + len(piece)
        if b"".join(values).translate(None, PRINTABLE):
            return None
        environ, length = self.environ, self.length
        for number, key in self.wanted:
            text = values[number].strip(b" \t").decode("latin-1")
            if key == "CONTENT_LENGTH":
                if text == "0" or not LENGTH.fullmatch(text):
                    return None
                length = int(text)
            environ[key] = text
        environ["fastlane.head"] = head
        return environ, length, self.keep_alive


class Grammar:
    """Parses plain heads as gunicorn's parser does, and declines all others."""

    def __init__(
        self,
        cfg: Any,
        wanted: Collection[str] | None = None,
        plainness: Callable[[dict[str, Any], bool], object] = lambda environ, has_query: "",
    ) -> None:
        """cfg: gunicorn's settings; its limits apply. wanted: the fields that the environ has; None: all.

        plainness: see `Options`.
        """
        self.plainness = plainness
        self.base = base_environ(cfg)
        self.base.update({"SCRIPT_NAME": "", "SERVER_PROTOCOL": "HTTP/1.1"})
        limits = cfg.limit_request_line, cfg.limit_request_field_size
        self.max_head = min(limit for limit in (*limits, 8190) if limit > 0)
        self.max_fields = cfg.limit_request_fields if cfg.limit_request_fields > 0 else 100
        self.schemes = {name.encode(): value for name, value in cfg.secure_scheme_headers.items()}
        self.wanted = wanted
        # By name as received: the key in the environ of a field that decides nothing; "": the environ does not have it
        self.known: dict[bytes, str] = {}

    def parse(self, head: bytes, server: Any, heads: Heads) -> ParsedHead | None:
        """Parse a head that is not in the cache, or came once; including its empty line. None: declined.

        The environ is shared with the next request of this shape. server: the listener's name from getsockname().
        heads: of the listener.
        """
        if len(head) > self.max_head:
            return None
        begin = without = b""
        if is_get := head.startswith(b"GET "):
            at = head.find(b"?", 0, head.find(b"\r")) + 1
        elif at := head.find(KEY) + 1:
            at += len(KEY) - 1
        if at:
            end = head.find(b" " if is_get else b"\r", at)
            without = head[:at] + head[end:-2]  # no head has these bytes: a line end is missing
            if (parsed := heads.get(without)) and self.replace(parsed[0], head, head[at:end], is_get):
                return remember_head(heads, head, parsed) if is_get else parsed
        elif not is_get:
            begin = head[: head.find(b"\r") + 1]
            for template in heads.get(begin, ()):
                if parsed := template.fill(head):
                    return remember_head(heads, head, parsed) if template.is_repeated else parsed
        lines = head.split(b"\r\n")
        # nothing else than lines of printable characters
        if head.translate(None, PRINTABLE) != b"\r\n" * (len(lines) - 1):
            return None
        shape, values = self.shape(lines)
        parsed = heads.get(shape)
        if parsed is None:
            parsed = self.parse_new(head, server)
            if parsed is None:
                return None
            self.learn(lines)
            shape, values = self.shape(lines)
            if len(shape) <= MAX_CACHED_BYTES:
                keep_head(heads, shape, parsed)
        environ, length, keep_alive = parsed
        environ.update(values)
        before = environ.get("fastlane.head", head)
        environ["fastlane.head"] = head
        if length:
            length = int(values["CONTENT_LENGTH"])
            parsed = environ, length, keep_alive
        if begin and before != head and before.startswith(begin):
            self.keep_template(heads, lines, before.split(b"\r\n"), shape, parsed)
        if without:
            remember_head(heads, without, parsed)
        return remember_head(heads, head, parsed) if is_get or not without else parsed  # a key comes once

    def replace(self, environ: dict[str, Any], head: bytes, value: bytes, is_get: bool) -> bool:
        """Set the query of a GET, or the Idempotency-Key of a POST, in the environ of a head that differs in nothing
        else. False: it is malformed.
        """
        if value.translate(None, QUERY if is_get else PRINTABLE):
            return False
        text = value.decode("latin-1")
        if is_get:
            environ["QUERY_STRING"] = text
            environ["RAW_URI"] = f"{environ['PATH_INFO']}?{text}"
        elif "HTTP_IDEMPOTENCY_KEY" in environ:
            environ["HTTP_IDEMPOTENCY_KEY"] = text.strip(" \t")
        environ["fastlane.head"] = head
        return True

    def keep_template(
        self, heads: Heads, lines: list[bytes], before: list[bytes], shape: bytes, parsed: ParsedHead
    ) -> None:
        """Keep what a head has in common with the one of its shape that came before it."""
        places = {at for at, (line, other) in enumerate(zip(lines, before)) if line != other}
        by = lines[0] + b"\r"
        templates: list[Template] = heads.get(by, [])
        for template in templates:
            if template.shape == shape:
                places |= template.places
                templates.remove(template)
                break
        if len(templates) < MAX_TEMPLATES and len(shape) <= MAX_CACHED_BYTES:
            keep_head(heads, by, [*templates, Template(lines, places, shape, self.known, parsed)])

    def shape(self, lines: list[bytes]) -> tuple[bytes, dict[str, str]]:
        """What decides how a head is parsed, and the values of the rest. No head has the bytes of a shape."""
        line, mark, rest = lines[0].partition(b"?")
        values = {}
        if mark:
            query, space, rest = rest.rpartition(b" ")
            mark += space
            if query.translate(None, QUERY):
                mark = query + space
            text = query.decode("latin-1")
            values["QUERY_STRING"] = text
            values["RAW_URI"] = f"{line[line.find(b' ') + 1 :].decode('latin-1')}?{text}"
        kept = [line, mark, rest]
        known = self.known
        for line in lines[1:-2]:
            name, colon, value = line.partition(b":")
            key = known.get(name)
            if key is None or not colon:
                kept.append(line + b"\n")
            else:
                kept.append(name)  # also of a field that decides nothing: one that comes twice does
                if key:
                    text = values[key] = value.strip(b" \t").decode("latin-1")
                    if key == "CONTENT_LENGTH" and (text == "0" or not LENGTH.fullmatch(text)):
                        kept.append(line + b"\n")
        return b"\n".join(kept), values

    def learn(self, lines: list[bytes]) -> None:
        """Note which fields of a head that was parsed decide nothing."""
        if len(self.known) >= CACHED_HEADS:
            self.known.clear()
        for line in lines[1:-2]:
            name = line.partition(b":")[0]
            upper = name.upper()
            if (key := self.key(upper)) not in DECIDING and upper not in self.schemes:
                self.known[name] = key

    def key(self, name: bytes) -> str:
        """The key in the environ of a field, by its name in upper case; "": the environ does not have it."""
        key = name.decode().replace("-", "_")
        if key in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            return key
        key = "HTTP_" + key
        return key if self.wanted is None or key in self.wanted or key in DECIDING else ""

    def parse_new(self, head: bytes, server: Any) -> ParsedHead | None:
        """Parse a head of a new shape. None: declined."""
        line, _, block = head.partition(b"\r\n")
        match = LINE.fullmatch(line)
        if match is None:
            return None
        method, target, query = match.groups()
        fields = self.fields(block, server)
        if not target or fields is None:
            return None
        environ, length, keep_alive = fields
        if (length < 0) != (method == b"GET"):
            return None
        environ["REQUEST_METHOD"] = method.decode()
        environ["PATH_INFO"] = target.decode()
        environ["QUERY_STRING"] = query.decode() if query else ""
        environ["RAW_URI"] = line[len(method) + 1 : -9].decode()
        if method == b"POST" and (plain := self.plainness(environ, query is not None)):
            environ["fastlane.plain"] = plain
        return environ, max(0, length), keep_alive

    def fields(self, block: bytes, server: Any) -> ParsedHead | None:
        """Parse the fields, including the empty line. None: declined. Without Content-Length the length is -1."""
        match = FIELDS.fullmatch(block)
        fields = FIELD.findall(match[1]) if match else ()
        if not fields or len(fields) > self.max_fields:
            return None
        environ = self.base.copy()
        seen = set()
        scheme, host, keep_alive = "http", "", True
        for name, raw in fields:
            name = name.upper()
            if name in seen or name in DECLINED:
                return None
            seen.add(name)
            value = raw.strip(b" \t").decode("latin-1")
            if name == b"HOST":
                host = value
            elif name == b"CONNECTION":
                if value.lower() not in ("close", "keep-alive"):
                    return None
                keep_alive = value.lower() == "keep-alive"
            elif name in self.schemes:
                # over TCP gunicorn trusts it only from some addresses
                if not isinstance(server, str) or "wsgi.url_scheme" in environ:
                    return None
                scheme = environ["wsgi.url_scheme"] = "https" if value == self.schemes[name] else "http"
            if key := self.key(name):
                environ[key] = value
        length = environ.get("CONTENT_LENGTH")
        if length is not None and not LENGTH.fullmatch(length):
            return None
        if b"HOST" not in seen:
            return None
        name, port = served_at(server, host, scheme)
        environ |= {"SERVER_NAME": name, "SERVER_PORT": port, "REMOTE_ADDR": "", "wsgi.url_scheme": scheme}
        environ["wsgi.input"] = BytesIO()  # of requests without a body, if they share the environ
        return environ, -1 if length is None else int(length), keep_alive


def remember_head(heads: Heads, key: bytes, parsed: ParsedHead) -> ParsedHead:
    """Keep a head that comes for the second time, with an environ of its own. Returns: parsed."""
    if len(key) <= MAX_CACHED_BYTES:
        environ, length, keep_alive = parsed
        keep_head(heads, key, (environ.copy(), length, keep_alive) if key in heads else None)
    return parsed


def keep_head(heads: Heads, key: bytes, parsed: ParsedHead | list[Template] | None) -> None:
    """Put a head, a shape or templates into the cache."""
    if len(heads) >= CACHED_HEADS:
        heads.clear()
    heads[key] = parsed


def served_at(server: Any, host: str, scheme: str) -> tuple[str, str]:
    """SERVER_NAME and SERVER_PORT as gunicorn sets them: on a Unix socket they come from the Host field."""
    if not isinstance(server, str):
        return server[0], str(server[1])
    name, *port = server.split(":") if ":" in server else host.split(":")
    if not host and ":" not in server:
        return server, ""
    return name, port[0] if port else {"http": "80", "https": "443"}[scheme]


def remote_address(peer: Any) -> dict[str, str] | None:
    """The environ entries for a client's address from accept(); None: it has none, as on most Unix sockets."""
    if isinstance(peer, tuple):
        return {"REMOTE_ADDR": peer[0], "REMOTE_PORT": str(peer[1])}
    return {"REMOTE_ADDR": os.fsdecode(peer)} if peer else None
