"""The tour agrees with the tree: its entries, its ten files, and the imports between rooms."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from proving.harness import ROOT

TOUR = (ROOT / "docs/TOUR.md").read_text()
PROGRAMS = [ROOT / name for name in ("gunicorn.conf.py", "ingest.py", "serve.py", "worker.py")]


def module(path: Path) -> str:
    """The dotted name of a file; a program keeps its file name."""
    if path in PROGRAMS:
        return path.name
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path, known: set[str]) -> Iterator[str]:
    """The modules of this project that a file imports, also within functions or for types only."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: a relative import"
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in known else str(node.module) for name in full]
        else:
            continue
        yield from (name for name in names if name in known)


def room(name: str) -> str:
    """sluice.spool.inlet is in spool; sluice itself and the programs are rooms of their own."""
    return name.split(".")[1] if name.startswith("sluice.") else name


def drawing() -> dict[str, list[str]]:
    """The drawing in the tour: room -> the rooms that it imports."""
    (block,) = re.findall(r"^## What imports what\n(?:\n|\S.*\n)*((?:    .*\n)+)", TOUR, re.M)
    return {first: others for first, *others in (line.split() for line in block.splitlines())}


def visible() -> set[str]:
    """What `ls` shows of a checkout; a folder ends with a slash."""
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    entries = {first + slash for first, slash, _ in (name.partition("/") for name in files)}
    return {entry for entry in entries if not entry.startswith(".")}


def test_the_drawing_shows_the_imports_between_rooms():
    paths = {module(path): path for path in [*PROGRAMS, *(ROOT / "sluice").rglob("*.py")]}
    found: dict[str, set[str]] = {room(name): set() for name in paths}
    for name, path in paths.items():
        found[room(name)] |= {room(other) for other in imports(path, set(paths))} - {room(name)}
    assert {name: set(others) for name, others in drawing().items()} == found


def test_every_room_of_the_drawing_imports_only_rooms_above_it():
    order = list(drawing())
    wrong = {name: [o for o in others if o not in order[:at]] for at, (name, others) in enumerate(drawing().items())}
    assert not any(wrong.values()), wrong


def test_the_tour_names_every_entry_of_ls_and_every_room():
    named = set(re.findall(r"`([^`]+)`", " ".join(re.findall(r"^\| (`.*?) \|", TOUR, re.M))))
    assert named == visible() | {name for name in drawing() if name != "sluice" and not name.endswith(".py")}


def test_ls_shows_at_most_18_entries():
    assert len(visible()) <= 18


def test_the_tour_has_ten_files():
    listed = re.findall(r"^(\d+)\. \[(.*?)\]\(\.\./(.*?)\)", TOUR, re.M)
    assert [int(number) for number, _, _ in listed] == list(range(1, 11))
    assert all(text.replace("\\", "") == path and (ROOT / path).is_file() for _, text, path in listed)
