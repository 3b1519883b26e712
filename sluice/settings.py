"""Every setting, read once from the environment; the table in PROTOCOL.md says what each is for."""

from __future__ import annotations

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
from typing import Callable, NamedTuple

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
NETWORKS = "networks such as 10.1.0.0/16 and 192.0.2.7"
GATEWAY_SOCKETS = 4  # one Unix socket refuses (502) when its backlog is full; see DECISIONS.md


class SettingError(ValueError):
    """A setting that makes no sense. Its text is one line for a person: which, what was found, what would do."""


class Span(NamedTuple):
    """From the least to the most; the same where a number is fixed."""

    least: int
    most: int


@dataclass(frozen=True)
class Settings:
    """The settings of one installation; sizes are bytes."""

    port: int
    home: Path
    runtime: str
    gateways: int
    workers: Span
    durability: str
    replicas: int
    max_header: int
    max_body: int
    max_inflated: int
    max_records: int
    max_record_bytes: int
    max_fields: int
    max_memory: int
    max_backlog: int
    max_backlog_bytes: int
    max_claim: int
    max_claim_bytes: int
    sink: str
    redis: Path
    routes: str
    records: str
    api_keys: Path | None
    passwords: Path | None
    tls_certificate: Path | None
    tls_key: Path | None
    allow: tuple[str, ...]
    client_rate: int
    client_connections: int
    client_timeout: int
    client_idle: int
    max_connections: int
    cors: tuple[str, ...]
    log: str
    status_allow: tuple[str, ...]

    @property
    def gateway_sockets(self) -> list[Path]:
        """The Unix sockets between nginx and the gateway."""
        return [self.home / "run" / f"gateway-{n}.sock" for n in range(GATEWAY_SOCKETS)]


