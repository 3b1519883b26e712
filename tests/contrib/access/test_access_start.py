"""Settings of access that stop the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice import settings
from sluice.run import configure, up


def test_settings_that_would_let_nobody_in_stop_the_start(tmp: Path) -> None:
    with pytest.raises(settings.SettingError, match="INGEST_CORS: there is no path /nosuch to post to or to read."):
        up.check_modules(settings.load_settings({"INGEST_CORS": "/votes /nosuch"}))
    up.check_modules(settings.load_settings({"INGEST_CORS": "/votes /votes/tally https://a.example"}))
    (tmp / "keys").touch(0o600)
    (tmp / "keys").write_text("# none yet\n")
    with pytest.raises(settings.SettingError, match="has no key: every request would get 401."):
        configure.nginx_secrets(settings.load_settings({"INGEST_API_KEYS": str(tmp / "keys")}))
    with pytest.raises(settings.SettingError, match="has no NAME:HASH; htpasswd writes them."):
        configure.nginx_secrets(settings.load_settings({"INGEST_PASSWORDS": str(tmp / "keys")}))
    (tmp / "keys").write_text("# of the office\nann:$apr1$x$y\n")
    configure.nginx_secrets(settings.load_settings({"INGEST_PASSWORDS": str(tmp / "keys")}))
