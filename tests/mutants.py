"""Mutation tests: makes one small mistake after the other in the core, and looks whether a test notices it.

    bin/test --mutants [--minutes N] [--seed N] [--jobs N] [PATH…]

cosmic-ray makes the mistakes in Python; rules below make those in the scripts for Redis. Each mistake is made in a copy
of the tree in var/mutants, and the tests of TESTS run there until one fails: first those that noticed the nearest
mistakes in this file so far, then the others, the slow ones last. Without --minutes all mistakes are tried, which takes
hours; with it a sample, in the order that the seed gives. Results are kept in var/mutants/results.json: the next run
continues, and tries again the mistakes in files that have changed, and those that no test noticed. Such a mistake is
printed; exit status 1 if there is one. Those that tests/mutants.txt explains are not tried.
"""

from __future__ import annotations

import argparse
import ast
import collections
import concurrent.futures
import difflib
import fcntl
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
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "var/mutants"
EXPLAINED = ROOT / "tests/mutants.txt"
PATIENCE = 90.0  # seconds for tests that take less than a third of it: a program that hangs has been noticed
SLOW = 2.0  # seconds: tests that take longer run last
FIRST = 5  # tests that run first
# PyPy runs the same files as CPython; memory and idle time take long to measure, and no small mistake changes them
LEFT_OUT = "not pypy and not 100_mb and not one_percent"
NO_START = "tests cannot start"
NUMBER = "core/NumberReplacer"  # tried at its even positions only, one more; the odd ones are one less
# The tests of each file, in the order in which they run; the first pattern that fits counts.
TESTS = {
    "ingest.py": "tests/test_ingest.py tests/run/test_metrics.py",
    "serve.py": "tests/test_serve.py",
    "worker.py": "tests/test_worker.py",
    "sluice/fastlane/grammar.py": "tests/fastlane/test_grammar.py tests/fastlane/test_fastlane.py",
    "sluice/fastlane/*.py": "tests/fastlane/test_fastlane.py tests/fastlane/test_grammar.py tests/test_ingest.py",
    "sluice/spool/inspector.py": "tests/ops/test_look.py tests/ops/test_sluice.py tests/run/test_metrics.py "
    "tests/spool/test_spool.py tests/spool/test_replicas.py",
    "sluice/spool/contract.py": "tests/spool/test_spool.py tests/ops/test_look.py tests/spool/test_replicas.py",
    "sluice/spool/*.py": "tests/spool/test_spool.py tests/test_worker.py tests/run/test_metrics.py "
    "tests/spool/test_replicas.py",
    "sluice/store/sqlite/store.py": "tests/store/test_sqlite.py tests/ops/test_sluice.py tests/test_worker.py "
    "tests/elsewhere/test_parquet.py tests/elsewhere/test_engines.py",
    "sluice/store/postgres/store.py": "tests/store/test_postgres.py",
    "sluice/store/postgres/partitions.py": "tests/store/test_postgres.py",
    "sluice/store/store.py": "tests/store/test_sqlite.py tests/store/test_postgres.py tests/ops/test_sluice.py "
    "tests/test_worker.py tests/elsewhere/test_parquet.py tests/elsewhere/test_engines.py",
    "sluice/streams/schema.py": "tests/streams/test_records.py tests/store/test_sqlite.py tests/test_worker.py "
    "tests/ops/test_sluice.py",
    "sluice/formats/influx.py": "tests/formats/test_influx.py",
    "sluice/streams/otlp*.py": "tests/formats/test_otlp.py",
    "sluice/formats/prometheus.py": "tests/formats/test_remote_write.py",
    "sluice/formats/loki.py": "tests/formats/test_loki.py",
    "sluice/formats/protobuf.py": "tests/formats/test_loki.py tests/formats/test_remote_write.py "
    "tests/formats/test_otlp.py",
    "sluice/streams/logs.py": "tests/streams/test_logs.py tests/formats/test_loki.py",
    "sluice/streams/signature.py": "tests/streams/test_signed.py",
    "sluice/streams/*_pb2.py": "",  # generated
    "sluice/http/endpoints.py": "tests/test_ingest.py tests/run/test_metrics.py",
    "sluice/http/replies.py": "tests/formats/test_otlp.py tests/test_ingest.py tests/test_clients.py "
    "tests/run/test_reload.py",
    "sluice/streams/record.py": "tests/streams/test_records.py tests/formats/test_otlp.py tests/test_ingest.py "
    "tests/test_clients.py",
    "sluice/streams/re*.py": "tests/streams/test_records.py tests/test_ingest.py tests/test_clients.py",
    "sluice/http/routes.py": "tests/test_ingest.py tests/test_clients.py",
    "sluice/streams/*.py": "tests/formats/test_gps_formats.py tests/streams/test_records.py tests/formats/test_otlp.py "
    "tests/formats/test_remote_write.py tests/formats/test_influx.py tests/test_clients.py",
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
    *("core/AddNot", "core/ReplaceBreakWithContinue", "core/ReplaceContinueWithBreak", NUMBER),
    *("core/ZeroIterationForLoop", "core/ExceptionReplacer", "core/ReplaceUnaryOperator_Delete_Not"),
]  # fmt: skip
# A comparison with a clock, in which `<` instead of `<=` is no mistake: two readings are never equal
CLOCK = re.compile(r"\b(now|due|began|deadline|resume|retry_at|mark_due)\b|monotonic\(\)")
MEMORY = re.compile(r"\bgc=False\b|@lru_cache\(")  # what only memory and time depend on
BOUNDARY = re.compile("_(Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt)$")
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
    constants, lines = set(constant_lines(text)), text.splitlines()
    for name in OPERATORS:
        operator = get_operator(name)()
        starts = [start for node in nodes for start, _ in operator.mutation_positions(node)]
        for number, (line, _) in enumerate(starts):
            if name == NUMBER and number % 2:
                continue
            if MEMORY.search(lines[line - 1]) or (line in constants and (name == NUMBER or "Shift" in name)):
                continue
            if not (BOUNDARY.search(name) and CLOCK.search(lines[line - 1])):
                yield Mutant(path, line, name, number)
    for number, (line, _) in enumerate(script_mistakes(text)):
        yield Mutant(path, line, "script", number)


