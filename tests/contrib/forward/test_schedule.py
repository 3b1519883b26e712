"""Which row is posted when: the schedule of one receiver, without a receiver."""

from __future__ import annotations

import random

from sluice.contrib.forward.schedule import PAUSE_SECONDS, ROW_SECONDS, Row, Schedule


def schedule(parallel: int, *lanes: str) -> Schedule:
    made = Schedule(parallel, random.Random(1))
    for number, lane in enumerate(lanes):
        made.add(Row(f"{lane}{number}", lane, (0, number, 0), float(number)))
    return made


def taken(made: Schedule, now: float) -> list[str]:
    found = []
    while row := made.take(now):
        found.append(row.name)
    return found


def test_rows_of_one_lane_are_posted_one_after_the_other_in_their_order() -> None:
    made = schedule(8, "a", "b", "a", "a")
    made.add(Row("early", "a", (0, -1, 0), 0.0))
    assert taken(made, 0.0) == ["early", "b1"]
    made.end(made.rows["early"], True)
    assert taken(made, 0.0) == ["a0"]
    made.fail(made.rows["a0"], 0.0, "answered 500")
    assert taken(made, 0.0) == []  # what is behind it waits
    assert taken(made, ROW_SECONDS[0]) == ["a0"]
    made.end(made.rows["a0"], False)
    assert taken(made, 2.0) == ["a2"]


def test_a_row_that_is_not_taken_waits_longer_each_time() -> None:
    made, now, waits = schedule(3, "a"), 0.0, []
    for _ in range(12):
        row = made.take(now)
        assert row is not None
        made.failures = 0  # the receiver takes others
        made.fail(row, now, "answered 500")
        waits.append(made.next_at(now) - now)
        now += waits[-1]
    for number, wait in enumerate(waits):
        longest = min(ROW_SECONDS[0] * 2**number, ROW_SECONDS[1])
        assert longest / 2 <= wait <= longest


def test_a_receiver_that_takes_nothing_is_asked_by_one_request_after_each_pause() -> None:
    made = schedule(4, *"abcdefghij")
    assert len(taken(made, 0.0)) == 4
    for row in [*made.rows.values()][:4]:
        made.fail(row, 0.0, "no answer")
    assert made.next_at(0.0) >= PAUSE_SECONDS[0] / 2
    assert taken(made, 0.0) == []
    (probe,) = taken(made, PAUSE_SECONDS[0])
    made.end(made.rows[probe], True)
    assert len(taken(made, PAUSE_SECONDS[0])) == 4
    for now in range(100, 4000, 100):
        for row in [row for row in made.rows.values() if made.lanes[row.lane].sent == row.name]:
            made.fail(row, float(now), "no answer")
        assert now < made.next_at(now) <= now + PAUSE_SECONDS[1]
        assert len(taken(made, now + 99.0)) == 1


def test_retry_after_is_a_pause_of_the_receiver() -> None:
    made = schedule(4, *"abcdef")
    (first, *_) = taken(made, 0.0)
    made.fail(made.rows[first], 0.0, "answered 429", 7.0)
    for name in "b1", "c2", "d3":
        made.end(made.rows[name], False)
    assert made.next_at(0.0) == 7.0
    assert taken(made, 6.9) == []
    assert len(taken(made, 7.0)) == 1


def test_the_last_answer_is_that_to_a_row_that_waits() -> None:
    made = schedule(2, "a", "b")
    taken(made, 0.0)
    made.fail(made.rows["a0"], 0.0, "answered 500")
    made.fail(made.rows["b1"], 0.0, "answered 503")
    assert (made.words, made.oldest) == ("answered 503", 0.0)
    for name in taken(made, 100.0) + taken(made, 200.0):
        made.end(made.rows[name], True)
    assert made.words in ("answered 500", "answered 503")
    for name in taken(made, 300.0):
        made.end(made.rows[name], True)
    assert (made.words, made.oldest, made.rows, made.lanes) == ("", 0.0, {}, {})


def test_rows_that_wait_too_long_are_dropped_and_never_taken() -> None:
    made = schedule(4, "a", "a", "b", "c")
    (sent,) = [made.take(0.0)]
    assert sent is not None
    old = [row.name for row in made.expired(3.0)]
    assert old == ["a1", "b2"]  # one is being posted, and one is young
    for name in old:
        made.drop(made.rows[name])
    made.end(sent, True)
    assert taken(made, 0.0) == ["c3"]


def test_a_row_that_could_not_be_read_is_the_next_one_again() -> None:
    made = schedule(1, "a", "b")
    row = made.take(0.0)
    assert row is not None
    made.put_back(row)
    assert made.take(0.0) is row
