"""bin/test lints every program: the lists in pyproject.toml, setup.cfg and bin/test are complete."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
from collections.abc import Iterator

import pytest

from proving.harness import ROOT
from sluice.streams.unique import DECIDING


def programs(interpreter: str) -> set[str]:
    """The files of the checkout whose first line names this interpreter."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("not a git checkout")
    found = set()
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.is_file():
            with open(path, "rb") as file:
                first = file.readline(100).decode("latin-1")
            if re.match(rf"#!.*\b{interpreter}", first):
                found.add(name)
    return found


def test_ruff_and_mypy_check_every_python_program_without_a_suffix() -> None:
    expected = {name for name in programs("python") if not name.endswith(".py")}
    assert expected
    pyproject = (ROOT / "pyproject.toml").read_text()
    included = re.findall(r'"(.+?)"', pyproject.partition("extend-include = [")[2].partition("\n]")[0])
    assert set(included) == expected
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert set(re.split(r",\s*", config["mypy"]["files"])) == expected | {"."}


def test_shellcheck_checks_every_shell_script() -> None:
    line = re.search(r"^    shellcheck (.*) \|\|", (ROOT / "bin/test").read_text(), re.MULTILINE)
    assert line
    expanded = subprocess.run(["bash", "-c", f"echo {line[1]}"], capture_output=True, text=True, check=True).stdout
    assert set(expanded.split()) == programs("(ba)?sh")


def test_gcc_checks_every_c_program() -> None:
    text = (ROOT / "bin/test").read_text()
    assert {path.name for path in (ROOT / "bench").glob("*.c")} == set(re.findall(r"bench/(\w+\.c)\b", text))


# Each loop that ends only with its process or program. In each, an error of one item must not end it.
LOOPS = {
    "worker.py": ("run", "renew"),
    "sluice/base/connect.py": ("ask",),
    "sluice/run/page.py": ("main",),
    "sluice/run/rejections.py": ("listen",),
    "sluice/run/scale.py": ("main",),
    "sluice/run/supervise.py": ("go_on",),
    "sluice/spool/inlet.py": ("reconnect",),
    "sluice/spool/kafka/inlet.py": ("keep",),
    "sluice/views/follower.py": ("run",),
    "sluice/views/lease.py": ("keep",),
    "sluice/views/refresh.py": ("run",),
}
THREADS_WITHOUT_A_LOOP = {"sluice/views/rows/postgres.py": {"index"}, "sluice/store/postgres/store.py": {"run"}}


def sources() -> Iterator[tuple[str, ast.Module]]:
    """The modules of the product."""
    for path in sorted([*ROOT.glob("*.py"), *(ROOT / "sluice").rglob("*.py")]):
        yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def catches_all(loop: ast.While) -> bool:
    handled = [each.type for node in ast.walk(loop) if isinstance(node, ast.Try) for each in node.handlers]
    suppressed = [
        item.context_expr.args[0]
        for node in ast.walk(loop)
        if isinstance(node, ast.With)
        for item in node.items
        if isinstance(item.context_expr, ast.Call) and item.context_expr.args
    ]
    return any(isinstance(each, ast.Name) and each.id == "Exception" for each in [*handled, *suppressed])


def test_every_background_loop_goes_on_after_any_exception() -> None:
    found: dict[str, set[str]] = {}
    started: dict[str, set[str]] = {}
    for name, module in sources():
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef):
                loops = [each for each in ast.walk(node) if isinstance(each, ast.While) and catches_all(each)]
                if loops:
                    found.setdefault(name, set()).add(node.name)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "Thread":
                (target,) = [each.value for each in node.keywords if each.arg == "target"]
                started.setdefault(name, set()).add(ast.unparse(target).rpartition(".")[2])
    for name, endless in LOOPS.items():
        assert set(endless) <= found.get(name, set()), name
    known = {loop for endless in LOOPS.values() for loop in endless}
    for name, targets in started.items():
        assert targets <= known | THREADS_WITHOUT_A_LOOP.get(name, set()), name


# A wall clock is for times that people or other programs read. A duration, a deadline or an age by it is wrong when it
# steps; each use here is bounded, and says so.
WALL_CLOCKS = {
    "sluice/elsewhere/delta.py": 1,  # an hour that is over: merged earlier or later
    "sluice/elsewhere/parquet.py": 2,  # the same, and the age of a file
    "sluice/http/own.py": 1,  # the time of a delivery
    "sluice/http/signature.py": 1,  # the age of a signature
    "sluice/ledger.py": 1,  # shown
    "sluice/ops/expire.py": 1,  # bounded by the horizon
    "sluice/run/rejections.py": 1,  # shown
    "sluice/run/launch.py": 1,  # a pause of at most PAUSE_SECONDS
    "sluice/spool/inspector.py": 1,  # when a body arrived, if no mark says it
    "sluice/spool/kafka/backlog.py": 1,
    "sluice/spool/kafka/inspector.py": 1,  # shown
    "sluice/spool/kafka/outlet.py": 1,  # makes an id unique
    "sluice/store/bookkeeping.py": 1,  # bounded by the last batch
    "sluice/store/expiry.py": 1,  # bounded by the monotonic clock
    "sluice/store/keys.py": 1,  # a key is at least as young as its row
    "sluice/store/sqlite/store.py": 1,  # persisted_at
    "sluice/views/follower.py": 2,  # shown
    "sluice/views/kinds/followed.py": 1,  # shown
    "sluice/views/kinds/tally.py": 1,  # shown
    "sluice/views/reads.py": 1,  # when a key was asked for
    "sluice/views/refresh.py": 1,  # the same
}


def test_wall_clocks_are_only_where_they_are_known() -> None:
    found = {}
    for name, module in sources():
        calls = [ast.unparse(node.func) for node in ast.walk(module) if isinstance(node, ast.Call)]
        if count := sum(call in ("time.time", "time.time_ns", "datetime.now", "datetime.utcnow") for call in calls):
            found[name] = count
    assert found == WALL_CLOCKS


def test_a_header_field_that_a_decoder_reads_decides_what_a_body_means() -> None:
    """Or else two bodies that mean different things would be one. Another encoding has other bytes anyway."""
    read = set()
    for path in (ROOT / "sluice/formats").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "field":
                read |= {str(arg.value).lower() for arg in node.args if isinstance(arg, ast.Constant)}
    assert read == {"content-type", "content-encoding", *map(str.lower, DECIDING)}


def test_the_files_that_come_first_exist(request: pytest.FixtureRequest) -> None:
    longest = request.config.pluginmanager.get_plugin(str(ROOT / "tests/conftest.py"))
    assert longest and all((ROOT / f"tests/{name}.py").exists() for name in longest.LONGEST)


def test_memory_is_traced_in_a_process_of_its_own() -> None:
    texts = {path.name: path.read_text().splitlines() for path in (ROOT / "tests").rglob("*.py")}
    assert [name for name, lines in texts.items() if "import tracemalloc" in lines] == ["peak_memory.py"]
