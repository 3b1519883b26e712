"""What bin/up runs once everything is installed: checks, writes the configuration, and runs all programs."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import math
import os
import re
import resource
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from sluice import places, registry, settings
from sluice.base import terminal
from sluice.base.counters import Counter
from sluice.home_settings import load_for_start, of_file
from sluice.http.endpoints import load_endpoints
from sluice.places import ROOT
from sluice.routes import load_routes
from sluice.run import configure, launch, parts, servers
from sluice.run.first_screen import first_screen, words_of
from sluice.run.home import replaceable, unmounted
from sluice.run.servers import Failed
from sluice.store import database_identity

# one of them is in each $INGEST_HOME that was ever used, or in a copy of one
MARKS = "etc/sluice.conf", "run/up.lock", "redis/appendonlydir"
THERE = ipaddress.ip_address("127.0.0.1")  # where nginx is asked
MIN_FILES = 1024  # supervisord's own `minfds`
ANNOUNCED_SECONDS = 20.0  # after the start: why there is no first screen, if no request would be accepted
# the order in which the programs of a killed bin/up are ended, after those of contributions: a worker may have a batch
# to finish, and writes are accepted until the others end
ORDER = ("worker", "nginx", "gateway", "views", "redis")


def print_line(text: str) -> None:
    """Print a line. If it cannot be printed (bin/up | head -n 1; bin/up > a full disk), everything runs on."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


def check_start(s: settings.Settings) -> None:
    """Check what bin/up and the services need of the settings, and make the directories. Raises: SettingError."""
    if s.runtime == "pypy" and not places.CHECKOUT:
        raise settings.SettingError("INGEST_RUNTIME=pypy needs a checkout of Sluice: the package runs on CPython.")
    if not places.CHECKOUT and (lacking := parts.lacking(s)):
        raise settings.SettingError(f"the settings need more: {places.installing(','.join(lacking))}")
    check_paths(s)
    check_modules(s)
    configure.nginx_secrets(s)
    check_home(s.home)
    check_places(s)


def check_paths(s: settings.Settings) -> None:
    """Raises: SettingError if nginx or Redis would read the path of a setting as another one."""
    for name, value in s.values().items():
        if isinstance(value, Path) or (name == "spool" and s.has_own_redis):
            try:
                configure.quoted_path(value)
            except settings.SettingError as error:
                raise settings.SettingError(f"{settings.variable(name)}: {error}") from None


def check_home(home: Path) -> None:
    """Make $INGEST_HOME. Raises: SettingError if another user could replace its files, or another program uses it.

    What Sluice writes there follows links, and root may be who writes. Nothing is made where a disk should be mounted.
    """
    require_mounted("INGEST_HOME", home)
    require_own(home)  # as far as it is there
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in (home, *(home / name for name in configure.FOLDERS)):
        if os.path.lexists(path):
            require_own(path)
    if home != ROOT / "var" and not any((home / mark).exists() for mark in MARKS) and (other := stranger(home)):
        raise settings.SettingError(
            f"INGEST_HOME={str(home)!r} has files of another program ({other}): use an empty directory, such as "
            f"{home / 'sluice'}."
        )


def require_mounted(name: str, path: Path) -> None:
    """Raises: SettingError if the disk with the path of a setting is not mounted: what is made would be below it."""
    if place := unmounted(path):
        raise settings.SettingError(f"{name}: no disk is mounted at {place}, as /etc/fstab says: mount it.")


def require_own(path: Path) -> None:
    """Raises: SettingError if another user could replace what is in a directory."""
    trusted = {0, os.geteuid()}
    above = trusted | {ROOT.stat().st_uid}  # who may change this code may do whatever it does
    if why := replaceable(path, trusted, above):
        remedy = "use a directory of your own" if "belongs" in why else "chmod go-w it"
        raise settings.SettingError(f"INGEST_HOME: {why}: {remedy}.")


def stranger(home: Path) -> str:
    """The first name in a directory that neither Sluice, nor mkfs or useradd, puts there; or ""."""
    for path in sorted(home.iterdir()):
        ours = path.name in configure.FOLDERS and path.is_dir() and not any(path.iterdir())
        if not ours and path.name != "lost+found" and not path.name.startswith((".", "ingest.db")):
            return path.name
    return ""


