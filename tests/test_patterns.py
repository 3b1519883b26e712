"""No regular expression takes more than linear time: see `support.slow_patterns`."""

from __future__ import annotations

import ast
import contextlib
import importlib
import re
from collections.abc import Iterator
from typing import Any

from proving.harness import ROOT
from support.folders import lacks
from support.slow_patterns import slow
from support.table_of_cases import check_each_row

METHODS = "match", "fullmatch", "search", "sub", "split", "findall", "finditer"


@check_each_row(
    ("pattern", "method", "expected"),
    [
        (r"[0-9]+\.?[0-9]*", "fullmatch", True),
        (r"[0-9]++(?:\.[0-9]*+)?", "fullmatch", False),
        (r"(?:[^ \n]*&)?message=[^ \n]*+", "fullmatch", True),
        (r"\s*,?\s*\}", "match", True),
        (r"\s*+(?:,\s*+)?\}", "match", False),
        (r"(?:a+)+b", "match", True),
        (r'"(?:[^"\\]|\\.)*"', "match", False),
        (r"a+b", "match", False),
        (r"a+b", "search", True),
        (r"a+", "finditer", False),
        (r".*?x.*?y", "match", True),
        (r"\d{1,30}\d{1,30}x", "match", False),
        (r"(\w+)\s*=\s*(\w+)", "fullmatch", False),
    ],
)
def test_a_pattern_of_two_overlapping_quantifiers_is_found(pattern: str, method: str, expected: bool) -> None:
    assert slow(re.compile(pattern), method) == expected


# they read settings, our own files and what pg_dump writes
OWN_TEXT = (
    "sluice/parsers.py",
    "sluice/settings.py",
    "sluice/home_settings.py",
    "sluice/run/",
    "sluice/ops/",
    "sluice/contrib/postgres/copies.py",
)


def patterns() -> Iterator[tuple[str, re.Pattern[Any], str]]:
    """(place, pattern, method) for each use of a pattern in the package."""
    for path in [*sorted((ROOT / "sluice").rglob("*.py")), ROOT / "worker.py", ROOT / "ingest.py"]:
        text, place = path.read_text(), str(path.relative_to(ROOT))
        if place.startswith(OWN_TEXT) or not re.search(r"^import re$", text, re.MULTILINE):
            continue
        module = importlib.import_module(place.removesuffix(".py").replace("/", ".").removesuffix(".__init__"))
        used: dict[str, set[str]] = {}
        for node in ast.walk(ast.parse(text)):
            if not (isinstance(node, ast.Attribute) and node.attr in METHODS):
                continue
            for name in ast.walk(node.value):  # also of `(A if x else B).match`
                if isinstance(name, ast.Name):
                    used.setdefault(name.id, set()).add(node.attr)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {f"re.{method}" for method in METHODS}:
                flags = [arg for arg in [*node.args, *(k.value for k in node.keywords)] if "re." in ast.unparse(arg)]
                call = f"re.compile({ast.unparse(node.args[0])}, {' | '.join(map(ast.unparse, flags)) or '0'})"
                with contextlib.suppress(NameError):  # a pattern made of variables: those read settings
                    yield f"{place}: {ast.unparse(node.args[0])}", eval(call, vars(module)), ast.unparse(node.func)[3:]  # noqa: S307
        for constant, value in vars(module).items():
            if isinstance(value, re.Pattern):
                for method in used.get(constant, {"fullmatch"}):
                    yield f"{place}: {constant}", value, method


REASONS = {
    "sluice/http/request.py: LEFT_OUT": "a match begins only at the begin of a line, and ends with it",
    "sluice/fastlane/grammar.py: FIELD": "it reads what FIELDS has matched: no attempt fails",
    "sluice/contrib/formats/influx.py: LINE": "it never fails, and only the last quote of a body can have no end",
    "sluice/contrib/formats/influx.py: TAG": "it reads what HEAD has matched: no attempt fails",
    "sluice/contrib/destinations/destination.py: '(?<=://)[^/@]*@'": "a setting",
    "sluice/contrib/access/nginx.py: '^[^:#\\\\s][^:\\\\n]*:[^\\\\s:]+'": "a setting",
}


def test_every_pattern_takes_linear_time() -> None:
    found = {place for place, pattern, method in patterns() if slow(pattern, method)}
    assert found == {place for place in REASONS if not lacks(place)}
