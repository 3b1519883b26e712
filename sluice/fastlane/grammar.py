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
2. the same bytes but for the query of a GET or the Idempotency-Key of a POST, which is checked and replaced;
3. the same shape: the line without its query, and per field its name, with its value only if that decides something
   (DECIDING, or a length of 0). A `Template` has the bytes that all heads of a shape have, and learns which values
   differ: an id, a signature, a length. It finds these between those bytes, checks them, and replaces them;
4. a new shape: the grammar above, once (`parse_new`).

A head goes into the dictionary when it comes for the second time, unless values differ that hardly come again: one with
an id of its own comes once. Keys of the steps cannot be confused: a shape begins with a CR; the line of a request, by
which its templates are found, has none; and those of 2 lack a CRLF that each head has.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from io import BytesIO
from typing import Any

from gunicorn.http.wsgi import base_environ

CACHED_HEADS = 1024  # 3 kB each
MAX_TEMPLATES = 16  # of one request line
MAX_CACHED_BYTES = 1024  # a longer head is not cached
TOKEN = rb"[!#$%&'*+.^`|~0-9A-Za-z-]+"  # RFC 9110, 5.6.2, without "_", which gunicorn may drop or reject
# The path needs no decoding and cannot be read as an authority; the query is printable ASCII without a fragment.
LINE = re.compile(rb"(POST|GET) ((?:/[A-Za-z0-9._~-]+)*/?)(?:\?([!\"$-~]*))? HTTP/1\.1")
FIELDS = re.compile(rb"((?:" + TOKEN + rb":[\t -~\x80-\xff]*\r\n)+)\r\n")
FIELD = re.compile(rb"(" + TOKEN + rb"):([\t -~\x80-\xff]*)\r\n")
LENGTH = re.compile(r"0|[1-9][0-9]{0,9}")
DECLINED = frozenset((b"TRANSFER-ENCODING", b"EXPECT", b"UPGRADE", b"HTTP2-SETTINGS", b"TRAILER", b"TE"))
DECIDING = frozenset((b"HOST", b"CONNECTION", b"CONTENT-TYPE", b"CONTENT-ENCODING"))

# The environ without the body, the length of the body in bytes, and whether the connection stays open
ParsedHead = tuple[dict[str, Any], int, bool]
# The cache of a listener. A head that came twice is there as a `ParsedHead` with an environ of its own; one that came
# once is there with None. By a shape there is its `Template`, and by the line of a request a list of some of those
Heads = dict[bytes, Any]
PRINTABLE = bytes([9, *range(32, 127), *range(128, 256)])
QUERY = bytes([33, 34, *range(36, 127)])
KEY = b"\r\nIdempotency-Key: "  # as nginx passes it; other spellings are parsed as other fields are
GAP = b"\0"  # where a value differs; no head has it


