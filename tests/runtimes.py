"""The runtimes of the gateway, as parameters of tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.drill import harness

RUNTIMES = [
    "cpython",
    pytest.param(
        "pypy",
        marks=pytest.mark.skipif(
            not Path(harness.PYTHON["pypy"]).exists(), reason="no .venv-pypy here; bin/test makes it"
        ),
    ),
]
