"""Sluice: takes writes over HTTP, answers once they are on disk, and stores them later.

The names below are for the modules of INGEST_ROUTES and INGEST_RECORDS. Each is imported on first use: the gateway on
PyPy has no msgspec, so it cannot import the record types.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice.http.routes import NO_CONTENT, OK, Reply, Route, reply
    from sluice.streams.custom import stream
    from sluice.streams.record import Decoded, Limits, Record, Reject
    from sluice.streams.registry import Stream
    from sluice.streams.times import nanoseconds

__version__ = "0.2.0"  # of the package, and the first of CHANGELOG.md
__all__ = [
    "NO_CONTENT", "OK", "Decoded", "Limits", "Record", "Reject", "Reply", "Route", "Stream", "nanoseconds", "reply",
    "stream",
]  # fmt: skip
_EXPORTS = {
    "http.routes": ("NO_CONTENT", "OK", "Reply", "Route", "reply"),
    "streams.record": ("Decoded", "Limits", "Record", "Reject"),
    "streams.custom": ("stream",),
    "streams.registry": ("Stream",),
    "streams.times": ("nanoseconds",),
}
_MODULES = {name: f"sluice.{module}" for module, names in _EXPORTS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    is_module = name.startswith("_") or find_spec(f"{__name__}.{name}")  # `from sluice import settings` asks here first
    registry = import_module("sluice.registry")
    if is_module or name not in (exports := registry.declared_entries("exports")):
        raise AttributeError(f"module 'sluice' has no attribute {name!r}")
    return registry.load_target(exports[name])
