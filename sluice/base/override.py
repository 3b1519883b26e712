"""`@override`: a method of a base class, whose docstring counts. mypy checks the name; at run time it does nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import override
else:

    def override(method):
        return method


__all__ = ["override"]
