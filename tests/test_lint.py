"""What the linters do not look for: programs that they are not given, and faults of this project."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from proving.harness import ROOT
from sluice.streams.unique import DECIDING
from support.folders import needs


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


@pytest.mark.contract
def test_ruff_and_mypy_check_every_python_program_without_a_suffix() -> None:
    expected = {name for name in programs("python") if not name.endswith(".py")}
    assert expected
    pyproject = (ROOT / "pyproject.toml").read_text()
    included = re.findall(r'"(.+?)"', pyproject.partition("extend-include = [")[2].partition("\n]")[0])
    assert set(included) == expected
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert set(re.split(r",\s*", config["mypy"]["files"])) == expected | {"."}


@pytest.mark.contract
def test_shellcheck_checks_every_shell_script() -> None:
    line = re.search(r"^    shellcheck (.*) \|\|", (ROOT / "bin/test").read_text(), re.MULTILINE)
    assert line
    expanded = subprocess.run(["bash", "-c", f"echo {line[1]}"], capture_output=True, text=True, check=True).stdout
    assert set(expanded.split()) == programs("(ba)?sh")


def test_gcc_checks_every_c_program() -> None:
    text = (ROOT / "bin/test").read_text()
    assert {path.name for path in (ROOT / "bench").glob("*.c")} == set(re.findall(r"bench/(\w+\.c)\b", text))


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


def test_the_loop_of_every_thread_goes_on_after_any_exception() -> None:
    """Or else one item that nobody foresaw ends the thread, and its program goes on without it."""
    modules = dict(sources())
    wrong, loops = [], 0
    for name, module in modules.items():
        for call in ast.walk(module):
            if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "threading.Thread"):
                continue
            (target,) = [ast.unparse(each.value) for each in call.keywords if each.arg == "target"]
            owner, _, function = target.rpartition(".")
            beside = str(Path(name).with_name(f"{owner}.py"))  # `lease.keep`, of another module
            for node in ast.walk(modules.get(beside, module)):
                if isinstance(node, ast.FunctionDef) and node.name == function:
                    found = [each for each in ast.walk(node) if isinstance(each, ast.While)]
                    loops += len(found)
                    wrong += [f"{name}: {target}"] if found and not any(map(catches_all, found)) else []
    assert loops
    assert wrong == []


@needs("formats")
def test_a_header_field_that_a_decoder_reads_decides_what_a_body_means() -> None:
    """Or else two bodies that mean different things would be one. Another encoding has other bytes anyway."""
    read = set()
    for path in (ROOT / "sluice").glob("**/formats/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "field":
                read |= {str(arg.value).lower() for arg in node.args if isinstance(arg, ast.Constant)}
    events = {"ce-time"}  # of a user's streams, whose bodies have no key of their content
    assert read == {"content-type", "content-encoding", *map(str.lower, DECIDING)} | events


def strings(node: ast.AST) -> Iterator[str]:
    """The strings of a piece of code; what an f-string fills in is left out."""
    for each in ast.walk(node):
        if isinstance(each, ast.JoinedStr):
            yield "".join(str(part.value) for part in each.values if isinstance(part, ast.Constant))
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def test_a_query_that_compares_numbers_of_bodies_names_their_epoch() -> None:
    """A number names a body only together with its epoch: after a FLUSHALL the numbers begin again."""
    looked_at, wrong = 0, []
    for name, module in sources():
        for function in (node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)):
            for text in strings(function):
                where = re.split("ORDER BY|RETURNING", text.partition("WHERE")[2])[0]
                if "batches_ranges" in text and re.search(r"\b(first|last)\b", where):
                    looked_at += 1
                    wrong += [] if "epoch" in where else [f"{name}: {function.name}"]
    assert looked_at
    assert wrong == []


def test_memory_is_traced_in_a_process_of_its_own() -> None:
    texts = {path.name: path.read_text().splitlines() for path in (ROOT / "tests").rglob("*.py")}
    assert [name for name, lines in texts.items() if "import tracemalloc" in lines] == ["peak_memory.py"]
