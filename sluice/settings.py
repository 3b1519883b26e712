"""Every setting: one row each in the class Settings, read once from the environment."""

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


def setting(parse: Callable[[str], T], default: str, about: str) -> T:
    """One row of the table.

    default: a text for `parse`, in which $INGEST_HOME stands for that setting.
    about: what the setting is, who changes it and when (Markdown).
    """
    row: T = dataclasses.field(metadata={"parse": parse, "default": default, "about": about})
    return row


@dataclass(frozen=True)
class Settings:
    """The settings of one cell, each from the variable INGEST_ and its name. Sizes are in bytes."""

    # fmt: off
    port: int = setting(
        integer(1, 65535), "8080",
        "TCP port of nginx, on IPv4 and, if the machine has it, on IPv6. Change it if another program uses the port, "
        "or to 443 for TLS",
    )
    home: Path = setting(
        parsers.path, "var",
        "Directory for sockets, logs, Redis's files and `ingest.db`. Change it to keep the data on another disk, or to "
        "run a second cell on this machine",
    )
    cell: str = setting(
        parsers.cell, "",
        "Name of this cell among those that store in the same database, up to 63 letters, digits and `._-`; "
        "unless set, the name of the machine with a hash of `/etc/machine-id` and `INGEST_HOME`. Set it when there are "
        "several, to the name by which you know the machine ([cells](database.md#cells))",
    )
    runtime: str = setting(
        choice("cpython", "pypy"), "cpython",
        "Python of gateway and reader: `cpython` or `pypy`. Change it when one of them is the bottleneck: PyPy takes "
        "less CPU per request and more memory",
    )
    gateways: int = setting(
        parsers.gateways, "auto",
        "Gateway processes; `auto`: one for each four cores, at least one. Change it when a gateway uses a whole core, "
        "or when other programs need the cores",
    )
    workers: Range = setting(
        parsers.processes, "1",
        "Worker processes; `0`: none, bodies wait in Redis; `auto` or `auto:MIN-MAX`: as many as the backlog needs, "
        "1 to 4 unless given. Raise it when the backlog grows although the database is not busy",
    )
    durability: str = setting(
        choice("always", "everysec", "no"), "always",
        "Redis's `appendfsync`: `always`, `everysec` or `no`. Change it when throughput is worth the bodies that a "
        "power failure may lose ([the promise](spool.md#the-promise))",
    )
    replicas: int = setting(
        integer(0, 16), "0",
        "Replicas of Redis that must confirm a body before its 2xx, and a claim before its worker. Set it when Redis "
        "may fail over to a replica ([replicas](spool.md#replicas))",
    )
    max_body: int = setting(
        size(1, MAX_ITEM), "1m",
        "Bytes in one body, up to 500m; a larger one gets 413. A [batch](http.md#paths) may have 8 times as many, and "
        "any compressed body may inflate to as many. Raise it when clients send more",
    )
    max_memory: int = setting(
        size(8 << 20), "1g",
        "Redis's `maxmemory`. When it is used up, posts get 503; nothing is evicted. The READY bodies of one stream "
        "may use half of it. Set it to the memory that bodies may take while the database is unavailable",
    )
    views_memory: int = setting(
        size(8 << 20), "256m",
        "`maxmemory` of the views' Redis. A view without room takes no new keys. Raise it when the views have more "
        "keys than it holds (`bin/sluice views` shows the memory of each)",
    )
    store: str = setting(
        parsers.database, "sqlite:///$INGEST_HOME/ingest.db",
        "Database. Change it to `postgresql://USER:PASSWORD@HOST/DATABASE?sslmode=verify-full` (libpq's URI; each "
        "`@ : / ? # %` of the password is written `%40` …) when other programs or machines read the rows",
    )
    rows: ByStream[str | None] = setting(
        parsers.rows, "store",
        "Where rows go: `store`, the tables of `INGEST_STORE`; `parquet:///DIRECTORY`, `s3://BUCKET/PREFIX`, "
        "`clickhouse://USER:PASSWORD@HOST:PORT/DATABASE` or `kafka://HOST:PORT,HOST:PORT`, for all streams or for some "
        "of them (`gps=parquet:///DIRECTORY,logs=s3://BUCKET/PREFIX`); `metrics=statsd://HOST:PORT`. Set it "
        "when one database is too small for the rows ([elsewhere](database.md#rows-elsewhere))",
    )
    keep: Keep = setting(
        parsers.keep, "forever",
        "How long rows are kept after their arrival: seconds (`90s`), minutes (`10m`), hours (`12h`) or days (`30d`), "
        "for all streams or for some of them (`30d,gps=7d,votes=forever`). `dead=90d`: the same for dead letters. Set "
        "it when the disk is smaller than all that will ever arrive ([by age](database.md#deleting-by-age))",
    )
    unique: ByStream[tuple[int, bool]] = setting(
        parsers.unique, "1d",
        "How long a key is kept, so that a body that comes again is stored once: an age such as `12h` or `1d`, or "
        "`off`, for all streams or for some (`1d,gps=7d,logs=off`). `gps=1d/record`: each record is its own key; for "
        "`gps`, `metrics`, `logs` and `spans`. Set it when senders repeat after more than a day, or to save its cost "
        "([keys](database.md#keys))",
    )
    spool: str = setting(
        parsers.spool, "$INGEST_HOME/run/redis.sock",
        "Where bodies wait for the workers: the Unix socket of the Redis that `bin/up` starts. Change it "
        "to `redis://USER:PASSWORD@HOST:PORT`, `rediss://…` or "
        "`redis+sentinel://…` to use a Redis on other machines ([addresses](spool.md#redis-on-other-machines)), or to "
        "`kafka://HOST:PORT,HOST:PORT` ([Kafka](spool.md#kafka)); then `bin/up` starts none for them",
    )
    routes: str = setting(
        parsers.module, "",
        "Module with `ROUTES`: its name, or the absolute path of a `.py` file. Set it to add paths, for streams of "
        "your own",
    )
    records: str = setting(
        parsers.module, "", "Module with `STREAMS`, named likewise. Set it to add streams, or to replace built-in ones"
    )
    views: str = setting(
        parsers.views, "",
        "Module with `VIEWS`, named likewise, for views of your own ([views](database.md#views)); `off`: no views. Set "
        "it to read your own streams back, or to save the memory of the views",
    )
    api_keys: Path | None = setting(
        parsers.file, "",
        "File of API keys; a client without one gets 401. Set it when the port is open to strangers "
        "([access](#access-control))",
    )
    passwords: Path | None = setting(
        parsers.file, "",
        "File of names and passwords, as `htpasswd` writes it, for basic authentication. Set it for clients that "
        "cannot send an API key",
    )
    tls_certificate: Path | None = setting(
        parsers.file, "",
        "File of the certificate with its chain (PEM). Set it when clients come over a network that others can read: "
        "`INGEST_PORT` then speaks only TLS 1.2 and 1.3, with HTTP/1.1 and HTTP/2",
    )
    tls_key: Path | None = setting(
        parsers.file, "",
        "File of the certificate's key (PEM). Set it unless the file of the certificate has the key too",
    )
    allow: tuple[str, ...] = setting(
        clients("all", "private", "auto"), "auto",
        "Addresses and networks that may send, IPv4 and IPv6, separated by commas or spaces; others get 403. "
        "`private`: this machine and private networks; `all`: everybody; `auto`: `all` if clients need an API key or a "
        "password, else `private`. Set it when the clients' networks are known, or to `all` to take writes from the "
        "internet without keys",
    )
    read_allow: tuple[str, ...] = setting(
        clients("all", "private", "none"), "127.0.0.1 ::1",
        "Addresses and networks that may read the views, as in `INGEST_ALLOW`; `none`: nobody. Set it when clients on "
        "other machines read",
    )
    hosts: tuple[str, ...] = setting(
        parsers.hosts, "",
        "Names of this server in URLs, beside `localhost` and the name of the machine. At other names, but not at "
        "addresses, views and status page answer 421. Set it when they are read by another name",
    )
    client_rate: int = setting(
        parsers.limit(1_000_000), "auto",
        "Requests per second from one client, an IPv4 address or an IPv6 network /64, and twice as many in a burst; "
        "beyond that, 429. `0`: no limit; `auto`: 100 if clients need a password, else none. Set it on a public port, "
        "above the rate of the busiest client",
    )
    client_connections: int = setting(
        parsers.limit(65535), "auto",
        "Concurrent requests of one client; beyond that, 429. `0`: no limit; `auto`: 64, but none for this machine and "
        "private networks, where a balancer may be. Set it when many clients share a public address",
    )
    cors: tuple[str, ...] = setting(
        parsers.origins, "",
        "Paths that pages of other origins may post to or read, and those origins (unless given, any). Set it when a "
        "web page on another host sends data or shows a view",
    )
    log: LogStyle = setting(
        parsers.log_style, "text",
        "Format of the logs of gateway, reader, workers and follower. Change it to `json` for a log collector: one "
        "object per line with `time`, `level`, `logger`, `process`, `message`, and `traceback` after an error. Add "
        "`debug` (`json,debug`, or `debug` alone for text) to see each failed attempt while you look for its cause",
    )
    status_allow: tuple[str, ...] = setting(
        clients("all", "private", "none"), "127.0.0.1 ::1",
        "Addresses and networks that may read the status page and the metrics, as in `INGEST_ALLOW`; `none`: nobody. "
        "Set it to read them from another machine",
    )
    # fmt: on

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
        """The names of keys. While there is one, the gateway keeps each head, into which nginx puts the name."""
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


