"""The documents agree with the code, and the README with the output of its commands."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import pkgutil
import re
import shlex
import subprocess
import sysconfig
import textwrap
from pathlib import Path

import pytest
import tomllib

import ingest
import sluice
from proving import documents, harness
from sluice import registry, settings
from sluice.fastlane.answers import BROKEN
from sluice.http import replies, routes
from sluice.ops import __main__ as command
from sluice.routes import ROUTES
from sluice.spool import contract, errors, inspector
from sluice.store.sqlite.table import Table
from sluice.store.tables import TABLES
from sluice.streams.built_in import STREAMS
from support.folders import lacks, needs, whole
from support.table_of_cases import check_each_row

HTTP, SPOOL, DATABASE, OPERATOR = (
    (harness.ROOT / f"docs/protocol/{name}.md").read_text() for name in ("http", "spool", "database", "operator")
)
STREAM = (harness.ROOT / "docs/ADDING-A-STREAM.md").read_text()
NGINX = "".join(path.read_text() for path in sorted((harness.ROOT / "nginx").rglob("*.conf")))
README = (harness.ROOT / "README.md").read_text()
DOCUMENTS = sorted(
    str(path.relative_to(harness.ROOT))
    for folder in ("", "bench", "docs", "docs/protocol")
    for path in (harness.ROOT / folder).glob("*.md")
)


def rows(text: str) -> dict[str, list[str]]:
    """The rows of the tables in a text: first cell, without backticks -> the other cells."""
    found = {}
    for line in re.findall(r"^\| (.*) \|$", text, re.M):
        first, *cells = re.split(r" \| ?", line)
        found[first.strip("`")] = cells
    return found


def table(page: str, first: str, with_text: str = "") -> dict[str, list[str]]:
    """The rows of the table of a page whose first column has this heading, and which has this text."""
    tables = re.findall(rf"^\| {re.escape(first)} \|.*\n\|-.*\n((?:\|.*\n)+)", page, re.M)
    (text,) = (text for text in tables if with_text in text)
    return rows(text)


@needs("formats")
def test_the_table_of_paths_is_the_routing_table():
    documented = table(HTTP, "path", "`/metrics`")
    assert documented.keys() == ROUTES.keys()
    for path, (stream, answer, item) in documented.items():
        route = ROUTES[path]
        assert stream == f"`{route.stream}`"
        text = b"".join(route.reply.chunks).decode()
        in_json = f"; to JSON `{b''.join(route.json.chunks).decode()}`" if route.json else ""
        assert answer == route.reply.status.split()[0] + (f" `{text}`" if text else "") + in_json
        kept = "the body" if route.fields is None else "a message"
        kept = "a message with all fields that are worth keeping" if route.keep_head else kept
        kept += " with " + " and ".join(f"`{name}`" for name in route.fields or ()) if route.fields else ""
        assert item == kept + ("; a batch" if route.batch else "")


def test_the_table_of_answers_has_exactly_the_errors_that_gateway_and_nginx_give():
    given = {reply.status[:3] for reply in vars(replies).values() if isinstance(reply, routes.Reply)} | {"413", "503"}
    given.add(BROKEN[0][:3])
    nginx = (harness.ROOT / "nginx/sluice.conf").read_text()
    for codes in re.findall(r"error_page ([\d ]+)(?:=(\d+))?", nginx):
        given |= {codes[1]} if codes[1] else set(codes[0].split())
    answers = " ".join(cells[0] for cells in table(HTTP, "when", "| 413").values())
    assert set(re.findall(r"\b[45]\d\d\b", answers)) == {status for status in given if status >= "400"}


@needs("views")
def test_the_table_of_views_is_the_declaration_of_the_built_in_ones():
    from sluice.contrib import views

    documented = table(HTTP, "path", "latest(")
    names = {name: getattr(views, name) for name in ("feed", "latest", "tally")}
    assert documented.keys() == views.VIEWS.keys()
    for path, (key, _, declared) in documented.items():
        assert eval(declared.strip("`"), names) == views.VIEWS[path]  # noqa: S307  # our own document
        assert key == f"`{views.VIEWS[path].key}`"


@needs("views")
def test_the_table_of_answers_to_reads_has_the_errors_that_reader_and_nginx_give():
    source = (harness.ROOT / "sluice/contrib/views/serve.py").read_text()
    given = set(re.findall(r'problem\("(\d+)', source)) | {replies.GET_ONLY.status[:3], "503"}
    answers = " ".join(cells[0] for cells in table(HTTP, "when", "`cap`").values())
    assert set(re.findall(r"\b[45]\d\d\b", answers)) == given | {"401", "403", "421", "429", "502", "504"}


def test_the_health_checks_are_documented():
    assert all(f"`GET {path}`" in HTTP for path in ingest.PROBES)


def test_the_redis_keys_are_those_of_the_contract():
    documented = {re.sub("<id>|PID", "", name) for name in table(SPOOL, "key")}
    own = contract.COUNTS, contract.ERRORS, contract.LAYOUT_KEY, contract.CELL, contract.STORE, contract.PROBED
    assert documented == {*contract.Keys.for_stream("s"), *own}


def test_the_verbs_of_the_contract_are_append_commit_and_the_scripts():
    texts = vars(contract) | vars(inspector)
    scripts = {name.lower(): text for name, text in texts.items() if "redis.call(" in str(text)}
    del scripts["epochs"]  # a function of two of them
    verbs = table(SPOOL, "verb")
    assert verbs.keys() == scripts.keys() | {"append", "commit"}
    for name, text in scripts.items():
        reads_only = name in ("peek", "snapshot")
        assert verbs[name][1] == ("works" if reads_only or "flags=allow-oom" in text else "fails"), name


@needs("access", "unknown_fields")
def test_the_fields_of_the_counts_are_those_that_the_processes_count():
    sources = "".join(
        (harness.ROOT / name).read_text()
        for name in (
            *("ingest.py", "worker.py", "sluice/spool/inlet.py"),
            *("sluice/contrib/access/key_usage.py", "sluice/contrib/unknown_fields/sample.py"),
        )
    )
    counted = set(re.findall(r"\.(?:counter|counters|histogram)[(\[]f?\"(\w+)", sources))
    assert {field.split()[0] for field in table(SPOOL, "field")} == counted


@needs("kafka")
def test_the_details_of_a_503_are_those_that_the_gateway_gives():
    from sluice.contrib.kafka import inlet as kafka_inlet

    names = "REDIS_DOWN", "REDIS_FULL", "REDIS_READ_ONLY", "DISK_FULL", "BACKLOG_FULL"
    known = [getattr(errors, name) for name in names]
    known += [errors.REPLICAS_BEHIND, kafka_inlet.KAFKA_REFUSES, kafka_inlet.Inlet.down]
    texts = {text.replace("%d", "N").replace("%s", "…") for text in known}
    assert table(SPOOL, "`detail` of a 503").keys() == texts


def test_the_tables_of_the_database_have_the_documented_columns():
    documented = {name: cells[0].strip("`").split(", ") for name, cells in table(DATABASE, "table").items()}
    for name, stream in STREAMS.items():
        assert list(Table(stream).columns) == documented[name]
    for name, columns in TABLES.items():
        assert list(columns) == documented[name]


@needs("formats")
def test_the_table_of_levels_is_that_of_the_decoder():
    from sluice.contrib.formats.log_fields import LEVELS

    documented: dict[str, str] = {}
    for stored, (names, numbers) in table(HTTP, "level").items():
        documented |= dict.fromkeys([stored, *re.findall(r"\w+", names), *re.findall(r"\d+", numbers)], stored)
    assert documented == LEVELS


@needs("access")
def test_the_schemes_and_reasons_of_signed_webhooks_are_those_of_the_code():
    from sluice.contrib.access import signature as webhooks
    from sluice.contrib.access import signed_stream as signature

    assert {scheme.partition("`")[0] for scheme in table(STREAM, "scheme")} == webhooks.SCHEMES.keys()
    texts = [Path(module.__file__).read_text() for module in (signature, webhooks)]
    reasons = re.findall(r'"(signature: [^"]*)"', "".join(texts))
    documented = table(STREAM, "reason in `dead_letters`").keys()
    assert documented == {text.replace("{field}", "FIELD") for text in reasons}


LIMITS = (HTTP, "limit"), (SPOOL, "what"), (DATABASE, "what")
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def is_here(name: str) -> bool:
    """Whether this checkout has the setting or the module of a limit."""
    return name in settings.variables() if name.startswith("INGEST_") else not lacks(name)


def limit(name: str) -> float:
    """A limit by its name in the documents: a setting, a constant below sluice/, or a directive of nginx."""
    if name.startswith("INGEST_"):
        return getattr(settings.load_settings({}), name.removeprefix("INGEST_").lower())
    if "." not in name:
        return float(re.findall(rf"^ *{name} (?:\d+ )?(\d+)", NGINX, re.M)[-1])
    place, _, constant = name.rpartition(".")
    found = pkgutil.resolve_name(place if place in ("serve", "worker") else f"sluice.{place}")
    return getattr(found, "_field_defaults", vars(found))[constant]


@check_each_row(
    ("name", "text"),
    [(cells[0], cells[1]) for page, first in LIMITS for cells in table(page, first, "MAX_").values()],
)
def test_a_limit_has_the_value_of_its_constant(name, text):
    number = re.search(r"([\d,]+(?:\.\d+)?)(?: (\w+))?", text)
    for constant in filter(is_here, re.findall(r"`(.*?)`", name) if number else ()):
        stated = float(number[1].replace(",", "")) * UNITS.get(number[2], 1)
        assert limit(constant) == stated * (2 if "half" in text else 1)


PAGES = {"http": HTTP, "spool": SPOOL, "database": DATABASE, "operator": OPERATOR}
CONSTANT = r"`((?!otel)(?:[a-z_]+\.)+[A-Z_]+)`"


@pytest.mark.parametrize("page", PAGES)
def test_a_limit_in_a_sentence_has_the_value_of_its_constant(page):
    text = re.sub(r"<!-- (\w+) -->.*?<!-- /\1 -->", "", PAGES[page], flags=re.S)
    text = re.sub(rf"^\| [^|]+ \| (?:{CONSTANT}|`\w+`).*", "", text, flags=re.M)  # the tables of limits
    stated = re.findall(rf"(\d[\d,]*(?:\.\d+)?)(?: (\w+))?(?: \w+)*,? \(?{CONSTANT}", text)
    assert len(stated) == len(re.findall(CONSTANT, text))
    for number, unit, name in stated:
        assert not is_here(name) or limit(name) == float(number.replace(",", "")) * UNITS.get(unit, 1), name


@whole
def test_every_variable_that_any_document_names_is_a_setting():
    known = {*settings.variables(), "INGEST_", "INGEST_GREETING"}  # the last one is of docs/ADDING-A-FOLDER.md
    for name in DOCUMENTS:
        if name != "CHANGELOG.md":  # it has the names of before
            assert set(re.findall(r"INGEST_[A-Z_]+", (harness.ROOT / name).read_text())) <= known, name


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)", path.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", text).strip().lower().replace(" ", "-") for text in headings}


@whole
def test_every_name_that_a_document_imports_from_the_package_is_exported():
    for name in DOCUMENTS:
        for names in re.findall(r"from sluice import ([\w, ]+)", (harness.ROOT / name).read_text()):
            assert set(names.split(", ")) <= {*sluice.__all__, *registry.declared_entries("exports")}, name


def test_every_file_that_a_document_names_exists():
    for name in DOCUMENTS:
        text = (harness.ROOT / name).read_text()
        words = " ".join(re.findall(r"`(.*?)`", re.sub(r"```.*?```", "", text, flags=re.S))).split()
        known = re.compile(r"(bin|bench|sluice|deploy|docs|tests|nginx|examples)/[\w./-]*|\w+\.py")
        named = {word for word in words if known.fullmatch(word)}
        missing = {path for path in named if not ((harness.ROOT / path).exists() or lacks(path))}
        assert not missing - {"my_routes.py", "my_records.py", "register.py"}, name


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_link_of_a_document_has_its_target(name):
    document = harness.ROOT / name
    for path, anchor in re.findall(r"\]\(((?!https?:)[^)#]*)#?([^)]*)\)", document.read_text()):
        target = document.parent / path if path else document
        if lacks(str(target)):
            continue
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), anchor


@whole
def test_the_tables_from_the_code_are_up_to_date():
    for page in documents.PAGES.glob("*.md"):
        text = page.read_text()
        assert documents.written(text) == text, "run: python -m proving.documents"
    assert set(re.findall(r"<!-- (\w+) -->", OPERATOR)) == documents.TABLES.keys()


@whole
def test_every_verb_that_a_document_names_exists():
    verbs = {*command.verb_modules(), "provision", "greet"}  # the last one is of docs/ADDING-A-FOLDER.md
    for name in DOCUMENTS:
        text = (harness.ROOT / name).read_text()
        assert set(re.findall(r"bin/sluice ([a-z]+)", text)) <= verbs, name


@pytest.fixture(scope="module")
def running():
    """bin/up with the README's own stream."""
    with harness.short_tmp() as tmp:
        files = re.findall(r"```python\n# (my_\w+\.py)\n(.*?)```", README, re.S)
        for name, text in files:
            (tmp / name).write_text(text)
        own = {"INGEST_ROUTES": tmp / "my_routes.py", "INGEST_RECORDS": tmp / "my_records.py"}
        with harness.installation(tmp / "var", own) as server:
            yield server


