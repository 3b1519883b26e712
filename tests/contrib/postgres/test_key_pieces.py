from __future__ import annotations

from itertools import chain

from sluice.contrib.postgres.store import Postgres
from sluice.store.types import Body
from sluice.streams.built_in import STREAMS
from sluice.streams.unique import Rule
from support.list_items import LIMITS, kept


def test_keys_in_pieces_are_those_of_the_bodies_in_order() -> None:
    positions = [
        b'{"device":"bus-%d","lat":48,"lon":11,"time":%d}'
        % (n % 1_200, 1_767_268_800 - n * 7 % 30 - n % 1_200 // 1_100)
        for n in range(1_500)
    ]
    plain = [Body.from_decoded(n, 0, item, STREAMS["gps"].decode(item, LIMITS)) for n, item in enumerate(positions)]
    item = kept(positions[0], "/gps", "Idempotency-Key: a")
    rule, other = Rule(60, True), Body.from_decoded(1_500, 0, item, STREAMS["gps"].decode(item, LIMITS))
    store = Postgres.__new__(Postgres)  # it has no connection
    for bodies, count in (plain, 3), ([*plain, other], 1), (plain[:500], 1), ([], 0):
        keys = list[bytes | None]()
        pieces = [*store.order_keys(rule, bodies, LIMITS, keys)]
        assert [*chain.from_iterable(pieces)] == sorted({key for key in rule.body_keys(bodies, LIMITS) if key})
        assert keys == rule.body_keys(bodies, LIMITS)
        assert len(pieces) == count
