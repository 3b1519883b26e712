"""The settings of the core, a line each in the class Settings, and of contributions; read once, at the start.

A value is that of the environment, or else the default. What else a start and a verb read, is in
sluice/home_settings.py.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Callable, TypeVar, cast

from sluice import parsers, places, registry
from sluice.base.files import read_file
from sluice.registry import Setting, Spool

T = TypeVar("T")
STARTED = "etc/settings"  # below INGEST_HOME: as they were at the last start
STORE = "etc/store"  # below INGEST_HOME: which database has what is stored
SCRATCH_SOCKET = "run/views.sock"  # of the second Redis, below INGEST_HOME
SOCKETS = 4  # of gateway and of reader: one Unix socket refuses (502) when its backlog is full (nginx/sluice.conf)
MAX_ITEM = 500 << 20  # bytes of a body: an item of a list may have 512 MiB, with its head
BATCH = 8  # times INGEST_MAX_BODY: what a batch may have, and what any compressed body may inflate to
SHOWN_CHARACTERS = 200  # of an invalid value


class SettingError(ValueError):
    """An invalid setting. The text is one line: the setting, its value, the values that are valid."""


def setting(parse: Callable[[str], T], default: str, purpose: str) -> T:
    """A setting of the core, as an attribute of the class `Settings`; see `registry.Setting`."""
    return cast(T, Setting(parse, default, purpose))


class Settings:
    """The settings of one cell, each from the variable INGEST_ and its name. Sizes are in bytes.

    The class has the rows of the table, an object their values, and those of the settings of contributions.
    What each one is, and when to change it: docs/protocol/operator.md.
    """

    port: int = setting(parsers.integer_parser(1, 65535), "8080", "TCP port of nginx")
    home: Path = setting(parsers.parse_path, "var", "directory of data, logs and sockets")
    cell: str = setting(parsers.parse_cell, "", "name of this installation where several store in one database")
    runtime: str = setting(parsers.choice_parser("cpython", "pypy"), "cpython", "Python of the gateway")
    gateways: int = setting(parsers.gateways, "auto", "gateway processes")
    workers: parsers.Range = setting(parsers.parse_processes, "1", "worker processes")
    durability: str = setting(
        parsers.choice_parser("always", "everysec", "no"), "always", "whether an answer waits until it is on disk"
    )
    replicas: int = setting(parsers.integer_parser(0, 16), "0", "replicas of Redis that must confirm each commit")
    max_body: int = setting(parsers.size_parser(1, MAX_ITEM), "1m", "bytes in a body")
    max_memory: int = setting(parsers.size_parser(8 << 20), "1g", "memory of Redis: what may wait to be stored")
    store: str = setting(parsers.parse_database, "sqlite:///$INGEST_HOME/ingest.db", "the database")
    keep: parsers.Keep = setting(parsers.parse_keep, "forever", "age at which rows and dead letters are deleted")
    unique: parsers.ByStream[tuple[int, bool]] = setting(
        parsers.parse_unique, "1d", "how long keys are kept that make repeats one"
    )
    spool: str = setting(parsers.parse_spool, "$INGEST_HOME/run/redis.sock", "the list between gateway and worker")
    routes: str = setting(parsers.parse_module, "", "module of routes of your own")
    records: str = setting(parsers.parse_module, "", "module of streams of your own")
    allow: tuple[str, ...] = setting(
        parsers.clients_parser("all", "private", "auto"), "auto", "networks whose clients may write"
    )
    hosts: tuple[str, ...] = setting(parsers.parse_hosts, "", "names of this server, for reading in a browser")
    log: parsers.LogStyle = setting(parsers.parse_log_style, "text", "form of the logs")

    def __init__(self, values: Mapping[str, Any], given: Mapping[str, str]) -> None:
        """given: variable -> text, of those that are set."""
        vars(self).update(values)
        self.given = given

    def __getattr__(self, name: str) -> Any:  # for mypy: it does not know the settings of contributions
        raise AttributeError(name)

    def values(self) -> dict[str, Any]:
        """The value of each setting, by name."""
        return {name: getattr(self, name) for name in settings_table()}

    @property
    def has_own_redis(self) -> bool:
        """Whether INGEST_SPOOL is the socket of a Redis that belongs to this cell."""
        return "://" not in self.spool

    @property
    def spooling(self) -> Spool | None:
        """What INGEST_SPOOL names, if it is not Redis."""
        found: Spool | None = registry.of_url("spools", self.spool)
        return found

    @property
    def body_limit(self) -> int:
        """The most that INGEST_MAX_BODY may be. A larger body would never be accepted."""
        return (self.spooling and self.spooling.max_body) or self.max_memory // 2

    @property
    def max_batch(self) -> int:
        """Bytes in a body on the paths of batches."""
        return min(BATCH * self.max_body, MAX_ITEM, self.body_limit)

    @property
    def figures(self) -> str:
        """The Redis to which the processes report their counts: that of the list, or the second one."""
        return self.spool if self.spooling is None or self.spooling.is_redis else self.scratch_redis

    @property
    def scratch_redis(self) -> str:
        """The second Redis, which has no disk: what is in it can be made again."""
        return str(self.home / SCRATCH_SOCKET)

    @property
    def has_scratch_redis(self) -> bool:
        return self.figures != self.spool or any(needs(self) for needs in registry.load_hooks("scratch"))

    @property
    def draining(self) -> Path:
        """While this file exists, /readyz sends the balancer elsewhere."""
        return self.home / "run/draining"

    @property
    def closing(self) -> Path:
        """While this file exists, 2xx responses close their connections."""
        return self.home / "run/closing"

    @property
    def gateway_sockets(self) -> list[Path]:
        return [self.home / "run" / f"gateway-{n}.sock" for n in range(SOCKETS)]

    @property
    def reader_sockets(self) -> list[Path]:
        return [self.home / "run" / f"reader-{n}.sock" for n in range(SOCKETS)]


@functools.cache
def settings_table() -> dict[str, Setting]:
    """Every setting, by name: the core's, then those of contributions."""
    core = {name: row for name, row in vars(Settings).items() if isinstance(row, Setting)}
    return core | registry.declared_entries("settings")


