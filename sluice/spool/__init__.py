"""The list between gateway and worker: the Redis contract and its three users, inlet, outlet and inspector.

What INGEST_SPOOL names by another scheme is a contribution with the same three. The functions here choose. What
processes count and report goes to `figures`, the address of a Redis: that of the list, unless the list is in none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluice import registry

if TYPE_CHECKING:
    from sluice.spool.inlet import Inlet
    from sluice.spool.outlet import Outlet
    from sluice.spool.snapshot import Snapshots


def open_inlet(spool: str, figures: str, replicas: int, max_bytes: int, gateways: int) -> Inlet:
    if known := contributed_class(spool, "inlet:Inlet"):
        opened: Inlet = known(spool, figures, max_bytes, gateways)
        return opened
    from sluice.spool import inlet

    return inlet.Inlet(spool, replicas=replicas, max_bytes=max_bytes, gateways=gateways)


def open_outlet(spool: str, figures: str, replicas: int) -> Outlet:
    if known := contributed_class(spool, "outlet:Outlet"):
        opened: Outlet = known(spool, figures)
        return opened
    from sluice.spool import outlet

    return outlet.Outlet(spool, replicas=replicas)


def open_snapshots(spool: str, figures: str, timeout: float) -> Snapshots:
    """What the figures of a cell are read with. timeout: seconds to wait for one reply of Redis."""
    if known := contributed_class(spool, "inspector:Inspector"):
        opened: Snapshots = known(spool, figures, timeout)
        return opened
    from sluice.spool import snapshot

    return snapshot.Snapshots(spool, timeout)


def contributed_class(spool: str, name: str) -> Any:
    """A class of what is in the list's place; None: the list is in Redis. Raises: NotInstalled."""
    entry = registry.of_url("spools", spool)
    if entry is None or entry.is_redis:
        return None
    try:
        return registry.load_target(f"{entry.target}.{name}")
    except ImportError as error:
        lacks = entry.import_failure(error)
        if isinstance(lacks, registry.NotInstalled):
            lacks = registry.NotInstalled(f"INGEST_SPOOL={spool.partition('://')[0]}://… {lacks}")
        raise lacks from error
