"""Copy the whole database to a file while everything runs.

The copy is the database of one moment. FILE appears, or replaces an older copy, once the copy is whole and on disk; a
backup that is killed leaves only a FILE.….part, which can be deleted. FILE has the form of the database's own tools.
Bodies that wait in Redis are not in it: they are stored later, also after a restore.
"""

from __future__ import annotations

import argparse

from sluice import parsers
from sluice.base import terminal
from sluice.settings import Settings
from sluice.store import copies
from sluice.store.cell_store import open_cell_store


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=parsers.parse_path)
    parser.epilog = (
        "exit status: 0; 1 if the database is unavailable or FILE cannot be written; 2 if a setting is invalid"
    )


def run(arguments: argparse.Namespace, s: Settings) -> int:
    open_cell_store(s, {}).close()
    try:
        copies.backup_store(s.store, arguments.file, terminal.progress)
    except (copies.CannotCopy, OSError) as error:
        terminal.complain(terminal.system_reason(error) if isinstance(error, OSError) else error)
        return 1
    print(f"{arguments.file}: {arguments.file.stat().st_size:,} bytes")
    return 0
