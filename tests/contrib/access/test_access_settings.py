"""Settings of access."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice import settings
from sluice.run.first_screen import who_may


def test_who_may_is_one_line() -> None:
    def line(**env: str) -> str:
        return who_may(settings.load_settings(env))

    assert line() == "this machine and private networks may write, this machine may read"
    keys = line(INGEST_API_KEYS="/k", INGEST_PASSWORDS="/p", INGEST_READ_ALLOW="none")
    assert keys == "everybody may write, nobody may read, with an API key and a password"
    given = line(INGEST_API_KEYS="/k", INGEST_ALLOW="private", INGEST_READ_ALLOW="all")
    assert given == "this machine and private networks may write, everybody may read, with an API key"
    assert line(INGEST_ALLOW="10.0.0.1 10.0.0.2, ::2 ::3").startswith("10.0.0.1 10.0.0.2 ::2 … may write")


def test_a_certificate_and_its_key_are_in_two_files_or_in_one() -> None:
    two = settings.load_settings({"INGEST_TLS_CERTIFICATE": "/c.pem", "INGEST_TLS_KEY": "/k.pem"})
    assert (two.tls_certificate, two.tls_key) == (Path("/c.pem"), Path("/k.pem"))
    assert settings.load_settings({"INGEST_TLS_CERTIFICATE": "/both.pem"}).tls_key == Path("/both.pem")
    with pytest.raises(settings.SettingError, match="^INGEST_TLS_KEY needs INGEST_TLS_CERTIFICATE.$"):
        settings.load_settings({"INGEST_TLS_KEY": "/k.pem"})


def test_a_relative_path_of_keys_counts_from_the_operators_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_PWD", "/there")
    assert settings.load_settings({"INGEST_API_KEYS": "keys"}).api_keys == Path("/there/keys")
