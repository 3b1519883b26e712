"""Settings: the table in docs/protocol/operator.md, the parsers, and the errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from proving.harness import ROOT, environment
from sluice import __version__, extension, parsers, places, settings
from sluice.home_settings import load_for_start, of_file
from sluice.parsers import FOREVER
from sluice.run import configure, up
from support.folders import ALL, has, needs
from support.table_of_cases import check_each_row

TABLE = (ROOT / "docs/protocol/operator.md").read_text().partition("\n## Settings\n")[2].partition("\n## ")[0]


def test_the_table_shows_the_defaults() -> None:
    rows = re.findall(r"^\| `(INGEST_\w+)` \| *([^|]*?) *\|", TABLE, re.M)
    home = "/tmp/home"
    table = {name: default.strip("`").replace("$INGEST_HOME", home) for name, default in rows}
    assert list(table) == settings.variables() or not has(*ALL)
    table = {name: table[name] for name in settings.variables()}
    s, plain = settings.load_settings(table | {"INGEST_HOME": home}), settings.load_settings({"INGEST_HOME": home})
    assert s.values() == plain.values()


def test_gateways_follow_the_cores() -> None:
    assert [parsers.gateways_of(cores) for cores in (1, 2, 4, 7, 8, 64)] == [1, 1, 1, 1, 2, 16]
    assert settings.load_settings({}).gateways == parsers.gateways_of(len(os.sched_getaffinity(0)))
    assert settings.load_settings({"INGEST_GATEWAYS": "3"}).gateways == 3


@check_each_row("name", settings.variables())
def test_every_setting_says_who_changes_it_and_when(name: str) -> None:
    (about,) = re.findall(rf"^\| `{name}` \|.*?\| (.*) \|$", TABLE, re.M)
    assert re.search(r"(Change|Set|Raise|Add) (it|`debug`)( |: )", about), about


def test_the_default_home_is_var_in_a_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert settings.load_settings({}).home == ROOT / "var"


@pytest.mark.parametrize(
    ("data", "home"),
    [("/data", "/data/sluice"), ("", "/ann/.local/share/sluice"), ("data", "/ann/.local/share/sluice")],
)
def test_the_default_home_of_a_package_is_the_users_data_folder(
    data: str, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "CHECKOUT", False)
    monkeypatch.setenv("HOME", "/ann")
    monkeypatch.setenv("XDG_DATA_HOME", data)
    assert settings.load_settings({}).home == Path(home)


def test_the_version_is_that_of_the_changelog() -> None:
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert first and first[1] == __version__


FILE = """\
# a comment
INGEST_PORT = 81