def lock_home(s: settings.Settings) -> None:
    """Lock $INGEST_HOME, and end the processes that a killed bin/up left. Raises: Failed if another one runs."""
    (s.home / "run").mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    lock = os.open(s.home / "run/up.lock", flags, 0o600)  # locked until this process ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Failed(f"{places.UP} already runs in {s.home}; set INGEST_HOME to use another directory.") from None

    order = {name: at for at, name in enumerate(ORDER)}
    for tag in sorted(launch.home_tags(s.home), key=lambda tag: order.get(tag.stem.partition("-")[0], -1)):
        if launch.end_tagged(tag, signal.SIGTERM, patience=3.0):
            print_line(f"An earlier {places.UP} was killed; ended its {tag.stem}.")
    s.closing.unlink(missing_ok=True)  # left by a killed bin/sluice reload


def check_addresses(s: settings.Settings) -> None:
    """Nginx and Redis would restart forever if their port or sockets were in use. Raises: Failed."""
    for address in ("0.0.0.0", "::")[: 1 + configure.has_ipv6()]:  # noqa: S104  # as nginx listens
        try:
            configure.check_port(address, s.port)
        except OSError as error:
            reason = "is in use" if error.errno == errno.EADDRINUSE else f"is not available ({error.strerror})"
            raise Failed(f"port {s.port} {reason}; set INGEST_PORT to use another.") from None
    own = [(s.spool, "its own Redis")] if s.has_own_redis else []
    for path, whose in *own, (s.scratch_redis, "its second Redis"):
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(path)
            except OSError:
                continue
        raise Failed(f"another server listens on {path}, where {places.UP} starts {whose}.")


def check_places(s: settings.Settings) -> None:
    """Make the directories that settings name, for files that are not in $INGEST_HOME. Raises: SettingError."""
    places = [("INGEST_STORE", s.store.removeprefix("sqlite:///"))] if s.store.startswith("sqlite:") else []
    places += [("INGEST_SPOOL", s.spool)] if s.has_own_redis else []
    places += [place for more in registry.load_hooks("places") for place in more(s)]
    if s.has_own_redis and os.path.lexists(s.spool) and not Path(s.spool).is_socket():
        raise settings.SettingError(f"INGEST_SPOOL: {s.spool} is there and is no socket: Redis would delete it.")
    for name, file in places:
        if name == "INGEST_STORE" and Path(file).is_dir():
            raise settings.SettingError(f"{name}: {file} is a directory, and SQLite needs a file.")
        folder = Path(file).parent
        require_mounted(name, folder)
        if name == "INGEST_STORE":
            database_identity.require_file(s)
        if folder.is_relative_to(s.home):
            continue
        try:
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()  # root may write anywhere, but not in /proc or a read-only mount
        except OSError as error:
            raise settings.SettingError(
                f"{name}: the directory {folder} cannot be used: {error.strerror or error}."
            ) from None


def check_files() -> None:
    """Raises: Failed if supervisord would refuse to start."""
    if (most := configure.file_limit()) < MIN_FILES:
        raise Failed(
            f"this user may open {most} files, and {MIN_FILES} are needed: raise the limit that ulimit -Hn shows."
        )


def check_modules(s: settings.Settings) -> None:
    """Check what settings name: a program without its module or stream restarts forever. Raises: SettingError."""
    from sluice.store.registry import check_store
    from sluice.streams.built_in import load_streams

    streams, routes = load_streams(s), load_routes(s.routes)
    load_endpoints(routes, s, lambda name: Counter())
    for path, route in routes.items():
        if route.stream not in streams:
            raise settings.SettingError(
                f"INGEST_ROUTES: {path} leads to the stream {route.stream}, which has no decoder; add the stream to "
                "STREAMS in the module of INGEST_RECORDS."
            )
    for check_more in registry.load_hooks("check"):
        check_more(s, routes, streams)
    check_store(s.store)


def check_nginx(home: Path) -> None:
    """Let nginx test its configuration, with the certificate, keys and networks. Raises: Failed."""
    command = [servers.find("nginx"), "-t", "-q", "-p", str(home), "-c", str(home / "etc/nginx.conf")]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode:
        reason = re.search(r"\[emerg\] (?:\d+#\d+: )?(.*)", done.stderr)
        raise Failed(f"nginx rejects its configuration: {reason[1] if reason else done.stderr.strip()}")


