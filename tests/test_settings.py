"""Settings: the table in PROTOCOL.md, the parsers, and the errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from proving.harness import ROOT, environment
from sluice import settings

PROTOCOL = ROOT / "docs/PROTOCOL.md"


def test_the_table_shows_the_defaults() -> None:
    rows = re.findall(r"^\| `(INGEST_\w+)` \| *([^|]*?) *\|", settings.table(), re.M)
    home = "/tmp/home"
    table = {name: default.strip("`").replace("$INGEST_HOME", home) for name, default in rows}
    assert table.keys() == set(settings.NAMES)
    assert settings.load(table | {"INGEST_HOME": home}) == settings.load({"INGEST_HOME": home})


def test_the_table_in_the_protocol_is_up_to_date() -> None:
    text = PROTOCOL.read_text()
    assert settings.documented(text) == text, "run: python -m sluice.settings docs/PROTOCOL.md"


def test_the_command_writes_the_table_between_the_markers(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text("before\n<!-- settings -->\nold\n<!-- /settings -->\nafter\n")
    subprocess.run([sys.executable, "-m", "sluice.settings", document], cwd=ROOT, check=True)
    text = document.read_text()
    assert text == f"before\n<!-- settings -->\n{settings.table()}<!-- /settings -->\nafter\n"
    assert text.count("\n| `INGEST_") == len(settings.NAMES)


def test_gateways_follow_the_cores() -> None:
    assert [settings.gateways_of(cores) for cores in (1, 2, 4, 7, 8, 64)] == [1, 1, 1, 1, 2, 16]
    assert settings.load({}).gateways == settings.gateways_of(len(os.sched_getaffinity(0)))
    assert settings.load({"INGEST_GATEWAYS": "3"}).gateways == 3


def test_the_memory_of_the_views_may_have_a_variable_of_its_own() -> None:
    sizes = [{}, {"INGEST_MAX_MEMORY": "2g,512m"}, {"INGEST_VIEWS_MEMORY": "8m"}, {"INGEST_MAX_MEMORY": "64m"}]
    found = [settings.load(environ).max_memory for environ in sizes]
    assert found == [(1 << 30, 1 << 28), (2 << 30, 1 << 29), (1 << 30, 8 << 20), (64 << 20, 1 << 28)]


def test_there_are_at_most_26_settings() -> None:
    assert len(settings.NAMES) <= 26


def test_the_default_home_is_var_in_the_current_directory() -> None:
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
        ("INGEST_MAX_MEMORY", "1m"),
        ("INGEST_MAX_MEMORY", "1g,1m"),
        ("INGEST_MAX_MEMORY", "1g,256m,1g"),
        ("INGEST_STORE", "mysql://localhost/x"),
        ("INGEST_STORE", "sqlite:///"),
        ("INGEST_KEEP", "30"),
        ("INGEST_KEEP", "0d"),
        ("INGEST_KEEP", "1d,2d"),
        ("INGEST_KEEP", "gps="),
        ("INGEST_REDIS", "redis://h"),
        ("INGEST_REDIS", "redis://h:1,i:2"),
        ("INGEST_REDIS", "redis://h:1/main"),
        ("INGEST_REDIS", "redis://h:1?retry_on_timeout=yes"),
        ("INGEST_REDIS", "redis://h:1?ssl_ca_certs=/ca.pem"),
        ("INGEST_REDIS", "rediss://h:1?ssl_cert_reqs=none"),
        ("INGEST_REDIS", "rediss://h:1?ssl_ca_certs=ca.pem"),
        ("INGEST_REDIS", "redis+sentinel://a:1,b:2"),
        ("INGEST_REDIS", "unix:///run/redis.sock"),
        ("INGEST_REDIS", "kafka://h:9092"),
        ("INGEST_SPOOL", "kafka://h"),
        ("INGEST_SPOOL", "kafka://h:1?partitions=0"),
        ("INGEST_SPOOL", "kafka://h:1?retries=3"),
        ("INGEST_SPOOL", "kafka://h:1?properties=relative"),
        ("INGEST_ROUTES", "my-routes"),
        ("INGEST_RECORDS", "./mine.py"),
        ("INGEST_ALLOW", ","),
        ("INGEST_ALLOW", "10.0.0.1/8"),
        ("INGEST_ALLOW", "10.0.0.0/8 localhost"),
        ("INGEST_ALLOW", "2001:db8::1/32"),
        ("INGEST_ALLOW", "[::1]"),
        ("INGEST_STATUS_ALLOW", "everybody"),
        ("INGEST_READ_ALLOW", "10.0.0.1/8"),
        ("INGEST_TLS_CERTIFICATE", "/c.pem,"),
        ("INGEST_TLS_CERTIFICATE", "/c.pem,/k.pem,/chain.pem"),
        ("INGEST_CLIENT_RATE", "10r/s"),
        ("INGEST_CLIENT_RATE", "1,"),
        ("INGEST_CLIENT_RATE", "1,-1"),
        ("INGEST_CLIENT_RATE", "1000001"),
        ("INGEST_CLIENT_RATE", "1,65536"),
        ("INGEST_CELL", "-one"),
        ("INGEST_CELL", "a cell"),
        ("INGEST_CELL", "zelle-ü"),
        ("INGEST_CELL", "c" * 64),
        ("INGEST_CORS", "https://shop.example"),
        ("INGEST_CORS", "/votes *"),
        ("INGEST_CORS", "/votes https://shop.example/"),
        ("INGEST_CORS", '/votes" x;'),
    ],
)
def test_an_invalid_value_is_reported_with_what_was_expected(name: str, value: str) -> None:
    with pytest.raises(settings.SettingError) as caught:
        settings.load({name: value})
    text = str(caught.value)
    assert text.startswith(f"{name}={value!r} is invalid: expected ")
    assert text.count("\n") == 0


def test_the_second_number_of_a_client_is_that_of_its_concurrent_requests() -> None:
    found = [settings.load({"INGEST_CLIENT_RATE": text}).client_rate for text in ("20", "20,8", "0,8")]
    assert found == [(20, 0), (20, 8), (0, 8)]


def test_the_part_behind_a_comma_may_have_a_variable_of_its_own() -> None:
    found = settings.load({"INGEST_CLIENT_CONNECTIONS": "8", "INGEST_TLS_CERTIFICATE": "/c", "INGEST_TLS_KEY": "/k"})
    assert (found.client_rate, found.tls_certificate) == ((0, 8), (Path("/c"), Path("/k")))
    with pytest.raises(settings.SettingError, match="^INGEST_TLS_CERTIFICATE="):
        settings.load({"INGEST_TLS_KEY": "/k"})


def test_an_unnamed_cell_has_a_name_of_its_own_in_each_home() -> None:
    one, again, other = (settings.load({"INGEST_HOME": home}).cell for home in ("/a", "/a", "/b"))
    assert one == again != other
    assert settings.load({"INGEST_CELL": one}).cell == one  # it is a valid name
    assert settings.load({"INGEST_CELL": "c2"}).cell == "c2"


def test_streams_and_dead_letters_may_have_ages_of_their_own() -> None:
    found = settings.load({"INGEST_KEEP": "30d, gps=12h votes=90s,dead=10m"}).keep
    assert [found.of(name) for name in ("logs", "gps", "votes", "dead")] == [30 * 86_400, 12 * 3600, 90, 600]
    assert settings.load({"INGEST_KEEP": "30d"}).keep.of("dead") is None
    assert settings.load({}).keep == settings.FOREVER


def test_a_certificate_and_its_key_are_in_two_files_or_in_one() -> None:
    for text, files in ("/c.pem,/k.pem", ["/c.pem", "/k.pem"]), ("/both.pem", ["/both.pem", "/both.pem"]), ("", []):
        assert list(map(str, settings.load({"INGEST_TLS_CERTIFICATE": text}).tls_certificate or ())) == files


@pytest.mark.parametrize(
    "url",
    [
        "redis://h:6379",
        "redis://u:p%40@[::1]:6379",
        "rediss://:p@h:1?ssl_ca_certs=/ca.pem&ssl_certfile=/c.pem&ssl_keyfile=/k.pem",
        "redis+sentinel://a:1,b:2,c.example:3/main",
        "rediss+sentinel://:p@a:1/main?ssl_ca_certs=/ca.pem",
    ],
)
def test_redis_may_be_elsewhere(url: str) -> None:
    found = settings.load({"INGEST_REDIS": url})
    assert (found.spool, found.has_own_redis) == (url, False)
    assert ":p" not in settings.without_password(url)


def test_bodies_may_wait_in_kafka() -> None:
    url = "kafka://u:p%40@a:9092,b:9092/mine?partitions=8&ssl.ca.location=/ca.pem&properties=/k"
    found = settings.load({"INGEST_SPOOL": url, "INGEST_HOME": "/h"})
    assert (found.spool, found.has_own_redis, found.has_kafka) == (url, False, True)
    assert found.figures == "/h/run/views.sock"
    assert ":p" not in settings.without_password(url)


@pytest.mark.parametrize(
    "env, words",
    [
        ({"INGEST_REDIS": "/a"}, "INGEST_SPOOL and INGEST_REDIS are two names of one setting: unset one of them."),
        ({"INGEST_RUNTIME": "pypy"}, "its client does not run on PyPy"),
        ({"INGEST_REPLICAS": "1"}, "INGEST_REPLICAS is for Redis"),
    ],
)
def test_what_does_not_go_with_kafka_is_said_in_one_line(env: dict[str, str], words: str) -> None:
    with pytest.raises(settings.SettingError, match=words) as caught:
        settings.load({"INGEST_SPOOL": "kafka://h:9092"} | env)
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize("name", ["INGEST_HOME", "INGEST_REDIS", "INGEST_SPOOL"])
def test_a_path_too_long_for_a_socket_is_invalid(name: str) -> None:
    with pytest.raises(settings.SettingError, match=f"{name} is too long.*107 bytes"):
        settings.load({name: "/" + "x" * 107})


def test_a_program_exits_with_status_2_and_one_line(tmp_path: Path) -> None:
    code = "from sluice import settings; settings.load_or_exit()"
    env = environment(tmp_path, {"INGEST_PORT": "none"})
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "sluice: INGEST_PORT='none' is invalid: expected an integer from 1 to 65535.\n"


def test_a_users_module_is_imported_by_the_path_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("ROUTES = {'/x': 1}")
    assert settings.extension("INGEST_ROUTES", str(tmp_path / "mine.py")).ROUTES == {"/x": 1}


def test_a_users_module_is_imported_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sluice_named.py").write_text("ROUTES = {'/x': 1}")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert settings.extension("INGEST_ROUTES", "sluice_named").ROUTES == {"/x": 1}


@pytest.mark.parametrize("text", ["raise RuntimeError('half done')", "import nowhere", "def"])
def test_a_users_module_that_cannot_be_imported_is_an_invalid_setting(text: str, tmp_path: Path) -> None:
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
