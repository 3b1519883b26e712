"""The value of a feed: however items are merged into it, it is what sorting all of them gives."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from sluice.contrib.views.kinds import feed as feeds

CAP = 5
# few scores, texts and identities, so that items often meet an equal one
plain = st.tuples(st.integers(-2, 8), st.sampled_from([b"1", b"22", b'"\xc3\xa4"']), st.just(b""))
member = st.tuples(st.integers(-2, 8), st.sampled_from([b"1", b"22"]), st.sampled_from([b"identity", b"identify"]))


def expected(items: list[feeds.Item]) -> list[feeds.Item]:
    """Of items with one identity the newest; of these the newest CAP. Without one, equal items are one."""
    best: dict[object, feeds.Item] = {}
    for item in items:
        name = item[2] or item[:2]
        best[name] = max(best.get(name, item), item)
    return sorted(best.values(), reverse=True)[:CAP]


def merged(value: bytes | None, new: list[feeds.Item], with_member: bool) -> bytes:
    """The new value; the old one is among other bytes."""
    place = None if value is None else (b"before" + value + b"behind", 6, 6 + len(value))
    return b"".join(feeds.merge_items(place, new, with_member, CAP))


def check(calls: list[list[feeds.Item]], with_member: bool) -> None:
    value = None
    seen: list[feeds.Item] = []
    for call in calls:
        seen += call
        new = feeds.newest_items(call, CAP)
        value = merged(value, new, with_member)
        items = expected(seen)
        assert feeds.decode(value, with_member) == items
        assert value == feeds.encode_items(items)
        for limit in range(1, CAP + 2):
            texts = [item[1].decode() for item in items[:limit]]
            assert json.loads(
                feeds.items_page(with_member, (b"before" + value + b"behind", 6, 6 + len(value)), limit)
            ) == [json.loads(text) for text in texts]


@given(st.lists(st.lists(plain, min_size=1, max_size=8), min_size=1, max_size=8))
def test_items_of_a_feed_are_unique_by_all_that_they_are(calls: list[list[feeds.Item]]) -> None:
    # equal JSON has an equal time, as in rows
    check([[(score, b"[%d,%b]" % (score, text), name) for score, text, name in call] for call in calls], False)


@given(st.lists(st.lists(member, min_size=1, max_size=8), min_size=1, max_size=8))
def test_of_items_with_one_identity_the_newest_is_kept(calls: list[list[feeds.Item]]) -> None:
    check(calls, True)


def test_a_match_between_two_identities_is_no_match() -> None:
    value = feeds.encode_items([(2, b"2", b"abcdefgh"), (1, b"1", b"ijklmnop")])
    assert feeds.decode(merged(value, [(3, b"3", b"efghijkl")], True), True) == [
        (3, b"3", b"efghijkl"), (2, b"2", b"abcdefgh"), (1, b"1", b"ijklmnop"),
    ]  # fmt: skip