INGEST_ALLOW=10.0.0.0/8 ::1  # words, and a comment
INGEST_STORE='postgresql:///x?a='"'"'b'"'"'&c=d e'   # quoted by a shell
INGEST_API_KEYS=keys#1
AWS_REGION="us east"
"""


@needs("access", "postgres")
def test_a_start_reads_the_file_of_its_home_and_the_environment_overrides_it(tmp_path: Path) -> None:
    (tmp_path / "settings").write_text(FILE)
    home = {"INGEST_HOME": str(tmp_path)}
    before = dict(os.environ)
    s = load_for_start(home)
    assert dict(os.environ) == before
    assert (s.port, s.allow, s.store) == (81, ("10.0.0.0/8", "::1"), "postgresql:///x?a='b'&c=d e")
    assert s.given["INGEST_API_KEYS"] == f"{tmp_path}/keys#1"  # relative to the file
    assert "AWS_REGION" not in s.given
    assert of_file(tmp_path)["AWS_REGION"] == "us east"
    assert load_for_start(home | {"INGEST_PORT": "82"}).port == 82
    assert settings.load_settings(home).port == 8080  # the programs of a start, which has given them what it read


@pytest.mark.parametrize(
    "line", ["INGEST_PORT", "export INGEST_PORT=1", "=1", "INGEST_ALLOW='all", "INGEST_ALLOW='a' b"]
)
def test_a_line_of_the_file_that_sets_nothing_is_an_error_that_names_it(line: str, tmp_path: Path) -> None:
    (tmp_path / "settings").write_text(f"INGEST_LOG=json\n{line}\n")
    with pytest.raises(settings.SettingError) as caught:
        load_for_start({"INGEST_HOME": str(tmp_path)})
    assert str(caught.value) == f"{tmp_path}/settings: line 2 is not of the form NAME=value."


@pytest.mark.parametrize(
    ("line", "words"),
    [("INGEST_HOME=/srv", "INGEST_HOME leads to this file"), ("INGEST_PORT=http", "INGEST_PORT='http' is invalid")],
)
def test_an_error_in_the_file_names_the_file(line: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "settings").write_text(line)
    with pytest.raises(settings.SettingError, match=f"^{re.escape(str(tmp_path))}/settings: {words}"):
        load_for_start({"INGEST_HOME": str(tmp_path)})


def test_an_empty_setting_is_the_default() -> None:
    empty = settings.load_settings({"INGEST_PORT": "", "INGEST_MAX_BODY": " "})
    assert empty.values() == settings.load_settings({}).values()


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
    assert parsers.size_parser(1)(text) == size


def test_a_size_that_is_refused_is_answered_with_sizes_that_are_taken() -> None:
    for name, expected in {"INGEST_MAX_BODY": "from 1 to 500m", "INGEST_MAX_MEMORY": "from 8m to 1024g"}.items():
        with pytest.raises(settings.SettingError, match=f"expected a size {expected}, such as 64m"):
            settings.load_settings({name: "0"})


@pytest.mark.parametrize(
    "more",
    [
        {"INGEST_MAX_MEMORY": "100m"},
        pytest.param({"INGEST_SPOOL": "kafka://h:1", "INGEST_MAX_MEMORY": "1g"}, marks=needs("kafka")),
    ],
)
def test_a_body_that_the_list_could_never_take_is_no_permitted_size(more: dict[str, str]) -> None:
    load_for_start({"INGEST_MAX_BODY": "50m"} | more)
    with pytest.raises(settings.SettingError, match="INGEST_MAX_BODY is too large"):
        load_for_start({"INGEST_MAX_BODY": "70m"} | more)


WRONG = [
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
    ("INGEST_MAX_BODY", "512m"),
    ("INGEST_MAX_BODY", "1t"),
    ("INGEST_MAX_BODY", "1.5m"),
    ("INGEST_MAX_MEMORY", "1m"),
    ("INGEST_MAX_MEMORY", "1g,"),
    ("INGEST_VIEWS_MEMORY", "1m"),
    ("INGEST_STORE", "mysql://localhost/x"),
    ("INGEST_STORE", "sqlite:///"),
    ("INGEST_UNIQUE", "0d"),
    ("INGEST_UNIQUE", "1d/record"),
    ("INGEST_UNIQUE", "gps=1d,gps=2d"),
    ("INGEST_UNIQUE", "gps=off/record"),
    ("INGEST_KEEP", "30"),
    ("INGEST_KEEP", "0d"),
    ("INGEST_KEEP", ","),
    ("INGEST_KEEP", "1d,2d"),
    ("INGEST_KEEP", "gps="),
    ("INGEST_SPOOL", "redis://h"),
    ("INGEST_SPOOL", "redis://h:65536"),
    ("INGEST_SPOOL", "redis://h:0"),
    ("INGEST_SPOOL", "redis://h:1,i:2"),
    ("INGEST_SPOOL", "redis://h:1/main"),
    ("INGEST_SPOOL", "redis://h:1?retry_on_timeout=yes"),
    ("INGEST_SPOOL", "redis://h:1?ssl_ca_certs=/ca.pem"),
    ("INGEST_SPOOL", "rediss://h:1?ssl_cert_reqs=none"),
    ("INGEST_SPOOL", "rediss://h:1?ssl_ca_certs=ca.pem"),
    ("INGEST_SPOOL", "redis+sentinel://a:1,b:2"),
    ("INGEST_SPOOL", "unix:///run/redis.sock"),
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
    ("INGEST_ALLOW", "none"),
    ("INGEST_ALLOW", "all private"),
    ("INGEST_READ_ALLOW", "auto"),
    ("INGEST_STATUS_ALLOW", "everybody"),
    ("INGEST_READ_ALLOW", "10.0.0.1/8"),
    ("INGEST_HOSTS", "a.example:80"),
    ("INGEST_HOSTS", "https://a.example"),
    ("INGEST_CLIENT_RATE", "10r/s"),
    ("INGEST_CLIENT_RATE", "1,"),
    ("INGEST_CLIENT_RATE", "1000001"),
    ("INGEST_CLIENT_CONNECTIONS", "-1"),
    ("INGEST_CLIENT_CONNECTIONS", "65536"),
    ("INGEST_REPLICAS", "17"),
    ("INGEST_EXTRA", "gps=yes"),
    ("INGEST_ROWS", "parquet:relative"),
    ("INGEST_ROWS", "gps=store,gps=store"),
    ("INGEST_VIEWS", "on!"),
    ("INGEST_LOG", "JSON"),
    ("INGEST_LOG", "json,text"),
    ("INGEST_LOG", "debug,debug"),
    ("INGEST_LOG", "json,"),
    ("INGEST_CELL", "-one"),
    ("INGEST_CELL", "a cell"),
    ("INGEST_CELL", "zelle-ü"),
    ("INGEST_CELL", "c" * 64),
    ("INGEST_PROXIES", "0.0.0.0/0"),
    ("INGEST_CORS", "https://shop.example"),
    ("INGEST_CORS", "/votes *"),
    ("INGEST_CORS", "/votes https://shop.example/"),
    ("INGEST_CORS", '/votes" x;'),
]
# any text can be a path; whether the file is there is checked at the start
PATHS = {f"INGEST_{name}" for name in ("HOME", "API_KEYS", "HOOKS", "PASSWORDS", "TLS_CERTIFICATE", "TLS_KEY")}


def test_each_setting_has_a_wrong_value_here() -> None:
    assert set(settings.variables()) - PATHS - {name for name, _ in WRONG} == set()


@pytest.mark.parametrize("name, value", [(name, value) for name, value in WRONG if name in settings.variables()])
def test_an_invalid_value_is_one_line_with_what_was_expected_and_status_2(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as caught:
        settings.load_or_exit()
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"sluice: {name}={value!r} is invalid: expected ")
    assert said.count("\n") == 1


ODD = [
    *(" ", ",", "-1", "0", "é", "x" * 5000, "%s", "{}", "/nonexistent/x", "http://x", "[", "1e9", "a=b", "=", "\udcff"),
    *("a\nb", "a;b", "::", "none", "all", "9" * 30, "/dev/null", "/etc", "parquet:///proc/x", "postgresql://u@[::1"),
    *("s3://", "kafka://h:99999", "redis://[", "sqlite:////proc/x"),
]


@pytest.mark.parametrize("name", settings.variables())
def test_any_text_is_a_value_or_one_line_that_names_the_setting(name: str, tmp_path: Path) -> None:
    for value in ODD:
        try:
            s = settings.load_settings({"INGEST_HOME": str(tmp_path / "home"), name: value})
            up.check_paths(s)
            up.check_modules(s)
            configure.nginx_secrets(s)
            configure.nginx_configuration(s)
            configure.supervisor_configuration(s)
        except settings.SettingError as error:
            assert name in str(error) and "\n" not in str(error), value
            # a path or the name of a module is shown whole, and may be in the reason, too
            assert len(str(error)) < (700 if len(value) < 5000 or not value.startswith("x") else 10_500)


@pytest.mark.parametrize(
    "text, style", [("text", (False, False)), ("json", (True, False)), ("debug", (False, True)),
                    ("json,debug", (True, True)), ("debug, text", (False, True))],
)  # fmt: skip
def test_the_log_has_a_format_and_may_show_debugging_messages(text: str, style: tuple[bool, bool]) -> None:
    assert settings.load_settings({"INGEST_LOG": text}).log == style


def test_relative_paths_count_from_the_operators_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_PWD", "/there")
    loaded = settings.load_settings({"INGEST_STORE": "sqlite:///x.db", "INGEST_SPOOL": "../r.sock"})
    assert (loaded.store, loaded.spool) == ("sqlite:////there/x.db", "/r.sock")
    assert loaded.home == ROOT / "var"
    assert settings.load_settings({"INGEST_HOME": "data"}).home == Path("/there/data")


def test_an_unnamed_cell_has_a_name_of_its_own_in_each_home() -> None:
    one, again, other = (settings.load_settings({"INGEST_HOME": home}).cell for home in ("/a", "/a", "/b"))
    assert one == again != other
    assert settings.load_settings({"INGEST_CELL": one}).cell == one  # it is a valid name
    assert settings.load_settings({"INGEST_CELL": "c2"}).cell == "c2"


def test_streams_and_dead_letters_may_have_ages_of_their_own() -> None:
    found = settings.load_settings({"INGEST_KEEP": "30d, gps=12h votes=90s,dead=10m"}).keep
    assert [found.for_stream(name) for name in ("logs", "gps", "votes", "dead")] == [30 * 86_400, 12 * 3600, 90, 600]
    assert settings.load_settings({"INGEST_KEEP": "30d"}).keep.for_stream("dead") is None
    assert settings.load_settings({}).keep == FOREVER


@needs("sentinel")
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
    found = settings.load_settings({"INGEST_SPOOL": url})
    assert (found.spool, found.has_own_redis) == (url, False)
    assert ":p" not in settings.without_password(url)


@pytest.mark.parametrize("name", ["INGEST_HOME", "INGEST_SPOOL"])
def test_a_path_too_long_for_a_socket_is_invalid(name: str) -> None:
    with pytest.raises(settings.SettingError, match=f"{name} is too long.*107 bytes"):
        load_for_start({name: "/" + "x" * 107})


@pytest.mark.contract
def test_a_program_exits_with_status_2_and_one_line(tmp_path: Path) -> None:
    code = "from sluice import settings; settings.load_or_exit()"
    env = environment(tmp_path, {"INGEST_PORT": "none"})
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "sluice: INGEST_PORT='none' is invalid: expected an integer from 1 to 65535.\n"


def test_a_users_module_is_imported_by_the_path_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("ROUTES = {'/x': 1}")
    assert extension.load_dictionary("INGEST_ROUTES", str(tmp_path / "mine.py"), "ROUTES") == {"/x": 1}


def test_an_edit_of_the_same_size_at_the_same_time_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    file = tmp_path / "edited.py"
    for cap in (5, 7):
        file.write_text(f"ROUTES = {{'/x': {cap}}}")
        os.utime(file, (1, 1))
        assert extension.load_dictionary("INGEST_ROUTES", str(file), "ROUTES") == {"/x": cap}


def test_a_users_module_is_imported_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sluice_named.py").write_text("ROUTES = {'/x': 1}")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert extension.load_dictionary("INGEST_ROUTES", "sluice_named", "ROUTES") == {"/x": 1}


@pytest.mark.parametrize("text", ["raise RuntimeError('half done')", "import nowhere", "def"])
def test_a_users_module_that_cannot_be_imported_is_an_invalid_setting(text: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(text)
    with pytest.raises(settings.SettingError, match="INGEST_ROUTES=.*broken.py.* cannot be imported"):
        extension.load_dictionary("INGEST_ROUTES", str(tmp_path / "broken.py"), "ROUTES")


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
