"""The tables of figures in the documents are those of the results in bench/."""

from __future__ import annotations

from pathlib import Path

import pytest

from proving import figures, harness

RESULT = """# A question

**rates**

| | one | other |
| - | --: | --: |
| fast | 3 | 4 |
| slow | 1 | 2 |

| target | measured |
| - | --: |
| fast | 3 |

## Parameters

- command: bench/made --rounds 3
- machine: 2 cores
- commit: abc
- date: 2026-11-29 10:00 UTC
"""
BELOW = "\n<sub>`bench/made --rounds 3`, 2 cores, commit abc, 2026-11-29 10:00 UTC</sub>\n"


@pytest.mark.parametrize("name", figures.DOCUMENTS)
def test_the_documents_have_the_figures_of_the_results(name: str) -> None:
    text = (harness.ROOT / name).read_text()
    assert figures.MARKED.search(text)
    assert figures.fill(text) == text, "bench/all --write"


@pytest.mark.parametrize(
    ("named", "lines"),
    [
        ('"table": "rates"', [" | one | other |", "--:|--:|", "| fast | 3 | 4 |", "| slow | 1 | 2 |"]),
        ('"table": "target"', ["target | measured |", "--:|", "| fast | 3 |"]),
        ('"table": "rates", "rows": ["slow"], "columns": {"other": "our"}', [" | our |", "--:|", "| slow | 2 |"]),
        ('"table": "rates", "turned": true', [" | fast | slow |", "--:|--:|", "| one | 3 | 1 |", "| other | 4 | 2 |"]),
    ],
)  # fmt: skip
def test_a_table_has_the_rows_and_columns_that_the_document_names(tmp_path: Path, named: str, lines: list[str]) -> None:
    head, rule, *rows = lines
    table = "\n".join([f"| {head}", f"|---|{rule}", *rows, ""])
    (tmp_path / "made.md").write_text(RESULT)
    marker = f'<!-- figures {{"of": "made", {named}}} -->\n'
    filled = figures.fill(f"Before.\n\n{marker}\nAfter.\n", tmp_path)
    assert filled == f"Before.\n\n{marker}{table}{BELOW}\nAfter.\n"
    assert figures.fill(filled, tmp_path) == filled


def test_a_table_that_is_not_in_the_result_is_named_with_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "made.md").write_text(RESULT)
    with pytest.raises(KeyError, match=r"made\.md has no table 'p99'; it has 'rates', 'target'"):
        figures.fill('<!-- figures {"of": "made", "table": "p99"} -->\n', tmp_path)
