"""bin/provision services: Sluice under the system's own systemd, nginx and Redis. What differs is written, and started.

Settings are those of /etc/default/sluice; INGEST_ variables of the environment are written to it first.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from sluice import settings
from sluice.run import configure, up
from sluice.run.configure import ROOT
from sluice.run.up import CannotStart

HOME = Path("/var/lib/sluice")  # as systemd/ has it
USER = "sluice"
DEFAULTS = Path("/etc/default/sluice")
UNITS = Path("/etc/systemd/system")
WANTED = UNITS / "sluice.target.wants"
FILES = 65535  # LimitNOFILE= of nginx in systemd/
READERS = ("sluice-metrics.service", "sluice-page.service")  # of the database, beside the worker
FIXED = {"INGEST_HOME": str(HOME)}
# what a unit with ProtectHome= and PrivateTmp= does not see
SHELTERED = "/home", "/root", "/run/user", "/tmp", "/var/tmp"  # noqa: S108  # named, not written to
COMMAND = """\
#!/bin/sh
# The operator's command with the services' settings. bin/provision services wrote this.
[ "$(id -u)" = 0 ] || exec sudo "$0" "$@"
set -a
. {defaults}
exec runuser -u {user} -- {root}/bin/sluice "$@"
"""


def given(file: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The settings of the services: those of the file, those of the environment over them.

    Raises: SettingError for one that services cannot have.
    """
    found = FIXED.copy()
    for line in file.splitlines():
        for word in shlex.split(line, comments=True):
            name, _, value = word.partition("=")
            found[name] = value
    found |= {name: value for name, value in environ.items() if name.startswith("INGEST_")}
    if found["INGEST_HOME"] != str(HOME) or "INGEST_REDIS" in found:
        raise settings.SettingError(f"INGEST_HOME and INGEST_REDIS are not for services: theirs are in {HOME}.")
    return found


def defaults(found: Mapping[str, str]) -> str:
    """The settings as /etc/default/sluice has them, for systemd and for sh."""
    lines = [f"{name}={shlex.quote(value)}\n" for name, value in sorted(found.items())]
    return "# Settings: PROTOCOL.md, section 6. After a change: bin/provision services\n" + "".join(lines)


def files(s: settings.Settings, root: Path, nginx: bool = True) -> dict[Path, str]:
    """What the system reads, by path: units, their drop-ins, and the like.

    root: where Sluice lies. nginx: whether the system's nginx is Sluice's to configure.
    """
    wanted = {
        "sluice-gateway.service.d/zz-pypy.conf": s.runtime == "pypy",
        "sluice-worker@.service.d/network.conf": not s.sink.startswith("sqlite:"),
        "nginx.service.d/sluice.conf": nginx,
    }
    places = {
        "sysusers.conf": Path("/etc/sysusers.d/sluice.conf"),
        "tmpfiles.conf": Path("/etc/tmpfiles.d/sluice.conf"),
        "sysctl.conf": Path("/etc/sysctl.d/60-sluice.conf"),
    }
    found = {Path("/usr/local/bin/sluice"): COMMAND.format(defaults=DEFAULTS, user=USER, root=root)}
    for path in sorted((ROOT / "deploy/systemd").rglob("*.*")):
        name = str(path.relative_to(ROOT / "deploy/systemd"))
        if path.is_file() and wanted.get(name, True):
            found[places.get(name, UNITS / name)] = path.read_text().replace("/opt/sluice", str(root))
    network = UNITS / "sluice-worker@.service.d/network.conf"
    if network in found:
        found |= {UNITS / f"{unit}.d/network.conf": found[network] for unit in READERS}
    return found


def check(s: settings.Settings) -> None:
    """See that services can work from here.

    Raises: CannotStart, SettingError.
    """
    if s.sink.startswith("sqlite:") and HOME not in Path(s.sink.removeprefix("sqlite:///")).parents:
        raise settings.SettingError(f"INGEST_SINK={s.sink!r}: the services write in {HOME} only.")
    if os.geteuid() != 0:
        raise CannotStart("services are root's to set up: sudo bin/provision services")
    if str(ROOT).startswith(tuple(f"{place}/" for place in SHELTERED)) or not re.fullmatch(r"[\w./+-]+", str(ROOT)):
        raise CannotStart(f"a service would not see {ROOT}; a clone in /opt/sluice will do.")


def elsewhere() -> list[str]:
    """The files that give the system's nginx something else to do already."""
    folders = Path("/etc/nginx/sites-enabled"), Path("/etc/nginx/conf.d")
    return [str(path) for folder in folders if folder.is_dir() for path in folder.iterdir() if path.name != "default"]


def write(path: Path, text: str, mode: int) -> bool:
    """Write a file unless it is so already; whether it was written."""
    with contextlib.suppress(FileNotFoundError):
        if path.read_text() == text:
            return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode)
    path.chmod(mode)
    path.write_text(text)
    print(f"sluice: wrote {path}", flush=True)
    return True


