"""How much one transaction of the store changes, and what is held in memory for it.

A bound is one of what costs, bytes or seconds; one of rows stands only where a row has a largest size.
"""

from __future__ import annotations

TURN_SECONDS = 1.0  # after which no further body is decoded in the same transaction
KEEP_BATCHES = 5_000  # rows of `batches` that are kept
FOLD_BATCHES = 1_000  # rows of `batches` that are folded in one transaction, which takes a few milliseconds
EXPIRE_ROWS, EXPIRE_LETTERS = 5_000, 200  # deleted by age in one transaction
SEARCH_ROWS = 5_000  # that are searched for old ones in one transaction
CHUNK_ENTRIES, CHUNK_BYTES = 1_000, 1 << 20  # held in memory while a rejected record is searched for
SEARCH_INSERTS, MERGED_BYTES = 4_000, 1 << 16  # of the search; then the records of a letter
LETTER_BYTES = 4 << 20  # of dead letters held in memory at once
REASONS = 100  # of dead letters that are told apart
GROUP_RECORDS = 32_768  # held in memory on their way to a destination
SMALL_BYTES = 1 << 16  # of a body, inflated, that is decoded before its key is put
# Memory of the bodies that are stored at once: a record takes about RECORD_BYTES, and a byte of text TEXT_FACTOR, as an
# attribute of eight bytes takes forty
KEYED_BYTES, RECORD_BYTES, TEXT_FACTOR = 40 << 20, 300, 5
# What is held may take so many of Python's blocks of up to 512 bytes, and rows for a destination may let the process
# grow by so many bytes; looked at every few milliseconds, in which one decodes to 10 MB
HELD_BLOCKS, HELD_BYTES, LOOK_SECONDS = 300_000, 28 << 20, 0.005
SEVERAL_BYTES = 1 << 10  # of the average body of a claim, above which it has several records
REPEATING_CLAIMS = 100  # of a stream that put keys first, from one on that had to be stored again for a duplicate
PIECE_KEYS = 500  # that the database puts while the next ones are made
KEYED_RECORDS = 100  # of a larger body, whose own keys are put at once
ASKED_KEYS = 500  # in one statement
MAX_KEYS = 20_000_000  # of a stream that are kept; beyond that, the oldest go before their time
