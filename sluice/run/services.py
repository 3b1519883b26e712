"""bin/provision services, or `sluice services` of the package: run Sluice under the system's systemd, nginx and Redis.

It writes the files that are missing or differ, and starts the services. The settings are in /etc/default/sluice;
INGEST_ variables of the environment are written to that file first.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from sluice import places, registry, settings
from sluice.base import files as files_at
from sluice.home_settings import FILE, assignments, check_lengths
from sluice.places import ROOT
from sluice.run import configure, programs, servers, up
from sluice.run.first_screen import who_may
from sluice.run.parts import needed_parts
from sluice.run.up import Failed

HOME = Path("/var/lib/sluice")  # the same path is in deploy/systemd/
USER = "sluice"
DEFAULTS = Path("/etc/default/sluice")
UNITS = Path("/etc/systemd/system")
USERS, FOLDERS = Path("/etc/sysusers.d/sluice.conf"), Path("/etc/tmpfiles.d/sluice.conf")
CORE = ROOT / "deploy/systemd"
WANTED = UNITS / "sluice.target.wants"
BOOTED = Path("/run/systemd/system")  # exists while systemd runs, see sd_booted(3)
DATABASE = "ReadWritePaths=/var/lib/sluice"  # in a unit of a contribution that reads the database
# hidden from a unit by ProtectHome= and PrivateTmp=
HIDDEN = "/home", "/root", "/run/user", "/tmp", "/var/tmp"  # noqa: S108  # named, not written to
COMMAND = """\
#!/bin/sh
# The operator's command with the services' settings. {installer} wrote this.
[ "$(id -u)" = 0 ] || exec sudo "$0" "$@"
[ "$1" != services ] || exec {command} "$@"
set -a
. {defaults}
exec runuser -u {user} -- {command} "$@"
"""
# what the package needs of the system; of a checkout, bin/provision installs it
SYSTEM = {
    "nginx": Path("/lib/systemd/system/nginx.service"),
    "redis-server": Path("/lib/systemd/system/redis-server@.service"),
}


def service_settings(file: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The settings in the file, overridden by those of the environment. Raises: SettingError."""
    values = {"INGEST_HOME": str(HOME)} | assignments(file, str(DEFAULTS))
    values |= {name: value for name, value in environ.items() if name.startswith("INGEST_")}
    if values["INGEST_HOME"] != str(HOME) or "://" not in (values.get("INGEST_SPOOL") or "://"):
        raise settings.SettingError(
            f"services do not accept INGEST_HOME, nor a socket as INGEST_SPOOL: theirs are in {HOME}."
        )
    return values


def defaults(values: Mapping[str, str]) -> str:
    """The text of /etc/default/sluice, which systemd and sh read."""
    lines = [f"{name}={shlex.quote(value)}\n" for name, value in sorted(values.items())]
    return f"# Settings: docs/protocol/operator.md. After a change, run {places.SERVICES}.\n" + "".join(lines)


def system_files(s: settings.Settings, root: Path, nginx: bool = True, every: bool = False) -> dict[Path, str]:
    """The system's files for Sluice, path -> text. root: that of `places`. nginx: whether to configure it.

    every: also those that these settings do not need.
    """
    network = every or not s.store.startswith("sqlite:") or not s.has_own_redis
    wanted = {
        "sluice-worker@.service.d/network.conf": network or any(needs(s) for needs in registry.load_hooks("network")),
        "nginx.service.d/sluice.conf": nginx,
    }
    system = {
        "sysusers.conf": USERS,
        "tmpfiles.conf": FOLDERS,
        "sysctl.conf": Path("/etc/sysctl.d/60-sluice.conf"),
    }
    # -P: nothing is imported from the directory in which root calls it
    command = f"{root}/bin/sluice" if places.CHECKOUT else f"{sys.executable} -P -m sluice.ops"
    command = COMMAND.format(defaults=DEFAULTS, user=USER, command=command, installer=places.SERVICES)
    texts = {Path("/usr/local/bin/sluice"): command}
    users = [] if s.has_own_redis and not every else ["sluice-gateway.service"]  # of the network, beside the workers
    for folder in (CORE, *programs.unit_folders()):
        for path in sorted(folder.rglob("*.*")):
            name = str(path.relative_to(folder))
            if path.is_file() and wanted.get(name, path.name != "zz-pypy.conf" or s.runtime == "pypy" or every):
                texts[system.get(name, UNITS / name)] = with_paths(path.read_text(), root)
                if folder != CORE and DATABASE in path.read_text():
                    users.append(name)
    if network:
        text = texts[UNITS / "sluice-worker@.service.d/network.conf"]
        texts |= {UNITS / f"{unit}.d/network.conf": text for unit in users}
    return texts


