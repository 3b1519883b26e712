"""Every setting: one row each in the class Settings, read once from the environment.

`python -m sluice.settings FILE` writes the table of settings into a document, between its markers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import importlib.util
import ipaddress
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, NamedTuple, TypeVar

T = TypeVar("T")
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
TIMES = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
DEAD = "dead"  # in INGEST_KEEP: the dead letters
NETWORKS = "addresses and networks such as 192.0.2.7, 10.1.0.0/16 and 2001:db8::/32"
HOST = r"(?:[\w.-]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}"
LOGIN = r"[^:@/?#\s]*:[^:@/?#\s]*@"
QUERY = r"(?:partitions=[1-9][0-9]{0,4}|replicas=[1-9][0-9]?|properties=/[^&#\s]+|[a-z]+(?:\.[a-z]+)+=[^&#\s]*)"
KAFKA_URL = rf"kafka://(?:{LOGIN})?{HOST}(?:,{HOST})*(?:/[\w.-]{{1,100}})?(?:\?{QUERY}(?:&{QUERY})*)?"
DESTINATIONS = (  # of INGEST_ROWS
    r"parquet:///[^?#]+",
    r"s3://[\w.-]+(?:/[\w./=-]+)?",
    rf"clickhouse://(?:{LOGIN})?{HOST}/\w+(?:\?secure)?",
    KAFKA_URL,
    rf"statsd://{HOST}",
)
KAFKA = "kafka://"
VIEWS_SOCKET = "run/views.sock"  # of the views' Redis, below INGEST_HOME
SOCKETS = 4  # of gateway and of reader: one Unix socket refuses (502) when its backlog is full; see DECISIONS.md
# What stands behind the comma of a setting was a setting of its own; its variable still counts
SECOND = {
    "INGEST_TLS_CERTIFICATE": "INGEST_TLS_KEY",
    "INGEST_CLIENT_RATE": "INGEST_CLIENT_CONNECTIONS",
    "INGEST_MAX_MEMORY": "INGEST_VIEWS_MEMORY",
}
SOCKET_PATH = 107  # bytes: sun_path in unix(7), without its NUL


class SettingError(ValueError):
    """An invalid setting. The text is one line: the setting, its value, the values that are valid."""


class ClientLimits(NamedTuple):
    """Limits of one client: requests per second, and concurrent requests; 0: no limit."""

    rate: int
    connections: int


class Memory(NamedTuple):
    """`maxmemory` of the Redis with the bodies, and of that with the views; bytes."""

    bodies: int
    views: int


class Rows(NamedTuple):
    """The URLs of the destinations of rows; None: a table of the database.

    streams: those with a destination of their own.
    """

    rest: str | None
    streams: dict[str, str | None]

    def of(self, stream: str) -> str | None:
        """The destination of a stream."""
        return self.streams.get(stream, self.rest)

    def needs(self, scheme: str) -> bool:
        """Whether a destination has this scheme."""
        return any(url is not None and url.startswith(f"{scheme}:") for url in (self.rest, *self.streams.values()))


class Keep(NamedTuple):
    """How long rows are kept, in seconds after their arrival; None: for ever.

    streams: those with an age of their own; `dead` is the dead letters, to which `rest` does not apply.
    """

    rest: int | None
    streams: dict[str, int | None]

    def of(self, stream: str) -> int | None:
        """The age of a stream, or of `dead`."""
        return self.streams.get(stream, None if stream == DEAD else self.rest)


FOREVER = Keep(None, {})
IN_TABLES = Rows(None, {})


class Span(NamedTuple):
    """An inclusive range; both ends are equal for a fixed number."""

    min: int
    max: int


# Parsers. Each raises ValueError with the values that it accepts.


def integer(low: int, high: int) -> Callable[[str], int]:
    """A parser of integers within a range."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,12}", text) or not low <= int(text) <= high:
            raise ValueError(f"an integer from {low} to {high}")
        return int(text)

    return parse


