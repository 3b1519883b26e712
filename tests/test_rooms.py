"""The tour agrees with the tree: its entries, and the imports between rooms.

`python tests/test_rooms.py` prints the drawing of the tour from the code, in the order of the present drawing.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from itertools import chain
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
    first, _, rest = name.partition(".")
    return rest.partition(".")[0] if first == "sluice" and rest else first if first == "proving" else name


def drawing() -> dict[str, list[str]]:
    """The drawing in the tour: room -> the rooms that it imports."""
    (block,) = re.findall(r"^## What imports what\n(?:\n|\S.*\n)*((?:    .*\n)+)", TOUR, re.M)
    return {first: others for first, *others in (line.split() for line in block.splitlines())}


def visible() -> set[str]:
    """What `ls` shows of a checkout; a folder ends with a slash."""
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    entries = {first + slash for first, slash, _ in (name.partition("/") for name in files)}
    return {entry for entry in entries if not entry.startswith(".")}


def rooms() -> dict[str, set[str]]:
    """Each room with the rooms that it imports."""
    folders = (ROOT / "sluice").rglob("*.py"), (ROOT / "proving").rglob("*.py")
    paths = {module(path): path for path in chain(PROGRAMS, *folders)}
    known = set(paths)
    drawn: dict[str, set[str]] = {room(name): set() for name in paths}
    for name, path in paths.items():
        drawn[room(name)] |= {room(other) for other in imports(path, known)} - {room(name)}
    return drawn


def test_the_drawing_shows_the_imports_between_rooms():
    assert {name: set(others) for name, others in drawing().items()} == rooms()


def test_every_room_of_the_drawing_imports_only_rooms_above_it():
    order = list(drawing())
    wrong = {name: [o for o in others if o not in order[:at]] for at, (name, others) in enumerate(drawing().items())}
    wrong["streams"].remove("formats")  # until the formats register themselves
    assert not any(wrong.values()), wrong


def test_the_tour_names_every_entry_of_ls_and_every_room():
    named = set(re.findall(r"`([^`]+)`", " ".join(re.findall(r"^\| (`.*?) \|", TOUR, re.M))))
    inside = {name for name in drawing() if (ROOT / "sluice" / name).is_dir() or (ROOT / f"sluice/{name}.py").is_file()}
    assert named == visible() | inside


if __name__ == "__main__":
    order = list(drawing())
    shown = rooms()
    order += sorted(shown.keys() - order)
    width = max(map(len, order))
    for name in order:
        if name in shown:
            print(f"    {name:{width}}  {'  '.join(sorted(shown[name], key=order.index))}".rstrip())
