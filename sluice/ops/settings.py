"""Show the settings: value, where it is from, what it is for.

Those that differ from their defaults, or all.

A value is from the environment, or else from the file `settings` in INGEST_HOME, or else the default. While a cell
runs, its settings stay those of its start; a line says what the next start changes. Passwords are shown as "…".
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from sluice import settings
from sluice.base import terminal
from sluice.home_settings import FILE, load_for_start
from sluice.settings import Settings, variable, without_password


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="also those that have their defaults")
    parser.epilog = "exit status: 0; 2 if a setting is invalid, or the file is"


def run(arguments: argparse.Namespace, s: Settings) -> int:
    file = load_for_start({"INGEST_HOME": str(s.home)}).given
    last = settings.of_last_start(s.home)
    rows = []
    for name, row in settings.settings_table().items():
        text, source = s.given.get(variable(name), row.default), source_of(variable(name), file, last)
        if name in ("home", "cell"):  # what they are, also unless they are set
            text = str(getattr(s, name))
        if arguments.all or source != "default":
            rows.append((variable(name), without_password(text), source, row.purpose))
    print(terminal.format_table(("setting", "value", "from", "what it is for"), rows, left=4))
    for name in sorted(file):
        if last and file[name] != last.get(name) and not os.environ.get(name):
            print(f"{name}: the next start has {without_password(file[name])}, from {s.home / FILE}.")
    return 0


def source_of(name: str, file: Mapping[str, str], last: Mapping[str, str]) -> str:
    """Where the value of a verb is from. file: what the user's file sets; last: what the last start had."""
    if os.environ.get(name, "").strip():
        return "environment"
    if name not in (last or file) or (name == "INGEST_CELL" and name not in file):  # a home keeps its name
        return "default"
    return FILE if last.get(name, file.get(name)) == file.get(name) else "last start"