def size(low: int) -> Callable[[str], int]:
    """A parser of sizes in bytes; the suffix k, m or g stands for KiB, MiB or GiB."""

    def parse(text: str) -> int:
        match = re.fullmatch(r"([0-9]{1,12})([kmg]?)(?:i?b)?", text.lower())
        if not match or int(match[1]) * UNITS[match[2]] < low:
            raise ValueError(f"a size of at least {low} bytes, such as {max(low, 1 << 20)}, 512k, 1m or 2g")
        return int(match[1]) * UNITS[match[2]]

    return parse


def memory(text: str) -> Memory:
    """The parser of INGEST_MAX_MEMORY."""
    parse = size(8 << 20)
    bodies, _, views = (part.strip() for part in text.partition(","))
    try:
        return Memory(parse(bodies), parse(views or "256m"))
    except ValueError as error:
        raise ValueError(f"{error}; or two of them, 1g,256m") from None


def rows(text: str) -> Rows:
    """The parser of INGEST_ROWS."""
    found: dict[str, str | None] = {}
    # not at the commas between the brokers of a URL
    for word in filter(None, re.split(r"[,\s]+(?=(?:\w+=)?(?:\w+:/|store\b))", text.strip())):
        match = re.fullmatch(rf"(?:(\w+)=)?({'|'.join(DESTINATIONS)}|store)", word, re.ASCII)
        name = match[1] or "" if match else ""
        if not match or name in found or (match[2].startswith("statsd") and name != "metrics"):
            raise ValueError(
                "parquet:///DIRECTORY, s3://BUCKET/PREFIX, clickhouse://HOST:PORT/DATABASE or "
                "kafka://HOST:PORT,HOST:PORT, or destinations of streams: gps=parquet:///DIRECTORY,votes=store,"
                "metrics=statsd://HOST:PORT"
            )
        found[name] = None if match[2] == "store" else match[2]
    return Rows(found.pop("", None), found)


def keep(text: str) -> Keep:
    """The parser of INGEST_KEEP."""
    found: dict[str, int | None] = {}
    for word in filter(None, re.split(r"[,\s]+", text)):
        match = re.fullmatch(r"(?:(\w+)=)?(?:([0-9]{1,5})([smhd])|forever)", word)
        name = match[1] or "" if match else ""
        if not match or name in found or match[2] and not int(match[2]):
            raise ValueError("an age such as 10m, 12h or 30d, forever, or ages of streams: 30d,gps=7d,dead=90d")
        found[name] = int(match[2]) * TIMES[match[3]] if match[2] else None
    return Keep(found.pop("", None), found)


def processes(text: str) -> Span:
    """The parser of INGEST_WORKERS."""
    match = re.fullmatch(r"(auto)(?::([0-9]{1,3})-([0-9]{1,3}))?|([0-9]{1,3})", text)
    if match:
        low, high = (int(match[2] or 1), int(match[3] or 4)) if match[1] else (int(match[4]), int(match[4]))
        if low <= high <= 256 and (low or not match[1]):
            return Span(low, high)
    raise ValueError("an integer from 0 to 256, auto, or auto:MIN-MAX such as auto:1-4")


def client_limits(text: str) -> ClientLimits:
    """The parser of INGEST_CLIENT_RATE."""
    match = re.fullmatch(r"([0-9]{1,7})(?:,([0-9]{1,5}))?", text)
    if match and int(match[1]) <= 10**6 and int(match[2] or 0) <= 65535:
        return ClientLimits(int(match[1]), int(match[2] or 0))
    raise ValueError("RATE or RATE,CONNECTIONS: two integers up to 1000000 and 65535, such as 20,8")


def cell(text: str) -> str:
    """The parser of INGEST_CELL; see `default_cell`."""
    if text and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", text):
        raise ValueError("up to 63 letters, digits, dots, hyphens and underscores, the first a letter or digit")
    return text