def shell(line: str, server: harness.Server) -> str:
    """Run a line of the README with the port and the home of a server. Returns: its output."""
    line = line.replace("8080", str(server.port)).replace(" var/", f" {server.home}/")
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, cwd=harness.ROOT,
        env=harness.environment(server.home, {"INGEST_PORT": server.port}), timeout=30, check=True,
    )  # fmt: skip
    return done.stdout


def constant(output: str) -> str:
    """An output without its times and sequence numbers."""
    return re.sub(r"\d{4}-\S+?Z|\|\d+\|\d+\|?$", "X", output.strip())


@pytest.mark.contract
@needs("views", "formats")
def test_the_commands_of_the_readme_print_its_transcript(running):
    transcript = textwrap.dedent(re.search(r"^## See data flow\n\n(.*?)\n\n", README, re.M | re.S)[1])
    steps = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n?)*)", transcript, re.M)
    assert len(steps) >= 5
    for line, printed in steps:
        command, expected = line.split("  #")[0].strip(), printed.strip()
        if "sqlite3" in command or re.match(r"curl '", command):  # what was stored, a moment later
            expected = constant(expected)
            with contextlib.suppress(AssertionError):  # the next assertion shows the difference
                harness.poll(lambda command=command, text=expected: constant(shell(command, running)) == text)
            assert constant(shell(command, running)) == expected
        else:
            assert shell(f"{command} 2>/dev/null", running).strip().startswith(expected)


