"""Mutation tests: makes small mistakes in the lines that have changed, and looks whether a test notices each.

    bin/test --mutants [--since COMMIT] [--jobs N] [PATH…]

cosmic-ray makes the mistakes in Python; rules below make those in the scripts for Redis. Each mistake is made in a copy
of the tree in var/mutants. There the tests of the file's room run until one fails: first those that start no program,
then all. A mistake that no test notices is printed; exit status 1 if there is one. Some are none: a cache that is
filled later, a limit that nothing reaches. With a PATH, mistakes are made in all lines of that file.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import os
import queue
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

from support.changed_copies import copy_tree, failing

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 90.0  # seconds for tests that take less than a third of it: a program that hangs has been noticed
# PyPy runs the same files as CPython; memory and idle time take long to measure, and no small mistake changes them
LEFT_OUT = "not pypy and not 100_mb and not one_percent"
NUMBER = "core/NumberReplacer"  # tried at its even positions only, one more; the odd ones are one less
# Tests that a room needs beside those of its own folder
MORE = {
    "base": ["ops", "test_ingest.py"],
    "fastlane": ["test_ingest.py"],
    "http": ["test_ingest.py", "contrib/views/test_serve.py"],
    "spool": ["test_worker.py", "contrib/page"],
    "streams": ["contrib/formats", "test_ingest.py"],
    "contrib/formats": ["streams", "test_clients.py"],
    "store": ["test_worker.py", "ops/test_sluice.py", "contrib/destinations", "contrib/postgres"],
    "contrib/destinations": ["test_worker.py"],
    "contrib/postgres": ["store"],
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

    def code(self) -> str:
        """The file with the mistake; "" if it cannot be made."""
        text = (ROOT / self.path).read_text()
        if self.operator == "script":
            return list(script_mistakes(text))[self.number][1]
        try:
            return mutate_code(text, get_operator(self.operator)(), self.number) or ""
        except (SyntaxError, AttributeError):  # `not a := b`; cosmic-ray cannot replace an exception with a dot
            return ""

    def __str__(self) -> str:
        before, after = (ROOT / self.path).read_text().splitlines(), self.code().splitlines()
        first = next(n for n, (old, new) in enumerate(zip(before, after)) if old != new)
        return f"{self.path}:{first + 1}\n- {before[first].strip()}\n+ {after[first].strip()}"


def changed_lines(since: str) -> dict[str, set[int]]:
    """The lines of the product that are not in a commit: path -> numbers."""
    command = ["git", "diff", "--unified=0", "--no-renames", since, "--", "*.py", ":!tests", ":!bench", ":!proving"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines: dict[str, set[int]] = {}
    path = ""
    for name, first, count in re.findall(r"^\+\+\+ (?:b/)?(.+)|^@@ .*?\+(\d+)(?:,(\d+))?", text, re.MULTILINE):
        path = name or path
        if first:
            lines.setdefault(path, set()).update(range(int(first), int(first) + int(count or 1)))
    return {path: numbers for path, numbers in lines.items() if tests_of(path)}


def tests_of(path: str) -> list[str]:
    """The tests of a file: of the program, or of its room. Files that are named like it come first."""
    folder, *rest = Path(path).parts
    own = [f"test_{Path(path).stem}.py"]
    if folder == "sluice":
        room = "/".join(rest[: 2 if rest[0] == "contrib" else 1])
        own = [room, *MORE.get(room, [])] if len(rest) > 1 else [f"test_{Path(rest[0]).stem}.py", "ops"]
    files = [file for name in own for file in sorted((ROOT / "tests" / name).glob("**/test_*.py"))]
    files += [ROOT / "tests" / name for name in own if (ROOT / "tests" / name).is_file()]
    files.sort(key=lambda file: Path(path).stem not in file.stem)
    return [str(file.relative_to(ROOT)) for file in files]


def mutants(path: str) -> Iterator[Mutant]:
    """All mistakes in a file, each once."""
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


class Trial:
    """The copies of the tree in which no tests run, and how long each set of tests takes without a mistake."""

    def __init__(self, jobs: int) -> None:
        self.trees: queue.Queue[Path] = queue.Queue()
        for number in range(jobs):
            self.trees.put(copy_tree(f"tree-{number}"))
        self.patience: dict[tuple[str, ...], float] = {}

    def time_tests(self, tests: tuple[str, ...]) -> None:
        """Run tests without a mistake, once. Exits if one fails."""
        if tests in self.patience:
            return
        tree, began = self.trees.get(), time.monotonic()
        if failed := failing(tree, ["-k", LEFT_OUT, "-n", str(os.cpu_count()), *tests], 20 * PATIENCE):
            sys.exit(f"sluice: {failed} fails without a mistake")
        self.trees.put(tree)
        self.patience[tests] = max(PATIENCE, 6 * (time.monotonic() - began))

    def try_one(self, mutant: Mutant) -> bool:
        """Make a mistake in one of the copies. Returns: whether a test noticed it."""
        tests = tests_of(mutant.path)
        tree, began = self.trees.get(), time.monotonic()
        try:
            (tree / mutant.path).write_text(mutant.code())
            noticed = ""
            for options in ["-m", "not contract and not nightly"], ["-m", "not nightly"]:
                noticed = noticed or twice(tree, [*options, *tests], self.patience[tuple(tests)])
        finally:
            (tree / mutant.path).write_text((ROOT / mutant.path).read_text())
            self.trees.put(tree)
        said = noticed or "SURVIVED"
        print(f"{time.monotonic() - began:.0f} s, {mutant.path}:{mutant.line} {mutant.operator}: {said}", flush=True)
        return bool(noticed)


def twice(tree: Path, tests: list[str], patience: float) -> str:
    """Run tests until one fails that fails again alone. Returns: its name, "time", or "" if there is none."""
    unsure: list[str] = []
    while "::" in (
        failed := failing(tree, ["-k", LEFT_OUT, *(f"--deselect={test}" for test in unsure), *tests], patience)
    ):
        if failing(tree, [failed], patience):
            break
        unsure.append(failed)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", default="HEAD~1", metavar="COMMIT", help="lines that it does not have (%(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="tried at once (%(default)s)")
    parser.add_argument("paths", nargs="*", help="files to make mistakes in, in all lines")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if a script has started this with &
    lines = dict.fromkeys(options.paths) or changed_lines(options.since)
    seen = {(path, meaning((ROOT / path).read_text())) for path in lines}
    chosen: list[Mutant] = []
    for path, numbers in lines.items():
        for mutant in mutants(path):
            if (numbers is None or mutant.line in numbers) and (code := mutant.code()):
                same = path, meaning(code)
                if same not in seen:
                    seen.add(same)
                    chosen.append(mutant)
    print(f"{len(chosen)} mistakes in {len(lines)} files", flush=True)
    trial = Trial(options.jobs)
    for path in {mutant.path for mutant in chosen}:
        trial.time_tests(tuple(tests_of(path)))
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        try:
            noticed = list(pool.map(trial.try_one, chosen))
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            sys.exit("sluice: interrupted")
    survivors = [mutant for mutant, seen_by in zip(chosen, noticed) if not seen_by]
    for mutant in survivors:
        print(f"\n{mutant}")
    print(f"\n{len(chosen) - len(survivors)} of {len(chosen)} noticed, {len(survivors)} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
