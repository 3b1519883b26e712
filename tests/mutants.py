"""Mutation tests: makes one small mistake after the other in the core, and looks whether a test notices it.

    bin/test --mutants [--minutes N] [--seed N] [PATH…]

cosmic-ray makes the mistakes in Python; rules below make those in the scripts for Redis. Each mistake is made in a copy
of the tree in var/mutants, and the tests of TESTS run there until one fails, without the slow ones. Without --minutes
all mistakes are tried, which takes days; with it a sample, in the order that the seed gives. Results are kept in
var/mutants/results.json: the next run continues, and tries again the mistakes in files that have changed. A mistake
that no test notices is printed, unless tests/mutants.txt explains it; exit status 1 if there is one.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import fnmatch
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "var/mutants"
EXPLAINED = ROOT / "tests/mutants.txt"
PATIENCE = 90  # seconds for the tests of one mistake: a program that hangs has been noticed
SLOW = 2.0  # seconds: tests that take longer are left out
# The tests of each file, in the order in which they run; the first pattern that fits counts.
TESTS = {
    "ingest.py": "tests/test_ingest.py",
    "serve.py": "tests/test_serve.py",
    "worker.py": "tests/test_worker.py",
    "sluice/fastlane/grammar.py": "tests/fastlane/test_grammar.py tests/fastlane/test_fastlane.py",
    "sluice/fastlane/*.py": "tests/fastlane/test_fastlane.py tests/test_ingest.py",
    "sluice/spool/inspector.py": "tests/ops/test_sluice.py tests/ops/test_look.py",
    "sluice/spool/*.py": "tests/spool/test_spool.py tests/test_worker.py tests/spool/test_replicas.py",
    "sluice/sinks/sqlite.py": "tests/sinks/test_sqlite.py",
    "sluice/sinks/postgres.py": "tests/sinks/test_postgres.py",
    "sluice/sinks/__init__.py": "tests/sinks/test_sqlite.py tests/ops/test_sluice.py",
    "sluice/sinks/schema.py": "tests/streams/test_records.py tests/test_worker.py",
    "sluice/streams/influx.py": "tests/streams/test_influx.py",
    "sluice/streams/otlp*.py": "tests/streams/test_otlp.py",
    "sluice/streams/prometheus.py": "tests/streams/test_remote_write.py",
    "sluice/streams/loki.py": "tests/streams/test_loki.py",
    "sluice/streams/logs.py": "tests/streams/test_logs.py",
    "sluice/streams/signature.py": "tests/streams/test_signed.py",
    "sluice/streams/*_pb2.py": "",  # generated
    "sluice/streams/endpoints.py": "tests/test_ingest.py",
    "sluice/streams/re*.py": "tests/streams/test_records.py tests/test_ingest.py tests/test_clients.py",
    "sluice/streams/routes.py": "tests/test_ingest.py tests/test_clients.py",
    "sluice/streams/*.py": "tests/streams/test_gps_formats.py tests/streams/test_records.py tests/streams/test_otlp.py "
    "tests/streams/test_remote_write.py tests/streams/test_influx.py",
}
OPERATORS = [
    *(f"core/ReplaceComparisonOperator_{old}_{new}" for old, new in (
        ("Eq", "NotEq"), ("NotEq", "Eq"), ("Lt", "LtE"), ("LtE", "Lt"), ("Gt", "GtE"), ("GtE", "Gt"), ("Is", "IsNot"),
        ("IsNot", "Is"),
    )),
    *(f"core/ReplaceBinaryOperator_{old}_{new}" for old, new in (
        ("Add", "Sub"), ("Sub", "Add"), ("Mul", "Div"), ("Div", "Mul"), ("FloorDiv", "Mul"), ("Mod", "Mul"),
        ("BitOr", "BitAnd"), ("BitAnd", "BitOr"), ("LShift", "RShift"), ("RShift", "LShift"),
    )),
    *("core/ReplaceTrueWithFalse", "core/ReplaceFalseWithTrue", "core/ReplaceAndWithOr", "core/ReplaceOrWithAnd"),
    *("core/AddNot", "core/ReplaceBreakWithContinue", "core/ReplaceContinueWithBreak", "core/NumberReplacer"),
    *("core/ZeroIterationForLoop", "core/ExceptionReplacer", "core/ReplaceUnaryOperator_Delete_Not"),
]  # fmt: skip
# Mistakes in a line of a script: its pattern and the replacement
SCRIPT = [
    (r"<=", "<"), (r">=", ">"), (r" < ", " <= "), (r" > ", " >= "), (r" == ", " ~= "), (r" ~= ", " == "),
    (r" \+ ", " - "), (r" - ", " + "), (r" and ", " or "), (r" or ", " and "), (r"\bnot ", ""), (r"'\('", "''"),
    (r"math\.min", "math.max"), (r"math\.max", "math.min"), (r"'\+inf'", "'-inf'"), (r"\bARGV\[2\]", "ARGV[1]"),
    (r"^( *)redis\.call\(.*\)$", r"\1"), (r"then redis\.call\(.*\) end$", "then end"),
]  # fmt: skip


class Mutant(NamedTuple):
    """A mistake: the file, its line, and what makes it, an operator of cosmic-ray or a rule for scripts."""

    path: str
    line: int
    operator: str
    number: int  # among those that the operator makes in this file

    @property
    def key(self) -> str:
        """The same for the same mistake in the same text of the file."""
        text = (ROOT / self.path).read_text()
        return hashlib.sha256(f"{self.operator} {self.number} {self.path}\n{text}".encode()).hexdigest()[:16]

    def code(self) -> str:
        """The file with the mistake."""
        text = (ROOT / self.path).read_text()
        if self.operator == "script":
            return list(script_mistakes(text))[self.number][1]
        found = mutate_code(text, get_operator(self.operator)(), self.number)
        assert found is not None
        return found


class Changed(NamedTuple):
    """The lines that a mistake changes, as tests/mutants.txt has them."""

    path: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}\n- {self.old}\n+ {self.new}"


def tests_of(path: str) -> list[str]:
    """The test files for a file."""
    return next((found.split() for pattern, found in TESTS.items() if fnmatch.fnmatch(path, pattern)), [])


def mutants(path: str) -> Iterator[Mutant]:
    """All mistakes in a file."""
    text = (ROOT / path).read_text()
    nodes = list(ast_nodes(get_ast(text)))
    for name in OPERATORS:
        operator = get_operator(name)()
        starts = [start for node in nodes for start, _ in operator.mutation_positions(node)]
        for number, (line, _) in enumerate(starts):
            yield Mutant(path, line, name, number)
    for number, (line, _) in enumerate(script_mistakes(text)):
        yield Mutant(path, line, "script", number)


def script_mistakes(text: str) -> Iterator[tuple[int, str]]:
    """The mistakes in scripts for Redis, which are strings: the line, and the file with the mistake."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "redis.call" in node.value:
            assert node.end_lineno
            for at in range(node.lineno - 1, node.end_lineno):
                code, mark, about = lines[at].rstrip("\n").partition(" -- ")
                for pattern, new in SCRIPT:
                    for found in re.finditer(pattern, code):
                        changed = code[: found.start()] + found.expand(new) + code[found.end() :]
                        yield at + 1, "".join([*lines[:at], f"{changed}{mark}{about}\n", *lines[at + 1 :]])


