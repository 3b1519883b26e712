"""Planted faults: texts of the product, and what stands there instead. A history must find each of them.

The texts are exact: if one is not found, or more than once, the plant has to follow the product.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple


class Plant(NamedTuple):
    """module: which has the text `old` once."""

    module: str
    old: str
    new: str


PLANTS = {
    "reply-lost-answered-2xx": Plant(
        "sluice.spool.inlet",
        "self.disconnect(error)\n                self.refuse_all(group)\n            except BaseException",
        "self.disconnect(error)\n            except BaseException",
    ),
    "ranges-off-by-one": Plant(
        "sluice.store.sqlite.store",
        ".get or claim.end - 1\n",
        ".get or claim.end\n",
    ),
    "epoch-over-listed-bodies": Plant(
        "sluice.spool.contract", "    start = taken + ready + 1\n", "    start = taken + 1\n"
    ),
    "lease-not-renewed": Plant(
        "worker", "                    self.outlet.renew(claim)\n", "                    self.outlet.counts.delta()\n"
    ),
    "key-window-halved": Plant(
        "sluice.store.expiry",
        "old = {stream: now - int(age * shares[stream])",
        "old = {stream: now - int(age * shares[stream] / 2)",
    ),
    "settle-drops-one": Plant(
        "sluice.spool.contract",
        "  redis.call('LTRIM', key, ARGV[4], -1)\n  redis.call('RENAME', key, ARGV[1] .. rest)",
        "  redis.call('LTRIM', key, ARGV[4] + 1, -1)\n  redis.call('RENAME', key, ARGV[1] .. rest)",
    ),
    "claim-over-two-epochs": Plant(
        "sluice.spool.contract",
        "if following then max_bodies = math.min(max_bodies, following - taken - 1) end",
        "if false then max_bodies = 0 end",
    ),
    "note-forgotten": Plant(
        "sluice.contrib.destinations.outbox",
        "                forget_notes(store, attempt.db, done)\n",
        "                forget_notes(store, attempt.db, [*done, *(made.name for made in attempt.objects.values())])\n",
    ),
    "folding-over-a-gap": Plant(
        "sluice.store.sqlite.store",
        "start if last == claim.first - 1 else claim.first",
        "start if last >= claim.first - 2 else claim.first",
    ),
    "attempt-uncounted": Plant(
        "worker",
        "        ended = self.outlet.count_attempt(claim) - 1\n",
        "        ended = self.outlet.count_attempt(claim, 0) - 1\n",
    ),
}


class Planter(importlib.abc.MetaPathFinder):
    """Loads one module with another text."""

    def __init__(self, plant: Plant) -> None:
        self.plant = plant

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.plant.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec and spec.origin
        spec.loader = Changed(name, spec.origin, self.plant)
        return spec


class Changed(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, plant: Plant) -> None:
        super().__init__(name, path)
        self.plant = plant

    def get_code(self, fullname: str) -> object:  # type: ignore[override]
        text = self.get_data(self.path).decode()
        if text.count(self.plant.old) != 1:
            raise SystemExit(f"{self.path} does not have this text once:\n{self.plant.old}")
        return compile(text.replace(self.plant.old, self.plant.new), self.path, "exec")


def plant(name: str) -> None:
    """Have the product imported with a fault. Call it before anything of it is imported."""
    assert PLANTS[name].module not in sys.modules
    sys.meta_path.insert(0, Planter(PLANTS[name]))
