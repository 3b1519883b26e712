"""What the gateway makes of a request, without a server."""

from __future__ import annotations

import pytest

from sluice.base.counters import Counter
from sluice.http import request
from sluice.http.endpoints import Endpoint
from sluice.http.replies import BAD_KEY, Rejected
from sluice.http.routes import OK, Route

KEY = {"HTTP_IDEMPOTENCY_KEY": "k-1"}
TYPE = {"CONTENT_TYPE": "application/json"}
SENDER = {"HTTP_SLUICE_SENDER": "phones"}


def endpoint(**more: object) -> Endpoint:
    return Endpoint("/gps", Route("gps", OK, **more), lambda name: Counter(), 100, ("ce-time",))  # type: ignore[arg-type]


@pytest.mark.parametrize("fields", [None, ("X-Limit-U",)])
@pytest.mark.parametrize(
    "more", [{}, TYPE, SENDER, TYPE | SENDER, TYPE | {"HTTP_CE_TIME": "2"} | SENDER, {"HTTP_SLUICE_SENDER": ""}]
)
def test_the_head_of_a_keyed_request_is_that_of_the_fields_one_by_one(
    fields: tuple[str, ...] | None, more: dict[str, str]
) -> None:
    """What the heads of a shape have in common is found once, with another key and another sender."""
    place = endpoint(fields=fields)
    shape = request.plainness(more | KEY, False, place)
    assert isinstance(shape, request.KeyedHead)
    for key, sender in ("k-2", "phones"), ('"k 3"', "cars"), ("k-4", ""):
        environ = more | {"HTTP_IDEMPOTENCY_KEY": key}
        if "HTTP_SLUICE_SENDER" in more:
            environ["HTTP_SLUICE_SENDER"] = sender
        assert shape.encode_head(environ) == request.make_head(environ, place, None)
    with pytest.raises(Rejected) as raised:
        shape.encode_head(more | {"HTTP_IDEMPOTENCY_KEY": '"'})
    assert raised.value.args == (BAD_KEY,)


def test_a_keyed_request_whose_whole_head_is_kept_has_no_shape() -> None:
    assert request.plainness(TYPE | KEY, False, endpoint(keep_head=True)) == request.PLAIN
