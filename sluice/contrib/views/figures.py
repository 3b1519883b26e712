"""The figures of all views at one moment, for every display of them."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.contrib.views import contract
from sluice.contrib.views.client import ViewsClient
from sluice.contrib.views.kinds.view import View, ViewFigures

PATIENCE_SECONDS = 0.5  # that a display waits for a reply: its other figures come once a second


def look(client: ViewsClient, declared: Mapping[str, View]) -> list[ViewFigures]:
    """The figures of the declared views. Raises: RedisError."""
    (counted,) = client.ask(("HGETALL", contract.READS))
    reads: dict[str, dict[str, int]] = {}
    for field, n in zip(counted[::2], counted[1::2]):
        path, _, status = field.decode().rpartition(" ")
        reads.setdefault(path, {})[status] = int(n)
    return [view.figures(path, client.ask)._replace(reads=reads.get(path, {})) for path, view in declared.items()]


def rates(
    before: Mapping[str, int] | None, now: Mapping[str, int] | None, seconds: float
) -> tuple[float | None, float | None]:
    """Reads per second between two looks, and the hit rate: of the answers 200 and 404, the share of 200.

    None: unknown, as after a restart of the views' Redis; without such an answer there is no hit rate.
    """
    if before is None or now is None or seconds <= 0:
        return None, None
    new = {status: n - before.get(status, 0) for status, n in now.items()}
    if min(new.values(), default=0) < 0 or before.keys() - now.keys():
        return None, None
    valid = new.get("200", 0) + new.get("404", 0)
    return sum(new.values()) / seconds, new.get("200", 0) / valid if valid else None