def whole(least: int, most: int) -> Callable[[str], int]:
    """A parser of whole numbers within bounds."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,12}", text) or not least <= int(text) <= most:
            raise ValueError(f"a whole number from {least} to {most}")
        return int(text)

    return parse


def size(least: int) -> Callable[[str], int]:
    """A parser of sizes in bytes, with k, m or g behind the number for KiB, MiB or GiB."""

    def parse(text: str) -> int:
        match = re.fullmatch(r"([0-9]{1,12})([kmg]?)(?:i?b)?", text.lower())
        if not match or int(match[1]) * UNITS[match[2]] < least:
            raise ValueError(f"a size of at least {least} bytes, such as {max(least, 1 << 20)} or 512k, 1m, 2g")
        return int(match[1]) * UNITS[match[2]]

    return parse


def span(text: str) -> Span:
    """The least and the most worker processes: a number, or auto for what the backlog needs."""
    match = re.fullmatch(r"(auto)(?::([0-9]{1,3})-([0-9]{1,3}))?|([0-9]{1,3})", text)
    if match:
        least, most = (int(match[2] or 1), int(match[3] or 4)) if match[1] else (int(match[4]), int(match[4]))
        if least <= most <= 256 and (least or not match[1]):
            return Span(least, most)
    raise ValueError("a whole number from 0 to 256, or auto, or auto:LEAST-MOST, such as auto:1-4")


def choice(*names: str) -> Callable[[str], str]:
    """A parser that takes one of some words."""

    def parse(text: str) -> str:
        if text not in names:
            raise ValueError("one of " + ", ".join(names))
        return text

    return parse


def words(known: Callable[[str], object], what: str) -> Callable[[str], tuple[str, ...]]:
    """A parser of words with commas or white space between them. `known` refuses one by None, False or ValueError."""

    def parse(text: str) -> tuple[str, ...]:
        found = tuple(filter(None, re.split(r"[,\s]+", text)))
        try:
            if text and not (found and all(map(known, found))):
                raise ValueError
        except ValueError:
            raise ValueError(what) from None
        return found

    return parse


def cors(text: str) -> tuple[str, ...]:
    """The parser of paths and of origins as browsers send them (RFC 6454); nothing that nginx takes for a pattern."""
    what = "paths such as /votes and, unless any will do, origins such as https://a.example"
    known = re.compile(r"/[\w/.~-]*|https?://[a-z0-9_.-]+(:[0-9]{1,5})?", re.ASCII).fullmatch
    found = words(known, what)(text)
    if found and not any(word.startswith("/") for word in found):
        raise ValueError(what)
    return found


def load(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read all settings.

    Raises: SettingError for the first value that makes no sense.
    """

    def read(name: str, default: str, parse: Callable):
        text = environ.get(name, "").strip() or default
        try:
            return parse(text)
        except ValueError as error:
            raise SettingError(f"{name}={without_password(text)!r} makes no sense here: it takes {error}.") from None

    def sink(text: str) -> str:
        if not re.match(r"sqlite:///.|postgres(ql)?://.", text):
            raise ValueError("sqlite:///PATH or postgresql://USER@HOST/DATABASE")
        return text

    def lookers(text: str) -> tuple[str, ...]:
        return () if text == "none" else words(ipaddress.ip_network, f"{NETWORKS}; or none")(text)

    def module(text: str) -> str:
        if text and not re.fullmatch(r"/.*\.py|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", text):
            raise ValueError("a module's name (mine.routes) or the absolute path of a .py file")
        return text

    def file(text: str) -> Path | None:
        return Path(text).absolute() if text else None

    home = read("INGEST_HOME", "var", lambda text: Path(text).absolute())
    redis = read("INGEST_REDIS", str(home / "run" / "redis.sock"), lambda text: Path(text).absolute())
    for name, path in ("INGEST_HOME", home / "run" / "gateway-0.sock"), ("INGEST_REDIS", redis):
        if len(os.fsencode(path)) > 107:  # sun_path in unix(7)
            raise SettingError(f"{name} is too long: the socket {path} may have 107 bytes at most.")
    certificate, key = read("INGEST_TLS_CERTIFICATE", "", file), read("INGEST_TLS_KEY", "", file)
    if (certificate is None) != (key is None):
        raise SettingError("INGEST_TLS_CERTIFICATE and INGEST_TLS_KEY make sense together only: one of them is empty.")
    max_memory = read("INGEST_MAX_MEMORY", "1g", size(8 << 20))
    max_inflated = read("INGEST_MAX_INFLATED", "8m", size(1))
    return Settings(
        port=read("INGEST_PORT", "8080", whole(1, 65535)),
        home=home,
        runtime=read("INGEST_RUNTIME", "cpython", choice("cpython", "pypy")),
        gateways=read("INGEST_GATEWAYS", "1", whole(1, 256)),
        workers=read("INGEST_WORKERS", "1", span),
        durability=read("INGEST_DURABILITY", "always", choice("always", "everysec", "no")),
        replicas=read("INGEST_REPLICAS", "0", whole(0, 16)),
        max_header=read("INGEST_MAX_HEADER", "8000", whole(1024, 8000)),  # more is too much for gunicorn
        max_body=read("INGEST_MAX_BODY", "1m", size(1)),
        max_inflated=max_inflated,
        max_records=read("INGEST_MAX_RECORDS", str(max(100_000, max_inflated // 32)), whole(1, 10**9)),
        max_record_bytes=read("INGEST_MAX_RECORD_BYTES", "1m", size(1024)),
        max_fields=read("INGEST_MAX_FIELDS", "1000", whole(1, 10**6)),
        max_memory=max_memory,
        max_backlog=read("INGEST_MAX_BACKLOG", "10000000", whole(1, 10**11)),
        max_backlog_bytes=read("INGEST_MAX_BACKLOG_BYTES", str(max_memory // 2), size(1)),
        max_claim=read("INGEST_MAX_CLAIM", "5000", whole(1, 10**5)),
        max_claim_bytes=read("INGEST_MAX_CLAIM_BYTES", "4m", size(1)),
        sink=read("INGEST_SINK", f"sqlite:///{home / 'ingest.db'}", sink),
        redis=redis,
        routes=read("INGEST_ROUTES", "", module),
        records=read("INGEST_RECORDS", "", module),
        api_keys=read("INGEST_API_KEYS", "", file),
        passwords=read("INGEST_PASSWORDS", "", file),
        tls_certificate=certificate,
        tls_key=key,
        allow=read("INGEST_ALLOW", "", words(ipaddress.ip_network, NETWORKS)),
        client_rate=read("INGEST_CLIENT_RATE", "0", whole(0, 10**6)),
        client_connections=read("INGEST_CLIENT_CONNECTIONS", "0", whole(0, 65535)),
        client_timeout=read("INGEST_CLIENT_TIMEOUT", "30", whole(1, 3600)),
        client_idle=read("INGEST_CLIENT_IDLE", "75", whole(1, 3600)),
        max_connections=read("INGEST_MAX_CONNECTIONS", "65535", whole(64, 65535)),
        cors=read("INGEST_CORS", "", cors),
        log=read("INGEST_LOG", "text", choice("text", "json")),
        status_allow=read("INGEST_STATUS_ALLOW", "127.0.0.1 ::1", lookers),
    )


def without_password(url: str) -> str:
    """A connection string as it may be shown."""
    return re.sub(r"(?<=[^/:@]:)[^/].*(?=@)|(?<=password=)[^&\s]*", "…", url)


def load_or_exit() -> Settings:
    """`load` for programs: one line on standard error and status 2 instead of a traceback."""
    try:
        return load()
    except SettingError as error:
        sys.exit(complain(error))


def complain(error: Exception) -> int:
    """Print an error as one line for a person; returns the exit status for a wrong setting."""
    print(f"sluice: {error}", file=sys.stderr)
    return 2


def secret(name: str, path: str | Path) -> str:
    """The text of a file of secrets, which `name` says to be there.

    Raises: SettingError if it cannot be read, or can be by everybody.
    """
    try:
        with open(path, encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_mode & 0o007:
                raise SettingError(f"{name}={str(path)!r} is open to everybody on this machine: chmod 600 would do.")
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a text"
        raise SettingError(f"{name}={str(path)!r} cannot be read: {why}.") from None


def extension(name: str, value: str) -> ModuleType:
    """Import a user's own module, named by a setting: a module's name or the path of a file.

    Raises: SettingError if it cannot be imported.
    """
    try:
        if not value.endswith(".py"):
            return importlib.import_module(value)
        spec = importlib.util.spec_from_file_location(Path(value).stem, value)
        assert spec and spec.loader
        found = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = found  # msgspec looks a record's annotations up there
        spec.loader.exec_module(found)
        return found
    except Exception as error:  # whatever a user's module raises, the answer is the same line
        raise SettingError(f"{name}={value!r} cannot be imported: {type(error).__name__}: {error}") from error