def run(*command: object) -> None:
    """Run a program of the system.

    Raises: CannotStart if it fails; it has said why.
    """
    try:
        subprocess.run([str(word) for word in command], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotStart(f"{command[0]} failed: {error}") from None


def prepare(found: Mapping[str, str]) -> bool:
    """Make INGEST_HOME and the configuration of nginx and Redis in it, as who will read it; whether it changed.

    Raises: CannotStart if that fails.
    """
    before = contents(HOME / "etc")
    done = subprocess.run(
        [sys.executable, "-m", "sluice.run.services", "prepare"],
        user=USER, group=USER, extra_groups=[], cwd=ROOT, env={"PATH": os.environ["PATH"], **found},
    )  # fmt: skip
    if done.returncode:
        raise CannotStart(f"{USER} could not make {HOME}; its own words are above")
    return contents(HOME / "etc") != before


def contents(folder: Path) -> dict[str, str]:
    """The files of a folder."""
    return {path.name: path.read_text() for path in folder.iterdir()} if folder.is_dir() else {}


def install(found: Mapping[str, str], s: settings.Settings) -> bool:
    """Write all that is missing or differs, and have the system know it; whether there was anything."""
    others = elsewhere()
    if others:
        print(
            f"sluice: nginx serves {' '.join(others)} already, and is left as it is: "
            f"include {HOME}/etc/sluice.conf in its http block, and let its user read /run/sluice."
        )
    new = files(s, ROOT, nginx=not others)
    optional = files(settings.load({**found, "INGEST_RUNTIME": "pypy", "INGEST_SINK": "postgresql://x"}), ROOT)
    changed = write(DEFAULTS, defaults(found), 0o600)  # it may hold a password
    for path, text in new.items():
        changed |= write(path, text, 0o755 if path.parent.name == "bin" else 0o644)
    for path in optional.keys() - new.keys():
        if path.exists():
            path.unlink()
            changed = True
    run("systemd-sysusers", "/etc/sysusers.d/sluice.conf")
    run("systemd-tmpfiles", "--create", "/etc/tmpfiles.d/sluice.conf")
    changed |= prepare(found)

    if s.workers.max > s.workers.min:
        print(f"sluice: services do not scale: {s.workers.min} worker(s) start; sluice-worker@N is one more")
    workers = [f"sluice-worker@{n}.service" for n in range(1, s.workers.min + 1)]
    enabled = {path.name for path in WANTED.iterdir()} if WANTED.is_dir() else set()
    if surplus := enabled - set(workers):
        run("systemctl", "disable", "--quiet", "--now", *sorted(surplus))
    run("systemctl", "enable", "--quiet", "sluice.target", "nginx.service", *workers)
    return changed or enabled != set(workers)


def start(changed: bool, gateway: Path, port: int) -> None:
    """Start what is not running; with `changed`, start all of it anew. Wait until it takes writes.

    Raises: CannotStart if it does not.
    """
    run("systemctl", "daemon-reload")
    # a container may not set them, and works without
    subprocess.run(["sysctl", "-q", "-p", "/etc/sysctl.d/60-sluice.conf"])
    run("systemctl", "restart" if changed else "start", "sluice.target", "nginx.service")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if ready(gateway):
                socket.create_connection(("127.0.0.1", port), 5).close()
                return
        time.sleep(0.1)
    raise CannotStart("it does not take writes yet: journalctl -u 'sluice*' -u redis-server@sluice -u nginx")


def ready(gateway: Path) -> bool:
    """Whether the gateway takes writes. Asked at its socket: nginx may want a key, or TLS."""
    connection = http.client.HTTPConnection("localhost", timeout=5)
    connection.sock = socket.socket(socket.AF_UNIX)
    with contextlib.closing(connection):
        connection.sock.settimeout(5)
        connection.sock.connect(str(gateway))
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200


def main(words: list[str]) -> int:
    try:
        if words == ["prepare"]:
            os.umask(0o077)
            s = settings.load()
            up.check_modules(s)
            up.check_access(s)
            configure.write(s, FILES)
            return 0
        found = given(DEFAULTS.read_text() if DEFAULTS.exists() else "", os.environ)
        s = settings.load(found)
        check(s)
        if s.runtime == "pypy":
            run(ROOT / "bin/provision", "pypy")
        changed = install(found, s)
        if not Path("/run/systemd/system").is_dir():
            print("sluice: systemd does not run here; the services start with it.")
        else:
            start(changed, s.gateway_sockets[0], s.port)
            print(f"Sluice takes writes at http://localhost:{s.port}; `sluice status` tells what became of them.")
    except settings.SettingError as error:
        return settings.complain(error)
    except CannotStart as error:
        print(f"sluice: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
