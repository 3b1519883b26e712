"""Fixtures for all tests, the options for how often, and tables of measurements after the tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from proving import harness
from sluice.base.terminal import format_table

TESTS = Path(__file__).parent
pytest.register_assert_rewrite("support", "contrib_support")  # a failed assertion shows its values, as in a test module


@pytest.fixture
def tmp() -> Iterator[Path]:
    """A private INGEST_HOME."""
    with harness.short_tmp() as path:
        yield path


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for localhost, and its key."""
    tmp = tmp_path_factory.mktemp("tls")
    files = tmp / "certificate.pem", tmp / "key.pem"
    ask = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    subprocess.run(
        ["openssl", *ask.split(), "-addext", "subjectAltName=DNS:localhost", "-out", files[0], "-keyout", files[1]],
        capture_output=True, check=True,
    )  # fmt: skip
    return files


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    """How often a program is killed while others send."""
    return int(request.config.getoption("--kills"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--url", help="of an installation that test_http_contract.py asks instead of its own servers")
    parser.addoption("--reloads", type=int, default=1, help="reloads of each program in test_reload.py (1)")
    parser.addoption("--leaves", type=int, default=1, help="how often a cell leaves in test_balancer.py (1)")
    parser.addoption(
        "--kills", type=int, default=2, help="of a program in test_drill.py and in the tests of senders (2)"
    )
    parser.addoption("--failovers", type=int, default=2, help="failovers by Sentinels in test_failover.py (2)")
    parser.addoption("--leaders", type=int, default=0, help="leaders of Kafka killed in test_kafka.py (0)")
    parser.addoption("--seconds", type=int, default=20, help="of the drill with all faults in test_drill.py (20)")
    parser.addoption("--examples", type=int, default=1, help="times the random requests in test_grammar.py (1)")
    parser.addoption("--machines", type=int, default=0, help="seconds of a drill of cells in test_cells.py (0: short)")
    parser.addoption("--histories", type=int, default=1000, help="new ones in test_histories.py (1000)")
    parser.addoption("--containers", nargs="?", const="", metavar="BASE", help="run test_containers.py; see there")


# --- tiers: a test says by a mark that it starts programs ------------------------------------------------------------

STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"}
unit = ""  # the test of the unit tier that runs now
started = False  # whether it has tried to start a program


def pytest_configure(config: pytest.Config) -> None:
    sys.addaudithook(refuse_programs)  # it stays until the process ends


def refuse_programs(event: str, arguments: tuple[object, ...]) -> None:
    global started
    if unit and event in STARTS:
        started = True
        pytest.fail(f"starts a program, so it needs a mark, contract or nightly: {arguments[:2]}")


def tier(item: pytest.Item) -> str:
    """`unit`, `contract` or `nightly`: the last of them that a mark of it or of its module names."""
    marks = [mark.name for mark in item.iter_markers() if mark.name in ("contract", "nightly")]
    return "nightly" if "nightly" in marks else "contract" if marks else "unit"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    global unit, started
    started, unit = False, item.nodeid if tier(item) == "unit" else ""
    try:
        yield
    finally:
        unit = ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    global unit
    unit = item.nodeid if tier(item) == "unit" else ""
    try:
        yield
    finally:
        unit = ""
    if started:  # in a thread, or where the failure was suppressed
        pytest.fail("starts a program, so it needs a mark, contract or nightly")


# The files that take longest, longest first: of the nightly tier, then of the contract tier. bin/test passes
# --no-loadscope-reorder, so they come first, and at the end of a run its processes share the short ones.
LONGEST = [
    "contrib/test_histories", "proving/test_drill", "proving/test_cells", "contrib/kafka/test_kafka",
    "contrib/destinations/test_engines",
    "contrib/formats/test_influxdb", "contrib/formats/test_prometheus", "contrib/page/test_page",
    "contrib/formats/test_syslog", "run/test_balancer", "contrib/formats/test_refusals",
    "contrib/formats/test_lost_answers", "test_pythons", "run/test_services", "contrib/sentinel/test_failover",
    "fastlane/test_fastlane", "run/test_up", "test_worker", "contrib/views/test_follower",
    "contrib/access/test_senders", "run/test_reload", "contrib/formats/test_batches", "ops/test_sluice",
    "contrib/postgres/test_postgres", "contrib/postgres/test_postgres_backup", "ops/test_backup",
    "contrib/destinations/test_parquet", "contrib/access/test_access", "nginx/test_limits",
    "contrib/views/test_unread", "test_examples", "test_poison", "contrib/views/test_reading", "spool/test_disk",
    "contrib/views/test_refresh",
]  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {TESTS / f"{name}.py": number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Keep gzip data, whose header has the time of day, out of the names of tests: the processes of xdist collect the
    tests at different times, and must agree on the names.
    """
    return argname if isinstance(val, bytes) and b"\x1f\x8b" in val else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the rows that tests add by `record_property("row", (title of the table, its head, the row))`."""
    tables: dict[tuple[str, tuple[str, ...]], list[tuple[str, ...]]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "row" and report.when == "call":
                    title, head, row = value  # lists, if another process of xdist ran the test
                    tables.setdefault((title, tuple(head)), []).append(tuple(row))
    for (title, head), rows in tables.items():
        terminalreporter.section(title)
        terminalreporter.write_line(format_table(head, rows, left=len(head)))
