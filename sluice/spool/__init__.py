"""The list between gateway and worker: the Redis contract and its three users, inlet, outlet and inspector.

In `kafka` are the same three for Kafka in the list's place. The functions here choose by INGEST_SPOOL. What processes
count and report goes to the list's Redis; with Kafka, to `figures`, the address of a Redis on the same machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice.spool.inlet import Inlet
    from sluice.spool.inspector import Inspector
    from sluice.spool.outlet import Outlet

KAFKA = "kafka://"


def open_inlet(spool: str, figures: str, replicas: int, max_bytes: int, gateways: int) -> Inlet:
    if spool.startswith(KAFKA):
        from sluice.contrib.kafka import inlet as kafka

        return kafka.Inlet(spool, figures, max_bytes, gateways)
    from sluice.spool import inlet

    return inlet.Inlet(spool, replicas=replicas, max_bytes=max_bytes, gateways=gateways)


def open_outlet(spool: str, figures: str, replicas: int) -> Outlet:
    if spool.startswith(KAFKA):
        from sluice.contrib.kafka import outlet as kafka

        return kafka.Outlet(spool, figures)
    from sluice.spool import outlet

    return outlet.Outlet(spool, replicas=replicas)


def open_inspector(spool: str, figures: str, timeout: float) -> Inspector:
    """The operator's side. timeout: seconds to wait for one reply of Redis."""
    if spool.startswith(KAFKA):
        from sluice.contrib.kafka import inspector as kafka

        return kafka.Inspector(spool, figures, timeout)
    from sluice.spool import inspector

    return inspector.Inspector(spool, timeout)
