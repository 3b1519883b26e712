"""What the gateway does at /hooks/NAME: looks up the line of the name, answers challenges, checks the signature, and
makes the item: the request line, the header fields that are worth keeping, and the body. It runs on PyPy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from sluice.contrib.hooks import challenges
from sluice.contrib.hooks.challenges import HOOK_SECRET
from sluice.contrib.hooks.config import Hook, Hooks, load
from sluice.contrib.hooks.fields import is_kept, without_secrets
from sluice.contrib.hooks.register import PATH
from sluice.http.endpoints import Endpoint, Endpoints, kept_field
from sluice.http.replies import NOT_FOUND, Rejected, too_large
from sluice.http.request import BODY_ONLY, KeyedHead, needs_head, read_body, real_path, without_slashes
from sluice.http.routes import OK, Reply, Route, reply
from sluice.settings import Settings

MOST_HEADS = 1024  # paths that are known, and names of fields
NOTED = "hooks.noted"  # in environ: a `Noted`
SENDER = b"Sluice-Sender"  # nginx sets it
METHODS = "GET, HEAD, OPTIONS, POST, PUT"
NAMES = (
    "HTTP_CONTENT_ENCODING",
    "CONTENT_TYPE",
)  # what `needs_head` looks at, but for keys: a hook's are no field's alone
PROBED = reply("200 OK", b"", "application/json", ("Allow", METHODS))

fastly_services: list[str] = []  # of Fastly that may send here; none: its challenge is not answered


def extend(routes: Mapping[str, Route], endpoints: Endpoints, s: Settings) -> None:
    """Let the endpoint of hooks do what the file says. Raises: SettingError."""
    hooks = load(s)
    fastly_services[:] = [hook.verify or "*" for hook in hooks.named.values() if "fastly" in hook.challenges]
    if s.hooks is None:
        fastly_services.append("*")
    for endpoint in endpoints:
        if endpoint.stream == "hooks" and endpoint.path == PATH:
            HookReader(hooks, endpoint)


def answer_fastly(environ: dict[str, Any], unready: Callable[[], Reply | None]) -> Reply | None:
    """The challenge of Fastly, which asks before it sends logs (fastly.com/documentation, "HTTPS")."""
    if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
        return None
    return challenges.fastly(fastly_services) if fastly_services else NOT_FOUND


class Shape(NamedTuple):
    """What is the same for all heads that share an environ: they have the same path and the same fields, in the same
    order (sluice/fastlane/grammar.py), and mostly another id of a delivery. Only for hooks without a signature.

    first: how the first of the lines that are kept begins, if all behind it are kept, too: nginx leaves out what no row
    keeps, and its own lines come first. b"": pick takes those that are kept. begin, end: what stands before and behind
    them.
    """

    first: bytes
    pick: Callable[[list[bytes]], Sequence[bytes]]
    begin: bytes
    end: bytes

    @classmethod
    def of(cls, received: bytes, head: bytes) -> Shape:
        """received: one of these heads, in which each line is there once. head: that of its item."""
        lines = received.split(b"\r\n")
        begin, *kept = head.split(b"\r\n")[:-2]
        places = [lines.index(line) for line in kept if line in lines]
        own = [line for line in kept if line not in lines]  # of the gateway
        first = b""
        if places and places == list(range(places[0], len(lines) - 2)):
            first = b"\r\n" + lines[places[0]].partition(b":")[0] + b":"
        pick = itemgetter(*places) if len(places) > 1 else lambda lines: [lines[at] for at in places]
        return cls(first, pick, begin, b"\r\n".join((b"", *own, b"", b"")))

    def cut(self, received: bytes) -> bytes:
        """The head of the item of such a head."""
        if self.first:
            return self.begin + received[received.find(self.first) : -4] + self.end
        return b"\r\n".join((self.begin, *self.pick(received.split(b"\r\n")))) + self.end


# A shape; the last of its heads as received, and that of its item; the most bytes of a body; whether a challenge is
# answered
Noted = tuple[Shape, bytes, bytes, int, bool]


class HookReader:
    """Makes items of the requests at the endpoint of hooks."""

    def __init__(self, hooks: Hooks, endpoint: Endpoint) -> None:
        self.hooks = hooks
        self.most = endpoint.max_body  # where no line says more
        self.known: dict[str, tuple[Hook, bytes]] = {}  # by path: its hook, and how the line of an item begins
        self.fields: dict[bytes, bool] = {}  # whether a field of this name is kept
        self.permit = endpoint.methods.get("OPTIONS")
        endpoint.read, endpoint.allowed = self.read, METHODS
        if any(hook.answer for hook in (*hooks.named.values(), hooks.others)):
            endpoint.answer = self.answer
        endpoint.methods |= {"OPTIONS": self.options, "HEAD": self.head}
        endpoint.kept += [(name, "") for name in challenges.FIELDS]
        for hook in hooks.named.values():
            if hook.scheme is not None:
                from sluice.contrib.access.signature import fields_of

                endpoint.kept += map(kept_field, fields_of(hook.scheme))

    def find(self, environ: dict[str, Any]) -> tuple[Hook, bytes]:
        """The entry of a path."""
        path = environ["PATH_INFO"]
        found = self.hooks.find(without_slashes(path).split("/", 3)[2]), f"POST {real_path(environ)}".encode()
        if len(self.known) < MOST_HEADS:
            self.known[path] = found
        return found

    def read(self, environ: dict[str, Any], endpoint: Endpoint) -> bytes:
        """The item. Raises: Rejected, also with the answer to a challenge or a probe."""
        noted: Noted | None = environ.get(NOTED)
        if noted is None or environ["QUERY_STRING"]:
            return self.read_any(environ)
        shape, last, head, most, asks = noted
        body: bytes = environ["wsgi.input"].read()
        # `in` takes 60 ns longer
        if not 0 < len(body) <= most or (asks and (body.find(b"challenge") >= 0 or body.find(b"alidation") >= 0)):
            return self.read_any(environ, body)
        received: bytes = environ["fastlane.head"]
        if received is not last:  # it may come again
            head = shape.cut(received)
            environ[NOTED] = shape, received, head, most, asks
        return head + body

    def read_any(self, environ: dict[str, Any], body: bytes | None = None) -> bytes:
        """`read` for any request. body: if it was read already."""
        hook, begin = self.known.get(environ["PATH_INFO"]) or self.find(environ)
        if hook.refused:
            raise Rejected(NOT_FOUND)
        plain, most = environ.get("fastlane.plain"), hook.size or self.most
        is_plain = plain is BODY_ONLY or isinstance(plain, KeyedHead)
        if is_plain:
            body = environ["wsgi.input"].read() if body is None else body
            if len(body) > most:
                raise Rejected(too_large(most))
        else:
            needs_head({name: environ[name] for name in NAMES if name in environ}, True)
            body = read_body(environ, most)
        query = environ.get("QUERY_STRING", "")
        if not body or query or HOOK_SECRET in environ:
            asked = challenges.ask(hook, environ, query)
            if asked is None and not body and not query and environ["REQUEST_METHOD"] == "GET":
                asked = hook.answer or OK  # somebody looks whether there is anything
            if asked is not None:
                raise Rejected(asked)
        if hook.scheme is not None:
            check_signature(hook, environ, body)
        known = hook.challenges
        if known and (b"challenge" in body or b"alidation" in body or "discord" in known):
            replied = challenges.answer(hook, environ, body)
            if replied is not None:
                raise Rejected(replied)
        received: bytes | None = environ.get("fastlane.head")
        if received is None:
            return self.made(environ, hook, begin, lines_of(environ)) + body
        kept = self.made(environ, hook, begin, received.split(b"\r\n")[1:-2])
        if is_plain and not query and hook.scheme is None and HOOK_SECRET not in environ and "discord" not in known:
            environ[NOTED] = Shape.of(received, kept), received, kept, most, bool(known)
        return kept + body

    def answer(self, environ: dict[str, Any], item: bytes) -> Reply | None:
        """The answer of a line, in place of the usual one."""
        hook, _ = self.known.get(environ["PATH_INFO"]) or self.find(environ)
        return hook.answer

    def options(self, environ: dict[str, Any]) -> Reply:
        """The answer to OPTIONS: the permission that senders of CloudEvents ask for, or what is taken here."""
        return (self.permit(environ) if self.permit else None) or PROBED

    def head(self, environ: dict[str, Any]) -> Reply:
        """The answer to HEAD."""
        hook, _ = self.known.get(environ["PATH_INFO"]) or self.find(environ)
        return hook.answer._replace(chunks=()) if hook.answer else PROBED

    def made(self, environ: dict[str, Any], hook: Hook, begin: bytes, lines: list[bytes]) -> bytes:
        """The head of an item, with those of the lines that are kept."""
        query, fields = environ.get("QUERY_STRING", ""), self.fields
        if query and (query := without_secrets(query, hook.parameters)):
            begin += b"?" + query.encode("latin-1")
        kept = [begin + b" HTTP/1.1"]
        for line in lines:
            name = line[: line.find(b":")]
            is_wanted = fields.get(name)
            if is_wanted is None:
                if len(fields) >= MOST_HEADS:
                    fields.clear()
                is_wanted = fields[name] = name == SENDER or is_kept(name.decode("latin-1").lower())
            if is_wanted and not (hook.places and name.lower() in hook.places):
                kept.append(line)
        if hook.within:
            kept.append(b"Sluice-Within: %d" % hook.within)
        if hook.order:
            kept.append(b"Sluice-Order: " + hook.order)
        return b"\r\n".join((*kept, b"", b""))


def lines_of(environ: dict[str, Any]) -> list[bytes]:
    """The lines of a head that the server does not tell."""
    named = {
        name.removeprefix("HTTP_").replace("_", "-").title(): value
        for name, value in environ.items()
        if (name.startswith("HTTP_") or name == "CONTENT_TYPE") and value
    }
    return [f"{name}: {value}".encode("latin-1") for name, value in named.items()]


def check_signature(hook: Hook, environ: dict[str, Any], body: bytes) -> None:
    """Raises: Rejected if the request has no valid signature."""
    from sluice.contrib.access.signature import Request, Wrong, target_of, unauthorized
    from sluice.contrib.access.signature import check_signature as check
    from sluice.http.request import environ_name

    def get(name: str) -> str:
        return str(environ.get(environ_name(name), ""))

    try:
        check(hook.scheme, hook.keys, Request(get, body, target_of(environ), hook.url), time.time())
    except Wrong as wrong:
        raise Rejected(unauthorized(wrong)) from None