def gateways_of(cores: int) -> int:
    """Gateway processes for a number of cores: the gateway takes a quarter of a cell's CPU time; see docs/SCALE.md."""
    return max(1, cores // 4)


def cores() -> int:
    """The CPUs that this process may use; PyPy knows only how many the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gateways(text: str) -> int:
    """The parser of INGEST_GATEWAYS."""
    if text == "auto":
        return gateways_of(cores())
    try:
        return integer(1, 256)(text)
    except ValueError as error:
        raise ValueError(f"{error}, or auto") from None


def choice(*names: str) -> Callable[[str], str]:
    """A parser of one of some words."""

    def parse(text: str) -> str:
        if text not in names:
            raise ValueError("one of " + ", ".join(names))
        return text

    return parse


def words(valid: Callable[[str], object], expected: str) -> Callable[[str], tuple[str, ...]]:
    """A parser of words separated by commas or white space. `valid` rejects a word by None, False or ValueError."""

    def parse(text: str) -> tuple[str, ...]:
        found = tuple(filter(None, re.split(r"[,\s]+", text)))
        try:
            if text and not (found and all(map(valid, found))):
                raise ValueError
        except ValueError:
            raise ValueError(expected) from None
        return found

    return parse


def viewers(text: str) -> tuple[str, ...]:
    """The parser of INGEST_STATUS_ALLOW and INGEST_READ_ALLOW."""
    return () if text == "none" else words(ipaddress.ip_network, f"{NETWORKS}; or none")(text)


def origins(text: str) -> tuple[str, ...]:
    """The parser of INGEST_CORS: paths, and origins as browsers send them (RFC 6454)."""
    expected = "paths such as /votes and optionally origins such as https://a.example"
    valid = re.compile(r"/[\w/.~-]*|https?://[a-z0-9_.-]+(:[0-9]{1,5})?", re.ASCII).fullmatch
    found = words(valid, expected)(text)
    if found and not any(word.startswith("/") for word in found):
        raise ValueError(expected)
    return found


def database(text: str) -> str:
    """The parser of INGEST_STORE."""
    if not re.match(r"sqlite:///.|postgres(ql)?://.", text):
        raise ValueError("sqlite:///PATH or postgresql://USER@HOST/DATABASE")
    return text


def module(text: str) -> str:
    """The parser of a Python module; empty means none."""
    if text and not re.fullmatch(r"/.*\.py|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", text):
        raise ValueError("the name of a module (mine.routes) or the absolute path of a .py file")
    return text


def views(text: str) -> str:
    """The parser of INGEST_VIEWS."""
    if text == "off":
        return text
    try:
        return module(text)
    except ValueError as error:
        raise ValueError(f"{error}; or off") from None


def path(text: str) -> Path:
    """The parser of a path; a relative one is relative to the current directory."""
    return Path(text).absolute()


def redis(text: str) -> str:
    """The parser of INGEST_REDIS: the absolute path of a socket, or a URL; see `parse` in sluice/base/connect.py."""
    if "://" not in text:
        return str(path(text))
    match = re.fullmatch(
        rf"redis(?P<tls>s)?(\+(?P<sentinel>sentinel))?://([^:@/?#\s]*:[^:@/?#\s]*@)?{HOST}(?P<more>(,{HOST})*)"
        r"(?P<name>/[\w.-]+)?(?P<query>\?(ssl_(ca_certs|certfile|keyfile)=/[^&#\s]+&?)+)?",
        text, re.ASCII,
    )  # fmt: skip
    if not match or bool(match["sentinel"]) != bool(match["name"]) or (match["more"] and not match["sentinel"]):
        raise ValueError(
            "the path of a socket, redis://USER:PASSWORD@HOST:PORT, rediss://…, or "
            "redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT,HOST:PORT/NAME"
        )
    if match["query"] and not match["tls"]:
        raise ValueError("rediss:// or rediss+sentinel:// with ssl_ca_certs, ssl_certfile and ssl_keyfile")
    return text


def spool(text: str) -> str:
    """The parser of INGEST_SPOOL: as INGEST_REDIS, or Kafka; see `Address` in sluice/spool/kafka/__init__.py."""
    if not text.startswith("kafka:"):
        return redis(text)
    if not re.fullmatch(KAFKA_URL, text, re.ASCII):
        raise ValueError("kafka://HOST:PORT,HOST:PORT, or kafka://…?partitions=N&replicas=N&properties=/PATH")
    return text


def file(text: str) -> Path | None:
    """The parser of the path of a file; empty means none."""
    return path(text) if text else None


def certificate(text: str) -> tuple[Path, Path] | None:
    """The parser of INGEST_TLS_CERTIFICATE: the files of the certificate and of its key, which may be the same."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 2 or (text and not all(parts)):
        raise ValueError("CERTIFICATE,KEY, the paths of two PEM files, or the path of one that has both")
    return (path(parts[0]), path(parts[-1])) if text else None


def setting(parse: Callable[[str], T], default: str, about: str, earlier: Callable[[str], T] | None = None) -> T:
    """One row of the table.

    default: a text for `parse`, in which $INGEST_HOME stands for that setting.
    about: what the setting is, who changes it and when (Markdown).
    earlier: the parser of the name in EARLIER.
    """
    return dataclasses.field(metadata={"parse": parse, "default": default, "about": about, "earlier": earlier})


@dataclass(frozen=True)
class Settings:
    """The settings of one installation, each from the variable INGEST_ and its name. Sizes are in bytes."""

    # fmt: off
    port: int = setting(
        integer(1, 65535), "8080",
        "TCP port of nginx, on IPv4 and, if the machine has it, on IPv6. Change it if another program uses the port, "
        "or to 443 for TLS",
    )
    home: Path = setting(
        path, "var",
        "Directory for sockets, logs, Redis's files and `ingest.db`. Change it to keep the data on another disk, or to "
        "run a second installation",
    )
    cell: str = setting(
        cell, "",
        "Name of this installation among those that store in the same database, up to 63 letters, digits and `._-`; "
        "unless set, the name of the machine with a hash of `/etc/machine-id` and `INGEST_HOME`. Set it when there are "
        "several, to the name by which you know the machine (section 5)",
    )
    runtime: str = setting(
        choice("cpython", "pypy"), "cpython",
        "Python of gateway and reader: `cpython` or `pypy`. Change it when one of them is the bottleneck: PyPy takes "
        "less CPU per request and more memory",
    )
    gateways: int = setting(
        gateways, "auto",
        "Gateway processes; `auto`: one for each four cores, at least one. Change it when a gateway uses a whole core, "
        "or when other programs need the cores",
    )
    workers: Span = setting(
        processes, "1",
        "Worker processes; `0`: none, bodies wait in Redis; `auto` or `auto:MIN-MAX`: as many as the backlog needs, "
        "1 to 4 unless given. Raise it when the backlog grows although the database is not busy",
    )
    durability: str = setting(
        choice("always", "everysec", "no"), "always",
        "Redis's `appendfsync`: `always`, `everysec` or `no`. Change it when throughput is worth the bodies that a "
        "power failure may lose (section 1)",
    )
    replicas: int = setting(
        integer(0, 16), "0",
        "Replicas of Redis that must confirm a body before its 2xx, and a claim before its worker. Set it when Redis "
        "may fail over to a replica (section 4)",
    )
    max_body: int = setting(
        size(1), "1m",
        "Bytes in one body; a larger one gets 413. A compressed body may inflate to 8 times as many. Raise it when "
        "clients send larger batches",
    )
    max_memory: Memory = setting(
        memory, "1g",
        "Redis's `maxmemory`, and after a comma that of the views' Redis (`1g,512m`, or `INGEST_VIEWS_MEMORY`; 256m "
        "unless given). When the first is used up, posts get 503; nothing is evicted. The READY bodies of one stream "
        "may use half of it. Set it to the memory that bodies may take while the database is unavailable. A view that "
        "does not fit into the second is not served. Raise it when the views have more keys than it holds "
        "(`bin/sluice views` shows the memory of each)",
    )
    store: str = setting(
        database, "sqlite:///$INGEST_HOME/ingest.db",
        "Database. Change it to `postgresql://USER:PASSWORD@HOST/DATABASE?sslmode=verify-full` (libpq's URI; each "
        "`@ : / ? # %` of the password is written `%40` …) when other programs or machines read the rows",
    )
    rows: Rows = setting(
        rows, "store",
        "Where rows go: `store`, the tables of `INGEST_STORE`; `parquet:///DIRECTORY`, `s3://BUCKET/PREFIX`, "
        "`clickhouse://USER:PASSWORD@HOST:PORT/DATABASE` or `kafka://HOST:PORT,HOST:PORT`, for all streams or for some "
        "of them (`gps=parquet:///DIRECTORY,logs=s3://BUCKET/PREFIX`); `metrics=statsd://HOST:PORT`. The ledger and "
        "dead letters stay in `INGEST_STORE`. Set it when one database is too small for the rows (section 11)",
    )
    keep: Keep = setting(
        keep, "forever",
        "How long rows are kept after their arrival: seconds (`90s`), minutes (`10m`), hours (`12h`) or days (`30d`), "
        "for all streams or for some of them (`30d,gps=7d,votes=forever`). `dead=90d`: the same for dead letters. Set "
        "it when the disk is smaller than all that will ever arrive (section 5)",
    )
    spool: str = setting(
        spool, "$INGEST_HOME/run/redis.sock",
        "Where bodies wait for the workers; `INGEST_REDIS` is another name of this setting. The Unix socket of the "
        "Redis that `bin/up` starts. Change it when the path in `INGEST_HOME` is too long for a socket, to "
        "`redis://USER:PASSWORD@HOST:PORT`, `rediss://…` or `redis+sentinel://…` to use a Redis on other machines "
        "(section 4), or to `kafka://HOST:PORT,HOST:PORT` (section 10); then `bin/up` starts none for them",
        redis,
    )
    routes: str = setting(
        module, "",
        "Module with `ROUTES`: its name, or the absolute path of a `.py` file. Set it to add paths, for streams of "
        "your own",
    )
    records: str = setting(
        module, "", "Module with `STREAMS`, named likewise. Set it to add streams, or to replace built-in ones"
    )
    views: str = setting(
        views, "",
        "Module with `VIEWS`, named likewise, for views of your own (section 9); `off`: no views. Set it to read your "
        "own streams back, or to save the memory of the views",
    )
    api_keys: Path | None = setting(
        file, "",
        "File of API keys; a client without one gets 401. Set it when the port is open to strangers (section 8)",
    )
    passwords: Path | None = setting(
        file, "",
        "File of names and passwords, as `htpasswd` writes it, for basic authentication. Set it for clients that "
        "cannot send an API key",
    )
    tls_certificate: tuple[Path, Path] | None = setting(
        certificate, "",
        "File of the certificate with its chain, and after a comma that of its key (PEM); one file may have both. Set "
        "it when clients come over a network that others can read: `INGEST_PORT` then speaks only TLS 1.2 and 1.3, "
        "with HTTP/1.1 and HTTP/2",
    )
    allow: tuple[str, ...] = setting(
        words(ipaddress.ip_network, NETWORKS), "",
        "Addresses and networks that may send, IPv4 and IPv6, separated by commas or spaces; others get 403. Set it "
        "when the clients' networks are known",
    )
    read_allow: tuple[str, ...] = setting(
        viewers, "127.0.0.1 ::1",
        "Addresses and networks that may read the views, as in `INGEST_ALLOW`; `none`: nobody. Set it when clients on "
        "other machines read; `0.0.0.0/0 ::/0` means everybody",
    )
    client_rate: ClientLimits = setting(
        client_limits, "0",
        "Requests per second from one client, an IPv4 address or an IPv6 network /64, and twice as many in a burst; "
        "after a comma, its concurrent requests: `20,8`. Beyond either, 429. `0`: no limit. Set it on a public port: "
        "the rate above that of the busiest client, the other against clients that hold connections open",
    )
    cors: tuple[str, ...] = setting(
        origins, "",
        "Paths that pages of other origins may post to or read, and those origins (unless given, any). Set it when a "
        "web page on another host sends data or shows a view",
    )
    log: str = setting(
        choice("text", "json"), "text",
        "Format of the logs of gateway, reader, workers and follower. Change it to `json` for a log collector: one "
        "object per line with `time`, `level`, `logger`, `process`, `message`, and `traceback` after an error",
    )
    status_allow: tuple[str, ...] = setting(
        viewers, "127.0.0.1 ::1",
        "Addresses and networks that may read the status page and the metrics, as in `INGEST_ALLOW`; `none`: nobody. "
        "Set it to read them from another machine; `0.0.0.0/0 ::/0` means everybody",
    )
    # fmt: on

    @property
    def has_own_redis(self) -> bool:
        """Whether INGEST_SPOOL is the socket of a Redis that belongs to this installation."""
        return "://" not in self.spool

    @property
    def has_kafka(self) -> bool:
        """Whether bodies wait in Kafka."""
        return self.spool.startswith(KAFKA)

    @property
    def figures(self) -> str:
        """The Redis to which the processes report their counts: that of the list, or with Kafka that of the views."""
        return str(self.home / VIEWS_SOCKET) if self.has_kafka else self.spool

    @property
    def gateway_sockets(self) -> list[Path]:
        """The Unix sockets between nginx and the gateway."""
        return [self.home / "run" / f"gateway-{n}.sock" for n in range(SOCKETS)]

    @property
    def reader_sockets(self) -> list[Path]:
        """The Unix sockets between nginx and the reader."""
        return [self.home / "run" / f"reader-{n}.sock" for n in range(SOCKETS)]


EARLIER = {"INGEST_SPOOL": "INGEST_REDIS"}  # another name of a setting


def variable(row: dataclasses.Field[Any]) -> str:
    """The environment variable of a row."""
    return f"INGEST_{row.name.upper()}"


NAMES = tuple(map(variable, dataclasses.fields(Settings)))


def load(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read all settings. An empty variable counts as not set.

    Raises: SettingError for the first invalid value.
    """
    values: dict[str, Any] = {}
    spool = "INGEST_REDIS" if environ.get("INGEST_REDIS") else "INGEST_SPOOL"
    for row in dataclasses.fields(Settings):
        name, parse = variable(row), row.metadata["parse"]
        text = environ.get(name, "").strip()
        if (other := EARLIER.get(name)) and (value := environ.get(other, "").strip()):
            if text:
                raise SettingError(f"{name} and {other} are two names of one setting: unset one of them.")
            name, text, parse = other, value, row.metadata["earlier"]
        if not text:
            text = row.metadata["default"].replace("$INGEST_HOME", str(values.get("home")))
        if name in SECOND and environ.get(SECOND[name]):
            text += "," + environ[SECOND[name]].strip()
        try:
            values[row.name] = parse(text)
        except ValueError as error:
            raise SettingError(f"{name}={without_password(text)!r} is invalid: expected {error}.") from None
    found = Settings(**values | {"cell": values["cell"] or default_cell(values["home"])})
    for name, socket in ("INGEST_HOME", found.gateway_sockets[0]), (spool, found.spool):
        if len(os.fsencode(socket)) > SOCKET_PATH and (name == "INGEST_HOME" or found.has_own_redis):
            raise SettingError(f"{name} is too long: the path of the socket {socket} may have {SOCKET_PATH} bytes.")
    if found.has_kafka and found.runtime == "pypy":
        raise SettingError("INGEST_SPOOL=kafka://… needs INGEST_RUNTIME=cpython: its client does not run on PyPy.")
    if found.has_kafka and found.replicas:
        raise SettingError("INGEST_REPLICAS is for Redis: in INGEST_SPOOL=kafka://…?replicas=N, N counts all replicas.")
    return found


def unknown(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The variables INGEST_… that are no setting."""
    known = {*NAMES, *SECOND.values(), *EARLIER.values()}
    return sorted(name for name in environ if name.startswith("INGEST_") and name not in known)


def default_cell(home: Path) -> str:
    """The name of a cell that has none: the same after each start, and another one on each machine and in each home."""
    identity = b""
    with contextlib.suppress(OSError):  # not every container has the file
        identity = Path("/etc/machine-id").read_bytes()
    number = hashlib.blake2b(identity + os.fsencode(home), digest_size=3).hexdigest()
    name = re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9._-]", "", os.uname().nodename)
    return f"{name[:40] or 'cell'}-{number}"


def without_password(url: str) -> str:
    """A connection string for display, with … in place of the password."""
    return re.sub(r"(?<=[^/:@]:)[^/].*(?=@)|(?<=//:).*(?=@)|(?<=password=)[^&\s]*", "…", url)


def load_or_exit() -> Settings:
    """`load` for programs: an error is one line on standard error and exit status 2."""
    try:
        return load()
    except SettingError as error:
        sys.exit(complain(error))


def complain(error: object) -> int:
    """Print an error as one line; returns the exit status for an invalid setting."""
    print(f"sluice: {error}", file=sys.stderr)
    return 2


def secret(name: str, path: str | Path) -> str:
    """The text of a file of secrets, which the setting `name` names.

    Raises: SettingError if the file cannot be read, or if every user of the machine can read it.
    """
    try:
        with open(path, encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_mode & 0o007:
                raise SettingError(f"{name}={str(path)!r} is accessible to every user of this machine: chmod 600 it.")
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise SettingError(f"{name}={str(path)!r} cannot be read: {why}.") from None


def extension(name: str, value: str) -> ModuleType:
    """Import a user's module, given by its name or by the path of its file in the setting `name`.

    Raises: SettingError if it cannot be imported.
    """
    try:
        if not value.endswith(".py"):
            return importlib.import_module(value)
        spec = importlib.util.spec_from_file_location(Path(value).stem, value)
        assert spec and spec.loader
        found = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = found  # msgspec resolves the annotations of a record there
        spec.loader.exec_module(found)
        return found
    except Exception as error:  # a user's module may raise anything
        raise SettingError(f"{name}={value!r} cannot be imported: {type(error).__name__}: {error}") from error


def table() -> str:
    """The table of settings in Markdown."""
    lines = ["| variable | default | what it is, and when to change it |", "|---|---|---|"]
    for row in dataclasses.fields(Settings):
        default = row.metadata["default"]
        shown = f"`{default}`" if default else ""
        lines.append(f"| `{variable(row)}` | {shown} | {row.metadata['about']} |")
    return "\n".join(lines) + "\n"


def documented(text: str) -> str:
    """A document with the present table between its markers."""
    before, _, rest = text.partition("<!-- settings -->\n")
    _, end, after = rest.partition("<!-- /settings -->")
    assert end, "the document has no markers <!-- settings --> and <!-- /settings -->"
    return f"{before}<!-- settings -->\n{table()}{end}{after}"


if __name__ == "__main__":
    document = Path(sys.argv[1])
    document.write_text(documented(document.read_text()))
