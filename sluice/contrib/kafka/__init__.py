"""Kafka in the list's place (docs/protocol/spool.md): topics, offsets and what identifies a body there.

The stream votes is the topic `ingest.votes`; a body is a record's value, its arrival the record's timestamp. Its number
is the record's offset + 1. Its epoch is TOPIC_ID.PARTITION.LEADER_EPOCH: a topic that was deleted and made again has
another id, and records that take the offsets of lost ones have another leader epoch, so neither continues an
earlier epoch.

Only the programs that INGEST_SPOOL=kafka:// starts import this package: its client library does not run on PyPy.
"""
