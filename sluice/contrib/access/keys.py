"""API keys: the file of INGEST_API_KEYS, and what nginx reads of it.

A line is `KEY NAME;`, or `KEY name=NAME rate=N streams=A,B`, with a name that goes along with each request. A rate
counts all keys of its name together.

nginx reads a copy: of what was checked, whatever becomes of the operator's file until nginx reads it or starts again.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections import Counter
from typing import NamedTuple

from sluice.contrib.access.key_usage import NAMES
from sluice.contrib.secret_file import read_secret
from sluice.http.routes import pattern, varies
from sluice.parsers import EVERYBODY
from sluice.routes import load_routes
from sluice.settings import SettingError, Settings

KEYS, SENDERS, QUOTAS = "api-keys", "senders.conf", "quotas.conf"  # below $INGEST_HOME/etc
PLAIN = re.compile(r"([A-Za-z0-9_-]{32,46})\s+[\w.@-]+\s*;", re.ASCII)
NAMED = re.compile(r"([A-Za-z0-9_-]{32,46})((?:\s+(?:name|rate|streams)=[^\s;]+)+)", re.ASCII)
NAME = re.compile(r"[A-Za-z0-9_][\w.@-]{0,62}", re.ASCII)
# Before a name in a map: a word such as `default` would be nginx's own. Its parser takes one of the two away
LITERAL = "\\\\"
ENCODED = 40  # characters of basic authentication that say which key it has: nginx.py has the same number
HASHED = 64  # characters of a path that fit into a bucket of nginx's hash (map_hash_bucket_size)
ANYWHERE = "healthz", "readyz", "ready", "ping"  # paths that every key may ask for
UNLIMITED = 'map $sluice_client $sluice_forbidden { "" 1; }'  # each known key may post to all paths


class Key(NamedTuple):
    """A line. name: "" if the key has none. rate: requests per second, 0: no limit. paths: None: all of them."""

    key: str
    name: str = ""
    rate: int = 0
    paths: frozenset[str] | None = None


def load_keys(s: Settings) -> list[Key]:
    """The keys in the file, none without INGEST_API_KEYS. Raises: SettingError."""
    if s.api_keys is None:
        return []
    streams: dict[str, set[str]] = {}
    for path, route in load_routes(s.routes).items():
        streams.setdefault(route.stream, set()).add(path)
        streams[path] = {path}
    found: dict[str, Key] = {}  # nginx's map ignores case, of keys and of names
    rights: dict[str, Key] = {}
    for number, line in enumerate(read_secret("INGEST_API_KEYS", s.api_keys).splitlines(), 1):
        if not (text := line.partition("#")[0].strip()):
            continue
        where = f"INGEST_API_KEYS: line {number} of {s.api_keys}"
        try:
            key = parse_key(text, streams)
        except ValueError as error:
            raise SettingError(f"{where} {error}.") from None
        if key.key.lower() in found:
            raise SettingError(f"{where} is a duplicate key.")
        if key.name and (other := rights.setdefault(key.name.lower(), key))[1:] != key[1:]:
            what = "another rate, or other streams," if other.name == key.name else "another name"
            raise SettingError(f"{where} has {what} than an earlier key of {other.name}.")
        found[key.key.lower()] = key
    if not found:
        raise SettingError(f"INGEST_API_KEYS={str(s.api_keys)!r} has no key: every request would get 401.")
    return [*found.values()]


def parse_key(text: str, streams: dict[str, set[str]]) -> Key:
    """One line. streams: name of a stream, or a path -> its paths. Raises: ValueError, whose text says what it is."""
    if plain := PLAIN.fullmatch(text):
        return Key(plain[1])
    if not (named := NAMED.fullmatch(text)):
        raise ValueError("is not `KEY NAME;` or `KEY name=NAME …` with 32 to 46 letters or digits in KEY")
    words = [word.partition("=")[::2] for word in named[2].split()]
    values = dict(words)
    if len(words) != len(values) or not NAME.fullmatch(values.get("name", "")):
        raise ValueError("has no valid name=, or a word twice")
    rate = values.get("rate", "0")
    if not re.fullmatch("0|[1-9][0-9]{0,6}", rate):
        raise ValueError("has a rate that is no whole number of requests per second")
    if "streams" not in values:
        return Key(named[1], values["name"], int(rate))
    asked = values["streams"].split(",")
    if unknown := [name for name in asked if name not in streams]:
        raise ValueError(f"names {unknown[0]}, which is no stream with a path, and no path")
    return Key(named[1], values["name"], int(rate), frozenset().union(*(streams[name] for name in asked)))


def lines_of(known: list[Key]) -> str:
    lines = {key.key: key.name or "-" for key in known}
    ends = [(end, key) for key in known for end in basic_ends(key.key)]
    count = Counter(end.lower() for end, _ in ends)  # as nginx's map compares texts
    lines |= {f'":{end}"': key.name or "-" for end, key in ends if count[end.lower()] == 1}
    return "".join(f"{text} {name};\n" for text, name in lines.items())


def basic_ends(key: str) -> list[str]:
    """The last ENCODED characters of what basic authentication makes of a key: as the password of a name of any length,
    which has three forms, or as the name of an empty password.
    """
    texts = [f"{name}:{key}" for name in ("", "a", "ab")] + [f"{key}:"]
    return list(dict.fromkeys(b64encode(text.encode()).decode()[-ENCODED:] for text in texts))


def key_files(s: Settings) -> dict[str, str]:
    """The files that nginx/sluice.conf includes, and the names for the gateway; none without INGEST_API_KEYS.

    Raises: SettingError.
    """
    if s.api_keys is None:
        return {}
    known = load_keys(s)
    by_name = {key.name: key for key in known if key.name}
    if not by_name:
        senders = f'map "" $sluice_sender {{ default ""; }}\n{UNLIMITED}\n'
        return {KEYS: lines_of(known), SENDERS: senders, QUOTAS: "", NAMES: ""}
    if len(by_name) < len(known):
        lines = ['map $sluice_client $sluice_sender { default $sluice_client; - ""; }']
    else:  # nginx looks nothing up
        lines = ['map "" $sluice_sender { default $sluice_client; }']
    lines += forbidden_paths(by_name, Counter(path.lower() for path in load_routes(s.routes)))
    # an address that may not send uses up nobody's rate, and does not learn whether a key is valid
    limited = "$sluice_client"
    if s.allow != EVERYBODY:
        lines.append("geo $sluice_sends { default 0; " + " ".join(f"{each} 1;" for each in s.allow) + " }")
        lines.append('map $sluice_sends $sluice_limited { default ""; 1 $sluice_client; }')
        limited = "$sluice_limited"
    rates = sorted({key.rate for key in by_name.values() if key.rate})
    for rate in rates:
        lines += [f"map {limited} $sluice_quota_{rate} {{", '    default "";']
        lines += [f"    {LITERAL}{name} {name};" for name, key in by_name.items() if key.rate == rate]
        lines += ["}", f"limit_req_zone $sluice_quota_{rate} zone=sluice_quota_{rate}:1m rate={rate}r/s;"]
    return {
        NAMES: "".join(f"{name}\n" for name in by_name),
        KEYS: lines_of(known),
        SENDERS: "\n".join(lines) + "\n",
        QUOTAS: "".join(f"limit_req zone=sluice_quota_{rate} burst={2 * rate} nodelay;\n" for rate in rates),
    }


def pattern_of(path: str) -> str:
    """The pattern of a path as a request has it: with a query behind it, and perhaps slashes too many."""
    return pattern(path).replace(".*", "[^?]*").replace("[^/]+", "[^/?]+")


def forbidden_paths(by_name: dict[str, Key], paths: Counter[str]) -> list[str]:
    """The lines of where a key may not post, an unknown one nowhere.

    paths: of all routes, in lower case, as nginx's map compares texts.
    """
    # nginx tries patterns one after the other, so there is one for each set of paths, and none for each name
    sets = {key.paths: str(n) for n, key in enumerate(by_name.values(), 1) if key.paths is not None}
    if not sets:
        return [UNLIMITED]
    lines = ["map $sluice_client $sluice_paths {", '    default "";', '    "" 0;']
    lines += [f"    {LITERAL}{name} {sets[key.paths]};" for name, key in by_name.items() if key.paths is not None]
    lines += ["}", 'map "$sluice_paths $request_uri" $sluice_forbidden {']
    lines += ["    default $sluice_elsewhere;", '    "~^ " "";', '    "~^0" 1;']
    # without a pattern, which takes longer; also other cases of a path, which are no route
    lines += [
        f'    "{n} {path}" "";'
        for some, n in sets.items()
        for path in sorted(some or ())
        if len(path) <= HASHED and paths[path.lower()] == 1 and not varies(path)
    ]
    lines += [
        f'    "~^{n} /*({"|".join(map(pattern_of, sorted(some or ())))})/*(\\?|$)" "";' for some, n in sets.items()
    ]
    lines += ["}", 'map "$sluice_view$request_uri" $sluice_elsewhere {', "    default 1;"]
    return [*lines, f'    "~^(view|/({"|".join(ANYWHERE)})(\\?|$))" "";', "}"]
