"""What a private drill names in INGEST_RECORDS: the built-in streams, in a worker that folds batches early, and one for
the faults `bomb` and `poison`, whose rows are no events.

A worker keeps thousands of batches, more than a drill of a minute has.
"""

from __future__ import annotations

import os

import sluice
from sluice.store import transaction_limits

transaction_limits.KEEP_BATCHES, transaction_limits.FOLD_BATCHES = 10, 5


class Crumb(sluice.Record, kw_only=True):
    text: str


def parse(line: bytes) -> Crumb:
    if line == b"abort":
        os.abort()
    return Crumb(text=line.decode())


STREAMS = {"crumbs": sluice.stream("crumbs", Crumb, parse)}
