"""How much one transaction of the store changes, and what is held in memory for it.

A bound is one of what costs, bytes or seconds; one of rows stands only where a row has a largest size.
"""

from __future__ import annotations

TURN_SECONDS = 1.0  # after which no further body is decoded in the same transaction
KEEP_BATCHES = 5_000  # rows of `batches` that are kept
FOLD_BATCHES = 1_000  # rows of `batches` that are folded in one transaction, which takes a few milliseconds
EXPIRE_ROWS, EXPIRE_LETTERS = 5_000, 200  # deleted by age in one transaction
SEARCH_ROWS = 5_000  # that are searched for old ones in one transaction
# Of the search for rejected records: insertions; then, of so many records, those that are left are buried together
SEARCH_INSERTS, CHUNK_RECORDS = 4_000, 1_000
MERGED_BYTES = 1 << 16  # of the records in such a letter
# What is decoded for one transaction. A record takes about RECORD_BYTES, and a byte of text TEXT_FACTOR: an attribute
# of eight bytes takes forty. What else it takes, as `[[],[],…]` does, shows in Python's blocks of up to 512 bytes. They
# are looked at every few milliseconds, in which one decodes to 10 MB
HELD_BYTES, RECORD_BYTES, TEXT_FACTOR = 40 << 20, 300, 5
HELD_BLOCKS, LOOK_SECONDS = 300_000, 0.005
ASKED_KEYS = 500  # in one statement
MAX_KEYS = 20_000_000  # of a stream that are kept; beyond that, the oldest go before their time
