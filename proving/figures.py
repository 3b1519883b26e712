"""The tables of figures in the documents, each copied from a result of bench/.

A document names its table in a comment above it, as JSON, and `fill` writes the rows:

    <!-- figures {"of": "peers", "table": "requests/s", "columns": {"Sluice, PyPy": "PyPy"}} -->

of: bench/results/NAME.md. table: its title there, or the first cell of its head. rows, columns: which ones, in order,
by their names there, and the names that the document gives them; without them, all. turned: rows become columns. Below
the table stand the command, the machine, the commit and the date of the result.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "bench/results"
DOCUMENTS = "README.md", "bench/README.md", "docs/SCALE.md"
MARKED = re.compile(r"(<!-- figures (\{.*\}) -->\n)(?:(?:\|.*\n|\n|<sub>.*\n)*(?=\n)|)")
Table = dict[str, dict[str, str]]  # row -> column -> cell


def read_tables(path: Path) -> dict[str, Table]:
    """The tables of a result: title, or first cell of the head -> row -> column -> cell."""
    found: dict[str, Table] = {}
    pattern = r"(?:^\*\*(.+)\*\*\n\n)?^\|(.*)\|\n\|[-:| ]+\|\n((?:\|.*\|\n)+)"
    for title, head, body in re.findall(pattern, path.read_text(), re.MULTILINE):
        names = split_cells(head)
        found[title or names[0]] = {row[0]: dict(zip(names, row)) for row in map(split_cells, body.splitlines())}
    return found


def split_cells(line: str) -> list[str]:
    """The cells of a line of a table."""
    return [cell.strip() for cell in line.strip("|").split("|")]


def read_parameters(path: Path) -> dict[str, str]:
    """The parameters at the end of a result."""
    return dict(re.findall(r"^- ([\w ]+): (.*)$", path.read_text(), re.MULTILINE))


def fill(text: str, results: Path = RESULTS) -> str:
    """The text of a document with the present figures in its tables."""
    return MARKED.sub(lambda found: found[1] + show_table(json.loads(found[2]), results), text)


def show_table(wanted: dict[str, Any], results: Path) -> str:
    """The lines of a table, and the line with its command."""
    path = results / f"{wanted['of']}.md"
    tables = read_tables(path)
    if wanted["table"] not in tables:
        raise KeyError(f"{path.name} has no table {wanted['table']!r}; it has {', '.join(map(repr, tables))}")
    table = tables[wanted["table"]]
    first, *names = next(iter(table.values()))
    columns = chosen(wanted.get("columns"), names)
    rows = chosen(wanted.get("rows"), [*table])
    cells = [
        [first, *columns.values()],
        *([shown, *(table[row][key] for key in columns)] for row, shown in rows.items()),
    ]
    if wanted.get("turned"):
        cells = [[*line] for line in zip(*cells)]
    lines = [f"| {' | '.join(line)} |" for line in cells]
    lines.insert(1, "|---|" + "--:|" * (len(cells[0]) - 1))
    about = read_parameters(path)
    by = f"`{about['command']}`, {about['machine']}, commit {about['commit']}, {about['date']}"
    return "\n".join([*lines, "", f"<sub>{by}</sub>", ""])


def chosen(names: list[str] | dict[str, str] | None, there: list[str]) -> dict[str, str]:
    """Names of a result -> names of the document."""
    return names if isinstance(names, dict) else {name: name for name in names or there}


def fill_documents(root: Path) -> list[str]:
    """Write the present figures into all documents. Returns: those that changed."""
    changed = []
    for name in DOCUMENTS:
        path = root / name
        before = path.read_text()
        after = fill(before, root / "bench/results")
        if after != before:
            path.write_text(after)
            changed.append(name)
    return changed
