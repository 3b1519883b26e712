"""The database: it stores each claim once, with the ledger and the dead letters.

No body waits for maintenance: what folds, deletes, merges or copies is a worker's chore, or a verb.
"""
