"""Discard the READY bodies of a stream, or with --missing count those as purged that are gone. This cannot be undone.

`status` shows how many were purged.
After --missing, `missing` is 0 until other bodies are missing: for a restored copy, or a disk that was lost. If it is
below 0, because bodies were counted as purged that were not, these are no longer.
Bodies that arrive while the question is on the screen stay, and so do claimed bodies.
"""

from __future__ import annotations

import argparse

from sluice import ledger
from sluice.base import terminal
from sluice.settings import Settings
from sluice.spool.inspector import Inspector


def arguments(parser: argparse.ArgumentParser) -> None:
    terminal.confirmed_arguments(parser)
    parser.add_argument("--missing", action="store_true", help="count the missing bodies as purged")


def run(arguments: argparse.Namespace, s: Settings) -> int:
    name, inspector = arguments.stream, ledger.stream_inspector(arguments.stream, s, "purge")
    if arguments.missing:
        return write_off(arguments, s, inspector)
    seen = inspector.take_snapshot(name)
    if not seen.ready:
        print(f"{terminal.printable(name)}: no body is ready.")
        return 0
    if not terminal.confirmed(arguments, f"{name}: discard {seen.ready} accepted bodies that are not yet stored?"):
        return 1
    print(f"{terminal.printable(name)}: {inspector.purge(name, seen)} bodies discarded")
    return 0


def write_off(arguments: argparse.Namespace, s: Settings, inspector: Inspector) -> int:
    found = ledger.Observer(s).ledger()
    name, missing = arguments.stream, found["streams"][arguments.stream]["missing"]
    if missing is None:
        for line in found["trouble"]:
            terminal.complain(line)
        return 1
    if not missing:
        print(f"{terminal.printable(name)}: no body is missing.")
        return 0
    if missing < 0:
        return take_back(arguments, inspector, -missing, found["streams"][name]["purged"] or 0)
    if not terminal.confirmed(arguments, f"{name}: {missing} accepted bodies are missing; count them as purged?"):
        return 1
    inspector.write_off(name, missing)
    print(f"{terminal.printable(name)}: {missing} bodies are counted as purged")
    return 0


def take_back(arguments: argparse.Namespace, inspector: Inspector, bodies: int, purged: int) -> int:
    name = arguments.stream
    if bodies > purged:
        terminal.complain(f"{name}: {bodies} bodies more are counted than were accepted, and only {purged} as purged")
        return 1
    question = f"{name}: {bodies} bodies more are counted than were accepted; count them as purged no longer?"
    if not terminal.confirmed(arguments, question):
        return 1
    inspector.write_off(name, -bodies)
    print(f"{terminal.printable(name)}: {bodies} bodies are no longer counted as purged")
    return 0
