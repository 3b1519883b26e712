"""What a private drill names in INGEST_RECORDS: the built-in streams, in a worker that folds batches early.

A worker keeps thousands of batches, more than a drill of a minute has.
"""

from __future__ import annotations

from sluice.store import bounds

bounds.KEEP_BATCHES, bounds.FOLD_BATCHES = 100, 20

STREAMS: dict[str, object] = {}
