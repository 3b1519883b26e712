"""What the file of INGEST_HOOKS says: a line for a name, one for all others. It runs on PyPy.

    github   scheme=github secret=It's-a-secret size=25m
    stripe   scheme=stripe secret=whsec_new secret=whsec_old
    alerts   by content within 5m
    slack    scheme=slack secret=8f74… answer=200
    *        refused

The words, in any order: scheme= and secret= (several: while one replaces the other), field= or parameter= with the
place of a token or a signature, url= as the sender knows this server (Twilio signs it), size=, answer=STATUS or
STATUS:TEXT, challenge= with what is answered when a sender asks, verify= with the token that it shows then, order=
with how its rows are posted on, `by content within TIME`. The line * is of the names that have none; `refused` gives
them a 404.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sluice.contrib.secret_file import read_secret
from sluice.http.routes import JSON, OK, Reply, reply
from sluice.parsers import size_parser as parse_size
from sluice.settings import SettingError, Settings

OTHERS = "*"  # the name of the line for names without one
NAME = re.compile(r"[\w.~-]{1,100}", re.ASCII)
CONTENT = re.compile(r"\bby content within ([1-9][0-9]{0,4})([smhd])\b")
ANSWER = re.compile(r"(20[0-4])(?::(\S+))?")
FIELD = re.compile(r"[A-Za-z0-9-]{1,100}")
URL = re.compile(r"https?://[^\s/?#]+")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MOST_SECONDS = 86400  # that a content may count as the same; INGEST_UNIQUE forgets it then
WORDS = "scheme", "secret", "field", "parameter", "url", "size", "answer", "challenge", "verify", "order"
OF_OTHERS = {"size", "answer", "challenge", "order"}
ORDERS = "hook", "none"  # one row after the other, or in parallel
# The challenges, each with the other names of hooks for which it is answered unasked
CHALLENGES: dict[str, tuple[str, ...]] = {
    "slack": ("lark", "feishu", "monday"),
    "meta": ("facebook", "instagram", "messenger", "threads", "whatsapp", "websub", "youtube"),
    "strava": (),
    "microsoft": ("graph", "msgraph", "teams", "outlook", "sharepoint"),
    "eventgrid": ("azure",),
    "zoom": (),
    "twitch": (),
    "discord": (),
    "dropbox": ("nylas",),
    "okta": (),
    "asana": (),
    "smartsheet": (),
    "smartthings": (),
    "wechat": ("weixin",),
    "ebay": (),
    "x": ("twitter",),
    "fitbit": (),
    "vercel": (),
    "fastly": (),
}
# What is answered at names without a line: all but what needs a secret, or what another request may look like
UNASKED = frozenset(CHALLENGES) - {"zoom", "discord", "vercel", "ebay", "x", "fitbit"}
BY_NAME = {name: known for known, names in CHALLENGES.items() for name in (known, *names)}


class Hook(NamedTuple):
    """A line, or what is true without one.

    scheme: a `signature.Scheme`; None: nothing is checked. size: bytes of a body; 0: as on paths of batches. answer: in
    place of the usual one. within: seconds in which a body with the same content is the same; 0: none is.
    order: one of ORDERS; b"": as INGEST_ROWS says.
    places, parameters: the header fields, in lower case, and the parameters that have a token: they are not kept.
    """

    name: str = OTHERS
    scheme: Any = None
    keys: tuple[Any, ...] = ()
    secret: str = ""
    url: str = ""
    size: int = 0
    answer: Reply | None = None
    challenges: frozenset[str] = UNASKED
    verify: str = ""
    within: int = 0
    refused: bool = False
    order: bytes = b""
    places: frozenset[bytes] = frozenset()
    parameters: tuple[str, ...] = ()


class Hooks(NamedTuple):
    """The lines by name, and the one for all others."""

    named: Mapping[str, Hook] = {}
    others: Hook = Hook()

    def find(self, name: str) -> Hook:
        return self.named.get(name, self.others)


def load(s: Settings) -> Hooks:
    """What the file says; without INGEST_HOOKS, any name is taken. Raises: SettingError with file and line."""
    return read(s.hooks, s) if s.hooks else Hooks()


def read(file: Path, s: Settings) -> Hooks:
    named: dict[str, Hook] = {}
    for number, line in enumerate(read_secret("INGEST_HOOKS", file).splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        where = f"INGEST_HOOKS: line {number} of {file}"
        try:
            hook = parse(text, s)
        except ValueError as error:
            raise SettingError(f"{where} {str(error).rstrip('.')}.") from None
        if hook.name in named:
            raise SettingError(f"{where} is a second one of {hook.name}.")
        named[hook.name] = hook
    others = named.pop(OTHERS, Hook())
    return Hooks(named, others)


def parse(text: str, s: Settings) -> Hook:
    """One line. Raises: ValueError, whose text says what the line is or has."""
    name, _, rest = text.partition(" ") if "\t" not in text else re.sub(r"\s", " ", text).partition(" ")
    if name != OTHERS and not NAME.fullmatch(name):
        raise ValueError("begins with no name of letters, digits and . _ ~ -")
    within = 0
    if found := CONTENT.search(rest):
        within = int(found[1]) * SECONDS[found[2]]
        rest = CONTENT.sub("", rest)
        if within > MOST_SECONDS:
            raise ValueError("has a content that is the same for more than a day")
    words: dict[str, list[str]] = {}
    refused = False
    for word in rest.split():
        key, equals, value = word.partition("=")
        if word == "refused":
            refused = True
        elif key not in WORDS or not value:
            known = ", ".join(f"{each}=" for each in WORDS)
            raise ValueError(f"has the word {key[:40]}; there are {known}, refused, and by content within 5m")
        else:
            words.setdefault(key, []).append(value)
    if name == OTHERS and words.keys() - OF_OTHERS:
        raise ValueError(f"is of all other names; it can have {', '.join(sorted(OF_OTHERS))} and refused only")
    if repeated := [key for key, values in words.items() if len(values) > 1 and key != "secret"]:
        raise ValueError(f"has {repeated[0]}= twice")
    scheme, keys = scheme_of(words)
    challenges, verify = challenges_of(name, words), words.get("verify", [""])[0]
    answer = answer_of(words)
    if "vercel" in challenges and verify:
        answer = answer or OK
        answer = answer._replace(headers=[*answer.headers, ("x-vercel-verify", verify)])
    return Hook(
        name,
        scheme,
        keys,
        words.get("secret", [""])[0],
        matched("url", words, URL, "https://HOST"),
        size_of(words, s),
        answer,
        challenges,
        verify,
        within,
        refused,
        order_of(words),
        *tokens_in(scheme),
    )


def matched(key: str, words: Mapping[str, list[str]], expected: re.Pattern[str], form: str) -> str:
    """The value of a word; "": it is not there. Raises: ValueError."""
    value = words.get(key, [""])[0]
    if value and not expected.fullmatch(value):
        raise ValueError(f"has a {key}= that is no {form}")
    return value


def scheme_of(words: Mapping[str, list[str]]) -> tuple[Any, tuple[Any, ...]]:
    """The scheme and its keys; None: nothing is checked. Raises: ValueError."""
    if "scheme" not in words:
        if named := next((key for key in ("secret", "field", "parameter") if key in words), ""):
            raise ValueError(f"has {named}= without scheme=")
        return None, ()
    try:
        from sluice.contrib.access.signature import SCHEMES
    except ImportError:
        raise ValueError("needs sluice/contrib/access, which checks signatures") from None
    name = words["scheme"][0]
    scheme = SCHEMES.get("standard" if name == "svix" else name)
    if scheme is None:
        raise ValueError(f"has the scheme {name[:40]}; there are {', '.join(SCHEMES)}")
    field = matched("field", words, FIELD, "name of a header field")
    parameter = matched("parameter", words, FIELD, "name of a parameter")
    if field or parameter:
        if name not in ("token", "hmac", "stripe"):
            raise ValueError(f"has a place for a signature; {name} has one of its own")
        if parameter and name != "token":
            raise ValueError("has parameter=, which is for scheme=token")
        scheme = scheme._replace(fields=tuple(filter(None, (field, f"?{parameter}" if parameter else ""))))
    if "secret" not in words:
        raise ValueError("has scheme= without secret=")
    try:
        return scheme, tuple(scheme.key(text) for text in words["secret"])
    except ImportError:
        raise ValueError("has a public key, which needs cryptography: bin/provision webhooks installs it") from None
    except SettingError as error:
        raise ValueError(f"has a secret that does not fit: {error}") from None
    except ValueError:
        raise ValueError(f"has a secret that is none of {name}") from None


def tokens_in(scheme: Any) -> tuple[frozenset[bytes], tuple[str, ...]]:
    """See `Hook.places` and `Hook.parameters`."""
    fields = scheme.fields if scheme and scheme.is_token else ()
    named = frozenset(name.lower().encode() for name in fields if not name.startswith("?"))
    return named, tuple(name[1:] for name in fields if name.startswith("?"))


def order_of(words: Mapping[str, list[str]]) -> bytes:
    """Raises: ValueError."""
    order = words.get("order", [""])[0]
    if order and order not in ORDERS:
        raise ValueError(f"has the order {order[:40]}; there are {', '.join(ORDERS)}")
    return order.encode()


def size_of(words: Mapping[str, list[str]], s: Settings) -> int:
    """Raises: ValueError."""
    if "size" not in words:
        return 0
    try:
        return parse_size(1, s.body_limit)(words["size"][0])
    except ValueError as error:
        raise ValueError(f"has an invalid size=: expected {error}") from None


def answer_of(words: Mapping[str, list[str]]) -> Reply | None:
    """Raises: ValueError."""
    if "answer" not in words:
        return None
    if not (found := ANSWER.fullmatch(words["answer"][0])):
        raise ValueError("has an answer= that is no STATUS or STATUS:TEXT with a status from 200 to 204")
    titles = {"200": "OK", "201": "Created", "202": "Accepted", "203": "Non-Authoritative Information"}
    text = (found[2] or "").encode()
    if found[1] == "204":
        return reply("204 No Content")
    kind = JSON if text[:1] in b"{[" and text else "text/xml" if text.startswith(b"<") else "text/plain; charset=utf-8"
    return reply(f"{found[1]} {titles[found[1]]}", text, kind)


def challenges_of(name: str, words: Mapping[str, list[str]]) -> frozenset[str]:
    """What is answered at a name with a line: what the line names, else that of the sender that the name names."""
    if "challenge" in words:
        asked = words["challenge"][0].split(",")
        if asked == ["none"]:
            return frozenset()
        if unknown := [each for each in asked if each not in CHALLENGES]:
            raise ValueError(f"has the challenge {unknown[0][:40]}; there are none, {', '.join(CHALLENGES)}")
        return frozenset(asked)
    if name == OTHERS:
        return UNASKED
    scheme = words.get("scheme", [""])[0]
    return frozenset(BY_NAME[each] for each in (name.lower(), scheme) if each in BY_NAME)
