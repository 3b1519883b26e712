"""Installs bench/.venv and restarts the program in it. Every other module of the rig imports this one."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
VENV = BENCH / ".venv"

if Path(sys.prefix).resolve() != VENV:
    if os.spawnv(os.P_WAIT, str(ROOT / "bin/provision"), ["provision", "bench"]):  # noqa: S606
        sys.exit("installation failed: bin/provision bench")
    os.execv(str(VENV / "bin/python"), [str(VENV / "bin/python"), *sys.argv])

sys.path.insert(0, str(ROOT))


def sibling(name: str) -> ModuleType:
    """Import another benchmark, whose file has no suffix."""
    loader = importlib.machinery.SourceFileLoader(f"bench_{name}", str(BENCH / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
