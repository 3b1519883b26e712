"""Put the copy of a backup in the place of the database.

It happens as a whole or not at all, and everything may run meanwhile. What was stored after the backup is gone, and the
ledger counts it as missing; what waits in Redis is stored. No body is stored twice. What
follows the rows is built again.
"""

from __future__ import annotations

import argparse
import contextlib

from sluice import parsers
from sluice.base import terminal
from sluice.ledger import Observer
from sluice.settings import Settings
from sluice.store import copies, database_identity
from sluice.store.cell_store import open_cell_store
from sluice.store.registry import open_store
from sluice.store.types import Unavailable


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=parsers.parse_path)
    parser.add_argument("--replace", action="store_true", help="also if the database holds stored bodies")
    parser.epilog = (
        "exit status: 0; 1 if the database holds stored bodies or is unavailable, or FILE is not a whole backup: the "
        "database is then as it was; 2 if a setting is invalid"
    )


def run(arguments: argparse.Namespace, s: Settings) -> int:
    observer = Observer(s)
    with contextlib.suppress(Unavailable):  # there is none yet
        open_cell_store(s, {}).close()
    try:
        copies.restore_store(s.store, arguments.file, arguments.replace, terminal.progress)
    except (copies.CannotCopy, OSError) as error:
        terminal.complain(terminal.system_reason(error) if isinstance(error, OSError) else error)
        return 1
    with contextlib.closing(open_store(s.store, {}, make=False)) as store, store.transaction(read=True) as db:
        database_identity.note_identity(s.home, store.read_identity(db))  # a copy may be of another one
    print(f"restored {arguments.file}")
    ledger = observer.ledger()
    for name, row in ledger["streams"].items():
        if (row["missing"] or 0) > 0:
            print(f"{name}: {row['missing']} bodies were stored after this backup, and are missing")
    return 0
