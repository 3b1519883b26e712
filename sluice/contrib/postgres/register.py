"""PostgreSQL as the database."""

from __future__ import annotations

from sluice.registry import Contribution, Database

POSTGRES = Database(
    "sluice.contrib.postgres", "postgres", "PostgreSQL", "Postgres", r"(?s:postgres(?:ql)?://.+)",
    "postgresql://USER@HOST/DATABASE", b"PGDMP", "sluice.contrib.postgres.session:url_parameters",
)  # fmt: skip
CONTRIBUTION = Contribution(
    page="protocol/database.md",
    databases={"postgresql": POSTGRES, "postgres": POSTGRES},
    verbs={"move": "sluice.contrib.postgres.move"},
    row_sources=dict.fromkeys(("postgresql", "postgres"), "sluice.contrib.postgres.view_rows:PostgresRows"),
)
