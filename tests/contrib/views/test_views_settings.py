"""Settings of the views."""

from __future__ import annotations

import pytest

from sluice import settings


@pytest.mark.parametrize("text", ["off", "OFF"])
def test_views_are_off_in_either_case(text: str) -> None:
    assert settings.load_settings({"INGEST_VIEWS": text}).views == "off"
