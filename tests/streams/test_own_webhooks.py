"""A webhook in a stream of one's own: methods, paths with parts that vary, large bodies, and names of columns."""

from __future__ import annotations

import io
from typing import Any

import pytest

from sluice import OK, Limits, Record, Reject, Route, stream
from sluice.http.endpoints import Endpoint, Endpoints
from sluice.http.request import read_item
from sluice.http.routes import pattern, varies
from sluice.streams.schema import stream_problem

ROUTES = {
    "/plain": Route("plain", OK),
    "/ttn/{application}/up": Route("uplinks", OK, methods=("PUT",)),
    "/any/*": Route("any", OK, get=True, max_body=30 << 20),
    "/a.b/{x}/*": Route("any", OK),
}


class Uplink(Record):
    """received_at is what The Things Stack calls it; every table has such a column."""

    received_at: str
    sender: dict[str, Any] | None = None
    application: str = ""


UPLINKS = stream("uplinks", Uplink, path="/ttn/{application}/up", unique=("received_at",))


def endpoints() -> Endpoints:
    return Endpoints(ROUTES, lambda name: None, 1 << 20, 8 << 20)  # type: ignore[arg-type,return-value]


def found(path: str) -> Endpoint | None:
    return endpoints().find_endpoint({"PATH_INFO": path})


@pytest.mark.parametrize(
    "path, route",
    [
        ("/plain", "/plain"), ("/plain/x", None), ("/ttn/a/up", "/ttn/{application}/up"), ("//ttn//a//up",
         "/ttn/{application}/up"), ("/ttn/a/b/up", None), ("/ttn//up", None), ("/ttn/a/up/", None), ("/any", "/any/*"),
        ("/any/", "/any/*"), ("/any/b/c", "/any/*"), ("/anything", None), ("/a.b/c", "/a.b/{x}/*"), ("/axb/c", None),
        ("/any/*", "/any/*"), ("/ttn/{application}/up", "/ttn/{application}/up"), ("/a.b", None),
    ],
)  # fmt: skip
def test_a_path_that_varies_is_found_and_no_other(path: str, route: str | None) -> None:
    endpoint = found(path)
    assert (endpoint and endpoint.path) == route
    assert [varies(path) for path in ROUTES] == [False, True, True, True]
    assert pattern("/a.b/{x}/*") == r"/a\.b/[^/]+(?:/.*)?"


def test_paths_that_vary_are_remembered_but_not_without_end() -> None:
    known = endpoints()
    for number in range(2000):
        endpoint = known.find_endpoint({"PATH_INFO": f"/any/{number}"})
        assert endpoint is not None and endpoint.path == "/any/*"
    assert len(known.by_path) == 1024 + 1
    assert len([*known]) == len(ROUTES)


def test_the_item_has_the_path_of_its_request_and_no_line_of_another() -> None:
    endpoint = found("/ttn/a/up")
    assert endpoint is not None and endpoint.taken == {"POST", "PUT"} and endpoint.max_body == 1 << 20
    environ = {"PATH_INFO": "/ttn/\xc3\xbc x\r\nEvil: 1/up", "QUERY_STRING": "q=1", "REQUEST_METHOD": "PUT",
               "CONTENT_LENGTH": "2", "wsgi.input": io.BytesIO(b"{}")}  # fmt: skip
    assert read_item(environ, endpoint) == b"POST /ttn/%C3%BC%20x%0D%0AEvil:%201/up?q=1 HTTP/1.1\r\n\r\n{}"
    large = found("/any")
    assert large is not None and (large.max_body, large.taken) == (30 << 20, {"POST", "GET"})


def test_a_part_of_the_path_is_a_field_and_a_reserved_name_gets_an_underscore() -> None:
    assert stream_problem("uplinks", UPLINKS) == ""
    assert UPLINKS.record.__struct_fields__ == ("time", "received_at_", "sender_", "application")
    assert UPLINKS.unique == ("received_at_",)
    item = b'POST /ttn/my%20app/up HTTP/1.1\r\n\r\n{"received_at":"2026","sender":{"login":"x"},"application":"?"}'
    (row,) = UPLINKS.decode(item, Limits()).records
    assert [getattr(row, name) for name in row.__struct_fields__] == [None, "2026", {"login": "x"}, "my app"]
    row_destinations = item.replace(b"/ttn", b"/other")
    assert UPLINKS.decode(row_destinations, Limits()).records[0].application == "?"  # type: ignore[attr-defined]
    (reject,) = UPLINKS.decode(item.replace(b"received_at", b"x"), Limits()).rejects
    assert isinstance(reject, Reject) and reject.reason == "missing: received_at"


def test_a_path_without_a_field_is_refused() -> None:
    for path in "/ttn/{nothing}", "/ttn/*", "/ttn":
        with pytest.raises(TypeError, match="names no fields of Uplink"):
            stream("uplinks", Uplink, path=path)
