"""The programs that contributions add to those of the core, for bin/up and for systemd."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from sluice import registry
from sluice.settings import Settings

SECTION = """\
[program:{name}]
command={launch} {name} TERM {command}
priority={priority}
stopwaitsecs={stop_seconds}
stderr_logfile={home}/log/{name}.log
{common}
"""


class Part(NamedTuple):
    """A program while it runs.

    command: of its arguments, the first is {python} or, if it is to run on INGEST_RUNTIME, {gateway}. Paths are in
        double quotation marks.
    priority: supervisord stops the highest first: nginx 40, gateway 30, worker 20, Redis 10.
    stop_seconds: after which it is killed; at most 3.
    units: of systemd, which are enabled; the files are in the folder systemd/ beside the register.
    """

    command: str
    priority: int = 20
    stop_seconds: int = 2
    units: tuple[str, ...] = ()


def declared(s: Settings) -> dict[str, Part]:
    """The programs that these settings need, by name."""
    found = {name: program.load()(s) for name, program in registry.declared_entries("programs").items()}
    return {name: part for name, part in found.items() if part}


def upgraded() -> set[str]:
    """The names of all programs that a reload upgrades, whatever the settings are."""
    return {name for name, program in registry.declared_entries("programs").items() if program.upgrades}


def unit_folders() -> list[Path]:
    """The folders with the units of contributions."""
    return sorted(registry.CONTRIB.glob("*/systemd"))
