"""How many bodies of a topic are stored, which several partitions number, each with epochs of its own."""

from __future__ import annotations

from pathlib import Path

from sluice.contrib.kafka.inspector import TopicPartitions
from sluice.store.registry import open_store
from sluice.streams.built_in import STREAMS
from support.store_contract import NOON, votes


def test_what_is_stored_of_a_partition_is_counted_by_number_in_all_epochs(tmp: Path) -> None:
    store = open_store(f"sqlite:///{tmp}/db", STREAMS)
    for epoch, first, last in ("0.7", 1, 4), ("0.8", 5, 9), ("1.7", 3, 6), ("10.1", 1, 5):
        given, bodies = votes(*range(first, last + 1), first=first)
        store.persist(given._replace(id=f"{epoch}:{first}:{NOON}"), bodies)
    assert TopicPartitions({"0": (4, 9), "1": (2, 6)}).count_bodies(store, "votes") == (13, 9, 0)
    assert TopicPartitions({"0": (6, 8)}).count_bodies(store, "votes") == (8, 2, 0)
    assert TopicPartitions({"1": (9, 9), "2": (0, 9)}).count_bodies(store, "votes") == (4, 0, 0)
    assert TopicPartitions({"0": (0, 9)}).count_bodies(store, "gps") == (0, 0, 0)
    given, bodies = votes("a", "b", "c", first=8)  # the log has lost two bodies, and given their numbers to others
    store.persist(given._replace(id=f"0.9:8:{NOON}"), bodies)
    assert TopicPartitions({"0": (7, 10)}).count_bodies(store, "votes") == (12, 3, 2)
    store.close()
