"""The drawing of the tour agrees with the imports between rooms, and no module imports itself over others.

`python tests/test_rooms.py` prints the drawing of the tour from the code, in the order of the present drawing, and the
lines of the core: what `ingest.py` and `worker.py` import of `sluice` without contrib.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from pathlib import Path

from proving.harness import ROOT
from support.folders import lacks

TOUR = (ROOT / "docs/TOUR.md").read_text()
PROGRAMS = [ROOT / name for name in ("gunicorn.conf.py", "ingest.py", "worker.py")]


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
    """sluice.spool.inlet is in spool; sluice itself, the programs and each folder of contrib are rooms of their own.

    What several folders of contrib use is in `contrib` itself.
    """
    first, _, rest = name.partition(".")
    if rest.startswith("contrib."):
        folder = ".".join(rest.split(".")[:2])
        return folder if (ROOT / "sluice" / folder.replace(".", "/")).is_dir() else "contrib"
    return rest.partition(".")[0] if first == "sluice" and rest else first if first == "proving" else name


def drawing() -> dict[str, list[str]]:
    """The drawing in the tour: room -> the rooms that it imports."""
    (block,) = re.findall(r"^## What imports what\n(?:\n|\S.*\n)*((?:    .*\n)+)", TOUR, re.M)
    drawn = {first: others for first, *others in (line.split() for line in block.splitlines())}
    here = {first: others for first, others in drawn.items() if not lacks(first)}
    return {first: [other for other in others if not lacks(other)] for first, others in here.items()}


def rooms() -> dict[str, set[str]]:
    """Each room with the rooms that it imports."""
    paths = modules()
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
    assert not any(wrong.values()), wrong


def test_the_core_imports_nothing_of_contrib_and_names_none_of_it():
    """The registry finds what is there. A text may name it: "module:attribute"."""
    for name, path in modules().items():
        if not room(name).startswith(("contrib", "proving")) and name != "sluice.registry":
            named = re.findall(r"sluice[./]contrib[./]\w+", path.read_text())
            assert not named, name


def closure(programs: Collection[str]) -> list[str]:
    """The modules of the core that these programs import, also over others, and what texts name: "module:class"."""
    paths = {name: path for name, path in modules().items() if not room(name).startswith(("contrib", "proving"))}
    found: set[str] = set()
    todo = [*programs]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            text = paths[name].read_text()
            named = {word for word in re.findall(r'(?<!getLogger\()"(sluice(?:\.\w+)+)', text)}
            # of a database, its copies and questions are a matter of the operator's verbs
            packages = {f"{name}.{part}" for name in named for part in ("store", "inlet", "outlet", "inspector")}
            todo += [other for other in (*imports(paths[name], {*paths}), *named, *packages) if other in paths]
    return sorted(found)


def code_lines(path: Path) -> int:
    """The lines that are neither blank nor of a comment or docstring."""
    text = path.read_text()
    lines = {at for at, line in enumerate(text.splitlines(), 1) if line.strip() and not line.strip().startswith("#")}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            lines -= {*range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)}
    return len(lines)


def modules() -> dict[str, Path]:
    """The modules of the package, of the programs and of `proving`."""
    folders = (ROOT / "sluice").rglob("*.py"), (ROOT / "proving").rglob("*.py")
    return {module(path): path for path in chain(PROGRAMS, *folders)}


def circles() -> list[list[str]]:
    """Modules that import each other, also over others."""
    paths = modules()
    known = set(paths)
    graph = {name: {other for other in imports(path, known) if other != name} for name, path in paths.items()}
    return [circle for circle in strongly_connected(graph) if len(circle) > 1]


def strongly_connected(graph: Mapping[str, Collection[str]]) -> list[list[str]]:
    """The strongly connected components (Tarjan 1972)."""
    at: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(name: str) -> None:
        at[name] = low[name] = len(at)
        stack.append(name)
        for other in graph[name]:
            if other not in at:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], at[other])
        if low[name] == at[name]:
            start = stack.index(name)
            components.append(sorted(stack[start:]))
            del stack[start:]

    for name in graph:
        if name not in at:
            visit(name)
    return components


def test_no_module_imports_itself_over_others():
    assert circles() == []


if __name__ == "__main__":
    order = list(drawing())
    shown = rooms()
    order += sorted(shown.keys() - order)
    width = max(map(len, order))
    for name in order:
        if name in shown:
            print(f"    {name:{width}}  {'  '.join(sorted(shown[name], key=order.index))}".rstrip())
    print(f"\ncircles: {circles() or 'none'}")
    core = [modules()[name] for name in closure(("ingest.py", "worker.py"))]
    lines = sum(len(path.read_text().splitlines()) for path in core)
    code = sum(map(code_lines, core))
    print(f"the core that ingest.py and worker.py import: {lines:,} lines in {len(core)} files, {code:,} of them code")