class Template:
    """Heads of one shape: the bytes that all of them have, and the lines whose values differ.

    lines: of the first of them. keys: of their values in the environ, which has those of the last head; "": it does not
    have the value. places: the numbers of the lines that differ; 0: in the query. begin: the bytes before the first
    such value. pieces: those behind each. wanted: which of these values the environ has, and their keys.
    is_repeated: only queries, keys and lengths differ, so a head may come again, or all of it but the key.
    """

    __slots__ = (
        "begin", "environ", "is_repeated", "keep_alive", "keys", "length", "lines", "pieces", "places", "wanted",
    )  # fmt: skip

    def __init__(self, lines: list[bytes], keys: list[str], parsed: ParsedHead) -> None:
        self.lines, self.keys = lines, keys
        self.environ, self.length, self.keep_alive = parsed
        self.places: set[int] = set()
        self.arrange()

    def learn(self, lines: list[bytes]) -> None:
        """Learn which values differ from those of another head of this shape."""
        places = {at for at, (line, other) in enumerate(zip(lines, self.lines)) if line != other}
        if not places <= self.places:
            self.places |= places
            self.arrange()

    def arrange(self) -> None:
        """Set what follows from the places."""
        lines = self.lines.copy()
        for at in self.places:
            name, mark, _ = lines[at].partition(b":" if at else b"?")
            lines[at] = name + mark + GAP + (b"" if at else b" HTTP/1.1")
        self.begin, *self.pieces = b"\r\n".join(lines).split(GAP)
        keys = [self.keys[at] for at in sorted(self.places)]
        self.wanted = [(number, key) for number, key in enumerate(keys) if key]
        self.is_repeated = {"QUERY_STRING", "CONTENT_LENGTH", "HTTP_IDEMPOTENCY_KEY"}.issuperset(keys)

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
            elif key == "QUERY_STRING":
                if values[number].translate(None, QUERY):
                    return None
                environ["RAW_URI"] = f"{environ['PATH_INFO']}?{text}"
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
        self.declined = DECLINED.union(name.encode() for name in cfg.secure_scheme_headers)
        self.wanted = wanted

    def parse(self, head: bytes, server: Any, heads: Heads) -> ParsedHead | None:
        """Parse a head that is not in the cache, or came once; including its empty line. None: declined.

        The environ is shared with the next request of this shape. server: the listener's name from getsockname().
        heads: of the listener.
        """
        if len(head) > self.max_head:
            return None
        without = b""
        if is_get := head.startswith(b"GET "):
            at = head.find(b"?", 0, head.find(b"\r")) + 1
        elif at := head.find(KEY) + 1:
            at += len(KEY) - 1
        if at:
            end = head.find(b" " if is_get else b"\r", at)
            without = head[:at] + head[end:-2]  # no head has these bytes: a line end is missing
            if (parsed := heads.get(without)) and self.replace(parsed[0], head, head[at:end], is_get):
                return remember_head(heads, head, parsed) if is_get else parsed
        begin = head[: head.find(b"\r")]
        for template in heads.get(begin, ()):
            if parsed := template.fill(head):
                break
        else:
            template = self.find_template(head, server, heads, begin)
            if template is None or (parsed := template.fill(head)) is None:
                return None
        if template.is_repeated:
            if without:
                remember_head(heads, without, parsed, True)
            if is_get or not without:  # a key comes once
                remember_head(heads, head, parsed)
        return parsed

    def find_template(self, head: bytes, server: Any, heads: Heads, begin: bytes) -> Template | None:
        """The template of the shape of a head, which may be a new one. None: the head is declined."""
        lines = head.split(b"\r\n")
        shape = get_shape(lines)
        template: Template | None = heads.get(shape)
        if template is not None:
            template.learn(lines)
            return template
        parsed = self.parse_new(head, server)
        if parsed is None:
            return None
        names = [line.partition(b":")[0].upper() for line in lines[1:]]
        template = Template(lines, ["QUERY_STRING", *map(self.key, names)], parsed)
        if len(shape) <= MAX_CACHED_BYTES:
            keep_head(heads, shape, template)
            templates = heads.get(begin, [])
            if len(templates) < MAX_TEMPLATES:
                keep_head(heads, begin, [*templates, template])
        return template

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

    def key(self, name: bytes) -> str:
        """The key in the environ of a field, by its name in upper case; "": the environ does not have it."""
        key = name.decode().replace("-", "_")
        if key in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            return key
        key = "HTTP_" + key
        return key if self.wanted is None or key in self.wanted or name in DECIDING else ""

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
        if plain := self.plainness(environ, query is not None):
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
        host, keep_alive = "", True
        for name, raw in fields:
            name = name.upper()
            if name in seen or name in self.declined:
                return None
            seen.add(name)
            value = raw.strip(b" \t").decode("latin-1")
            if name == b"HOST":
                host = value
            elif name == b"CONNECTION":
                if value.lower() not in ("close", "keep-alive"):
                    return None
                keep_alive = value.lower() == "keep-alive"
            if key := self.key(name):
                environ[key] = value
        length = environ.get("CONTENT_LENGTH")
        if length is not None and not LENGTH.fullmatch(length):
            return None
        if b"HOST" not in seen:
            return None
        name, port = served_at(server, host)
        environ |= {"SERVER_NAME": name, "SERVER_PORT": port, "REMOTE_ADDR": "", "wsgi.url_scheme": "http"}
        environ["wsgi.input"] = BytesIO()  # of requests without a body, if they share the environ
        return environ, -1 if length is None else int(length), keep_alive


def get_shape(lines: list[bytes]) -> bytes:
    """What decides how a head with these lines is parsed."""
    line, mark, _ = lines[0].partition(b"?")
    shape = [b"\r" + line + mark]
    for line in lines[1:-2]:
        name, _, value = line.partition(b":")
        upper = name.upper()
        is_deciding = upper in DECIDING or (upper == b"CONTENT-LENGTH" and value.strip(b" \t") == b"0")
        shape.append(line if is_deciding else name)  # a name also of a field that decides nothing: if it comes twice
    return b"\n".join(shape)


def remember_head(heads: Heads, key: bytes, parsed: ParsedHead, again: bool = False) -> ParsedHead:
    """Keep a head that comes for the second time, or again, with an environ of its own. Returns: parsed."""
    if len(key) <= MAX_CACHED_BYTES:
        environ, length, keep_alive = parsed
        keep_head(heads, key, (environ.copy(), length, keep_alive) if again or key in heads else None)
    return parsed


def keep_head(heads: Heads, key: bytes, parsed: ParsedHead | Template | list[Template] | None) -> None:
    """Put a head, a template or some of them into the cache."""
    if len(heads) >= CACHED_HEADS:
        heads.clear()
    heads[key] = parsed


def served_at(server: Any, host: str) -> tuple[str, str]:
    """SERVER_NAME and SERVER_PORT as gunicorn sets them: on a Unix socket they come from the Host field."""
    if not isinstance(server, str):
        return server[0], str(server[1])
    name, *port = server.split(":") if ":" in server else host.split(":")
    if not host and ":" not in server:
        return server, ""
    return name, port[0] if port else "80"


def remote_address(peer: Any) -> dict[str, str] | None:
    """The environ entries for a client's address from accept(); None: it has none, as on most Unix sockets."""
    if isinstance(peer, tuple):
        return {"REMOTE_ADDR": peer[0], "REMOTE_PORT": str(peer[1])}
    return {"REMOTE_ADDR": os.fsdecode(peer)} if peer else None
