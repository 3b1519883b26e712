"""pip, for requirements with hashes: python deploy/pip_of_pins.py install --require-hashes -r FILE

pip reads each line that an index has of a package, of every version and platform, before it compares hashes: 23,000
for bin/up, which is half of its time. Here it reads those whose hash is in FILE, the last argument. What it installs
is the same; if a pip has no such function, it reads all of them.
"""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any


def read_pinned_only(hashes: set[str]) -> None:
    """Let pip skip the files of an index's page with other hashes."""
    from pip._internal.models.link import Link

    from_json = Link.from_json

    def of_pin(file: dict[str, Any], page: str) -> Link | None:
        sha256 = (file.get("hashes") or {}).get("sha256")
        return from_json(file, page) if sha256 is None or sha256 in hashes else None

    Link.from_json = of_pin  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    try:
        read_pinned_only({*re.findall(r"sha256:(\w+)", Path(sys.argv[-1]).read_text())})
    except (ImportError, AttributeError):
        pass
    del sys.path[0]  # this folder
    sys.argv[0] = "pip"
    runpy.run_module("pip", run_name="__main__")
