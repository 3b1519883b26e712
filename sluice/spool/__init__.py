"""The list between gateway and worker: the Redis contract and its users: inlet, outlet, snapshot and inspector.

What INGEST_SPOOL names by another scheme is a contribution with the same four.
"""

from __future__ import annotations

from typing import Any

from sluice import registry


def open_spool(side: str, spool: str, figures: str, **options: Any) -> Any:
    """One side of the list, for the place that INGEST_SPOOL names. Raises: NotInstalled.

    side: "inlet:Inlet", "outlet:Outlet", "snapshot:Snapshots" or "inspector:Inspector". figures: the address of the
    Redis where processes count and report: that of the list, unless the list is in none.
    """
    entry = registry.of_url("spools", spool)
    if entry is None or entry.is_redis:
        return registry.load_target(f"{__package__}.{side}")(spool, **options)
    try:
        known = entry.load(side)
    except registry.NotInstalled as error:
        raise registry.NotInstalled(f"INGEST_SPOOL={spool.partition('://')[0]}://… {error}") from error
    return known(spool, figures, **options)
