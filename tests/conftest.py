"""What pytest takes and shows here beyond its own."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reloads", type=int, default=2, help="how often test_reload.py reloads each program (2)")
