"""The values of settings: their types and parsers. A parser raises ValueError with the values that it accepts."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Generic, NamedTuple, Optional, TypeVar

from sluice import registry

T = TypeVar("T")
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
TIMES = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
DAY = 86_400
AGE = r"(?P<number>[0-9]{1,5})(?P<unit>[smhd])"
DEAD = "dead"  # in INGEST_KEEP: the dead letters
EVERYBODY = ("0.0.0.0/0", "::/0")
THIS_MACHINE = ("127.0.0.1", "::1")
# this machine, and networks that no router of the internet leads to; without the addresses that providers share among
# their customers (100.64.0.0/10)
PRIVATE = (
    *("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"),
    *("::1", "fc00::/7", "fe80::/10"),
)
AUTO = ("auto",)
CLIENTS = {"all": EVERYBODY, "private": PRIVATE, "none": (), "auto": AUTO}


@dataclass(frozen=True)
class ByStream(Generic[T]):
    """A value for each of some `streams`, and one for the `rest` of them."""

    rest: T
    streams: dict[str, T]

    def for_stream(self, stream: str) -> T:
        return self.streams.get(stream, self.rest)

    def values(self) -> list[T]:
        return [self.rest, *self.streams.values()]


Keep = ByStream[Optional[int]]  # seconds that rows are kept, and with DEAD dead letters; None: for ever
FOREVER = Keep(None, {DEAD: None})


class Range(NamedTuple):
    """An inclusive range; both ends are equal for a fixed number."""

    min: int
    max: int


class LogStyle(NamedTuple):
    """How programs log: as JSON instead of text, and debugging messages too."""

    json: bool
    debug: bool


def integer_parser(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,12}", text) or not low <= int(text) <= high:
            raise ValueError(f"an integer from {low} to {high}")
        return int(text)

    return parse


def either_parser(word: str, value: Callable[[], T], other: Callable[[str], T]) -> Callable[[str], T]:
    """A parser of a word, or of what another parser takes."""

    def parse(text: str) -> T:
        if text.lower() == word:
            return value()
        try:
            return other(text)
        except ValueError as error:
            raise ValueError(f"{error}, or {word}") from None

    return parse


def size_parser(low: int, high: int = 1 << 40) -> Callable[[str], int]:
    """A parser of sizes in bytes; the suffix k, m or g stands for KiB, MiB or GiB."""

    def parse(text: str) -> int:
        match = re.fullmatch(r"([0-9]{1,12})([kmg]?)(?:i?b)?", text.lower())
        if not match or not low <= int(match[1]) * UNITS[match[2]] <= high:
            raise ValueError(f"a size from {in_units(low)} to {in_units(high)}, such as 64m")
        return int(match[1]) * UNITS[match[2]]

    return parse


def in_units(size: int) -> str:
    """A size in bytes as the shortest text with a suffix."""
    return next(f"{size // UNITS[unit]}{unit}" for unit in ("g", "m", "k", "") if size % UNITS[unit] == 0)


def by_stream(text: str, value: str, expected: str, separator: str = r"[,\s]+") -> dict[str, re.Match[str]]:
    """What matches `value` in words such as `30d` and `gps=7d`, by stream; "": the rest. Raises: ValueError."""
    found: dict[str, re.Match[str]] = {}
    for word in filter(None, re.split(separator, text.strip())):
        match = re.fullmatch(rf"(?:(?P<stream>\w+)=)?(?:{value})", word)
        name = match["stream"] or "" if match else ""
        if not match or name in found:
            raise ValueError(expected)
        found[name] = match
    if not found:
        raise ValueError(expected)
    return found


def age_seconds(age: re.Match[str]) -> int | None:
    return int(age["number"]) * TIMES[age["unit"]] if age["number"] else None


def parse_keep(text: str) -> Keep:
    expected = "an age such as 10m, 12h or 30d, forever, or ages of streams: 30d,gps=7d,dead=90d"
    found = by_stream(text, rf"(?!0+[a-z]){AGE}|forever", expected)
    ages = {DEAD: None} | {name: age_seconds(match) for name, match in found.items()}
    return Keep(ages.pop("", None), ages)


def parse_unique(text: str) -> ByStream[tuple[int, bool]]:
    """Seconds that keys are kept, 0: off; and whether records have keys, too."""
    expected = "an age such as 12h or 1d, off, or ages of streams: 1d,gps=7d,logs=off,metrics=1d/record"
    found = by_stream(text, rf"(?!0){AGE}(?P<record>/record)?|off", expected)
    if "" in found and found[""]["record"]:
        raise ValueError(expected)
    ages = {name: (age_seconds(match) or 0, bool(match["record"])) for name, match in found.items()}
    return ByStream(ages.pop("", (DAY, False)), ages)


def parse_processes(text: str) -> Range:
    number = integer_parser(0, 256)(text)
    return Range(number, number)


def parse_cell(text: str) -> str:
    if text and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", text):
        raise ValueError("up to 63 letters, digits, dots, hyphens and underscores, the first a letter or digit")
    return text


def gateways_of(cores: int) -> int:
    """Gateway processes for a number of cores: the gateway takes a quarter of a cell's CPU time; see docs/SCALE.md."""
    return max(1, cores // 4)


def own_gateways() -> int:
    """Those for the CPUs that this process may use; PyPy knows only how many the machine has."""
    return gateways_of(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


gateways = either_parser("auto", own_gateways, integer_parser(1, 256))


def choice_parser(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError("one of " + ", ".join(names))
        return text

    return parse


def words_parser(valid: Callable[[str], object], expected: str) -> Callable[[str], tuple[str, ...]]:
    """A parser of words separated by commas or white space. `valid` rejects a word by None, False or ValueError."""

    def parse(text: str) -> tuple[str, ...]:
        given = tuple(filter(None, re.split(r"[,\s]+", text)))
        try:
            if text and not (given and all(map(valid, given))):
                raise ValueError
        except ValueError:
            raise ValueError(expected) from None
        return given

    return parse


def clients_parser(*names: str) -> Callable[[str], tuple[str, ...]]:
    """A parser of addresses and networks, or of one of the `names` in CLIENTS."""
    networks = words_parser(
        ipaddress.ip_network,
        f"addresses and networks such as 192.0.2.7, 10.1.0.0/16 and 2001:db8::/32; or {', '.join(names)}",
    )
    return lambda text: CLIENTS[text] if text in names else networks(text)


def parse_hosts(text: str) -> tuple[str, ...]:
    name = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?").fullmatch
    return words_parser(name, "host names such as sluice.example.com, without a port")(text.lower())


def parse_database(text: str) -> str:
    if re.match("sqlite:///.", text):
        return f"sqlite:///{parse_path(text.removeprefix('sqlite:///'))}"
    return of_scheme("databases", text, "sqlite:///PATH")


def of_scheme(kind: str, text: str, *forms: str) -> str:
    """A URL whose scheme a contribution declares. forms: what is valid besides, for the error. Raises: ValueError."""
    known = registry.of_url(kind, text)
    if known is None or not re.fullmatch(known.pattern, text, re.ASCII):
        entries = [known] if known else registry.declared_entries(kind).values()
        last = list(dict.fromkeys(each.form for each in entries))
        words = last if known else [*forms, *last]
        raise ValueError(", ".join(words[:-1]) + " or " * (len(words) > 1) + words[-1])
    return text


def parse_module(text: str) -> str:
    if text and not re.fullmatch(r"/.*\.py|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", text):
        raise ValueError("the name of a module (mine.routes) or the absolute path of a .py file")
    return text


def parse_path(text: str) -> Path:
    """The parser of a path.

    A relative one counts from the operator's directory, which bin/up and bin/sluice leave in SLUICE_PWD before they
    change to the checkout; unless that is set, from the current directory.
    """
    return Path(os.path.abspath(os.path.join(os.environ.get("SLUICE_PWD", ""), text)))


def parse_spool(text: str) -> str:
    return of_scheme("spools", text, "the path of a socket") if "://" in text else str(parse_path(text))


def parse_file(text: str) -> Path | None:
    return parse_path(text) if text else None


def parse_log_style(text: str) -> LogStyle:
    given = re.split(r"[,\s]+", text)
    if len(set(given)) < len(given) or not {"text", "json", "debug"} >= set(given) or {"text", "json"} <= set(given):
        raise ValueError("text, json, debug, or json,debug")
    return LogStyle("json" in given, "debug" in given)
