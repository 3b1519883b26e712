"""The configurations in docs/INTEGRATIONS.md, which the tests give to the real senders."""

from __future__ import annotations

import re
import textwrap

from sluice.drill.harness import ROOT

PAGE = (ROOT / "docs/INTEGRATIONS.md").read_text()


def samples(heading: str, port: int = 8080) -> list[str]:
    """The indented samples of a section, with the port of the installation under test."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\n((?:    .*\n)+)", section, re.MULTILINE)
    return [textwrap.dedent(text).replace("localhost:8080", f"localhost:{port}") for text in found]
