"""The programs of a cell, those of the core and those that contributions add, for bin/up and for systemd."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from sluice import registry
from sluice.settings import Settings


class Part(NamedTuple):
    """A program while it runs.

    command: of its arguments, the first is {python}, {redis}, {nginx} or, if it is to run on INGEST_RUNTIME, {gateway}.
        Paths are in double quotation marks.
    priority: supervisord stops the highest first: nginx 40, gateway 30, worker 20, Redis 10.
    stop_seconds: after which it is killed; at most 3.
    units: of systemd, which are enabled; the files are in deploy/systemd/, or in systemd/ beside the register.
    signal: that asks it to end. processes: how many run it, which stop together.
    """

    command: str
    priority: int = 20
    stop_seconds: int = 2
    units: tuple[str, ...] = ()
    signal: str = "TERM"
    processes: int = 1


def needed_programs(s: Settings) -> dict[str, Part]:
    """The programs that these settings need, by name."""
    etc, workers = s.home / "etc", s.workers.min
    found = {
        "gateway": Part("{gateway} -m gunicorn", 30, stop_seconds=3),
        # QUIT is nginx's graceful stop
        "nginx": Part(f'{{nginx}} -p "{s.home}" -c "{etc}/nginx.conf"', 40, signal="QUIT"),
    }
    if s.has_own_redis:
        found["redis"] = Part(f'{{redis}} "{etc}/redis.conf"', 10)
    if s.has_scratch_redis:  # it has no work to finish
        found["views"] = Part(f'{{redis}} "{etc}/views.conf"', 10, units=("sluice-views.service",))
    if workers:  # each has time to finish its batch; if it is killed, nothing is lost
        units = tuple(f"sluice-worker@{number}.service" for number in range(1, workers + 1))
        found["worker"] = Part("{python} worker.py run", units=units, processes=workers)
    return found | declared(s)


def declared(s: Settings) -> dict[str, Part]:
    """Those of contributions."""
    found = {name: program.load()(s) for name, program in registry.declared_entries("programs").items()}
    return {name: part for name, part in found.items() if part}


def upgraded() -> set[str]:
    """The names of all programs that a reload upgrades, whatever the settings are."""
    return {name for name, program in registry.declared_entries("programs").items() if program.upgrades}


def unit_folders() -> list[Path]:
    """The folders with the units of contributions."""
    return sorted(registry.CONTRIB.glob("*/systemd"))