def with_paths(text: str, root: Path) -> str:
    """The text of a unit, with the paths of this installation in place of those of a checkout in /opt/sluice."""
    if not places.CHECKOUT:  # it has no docs/
        text = re.sub("^Documentation=.*\n", "", text, flags=re.M)
    python = f"{root}/.venv/bin/python" if places.CHECKOUT else sys.executable
    return re.sub("/opt/sluice(/.venv/bin/python)?", lambda found: python if found[1] else str(root), text)


def check_installation(s: settings.Settings) -> None:
    """Raises: Failed or SettingError if services cannot run from this checkout, or from this package."""
    if s.store.startswith("sqlite:") and HOME not in Path(s.store.removeprefix("sqlite:///")).parents:
        raise settings.SettingError(f"INGEST_STORE={s.store!r}: the services can write only in {HOME}.")
    if os.geteuid() != 0:
        raise Failed(f"this needs root: sudo {places.SERVICES if places.CHECKOUT else sys.argv[0] + ' services'}")
    if (other := HOME / FILE).exists():
        raise settings.SettingError(f"services have their settings in {DEFAULTS}: move those of {other} there.")
    if lacking := [name for name, unit in SYSTEM.items() if not unit.exists()]:
        raise Failed(f"services run those of the system: sudo apt-get install {' '.join(lacking)}")
    used = [str(ROOT)] if places.CHECKOUT else [str(ROOT), sys.executable, os.path.realpath(sys.executable)]
    for path in used:
        if path.startswith(tuple(f"{place}/" for place in HIDDEN)) or not re.fullmatch(r"[\w./+-]+", path):
            remedy = "a clone" if places.CHECKOUT else "a virtual environment of the system's Python"
            raise Failed(f"services cannot read {path}; use {remedy} in /opt/sluice.")


def write_changed(path: Path, text: str, mode: int) -> bool:
    """Write a file unless it has this content; returns whether it was written."""
    with contextlib.suppress(FileNotFoundError):
        if path.read_text() == text:
            return False
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():  # pipx makes one of /usr/local/bin/sluice, to the command of the package
        path.unlink()
    path.touch(mode)
    path.chmod(mode)
    path.write_text(text)
    print(f"sluice: wrote {path}", flush=True)
    return True


