"""The connection to the views' Redis."""

from __future__ import annotations

import socket

import pytest
from redis.exceptions import ResponseError

from sluice.contrib.views import link

STRINGS = [b"", b"a\r\n$1\r\n", None, b"{}" * 40, None]


def bulk(value: bytes | None) -> bytes:
    return b"$-1\r\n" if value is None else b"$%d\r\n%b\r\n" % (len(value), value)


def test_replies_are_read_whatever_the_pieces_in_which_they_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    array = b"*%d\r\n%b" % (len(STRINGS), b"".join(map(bulk, STRINGS)))
    wire = (
        b":12\r\n+OK\r\n-ERR full\r\n"
        + array
        + bulk(None)
        + array
        + array
        + b"*0\r\n*-1\r\n*2\r\n-OOM\r\n:-1\r\n-LOADING\r\n"
    )
    for size in range(1, len(wire) + 1):
        monkeypatch.setattr(link, "RECEIVE_BYTES", size)
        here, there = socket.socketpair()
        with here, there:
            one = link.Link("", 1.0)
            one.socket = here
            there.sendall(wire)
            assert (one.reply(), one.reply()) == (12, b"OK")
            with pytest.raises(ResponseError, match="ERR full"):
                one.reply()
            assert (one.reply(), one.reply()) == (STRINGS, None)
            for _ in range(2):
                assert [place and place[0][place[1] : place[2]] for place in one.strings()] == STRINGS
            assert (one.strings(), one.reply()) == ([], None)
            error, number = one.reply()
            assert (error.args, number) == (("OOM",), -1)
            with pytest.raises(ResponseError, match="LOADING"):
                one.strings()
            there.close()
            with pytest.raises(ConnectionError):
                one.reply()
