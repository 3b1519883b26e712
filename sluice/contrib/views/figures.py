"""The figures of all views at one moment, for every display of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redis.exceptions import RedisError

from sluice.contrib.views import contract
from sluice.contrib.views.client import ViewsClient
from sluice.contrib.views.declared import load_views
from sluice.contrib.views.kinds.view import View, ViewFigures
from sluice.settings import Settings

PATIENCE_SECONDS = 0.5  # that a display waits for a reply: its other figures come once a second


class ViewsFigures:
    """What `Observer` reads of the views: a list of `ViewFigures` as dictionaries."""

    def __init__(self, s: Settings) -> None:
        self.views = load_views(s)
        self.client = ViewsClient(s.scratch_redis, PATIENCE_SECONDS)

    def read(self, counted: Mapping[str, int] | None, trouble: list[str]) -> list[dict[str, Any]]:
        try:
            seen = view_figures(self.client, self.views) if self.views else []
        except RedisError as error:
            trouble.append(f"the views' Redis is unavailable: {error}")
            seen = [ViewFigures(path, "unavailable") for path in self.views]
        return [view._asdict() for view in seen]


def view_figures(client: ViewsClient, declared: Mapping[str, View]) -> list[ViewFigures]:
    """The figures of the declared views. Raises: RedisError."""
    (counted,) = client.ask(("HGETALL", contract.READS))
    reads: dict[str, dict[str, int]] = {}
    for field, n in zip(counted[::2], counted[1::2]):
        path, _, status = field.decode().rpartition(" ")
        reads.setdefault(path, {})[status] = int(n)
    return [view.figures(path, client.ask)._replace(reads=reads.get(path, {})) for path, view in declared.items()]