def meaning(code: str) -> str:
    """What is executed: the syntax tree without annotations, which are never evaluated."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
    return ast.dump(tree)


def changed(mutant: Mutant, code: str) -> Changed:
    """The lines that a mistake changes."""
    before, after = (ROOT / mutant.path).read_text().splitlines(), code.splitlines()
    same = difflib.SequenceMatcher(None, before, after, False).get_opcodes()
    _, first, last, start, end = next(one for one in same if one[0] != "equal")
    old, new = (" ".join(" ".join(lines).split()) for lines in (before[first:last], after[start:end]))
    return Changed(mutant.path, old, new)


def explained() -> set[Changed]:
    """The survivors with a reason."""
    return {Changed(*one) for one in re.findall(r"^(\S+)\n- (.*)\n\+ (.*)\n  \S", EXPLAINED.read_text(), re.MULTILINE)}


def copy_tree() -> Path:
    """A copy of the files under version control, with the virtual environments of this one."""
    tree = WORK / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in names.rstrip("\0").split("\0"):
        if (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    for name in ".venv", ".venv-pypy":
        (tree / name).symlink_to(ROOT / name)
    return tree


def slow_tests(tree: Path, file: str, known: dict[str, list[str]]) -> list[str]:
    """The slow tests of a file, measured without a mistake. known: results of earlier calls, to which it adds its own.

    Exits if a test fails.
    """
    key = f"{file} {hashlib.sha256((ROOT / file).read_bytes()).hexdigest()[:16]}"
    if key not in known:
        print(f"timing the tests of {file}", flush=True)
        failed, said = run(tree, ["--durations=0", f"--durations-min={SLOW}", file], 10 * PATIENCE)
        if failed:
            sys.exit(f"sluice: {failed} fails without a mistake\n{said}")
        known[key] = sorted(set(re.findall(r"^[\d.]+s \w+ +(\S.*)$", said, re.MULTILINE)))
    return known[key]


def run(tree: Path, tests: list[str], patience: float = PATIENCE) -> tuple[str, str]:
    """Run tests until one fails.

    Returns: the name of that test, "" if all pass, "time" if they take too long; and the output.
    """
    command = [".venv/bin/python", "-B", "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    process = subprocess.Popen(
        command, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("INGEST_")},
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        said = ""
    finally:
        end(tree, process)
    if process.returncode == 0:
        return "", said
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
    return found[1] if found else "tests cannot start" if said else "time", said


def end(tree: Path, process: subprocess.Popen) -> None:
    """End the tests and every server that they left, which runs in the copy of the tree."""
    process.poll()
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGINT)  # pytest ends its servers
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.readlink(entry / "cwd") == str(tree):
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:  # it has ended, or belongs to another user
                pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="stop after so many; the mistakes are then a sample")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (%(default)s)")
    parser.add_argument("paths", nargs="*", help="files to make mistakes in; unless given, all of the core")
    options = parser.parse_args()
    began = time.monotonic()
    core = [str(path.relative_to(ROOT)) for path in sorted([*ROOT.glob("*.py"), *ROOT.glob("sluice/*/*.py")])]
    paths = options.paths or [path for path in core if tests_of(path)]
    WORK.mkdir(parents=True, exist_ok=True)
    kept = WORK / "results.json"
    before = json.loads(kept.read_text()) if kept.exists() else {"mutants": {}, "slow": {}}
    results: dict[str, str] = before["mutants"]
    every = [mutant for path in paths for mutant in mutants(path)]
    random.Random(options.seed).shuffle(every)
    known, tree = explained(), copy_tree()
    print(f"{len(every)} mistakes in {len(paths)} files", flush=True)
    tried, survivors = 0, []
    for mutant in every:
        late = options.minutes and time.monotonic() > began + 60 * options.minutes
        if late and mutant.key not in results:
            continue
        code, plain = mutant.code(), (ROOT / mutant.path).read_text()
        if meaning(code) == meaning(plain):
            continue
        tried += 1
        if mutant.key not in results:
            left_out = []
            for file in tests_of(mutant.path):
                left_out += [f"--deselect={name}" for name in slow_tests(tree, file, before["slow"])]
                kept.write_text(json.dumps(before))
            started, place = time.monotonic(), tree / mutant.path
            place.write_text(code)
            results[mutant.key], _ = run(tree, [*left_out, *tests_of(mutant.path)])
            place.write_text(plain)
            kept.write_text(json.dumps(before))
            took, said = time.monotonic() - started, results[mutant.key] or "SURVIVED"
            print(f"{tried}: {took:.0f} s, {mutant.path}:{mutant.line} {mutant.operator}: {said}", flush=True)
        if not results[mutant.key]:
            survivors.append(changed(mutant, code))
    left = [one for one in survivors if one not in known]
    for one in left:
        print(f"\n{one}")
    noticed = tried - len(survivors)
    share = f" ({noticed / tried:.0%})" if tried else ""
    print(f"\n{noticed} of {tried} noticed{share}, {len(survivors) - len(left)} explained, {len(left)} survived")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
