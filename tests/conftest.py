"""Fixtures for all tests, the options for how often, and tables of measurements after the tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from proving import harness
from sluice.base.screen import table

TESTS = Path(__file__).parent
pytest.register_assert_rewrite("support")  # a failed assertion shows its values, as in a test module


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
    parser.addoption("--fast", action="store_true", help="skip each test at the point where it starts a program")
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
    parser.addoption("--containers", nargs="?", const="", metavar="BASE", help="run test_containers.py; see there")


# --- bin/test --fast: a test is skipped at the point where it starts a program ---------------------------------------

PROGRAM = "starts a program"
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"}
running = started = False  # whether a test or one of its fixtures runs now; whether it has tried to start a program


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--fast"):
        sys.addaudithook(stop_programs)  # it stays until the process ends


def stop_programs(event: str, _: tuple[object, ...]) -> None:
    global started
    if running and event in STARTS:
        started = True
        pytest.skip(PROGRAM)


def may_start() -> Generator[None]:
    """Around the set-up and the call of a test. A thread of the test, or asyncio, may hide why it was stopped."""
    global running, started
    running, started = True, False
    try:
        yield
    except Exception:
        if not started:
            raise
        pytest.skip(PROGRAM)
    finally:
        running = False


pytest_runtest_setup = pytest.hookimpl(wrapper=True)(may_start)
pytest_runtest_call = pytest.hookimpl(wrapper=True)(may_start)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Other tests with this fixture are skipped, too."""
    try:
        return (yield)
    except Exception as error:
        if not started:
            raise
        skipped = pytest.skip.Exception(PROGRAM)
        fixturedef.cached_result = None, fixturedef.cache_key(request), (skipped, None)  # type: ignore[arg-type]
        raise skipped from error


# The files that take a minute or more on two busy cores, longest first. bin/test passes --no-loadscope-reorder, so they
# come first, and at the end of a run its processes share the short ones.
LONGEST = [
    "proving/test_drill", "proving/test_cells", "views/test_follower", "spool/test_kafka", "run/test_up",
    "elsewhere/test_engines", "test_worker", "test_pythons", "test_refusals", "run/test_reload", "test_prometheus",
    "nginx/test_senders", "store/test_postgres", "fastlane/test_fastlane", "test_batches", "run/test_page",
    "run/test_balancer", "ops/test_sluice", "test_influxdb", "test_syslog", "test_lost_answers",
    "elsewhere/test_parquet", "spool/test_disk", "test_examples", "run/test_services", "ops/test_backup",
    "spool/test_failover", "views/test_refresh", "formats/test_bombs", "nginx/test_access", "test_poison", "test_otel",
    "nginx/test_limits", "test_serve", "run/test_reading",
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
        terminalreporter.write_line(table(head, rows, left=len(head)))
