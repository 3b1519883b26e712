"""The faults that a drill injects, by name. Each function causes a fault, lets it last, and always repairs it."""

from proving.faults import changes, database, forward, programs, proofs, redis, views
from proving.faults.scene import FAULTS, Fault, Scene

__all__ = ["FAULTS", "Fault", "Scene", "changes", "database", "forward", "programs", "proofs", "redis", "views"]
