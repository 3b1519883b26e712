"""Settings: what the table in PROTOCOL.md promises, and one clear line for everything else."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sluice import settings
from sluice.drill.harness import ROOT, environment


def test_the_defaults_are_those_of_the_table_in_the_protocol() -> None:
    section = (ROOT / "docs/PROTOCOL.md").read_text().split("\n## 6.")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(INGEST_\w+)` \| *([^|]*?) *\|", section, re.M)
    table = {name: default.strip("`") for name, default in rows}
    assert len(table) == len(dataclasses.fields(settings.Settings))
    home = "/tmp/home"
    table = {name: value.replace("$INGEST_HOME", home) for name, value in table.items()} | {"INGEST_HOME": home}
    assert settings.load(table) == settings.load({"INGEST_HOME": home})


def test_the_home_is_var_where_it_was_started() -> None:
    assert settings.load({}).home == Path.cwd() / "var"


def test_an_empty_setting_is_the_default() -> None:
    assert settings.load({"INGEST_PORT": "", "INGEST_MAX_BODY": " "}) == settings.load({})


@pytest.mark.parametrize(
    "text, size",
    [
        ("1", 1),
        ("512k", 512 << 10),
        ("1m", 1 << 20),
        ("1M", 1 << 20),
        ("2g", 2 << 30),
        ("1MiB", 1 << 20),
        ("1mb", 1 << 20),
    ],
)
def test_sizes_may_have_a_unit(text: str, size: int) -> None:
    assert settings.load({"INGEST_MAX_BODY": text}).max_body == size


@pytest.mark.parametrize(
    "name, value",
    [
        ("INGEST_PORT", "0"),
        ("INGEST_PORT", "65536"),
        ("INGEST_PORT", "80 80"),
        ("INGEST_PORT", "８０８０"),
        ("INGEST_RUNTIME", "PyPy"),
        ("INGEST_GATEWAYS", "0"),
        ("INGEST_WORKERS", "-1"),
        ("INGEST_WORKERS", "one"),
        ("INGEST_WORKERS", "auto:0-2"),
        ("INGEST_WORKERS", "auto:4-2"),
        ("INGEST_DURABILITY", "yes"),
        ("INGEST_MAX_BODY", "0"),
        ("INGEST_MAX_BODY", "1t"),
        ("INGEST_MAX_BODY", "1.5m"),
        ("INGEST_MAX_HEADER", "1023"),
        ("INGEST_MAX_HEADER", "8001"),
        ("INGEST_MAX_INFLATED", "-1"),
        ("INGEST_MAX_RECORDS", "0"),
        ("INGEST_MAX_RECORD_BYTES", "1000"),
        ("INGEST_MAX_FIELDS", "0"),
        ("INGEST_MAX_CLAIM", "0"),
        ("INGEST_MAX_CLAIM_BYTES", "0"),
        ("INGEST_MAX_MEMORY", "1m"),
        ("INGEST_MAX_BACKLOG", "0"),
        ("INGEST_MAX_BACKLOG_BYTES", "0"),
        ("INGEST_CLIENT_TIMEOUT", "0"),
        ("INGEST_CLIENT_IDLE", "1h"),
        ("INGEST_MAX_CONNECTIONS", "63"),
        ("INGEST_SINK", "mysql://localhost/x"),
        ("INGEST_SINK", "sqlite:///"),
        ("INGEST_ROUTES", "my-routes"),
        ("INGEST_RECORDS", "./mine.py"),
        ("INGEST_ALLOW", ","),
        ("INGEST_ALLOW", "10.0.0.1/8"),
        ("INGEST_ALLOW", "10.0.0.0/8 localhost"),
        ("INGEST_CLIENT_RATE", "10r/s"),
        ("INGEST_CLIENT_CONNECTIONS", "-1"),
        ("INGEST_CORS", "https://shop.example"),
        ("INGEST_CORS", "/votes *"),
        ("INGEST_CORS", "/votes https://shop.example/"),
        ("INGEST_CORS", '/votes" x;'),
    ],
)
def test_a_value_that_makes_no_sense_is_named_with_what_would_do(name: str, value: str) -> None:
    with pytest.raises(settings.SettingError) as caught:
        settings.load({name: value})
    text = str(caught.value)
    assert text.startswith(f"{name}={value!r} makes no sense here: it takes ")
    assert text.count("\n") == 0


def test_a_certificate_without_its_key_is_refused() -> None:
    with pytest.raises(settings.SettingError, match="INGEST_TLS_CERTIFICATE and INGEST_TLS_KEY make sense together"):
        settings.load({"INGEST_TLS_CERTIFICATE": "/c.pem"})


@pytest.mark.parametrize("name", ["INGEST_HOME", "INGEST_REDIS"])
def test_a_place_too_long_for_a_socket_is_refused(name: str) -> None:
    with pytest.raises(settings.SettingError, match=f"{name} is too long.*107 bytes"):
        settings.load({name: "/" + "x" * 107})


def test_a_program_ends_with_status_2_and_one_line(tmp_path: Path) -> None:
    code = "from sluice import settings; settings.load_or_exit()"
    env = environment(tmp_path, {"INGEST_PORT": "none"})
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "sluice: INGEST_PORT='none' makes no sense here: it takes a whole number from 1 to 65535.\n"


def test_a_users_module_is_found_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("ROUTES = {'/x': 1}")
    assert settings.extension("INGEST_ROUTES", str(tmp_path / "mine.py")).ROUTES == {"/x": 1}


def test_a_users_module_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sluice_named.py").write_text("ROUTES = {'/x': 1}")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert settings.extension("INGEST_ROUTES", "sluice_named").ROUTES == {"/x": 1}


@pytest.mark.parametrize("text", ["raise RuntimeError('half done')", "import nowhere", "def"])
def test_a_users_module_that_fails_is_a_setting_that_fails(text: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(text)
    with pytest.raises(settings.SettingError, match="INGEST_ROUTES=.*broken.py.* cannot be imported"):
        settings.extension("INGEST_ROUTES", str(tmp_path / "broken.py"))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:sec/ret@h/d", "postgres//u:secret@h", "postgresql://h/d?password=secret&sslmode=require",
        "postgresql://u:secr@et@h/d",
    ],
)  # fmt: skip
def test_a_connection_string_is_shown_without_its_password(url):
    shown = settings.without_password(url)
    assert "sec" not in shown and "ret" not in shown
    assert settings.without_password("sqlite:////a/b.db") == "sqlite:////a/b.db"
