"""A user's modules, which add routes (INGEST_ROUTES), streams (INGEST_RECORDS) and views (INGEST_VIEWS)."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from sluice.settings import SettingError


def dictionary(setting: str, value: str, attribute: str) -> dict[Any, Any]:
    """A dictionary in the module that a setting names; empty if it names none. Raises: SettingError."""
    if not value:
        return {}
    try:
        declared = getattr(load(value), attribute, None)
    except Exception as error:  # a user's module may raise anything
        raise SettingError(f"{setting}={value!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(declared, dict):
        raise SettingError(f"{setting}={value!r} is invalid: the module has no dictionary {attribute}.")
    return declared


class Uncached(SourceFileLoader):
    """Compiles a file each time.

    Python's cache tells two versions of a file apart by its time in seconds and its size, so an edit of the same size
    would have no effect within the same second, or after a tool that gives all files one time.
    """

    def get_code(self, fullname: str) -> CodeType:
        """The code of the file as it is now."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def load(value: str) -> ModuleType:
    """Import a module, given by its name or by the path of its file."""
    if not value.endswith(".py"):
        return importlib.import_module(value)
    spec = importlib.util.spec_from_file_location(Path(value).stem, value, loader=Uncached(Path(value).stem, value))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # msgspec resolves the annotations of a record there
    spec.loader.exec_module(module)
    return module
