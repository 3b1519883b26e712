"""The reader's connection to the views' Redis."""

from __future__ import annotations

import socket

import pytest

from sluice.views import reads
from sluice.views.reads import Link, Refused

STRINGS = [b"", b"a\r\n$1\r\n", None, b"{}" * 40, None]


def bulk(value: bytes | None) -> bytes:
    return b"$-1\r\n" if value is None else b"$%d\r\n%b\r\n" % (len(value), value)


def test_replies_are_read_whatever_the_pieces_in_which_they_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    array = b"*%d\r\n%b" % (len(STRINGS), b"".join(map(bulk, STRINGS)))
    wire = b":12\r\n+OK\r\n-ERR full\r\n" + array + bulk(None) + array + array + b"*0\r\n-LOADING\r\n"
    for size in range(1, len(wire) + 1):
        monkeypatch.setattr(reads, "RECEIVE", size)
        here, there = socket.socketpair()
        with here, there:
            link = Link("", "")
            link.socket = here
            there.sendall(wire)
            assert (link.reply(), link.reply()) == (12, b"OK")
            with pytest.raises(Refused, match="ERR full"):
                link.reply()
            assert (link.reply(), link.reply()) == (STRINGS, None)
            for _ in range(2):
                assert [place and place[0][place[1] : place[2]] for place in link.strings()] == STRINGS
            assert link.strings() == []
            with pytest.raises(Refused, match="LOADING"):
                link.strings()
            there.close()
            with pytest.raises(ConnectionError):
                link.reply()
