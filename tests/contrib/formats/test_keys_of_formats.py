"""Keys of the bodies of wire formats."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from support.keys_contract import Here

pytestmark = pytest.mark.contract


def test_gzip_and_the_head_of_a_retry_do_not_make_another_content(tmp_path: Path) -> None:
    here = Here(f"sqlite:///{tmp_path}/ingest.db")
    line = b"m v=1 1767000000000"

    def sent(query: str, body: bytes, more: str = "") -> bytes:
        return f"POST /api/v2/write?{query} HTTP/1.1\r\n{more}\r\n".encode() + body

    first = sent("bucket=b&precision=ms", gzip.compress(line, mtime=1))
    again = sent("bucket=b&precision=ms", gzip.compress(line, mtime=2), "Retry-Attempt: 1\r\n")
    assert here.put("metrics", first, again, sent("bucket=b&precision=ms", line)) == (1, 0)
    assert here.put("metrics", sent("bucket=b&precision=us", line)) == (1, 0)


def test_a_line_is_its_own_key_if_it_has_a_time_whichever(tmp_path: Path) -> None:
    here = Here(f"sqlite:///{tmp_path}/ingest.db")
    assert here.put("metrics", b"m v=1 1767000000000000000", b"m v=1 1767000000000000000", b"m v=1", b"m v=1") == (3, 0)
    for at in -(2**63), -1, 0, 2**63 - 1:
        assert here.put("metrics", b"m v=2 %d" % at, b"m v=2 %d" % at) == (1, 0)