def run(*command: object) -> None:
    """Run a program; its messages go to the terminal. Raises: Failed if it fails."""
    try:
        subprocess.run([str(word) for word in command], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Failed(f"{command[0]} failed: {error}") from None


def prepare_home(values: Mapping[str, str]) -> bool:
    """As USER, write the configuration to INGEST_HOME; returns whether it changed. Raises: Failed."""
    before = contents(HOME / "etc")
    done = subprocess.run(
        [sys.executable, "-m", "sluice.run.services", "prepare"],
        user=USER, group=USER, extra_groups=[], cwd=ROOT, env={"PATH": os.environ["PATH"], **values},
    )  # fmt: skip
    if done.returncode:
        raise Failed("the error is above; the services keep their settings")
    return contents(HOME / "etc") != before


def contents(folder: Path) -> dict[str, str]:
    """The text of each file below a directory, which belongs to a user who may put a pipe there."""
    texts = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            texts[str(path)] = files_at.read_file(path)
    return texts


def install_files(values: Mapping[str, str], s: settings.Settings) -> bool:
    """Write the files that are missing or differ, enable the services; returns whether anything changed."""
    sites = Path("/etc/nginx/sites-enabled"), Path("/etc/nginx/conf.d")
    others = [str(path) for folder in sites if folder.is_dir() for path in folder.iterdir() if path.name != "default"]
    if others:
        print(
            f"sluice: nginx is not configured, because it already uses {' '.join(others)}: "
            f"include {HOME}/etc/sluice.conf in its http block, and give its user read access to /run/sluice."
        )
    new = system_files(s, ROOT, nginx=not others)
    optional = system_files(s, ROOT, every=True)
    changed = False
    for path in USERS, FOLDERS:
        changed |= write_changed(path, new[path], 0o644)
    run("systemd-sysusers", USERS)
    run("systemd-tmpfiles", "--create", FOLDERS)
    changed |= prepare_home(values)  # checks them: the next start would fail with what cannot be used
    changed |= write_changed(DEFAULTS, defaults(values), 0o600)  # it may hold a password
    for path, text in new.items():
        changed |= write_changed(path, text, 0o755 if path.parent.name == "bin" else 0o644)
    for path in optional.keys() - new.keys():
        if path.exists():
            path.unlink()
            changed = True

    units = [unit for part in programs.needed_programs(s).values() for unit in part.units]
    enabled = {path.name for path in WANTED.iterdir()} if WANTED.is_dir() else set()
    if surplus := enabled - set(units):
        run("systemctl", "disable", "--quiet", *["--now"] * BOOTED.is_dir(), *sorted(surplus))
    run("systemctl", "enable", "--quiet", "sluice.target", "nginx.service", *units)
    return changed or enabled != set(units)


def start_services(changed: bool, s: settings.Settings) -> None:
    """Start the services, or restart them. Raises: Failed if the gateway accepts no writes within a minute."""
    run("systemctl", "daemon-reload")
    # a container may lack permission for this, and works without it
    subprocess.run(["sysctl", "-q", "-p", "/etc/sysctl.d/60-sluice.conf"])
    run("systemctl", "restart" if changed else "start", "sluice.target", "nginx.service")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if up.is_serving(s, 1.0):
            return
        time.sleep(0.1)
    raise Failed("the gateway does not accept writes: journalctl -u 'sluice*' -u redis-server@sluice -u nginx")


def main(words: list[str]) -> None:
    with up.exit_on_error(HOME):
        if words == ["prepare"]:  # as USER
            os.umask(0o077)
            s = settings.load_settings()
            up.check_start(s)
            configure.write_configuration(s, configure.MAX_FILES)  # LimitNOFILE= of nginx in deploy/systemd/
            return
        if words == ["check"]:  # before nginx reloads
            s = settings.load_settings(service_settings(DEFAULTS.read_text(), {}))
            with contextlib.suppress(KeyError):  # before `bin/provision services` there is no user
                user = pwd.getpwnam(USER)  # in whose directory no file is written as root
                os.initgroups(USER, user.pw_gid)
                os.setgid(user.pw_gid)
                os.setuid(user.pw_uid)
            os.umask(0o077)
            configure.write_secrets(s)
            return
        values = service_settings(DEFAULTS.read_text() if DEFAULTS.exists() else "", os.environ)
        s = settings.load_settings(values)
        check_lengths(s)
        check_installation(s)
        servers.check()
        for part in needed_parts(s) if places.CHECKOUT else ():
            run(ROOT / "bin/provision", part)
        changed = install_files(values, s)
        if not BOOTED.is_dir():
            print("sluice: systemd is not running; the services start when it does.")
        else:
            start_services(changed, s)
            print(f"Sluice accepts writes at http://localhost:{s.port}; `sluice status` shows where they are.")
            print(f"Access: {who_may(s)}.")


if __name__ == "__main__":
    main(sys.argv[1:])