def constant_lines(text: str) -> Iterator[int]:
    """The lines of the constants of a module and its classes. A number there is a size or a time: one more is no
    mistake.
    """
    tree = ast.parse(text)
    scopes: list[ast.Module | ast.ClassDef] = [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]
    for scope in scopes:
        for node in scope.body:
            if isinstance(node, (ast.Assign, ast.AnnAssign)):
                assert node.end_lineno
                yield from range(node.lineno, node.end_lineno + 1)


def script_mistakes(text: str) -> Iterator[tuple[int, str]]:
    """The mistakes in scripts for Redis, which are strings: the line, and the file with the mistake."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "redis.call" in node.value:
            assert node.end_lineno
            for at in range(node.lineno - 1, node.end_lineno):
                if lines[at].startswith("-- "):
                    continue
                code, mark, about = lines[at].rstrip("\n").partition(" -- ")
                for pattern, new in SCRIPT:
                    for found in re.finditer(pattern, code):
                        changed = code[: found.start()] + found.expand(new) + code[found.end() :]
                        yield at + 1, "".join([*lines[:at], f"{changed}{mark}{about}\n", *lines[at + 1 :]])


class Negation(ast.NodeTransformer):
    """`not a == b` as `a != b`: several operators make the same mistake."""

    PAIRS = (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)
    OPPOSITE: ClassVar[dict[type[ast.cmpop], type[ast.cmpop]]] = {
        one: other for pair in PAIRS for one, other in (pair, pair[::-1])
    }

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        inner = node.operand
        if not isinstance(node.op, ast.Not):
            return node
        if isinstance(inner, ast.UnaryOp) and isinstance(inner.op, ast.Not):
            return inner.operand
        if isinstance(inner, ast.Compare) and len(inner.ops) == 1 and type(inner.ops[0]) in self.OPPOSITE:
            return ast.Compare(inner.left, [self.OPPOSITE[type(inner.ops[0])]()], inner.comparators)
        return node


def meaning(code: str) -> str:
    """What is executed: the syntax tree without annotations, which are never evaluated."""
    tree = Negation().visit(ast.parse(code))
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
    if before[first].strip() in ("break", "continue"):  # there are several: the line before it tells which one
        first, start = first - 1, start - 1
    old, new = (" ".join(" ".join(lines).split()) for lines in (before[first:last], after[start:end]))
    return Changed(mutant.path, old, new.replace("not not ", ""))


def explained() -> set[Changed]:
    """The survivors with a reason."""
    return {Changed(*one) for one in re.findall(r"^(\S+)\n- (.*)\n\+ (.*)\n  \S", EXPLAINED.read_text(), re.MULTILINE)}


def copy_tree(name: str) -> Path:
    """A copy of the files under version control, and of the virtual environments, which bin/up must find up to date."""
    tree = WORK / name
    shutil.rmtree(tree, ignore_errors=True)
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in names.rstrip("\0").split("\0"):
        if (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    for name in ".venv", ".venv-pypy":
        shutil.copytree(ROOT / name, tree / name, symlinks=True)
        for stamp in (tree / name).glob("stamp*"):
            stamp.write_text(stamp.read_text().replace(f"{ROOT}/", f"{tree}/"))
    return tree


class Timed(NamedTuple):
    """The tests of a file: what all of them take, in seconds, and the slow ones."""

    seconds: float
    slow: list[str]


class Runs:
    """What was found so far, and the copies of the tree in which no tests run."""

    def __init__(self, kept: Path, jobs: int) -> None:
        self.own = open(kept.with_suffix(".lock"), "w")  # noqa: SIM115
        try:
            fcntl.flock(self.own, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("sluice: another run is making mistakes in var/mutants")
        before = json.loads(kept.read_text()) if kept.exists() else {"mutants": {}, "timed": {}}
        self.kept, self.lock = kept, threading.Lock()
        self.found: dict[str, str] = before["mutants"]  # key of a mistake -> test, "time" or ""
        self.timed: dict[str, list] = before["timed"]
        self.times: dict[str, Timed] = {}  # by test file, as it is now
        self.killers: dict[str, list[tuple[int, str]]] = collections.defaultdict(list)  # by file: lines and tests
        self.trees = [copy_tree(f"tree-{n}") for n in range(jobs)]

    def keep(self) -> None:
        new = self.kept.with_suffix(".new")
        new.write_text(json.dumps({"mutants": self.found, "timed": self.timed}))
        new.rename(self.kept)

    def time_tests(self, file: str) -> None:
        """Time the tests of a file without a mistake, once. Exits if one fails."""
        key = f"{file} {hashlib.sha256((ROOT / file).read_bytes()).hexdigest()[:16]}"
        if key not in self.timed:
            print(f"timing the tests of {file}", flush=True)
            began = time.monotonic()
            failed, said = run(self.trees[0], ["--durations=0", f"--durations-min={SLOW}", file], 10 * PATIENCE)
            if failed:
                sys.exit(f"sluice: {failed} fails without a mistake\n{said}")
            slow = sorted(set(re.findall(r"^[\d.]+s \w+ +(\S.*)$", said, re.MULTILINE)))
            self.timed[key] = [time.monotonic() - began, slow]
            self.keep()
        self.times[file] = Timed(*self.timed[key])

    def learn(self, mutant: Mutant, test: str) -> None:
        """A test noticed this mistake."""
        if "::" in test:
            test = test.partition("[")[0]  # with all its parameters: an id may have spaces
            self.killers[mutant.path].append((mutant.line, test))

    def nearest(self, mutant: Mutant) -> list[str]:
        """The tests that noticed the nearest mistakes in this file."""
        near = sorted(self.killers[mutant.path], key=lambda one: abs(one[0] - mutant.line))
        return list(dict.fromkeys(test for _, test in near))[:FIRST]

    def try_one(self, mutant: Mutant) -> float:
        """Make a mistake in one of the copies and run its tests. Returns: seconds."""
        with self.lock:
            tree = self.trees.pop()
            first = self.nearest(mutant)
        files = tests_of(mutant.path)
        timed = [self.times[file] for file in files]
        slow = [test for one in timed for test in one.slow]
        patience = max(PATIENCE, 3 * sum(one.seconds for one in timed))
        began, place, noticed = time.monotonic(), tree / mutant.path, ""
        place.write_text(mutant.code())
        unsure: list[str] = []  # tests that have failed: a mistake is noticed when one fails twice
        for tests, left_out in (first, []), (files, slow), (slow, []):
            while noticed in ("", NO_START) and (left := [test for test in tests if test not in unsure]):
                # of the first ones, one may be gone since; then the tests cannot start
                noticed, _ = run(tree, [*(f"--deselect={test}" for test in (*left_out, *unsure)), *left], patience)
                if "::" not in noticed:
                    break
                unsure.append(noticed.partition("[")[0])
                noticed, _ = run(tree, unsure[-1:], patience)
        place.write_text((ROOT / mutant.path).read_text())
        if noticed == NO_START and run(tree, ["--collect-only", *files])[0]:
            raise RuntimeError(f"the tests in {tree} do not start without a mistake either")
        with self.lock:
            self.trees.append(tree)
            self.found[mutant.key] = noticed
            self.learn(mutant, noticed)
            self.keep()
        return time.monotonic() - began


def run(tree: Path, tests: list[str], patience: float = PATIENCE) -> tuple[str, str]:
    """Run tests until one fails.

    Returns: the name of that test, "" if all pass, "time" if they take too long; and the output.
    """
    command = [
        ".venv/bin/python", "-B", "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider",
        "-p", "no:hypothesispytest",  # hypothesis works without it, and its import is slow
        "-k", LEFT_OUT, *tests,
    ]  # fmt: skip
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
    if process.returncode in (0, 5):  # 5: no test is left
        return "", said
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
    return found[1] if found else NO_START if said else "time", said


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
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="tried at once (%(default)s)")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if a script has started this with &
    began = time.monotonic()
    core = [str(path.relative_to(ROOT)) for path in sorted([*ROOT.glob("*.py"), *ROOT.glob("sluice/*/*.py")])]
    paths = options.paths or [path for path in core if tests_of(path)]
    WORK.mkdir(parents=True, exist_ok=True)
    every = [mutant for path in paths for mutant in mutants(path)]
    random.Random(options.seed).shuffle(every)
    known, runs = explained(), Runs(WORK / "results.json", options.jobs)
    print(f"{len(every)} mistakes in {len(paths)} files", flush=True)
    for mutant in every:
        runs.learn(mutant, runs.found.get(mutant.key, ""))
    for file in sorted({file for path in paths for file in tests_of(path)}):
        runs.time_tests(file)
    tried: list[Mutant] = []
    seen = {(path, meaning((ROOT / path).read_text())) for path in paths}

    def look(mutant: Mutant) -> None:
        late = options.minutes and time.monotonic() > began + 60 * options.minutes
        if late and mutant.key not in runs.found:
            return
        try:
            changes = mutant.path, meaning(mutant.code())
        except (SyntaxError, AttributeError):  # `not a := b`; cosmic-ray cannot replace an exception with a dot
            return
        with runs.lock:
            if changes in seen:
                return
            seen.add(changes)
        tried.append(mutant)
        if changed(mutant, mutant.code()) in known:
            runs.found[mutant.key] = ""
        elif not runs.found.get(mutant.key):
            took, number = runs.try_one(mutant), len(tried)
            said = runs.found[mutant.key] or "SURVIVED"
            print(f"{number}: {took:.0f} s, {mutant.path}:{mutant.line} {mutant.operator}: {said}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        try:
            list(pool.map(look, every))
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            sys.exit("sluice: interrupted; the next run continues")
    survivors = [changed(mutant, mutant.code()) for mutant in tried if not runs.found[mutant.key]]
    left = [one for one in survivors if one not in known]
    for one in left:
        print(f"\n{one}")
    noticed = len(tried) - len(survivors)
    share = f" ({noticed / len(tried):.1%})" if tried else ""
    print(f"\n{noticed} of {len(tried)} noticed{share}, {len(survivors) - len(left)} explained, {len(left)} survived")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