# settings that have another name or form since 4e06d3b: variable, its value then, what to write instead
FORMER = (
    ("INGEST_SINK", r"(.+)", r"INGEST_STORE"),
    ("INGEST_REDIS", r"(.+)", r"INGEST_SPOOL"),
    ("INGEST_TLS_CERTIFICATE", r"([^,]+),([^,]+)", r"INGEST_TLS_CERTIFICATE=\1 INGEST_TLS_KEY=\2"),
    ("INGEST_CLIENT_RATE", r"([^,]+),([^,]+)", r"INGEST_CLIENT_RATE=\1 INGEST_CLIENT_CONNECTIONS=\2"),
    ("INGEST_MAX_MEMORY", r"([^,]+),([^,]+)", r"INGEST_MAX_MEMORY=\1 INGEST_VIEWS_MEMORY=\2"),
    ("INGEST_ROWS", r"(?:.*[=,\s])?sink(?:[,\s].*)?", r"store in place of sink"),
)


def variable(row: dataclasses.Field[Any]) -> str:
    return f"INGEST_{row.name.upper()}"


NAMES = tuple(map(variable, dataclasses.fields(Settings)))


def load(environ: Mapping[str, str] = os.environ) -> Settings:
    """An empty variable counts as not set. Raises: SettingError for the first invalid value."""
    for name, form, instead in FORMER:
        if match := re.fullmatch(form, environ.get(name, "").strip()):
            raise SettingError(f"{name} has changed: write {match.expand(instead)}.")
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
    values["hosts"] = tuple(dict.fromkeys((os.uname().nodename.lower(), *values["hosts"])))
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
