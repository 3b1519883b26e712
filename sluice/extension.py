"""A user's modules, which a setting names, such as INGEST_ROUTES and INGEST_RECORDS."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from sluice.settings import SettingError


def load_dictionary(setting: str, value: str, attribute: str) -> dict[Any, Any]:
    """A dictionary in the module that a setting names; empty if it names none. Raises: SettingError."""
    if not value:
        return {}
    try:
        declared = getattr(load_module(value), attribute, None)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise SettingError(f"{setting}={value!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(declared, dict):
        raise SettingError(f"{setting}={value!r} is invalid: the module has no dictionary {attribute}.")
    return declared


def load_module(value: str) -> ModuleType:
    """Import a module, given by its name or by the path of its file.

    A file is compiled each time. Python's cache tells two versions apart by the time in seconds and the size, so an
    edit of the same size would have no effect within the same second, or after a tool that gives all files one time.
    """
    if not value.endswith(".py"):
        return importlib.import_module(value)
    module = ModuleType(Path(value).stem)
    module.__file__ = value
    sys.modules[module.__name__] = module  # msgspec resolves the annotations of a record there
    exec(compile(Path(value).read_bytes(), value, "exec"), vars(module))  # noqa: S102  # the operator's own file
    return module