@pytest.mark.contract
def test_the_stream_in_ten_lines_works_as_printed(running):
    (post,) = re.findall(r"^    (curl .*/orders)$", README, re.M)
    assert '{"message":"OK"}' in shell(post, running)
    body = shlex.split(post)[2]
    select = f"sqlite3 {running.home}/ingest.db 'select sku, count from orders'"
    assert harness.poll(lambda: shell(select, running)) == "A-1|3\n", body


@pytest.mark.contract
@whole
def test_the_fields_of_the_status_file_are_documented(running):
    path = running.home / "run/status.json"
    harness.poll(path.exists)
    documented = {name for cell in table(OPERATOR, "field") for name in re.findall(r"\w+", cell)}
    assert json.loads(path.read_text()).keys() == documented


def groups() -> dict[str, list[str]]:
    """The packages that are wanted, by group."""
    return tomllib.loads((harness.ROOT / "pyproject.toml").read_text())["dependency-groups"]


@pytest.mark.contract
@pytest.mark.parametrize("group", groups())
def test_every_dependency_is_pinned_with_hashes(group):
    provision = (harness.ROOT / "bin/provision").read_text()
    function = re.search(r"^pinned\(\) \{.*?^\}", provision, re.M | re.S)[0]
    script = f"{function}\npinned {group}"
    done = subprocess.run(["bash", "-c", script], cwd=harness.ROOT, capture_output=True, text=True, check=True)
    entry = re.compile(r"([a-z0-9-]+==[^\s;]+)( ; .+?)?(\s+--hash=sha256:[0-9a-f]{64})+")
    entries = [entry.fullmatch(line) for line in done.stdout.replace("\\\n", "").splitlines()]
    assert entries and all(entries)
    pins = {found[1] for found in entries}
    for wanted in groups()[group]:
        name, _, version = re.sub(r"\[.*?\]|;.*", "", wanted).lower().partition("==")
        assert [pin for pin in pins if pin.startswith(f"{name}=={version}")], wanted


