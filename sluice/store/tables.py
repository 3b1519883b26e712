"""The bookkeeping's tables, as both databases have them.

A database says how it writes each type: `serial` is a key that counts up, `eternal` one that is never given again,
`name` a text that is unique.
"""

from __future__ import annotations

from typing import Any

# Of these tables and of their columns. A change of their meaning raises it
LAYOUT = 3

TABLES = {
    "batches": {
        "id": "serial", "claim": "name", "stream": "text", "first": "integer", "bodies": "integer",
        "records": "integer", "persisted_at": "time",
    },
    "batches_ranges": {"stream": "text", "epoch": "text", "first": "integer", "last": "integer"},
    "batches_folded": {"stream": "text", "epoch": "text", "first_batch": "integer", "last_batch": "integer"},
    "batches_epochs": {
        "stream": "text", "epoch": "text", "cell": "text", "first": "integer", "last": "integer", "purged": "integer",
    },
    "batches_identity": {"id": "name"},
    "batches_cells": {"cell": "name", "seen": "time", "figures": "json"},
    "batches_expired": {"stream": "text", "epoch": "text", "deleted": "integer", "expired": "integer"},
    "batches_horizons": {"stream": "name", "until": "integer"},
    "batches_keys": {"key": "bytes", "stream": "text", "at": "integer", "batch": "integer"},
    "batches_duplicates": {"stream": "text", "epoch": "text", "bodies": "integer"},
    "batches_destinations": {"stream": "text", "address": "text"},
    "batches_objects": {
        "stream": "text", "name": "name", "address": "text", "bodies": "integer", "since": "time", "reason": "text",
    },
    "batches_carried": {"name": "name", "rows": "bytes"},
    "dead_letters": {
        "id": "eternal", "received_at": "time", "stream": "text", "body": "bytes", "reason": "text",
        "whole": "boolean", "batch": "integer", "seq": "integer",
    },
}  # fmt: skip
# of the tables whose rows are found by it alone
PRIMARY_KEYS = {
    "batches_keys": "key, stream", "batches_duplicates": "stream, epoch", "batches_destinations": "stream, address",
}  # fmt: skip
# statements behind the table that they are for
INDEXES = {
    "batches_folded": "CREATE UNIQUE INDEX IF NOT EXISTS batches_folded_by_epoch ON batches_folded (stream, epoch)",
    "batches_epochs": "CREATE UNIQUE INDEX IF NOT EXISTS batches_epochs_by_name ON batches_epochs (stream, epoch)",
    "batches_expired": "CREATE UNIQUE INDEX IF NOT EXISTS batches_expired_by_epoch ON batches_expired (stream, epoch)",
    "dead_letters": "CREATE INDEX IF NOT EXISTS dead_letters_by_body ON dead_letters (stream, batch, seq)",
}

# One row: what tells this database, and copies of it, from others
IDENTIFY = "INSERT INTO batches_identity (id) SELECT ? WHERE NOT EXISTS (SELECT 1 FROM batches_identity)"
BURY = "INSERT INTO dead_letters (received_at, stream, body, reason, whole, batch, seq) VALUES (?,?,?,?,?,?,?)"


PLAIN = float, int, bool, str


def column_kind(kinds: set[Any]) -> Any:
    """What a column holds of a field: float, int, bool or str; or object: JSON, also of a union. kinds: see
    `schema.field_types`. The value of a metric is no such union: each database has a way of its own.
    """
    kind = next(iter(kinds)) if len(kinds) == 1 else object
    return kind if kind in PLAIN else object


def escape_reason(reason: str) -> bytes:
    """A reason as both databases take it: without NUL, which PostgreSQL does not have, and valid as UTF-8."""
    return reason.encode(errors="backslashreplace").replace(b"\0", b"\\0")
