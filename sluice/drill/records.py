"""What a private drill names in INGEST_RECORDS: the built-in streams, in a worker that folds batches early.

A worker keeps thousands of batches, more than a drill of a minute has.
"""

from __future__ import annotations

from sluice import sinks

sinks.KEEP, sinks.FOLD = 100, 20

STREAMS: dict[str, object] = {}