def test_the_virtual_environment_has_what_the_lock_names_and_nothing_else():
    """pip leaves what a group no longer names, so an import of it would fail in a new checkout only."""
    lock = (harness.ROOT / "deploy/requirements.lock").read_text()
    installed = importlib.metadata.distributions(path=[sysconfig.get_path("purelib")])
    canonical = {re.sub(r"[-_.]+", "-", dist.metadata["Name"]).lower() for dist in installed}
    apart = {"servers", "otel", "engines", "bench", "audit", "mutants", "lock", "pypy", "pypy-build"}
    named = {
        re.sub(r"[-_.]+", "-", name).lower()
        for names, name in re.findall(r"^# (.+)\n([\w.-]+)==", lock, re.M)
        if set(names.split()) - apart
    }
    extra = canonical - named - {"pip", "setuptools"}
    assert not extra, f"rm -r .venv, then bin/provision test: it has {extra}"


def test_the_lock_has_no_group_that_is_gone():
    lock = (harness.ROOT / "deploy/requirements.lock").read_text().partition("\n")[2]
    assert {group for line in re.findall(r"^# (.+)", lock, re.M) for group in line.split()} == groups().keys()


def test_every_pip_install_requires_hashes():
    scripts = [
        path
        for folder in ("bin", "bench", "sluice/run")
        for path in (harness.ROOT / folder).iterdir()
        if path.is_file()
    ]
    calls = [call for path in scripts for call in re.findall(r"pip install(?:.*\\\n)*.*", path.read_text())]
    assert calls
    assert all("--require-hashes" in call for call in calls)


def test_each_folder_of_contrib_names_its_page() -> None:
    for name, each in registry.contributions().items():
        page, _, anchor = each.page.partition("#")
        assert not anchor or anchor in anchors(harness.ROOT / "docs" / page), name
        assert (harness.ROOT / "docs" / page).is_file(), name
