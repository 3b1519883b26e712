"""How much one transaction of the store changes, and what is held in memory for it."""

from __future__ import annotations

# Rows of `batches`: so many are kept, and so many are folded in one transaction, which takes a few milliseconds
KEEP_BATCHES, FOLD_BATCHES = 5_000, 1_000
# Deleted by age in one transaction
EXPIRE_ROWS, EXPIRE_LETTERS = 5_000, 200
CHUNK = (1_000, 4 << 20)  # entries, and bytes of their bodies, held in memory while a rejected record is searched for
LETTER_BYTES = 4 << 20  # bytes of dead letters held in memory at once
GROUP = 32_768, 200  # records, and rejects, held in memory on their way to a destination
