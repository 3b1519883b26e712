"""The database: it stores each claim once, with the ledger and the dead letters."""
