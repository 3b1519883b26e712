"""Discard the READY bodies of a stream. This cannot be undone.

`status` shows how many were purged.
Bodies that arrive while the question is on the screen stay, and so do claimed bodies.
"""

from __future__ import annotations

import argparse

from sluice import ledger
from sluice.base import screen
from sluice.settings import Settings

arguments = screen.confirmed_arguments


def run(arguments: argparse.Namespace, s: Settings) -> int:
    name, inspector = arguments.stream, ledger.inspector(arguments.stream, s, "purge")
    seen = inspector.snapshot(name)
    if not seen.ready:
        print(f"{name}: no body is ready.")
        return 0
    if not screen.confirmed(arguments, f"{name}: discard {seen.ready} accepted bodies that are not yet stored?"):
        return 1
    print(f"{name}: {inspector.purge(name, seen)} bodies discarded")
    return 0