def variable(name: str) -> str:
    return f"INGEST_{name.upper()}"


def variables() -> list[str]:
    return [variable(name) for name in settings_table()]


def load_settings(environ: Mapping[str, str] = os.environ, *, last: bool = False) -> Settings:
    """An empty variable counts as not set. Raises: SettingError for the first invalid value.

    last: what is not set is as the last start had it, for what an operator runs, whose shell has the settings of no
    cell.
    """
    values: dict[str, Any] = {"home": home_of(environ)}
    given: dict[str, str] = {}
    started = of_last_start(values["home"])
    kept = started if last else {}
    for name, row in settings_table().items():
        if name == "home":
            continue
        text = environ.get(variable(name), "").strip() or kept.get(variable(name), "")
        value = values[name] = parse_setting(name, text or row.default.replace("$INGEST_HOME", str(values["home"])))
        if text:
            given[variable(name)] = str(value) if isinstance(value, (str, Path)) else text  # a path from anywhere
    for settle in registry.load_hooks("settle"):
        settle(values)
    if values["allow"] == parsers.AUTO:
        values["allow"] = parsers.PRIVATE
    values["cell"] = values["cell"] or started.get("INGEST_CELL") or default_cell(values["home"])
    return Settings(values, given)


def home_of(environ: Mapping[str, str]) -> Path:
    return parsers.parse_path(environ.get("INGEST_HOME", "").strip() or str(places.default_home()))


def parse_setting(name: str, text: str) -> Any:
    """Raises: SettingError."""
    try:
        return settings_table()[name].parse(text)
    except ValueError as error:
        shown = repr(without_password(text))
        shown = shown if len(shown) <= SHOWN_CHARACTERS else f"{shown[:SHOWN_CHARACTERS]}…"
        raise SettingError(f"{variable(name)}={shown} is invalid: expected {error}.") from None


def of_last_start(home: Path) -> dict[str, str]:
    """The settings with which a cell was started last, by variable; none if it never was. Raises: SettingError."""
    try:
        lines = read_file(home / STARTED).splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise SettingError(f"INGEST_HOME: {home / STARTED} cannot be read: {error.strerror}.") from None
    return {name: value for name, _, value in (line.partition("=") for line in lines) if name.startswith("INGEST_")}


def default_cell(home: Path) -> str:
    """The name of a cell that never had one; it is kept in its home, also if that is moved."""
    identity = b""
    with contextlib.suppress(OSError):  # not every container has the file
        identity = Path("/etc/machine-id").read_bytes()
    number = hashlib.blake2b(identity + os.fsencode(home), digest_size=3).hexdigest()
    name = re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9._-]", "", os.uname().nodename)
    return f"{name[:40] or 'cell'}-{number}"


def without_password(url: str) -> str:
    """A connection string for display, with … in place of the password, and of what a query calls a secret."""
    return re.sub(
        r"(?<=[^/:@]:)[^/].*(?=@)|(?<=//:).*(?=@)"
        r"|(?<=password=)[^&\s]*|(?<=secret=)[^&\s]*|(?<=passphrase=)[^&\s]*|(?<=\.pem=)[^&\s]*|(?<=\.config=)[^&\s]*",
        "…", url,
    )  # fmt: skip


@contextlib.contextmanager
def exit_if_invalid() -> Iterator[None]:
    """For programs: an invalid setting is one line on standard error and exit status 2."""
    try:
        yield
    except SettingError as error:
        sys.exit(complain(error))


def load_or_exit() -> Settings:
    with exit_if_invalid():
        return load_settings()


def complain(error: object) -> int:
    """Print an error as one line; returns the exit status for an invalid setting."""
    line = "".join(x if x.isprintable() else x.encode("unicode_escape").decode() for x in f"sluice: {error}")
    print(line, file=sys.stderr)
    return 2
