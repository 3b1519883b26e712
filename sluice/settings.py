"""Every setting: one line each in the class Settings, read once from the environment."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, TypeVar

from sluice import parsers
from sluice.parsers import AUTO, ByStream, Keep, LogStyle, Range, choice, clients, integer, size

T = TypeVar("T")
KAFKA = "kafka://"
VIEWS_SOCKET = "run/views.sock"  # of the views' Redis, below INGEST_HOME
SOCKETS = 4  # of gateway and of reader: one Unix socket refuses (502) when its backlog is full (nginx/sluice.conf)
MAX_ITEM = 500 << 20  # bytes of a body: an item of a list may have 512 MiB, with its head
BATCH = 8  # times INGEST_MAX_BODY: what a batch may have, and what any compressed body may inflate to
SOCKET_PATH = 107  # bytes: sun_path in unix(7), without its NUL
SHOWN_CHARACTERS = 200  # of an invalid value


class SettingError(ValueError):
    """An invalid setting. The text is one line: the setting, its value, the values that are valid."""


def setting(parse: Callable[[str], T], default: str) -> T:
    """One setting. default: a text for `parse`, in which $INGEST_HOME stands for that setting."""
    row: T = dataclasses.field(metadata={"parse": parse, "default": default})
    return row


@dataclass(frozen=True)
class Settings:
    """The settings of one cell, each from the variable INGEST_ and its name. Sizes are in bytes.

    What each one is, and when to change it: docs/protocol/operator.md.
    """

    port: int = setting(integer(1, 65535), "8080")
    home: Path = setting(parsers.path, "var")
    cell: str = setting(parsers.cell, "")
    runtime: str = setting(choice("cpython", "pypy"), "cpython")
    gateways: int = setting(parsers.gateways, "auto")
    workers: Range = setting(parsers.processes, "1")
    durability: str = setting(choice("always", "everysec", "no"), "always")
    replicas: int = setting(integer(0, 16), "0")
    max_body: int = setting(size(1, MAX_ITEM), "1m")
    max_memory: int = setting(size(8 << 20), "1g")
    views_memory: int = setting(size(8 << 20), "256m")
    store: str = setting(parsers.database, "sqlite:///$INGEST_HOME/ingest.db")
    rows: ByStream[str | None] = setting(parsers.rows, "store")
    keep: Keep = setting(parsers.keep, "forever")
    unique: ByStream[tuple[int, bool]] = setting(parsers.unique, "1d")
    spool: str = setting(parsers.spool, "$INGEST_HOME/run/redis.sock")
    routes: str = setting(parsers.module, "")
    records: str = setting(parsers.module, "")
    views: str = setting(parsers.views, "")
    api_keys: Path | None = setting(parsers.file, "")
    passwords: Path | None = setting(parsers.file, "")
    tls_certificate: Path | None = setting(parsers.file, "")
    tls_key: Path | None = setting(parsers.file, "")
    allow: tuple[str, ...] = setting(clients("all", "private", "auto"), "auto")
    read_allow: tuple[str, ...] = setting(clients("all", "private", "none"), "127.0.0.1 ::1")
    hosts: tuple[str, ...] = setting(parsers.hosts, "")
    client_rate: int = setting(parsers.limit(1_000_000), "auto")
    client_connections: int = setting(parsers.limit(65535), "auto")
    cors: tuple[str, ...] = setting(parsers.origins, "")
    log: LogStyle = setting(parsers.log_style, "text")
    status_allow: tuple[str, ...] = setting(clients("all", "private", "none"), "127.0.0.1 ::1")

    @property
    def has_own_redis(self) -> bool:
        """Whether INGEST_SPOOL is the socket of a Redis that belongs to this cell."""
        return "://" not in self.spool

    @property
    def has_kafka(self) -> bool:
        return self.spool.startswith(KAFKA)

    @property
    def body_limit(self) -> int:
        """The most that INGEST_MAX_BODY may be. A larger body would never be accepted."""
        return 60 << 20 if self.has_kafka else self.max_memory // 2

    @property
    def max_batch(self) -> int:
        """Bytes in a body on the paths of batches."""
        return min(BATCH * self.max_body, MAX_ITEM, self.body_limit)

    @property
    def figures(self) -> str:
        """The Redis to which the processes report their counts: that of the list, or with Kafka that of the views."""
        return self.views_redis if self.has_kafka else self.spool

    @property
    def views_redis(self) -> str:
        return str(self.home / VIEWS_SOCKET)

    @property
    def draining(self) -> Path:
        """While this file exists, /readyz sends the balancer elsewhere."""
        return self.home / "run/draining"

    @property
    def rejected(self) -> Path:
        """The socket at which nginx and the gateway tell the program `page` what they reject."""
        return self.home / "run/rejected.sock"

    @property
    def names(self) -> Path:
        """The names of keys, as a start or a reload of nginx found them."""
        return self.home / "etc/names"

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


def variable(row: dataclasses.Field[Any]) -> str:
    return f"INGEST_{row.name.upper()}"


NAMES = tuple(map(variable, dataclasses.fields(Settings)))


def load(environ: Mapping[str, str] = os.environ) -> Settings:
    """An empty variable counts as not set. Raises: SettingError for the first invalid value."""
    values: dict[str, Any] = {}
    for row in dataclasses.fields(Settings):
        text = environ.get(variable(row), "").strip()
        if not text:
            # not from the operator's directory, as `parsers.path` would
            text = row.metadata["default"] if row.name != "home" else str(Path(row.metadata["default"]).absolute())
            text = text.replace("$INGEST_HOME", str(values.get("home")))
        try:
            values[row.name] = row.metadata["parse"](text)
        except ValueError as error:
            shown = repr(without_password(text))
            shown = shown if len(shown) <= SHOWN_CHARACTERS else f"{shown[:SHOWN_CHARACTERS]}…"
            raise SettingError(f"{variable(row)}={shown} is invalid: expected {error}.") from None
    if values["tls_key"] and not values["tls_certificate"]:
        raise SettingError("INGEST_TLS_KEY needs INGEST_TLS_CERTIFICATE.")
    values["tls_key"] = values["tls_key"] or values["tls_certificate"]
    if values["allow"] == AUTO:
        values["allow"] = parsers.EVERYBODY if values["api_keys"] or values["passwords"] else parsers.PRIVATE
    values["cell"] = values["cell"] or default_cell(values["home"])
    loaded = Settings(**values)
    for name, socket in ("INGEST_HOME", loaded.gateway_sockets[0]), ("INGEST_SPOOL", loaded.spool):
        if len(os.fsencode(socket)) > SOCKET_PATH and (name == "INGEST_HOME" or loaded.has_own_redis):
            raise SettingError(f"{name} is too long: the path of the socket {socket} may have {SOCKET_PATH} bytes.")
    if loaded.has_kafka and loaded.runtime == "pypy":
        raise SettingError("INGEST_SPOOL=kafka://… needs INGEST_RUNTIME=cpython: its client does not run on PyPy.")
    if loaded.max_body > loaded.body_limit:
        why = "Kafka's records" if loaded.has_kafka else "INGEST_MAX_MEMORY"
        raise SettingError(
            f"INGEST_MAX_BODY is too large for {why}: at most {loaded.body_limit} bytes, or no such body is accepted."
        )
    if loaded.has_kafka and loaded.replicas:
        raise SettingError("INGEST_REPLICAS is for Redis: in INGEST_SPOOL=kafka://…?replicas=N, N counts all replicas.")
    return loaded


def default_cell(home: Path) -> str:
    """The name of a cell that has none: the same after each start, and another one on each machine and in each home."""
    identity = b""
    with contextlib.suppress(OSError):  # not every container has the file
        identity = Path("/etc/machine-id").read_bytes()
    number = hashlib.blake2b(identity + os.fsencode(home), digest_size=3).hexdigest()
    name = re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9._-]", "", os.uname().nodename)
    return f"{name[:40] or 'cell'}-{number}"


def without_password(url: str) -> str:
    """A connection string for display, with … in place of the password, and of all secrets of Kafka's client."""
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
        return load()


def complain(error: object) -> int:
    """Print an error as one line; returns the exit status for an invalid setting."""
    line = "".join(x if x.isprintable() else x.encode("unicode_escape").decode() for x in f"sluice: {error}")
    print(line, file=sys.stderr)
    return 2


def secret(name: str, path: str | Path) -> str:
    """The text of the file in the setting `name`. Raises: SettingError if nobody or everybody here can read it."""
    try:
        if not Path(path).is_dir() and not stat.S_ISREG(os.stat(path).st_mode):  # to open a pipe may take for ever
            raise SettingError(f"{name}={str(path)!r} is no file.")
        with open(path, encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_mode & 0o007:
                raise SettingError(f"{name}={str(path)!r} is accessible to every user of this machine: chmod 600 it.")
            text = file.read()
        if text.startswith("\ufeff") or "\0" in text:
            what = "a NUL byte" if "\0" in text else "a byte order mark"
            raise SettingError(f"{name}={str(path)!r} has {what}: write it as plain text.")
        return text
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise SettingError(f"{name}={str(path)!r} cannot be read: {why}.") from None
