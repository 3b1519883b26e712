"""The figures of all views at one moment, for every display of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluice.views import contract
from sluice.views.client import ViewsClient
from sluice.views.kinds.view import View, ViewFigures

PATIENCE_SECONDS = 0.5  # that a display waits for a reply: its other figures come once a second
SAMPLE_KEYS = 200  # of a view, whose memory is measured; the memory of the view is their mean times its keys
SCAN_STEPS = 50  # in search of them


def look(client: ViewsClient, declared: Mapping[str, View]) -> list[ViewFigures]:
    """The figures of the declared views without their memory. Raises: RedisError."""
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


def measured(client: ViewsClient, views: list[ViewFigures]) -> list[ViewFigures]:
    """The figures with the memory. Looks at some keys of each view: too slow for every second. Raises: RedisError."""
    names: dict[str, list[bytes]] = {}
    cursor: Any = b"0"
    for _ in range(SCAN_STEPS):
        cursor, some = client.ask(("SCAN", cursor, "COUNT", 500))[0]
        for key in some:
            kind, _, rest = key.partition(b":")
            if kind in (b"v", b"t"):
                names.setdefault(rest.partition(b":")[0].decode(), []).append(key)
        if int(cursor) == 0:
            break
    figures = []
    for view in views:
        keys = names.get(view.path, [])
        step = max(1, len(keys) // SAMPLE_KEYS)
        sizes = [size for size in client.ask(*(("MEMORY", "USAGE", key) for key in keys[::step])) if size]
        mean = sum(sizes) / len(sizes) if sizes else None
        figures.append(view._replace(bytes=None if mean is None else int(mean * (view.keys or 0))))
    return figures