@contextlib.contextmanager
def exit_on_error(home: Path) -> Iterator[None]:
    """Exit with one line instead of a traceback; status 2 for an invalid setting, else 1."""
    try:
        with settings.exit_if_invalid():
            yield
    except Failed as error:
        sys.exit(f"sluice: {error}")
    except OSError as error:
        sys.exit(f"sluice: {home} cannot be used: {terminal.system_reason(error)}")


def connected(sockets: list[Path], seconds: float = 1.0) -> socket.socket | None:
    """A connection to a gateway process, which may hang; None if none listens. seconds: for each step."""
    for path in sockets:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(seconds)
        try:
            connection.connect(str(path))
            return connection
        except OSError:
            connection.close()
    return None


def get(connection: socket.socket | None, target: str) -> str:
    """The answer to a GET, up to 4 kB; "" if there is none."""
    if connection:
        with connection, contextlib.suppress(OSError):
            connection.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            with connection.makefile("rb") as answer:
                return answer.read(4096).decode(errors="replace")
    return ""


def gateway_answers(sockets: list[Path], target: str, seconds: float = 1.0) -> bool:
    """Whether a gateway process answers GET with 200 within this time."""
    return get(connected(sockets, seconds), target).startswith("HTTP/1.1 200")


def is_serving(s: settings.Settings, seconds: float) -> bool:
    """Whether a client's request reaches the gateway, and its Redis takes bodies. seconds: for each step."""
    # at its socket: nginx may require a key
    return gateway_answers(s.gateway_sockets, "/readyz", seconds) and reaches_gateway(s, seconds)


def reaches_gateway(s: settings.Settings, seconds: float) -> bool:
    """Whether nginx passes requests on; if it would reject one of this machine, and count that, whether it listens."""
    words = words_of(s)
    allowed = any(THERE in ipaddress.ip_network(network) for network in s.allow)
    try:
        connection = socket.create_connection((str(THERE), s.port), seconds)
        if words["need"] or not allowed:
            connection.close()
            return True
        if words["scheme"] == "https":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # this machine, by its address
            connection = context.wrap_socket(connection)
        return get(connection, "/healthz").startswith("HTTP/1.1 200")
    except OSError:
        return False


def why_not(s: settings.Settings) -> str:
    """Why no writes are taken, as far as the gateway knows."""
    detail = re.search(r'"detail": ?"([^"]*)"', get(connected(s.gateway_sockets), "/readyz"))
    return detail[1] if detail else f"{s.home}/log says what happens"


def main() -> None:
    # bin/up has blocked it, as Python would show a traceback. From here on SIGINT ends this process at once, until
    # supervisord has a handler of its own, before it starts anything
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with settings.exit_if_invalid():
        s = load_for_start()
    given = {**of_file(s.home), **os.environ}
    for name in sorted(name for name in given if name.startswith("INGEST_") and name not in settings.variables()):
        settings.complain(f"{name} is not a setting and has no effect: docs/protocol/operator.md has all of them.")
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_NOFILE, (configure.file_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    os.environ.update(configure.NURSERY | os.environ)
    # of the file, too, which may change while this runs; paths are absolute, as bin/sluice reload reads the files
    # again, from another directory
    os.environ.update({**given, **s.given, "INGEST_HOME": str(s.home), "INGEST_SPOOL": s.spool})
    os.environ["PYTHONUNBUFFERED"] = "1"
    with exit_on_error(s.home):
        check_start(s)
        check_files()
        servers.check()
        lock_home(s)
        check_addresses(s)
        configure.write_configuration(s)
        check_nginx(s.home)
    due = time.monotonic() + ANNOUNCED_SECONDS

    def announced() -> bool:
        nonlocal due
        if is_serving(s, 0.2):  # supervisord waits for it
            print_line(first_screen(s))
            return True
        if time.monotonic() > due:
            due = math.inf
            print_line(f"Sluice takes no writes yet: {why_not(s)}")
        return False

    from sluice.run import supervise  # supervisord; imported here, because other programs use the functions above

    supervise.run(str(s.home / "etc/supervisord.conf"), announced)


if __name__ == "__main__":
    main()
