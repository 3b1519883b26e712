"""Planted faults: dangerous places of the product, a mistake in each, and the tests that must find it.

    bin/test --planted [--results FILE] [NAME …]

Each mistake is made in a copy of the tree in var/mutants, where its tests run until one fails. First they run without
any mistake: a test that fails anyway finds nothing. Prints a table; exit status 1 if a mistake was not found.

A text must occur once in its file, which tests/test_planted.py checks: if it does not, the fault has to follow the
product. Behind these faults come those of proving/histories/plants.py, which histories find.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from support.changed_copies import ROOT, copy_tree, failing

sys.path.append(str(ROOT))
from proving.histories.plants import PLANTS

SEEDS = "1-300"
PATIENCE = 300.0  # seconds for the tests of one fault
POLL_SECONDS = 40.0  # for which its tests wait for what a fault may keep from coming


class Fault(NamedTuple):
    """place: what is dangerous here. path: of the file that has `text` once. wrong: what stands there instead.

    tests: one of these must fail. They are as narrow as can be.
    """

    place: str
    what: str
    path: str
    text: str
    wrong: str
    tests: tuple[str, ...]


CONTRACT, INLET = "sluice/spool/contract.py", "sluice/spool/inlet.py"
STORE, BOOKS, KEYS = "sluice/store/store.py", "sluice/store/bookkeeping.py", "sluice/store/keys.py"
EXPIRY, SQLITE, DECODING = "sluice/store/expiry.py", "sluice/store/sqlite/store.py", "sluice/store/decoding.py"
POSTGRES, TABLES = "sluice/contrib/postgres/store.py", "sluice/contrib/postgres/tables.py"
OUTBOX, LEASE, VIEWS = (
    "sluice/contrib/destinations/outbox.py", "sluice/contrib/views/lease.py", "sluice/contrib/views/contract.py",
)  # fmt: skip
FOLLOWER, KAFKA, ADMIN = (
    "sluice/contrib/views/follower.py", "sluice/contrib/kafka/outlet.py", "sluice/contrib/kafka/admin.py",
)  # fmt: skip
LOOP, ANSWERS, RELOAD = "sluice/fastlane/loop.py", "sluice/fastlane/answers.py", "sluice/run/reload.py"

SPOOL = "tests/spool/test_spool.py::test_"
ON_SQLITE = "tests/store/test_sqlite.py::TestSqlite::test_"
ON_POSTGRES = "tests/contrib/postgres/test_postgres.py::TestPostgres::test_"
PARTITIONS = "tests/contrib/postgres/test_postgres_partitions.py::test_"
KEY = "tests/store/test_keys.py::test_"
WORKER = "tests/test_worker.py::test_"
IN_OUTBOX = "tests/contrib/destinations/test_outbox.py::TestSqliteOutbox::test_"
PARQUET = "tests/contrib/destinations/test_parquet.py::test_"
FOLLOW = "tests/contrib/views/test_follower.py::test_"
IN_KAFKA = "tests/contrib/kafka/test_kafka.py::test_"
FASTLANE = "tests/fastlane/test_fastlane.py::test_"
NUMBERED = SPOOL + "a_claim_takes_the_head_of_the_list_under_consecutive_numbers"
AGAIN = SPOOL + "only_an_expired_claim_is_claimed_again_and_it_is_the_same"
REST = SPOOL + "the_rest_of_a_claim_is_a_claim_with_its_lease_deliveries_and_marks"
TRIMMED = SPOOL + "settle_trims_marks_that_no_body_needs"
HOLDER = FOLLOW + "the_lease_of_a_living_holder_is_taken_by_nobody"

FAULTS = {
    # claim
    "claim-number": Fault(
        "claim", "a claim is named after the number before its first", CONTRACT,
        "':' .. string.format('%.0f', taken + 1) .. ':' .. us", "':' .. string.format('%.0f', taken) .. ':' .. us",
        (NUMBERED,),
    ),
    "claim-limit": Fault(
        "claim", "the last step takes more bodies than asked for", CONTRACT,
        "math.min(step, max_bodies - n)", "step",
        (NUMBERED,),
    ),
    "claim-count": Fault(
        "claim", "a last step that was not full is counted as full", CONTRACT,
        "n = n + #bodies", "n = n + step",
        (SPOOL + "a_claim_that_takes_a_list_just_below_its_limit_counts_every_body_once",),
    ),
    "claim-counter": Fault(
        "claim", "the counter stays one behind, so a number is given twice", CONTRACT,
        "redis.call('SET', KEYS[2], string.format('%.0f', taken + n))\nredis.call('ZREM",
        "redis.call('SET', KEYS[2], string.format('%.0f', taken + n - 1))\nredis.call('ZREM",
        (NUMBERED,),
    ),
    "claim-history": Fault(
        "claim", "a restarted Redis goes on with the epoch of before", CONTRACT,
        "elseif string.sub(known[#known - 1], 1, #history) ~= history then", "elseif false then",
        (SPOOL + "a_restart_begins_a_spool_and_bodies_of_before_keep_theirs",),
    ),
    "claim-delivery": Fault(
        "claim", "a delivery is not counted", CONTRACT,
        "redis.call('HINCRBY', KEYS[7], expired, 1)", "redis.call('HINCRBY', KEYS[7], expired, 0)",
        (REST,),
    ),
    "claim-prefetched": Fault(
        "claim", "a worker that stops forgets the claim that it has requested", "worker.py",
        "if state.prefetched and not state.claim:", "if False:",
        (WORKER + "a_worker_that_stops_stores_the_claim_that_it_has_prefetched",),
    ),
    # settle
    "settle-lease": Fault(
        "settle", "the rest of a claim has no lease", CONTRACT,
        "redis.call('ZADD', KEYS[2], lease, rest)", "redis.call('ZADD', KEYS[2], 0, rest)",
        (REST,),
    ),
    "settle-deliveries": Fault(
        "settle", "the rest of a claim begins with its first delivery", CONTRACT,
        "  if times then redis.call('HSET', KEYS[4], rest, times) end\n", "",
        (REST,),
    ),
    "settle-lost": Fault(
        "settle", "a claim that another worker has settled is settled again in part", CONTRACT,
        "if rest and lease then", "if rest then",
        (REST,),
    ),
    "settle-all": Fault(
        "settle", "the whole claim is settled when a part of it is stored", "worker.py",
        "self.outlet.settle(claim, end), 0.0", "self.outlet.settle(claim), 0.0",
        (WORKER + "a_claim_of_large_bodies_is_stored_in_groups",),
    ),
    "settle-range": Fault(
        "settle", "all numbers of a claim count as stored when a part of it is", "worker.py",
        "store.persist(claim.part(claim.first, group.end), group.bodies", "store.persist(claim, group.bodies",
        (WORKER + "a_claim_of_large_bodies_is_stored_in_groups",),
    ),
    "settle-unsynced-sqlite": Fault(
        "settle", "a claim is settled before it is on SQLite's disk", SQLITE,
        "PRAGMA synchronous=FULL", "PRAGMA synchronous=NORMAL",
        (ON_SQLITE + "every_commit_is_synced_to_disk",),
    ),
    "settle-unsynced-postgres": Fault(
        "settle", "a claim is settled before it is on PostgreSQL's disk", "sluice/contrib/postgres/session.py",
        "set_config('synchronous_commit', 'on', true)", "set_config('synchronous_commit', 'off', true)",
        ("tests/contrib/postgres/test_postgres.py::"
         "test_every_commit_is_synchronous_whatever_the_server_default",),
    ),
    # lease
    "lease-running": Fault(
        "lease", "a claim is given to another worker before its lease ends", CONTRACT,
        "redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', ms, 'LIMIT', 0, 1)[1]",
        "redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', ms + lease, 'LIMIT', 0, 1)[1]",
        (AGAIN,),
    ),
    "lease-again": Fault(
        "lease", "a claim that is delivered again gets no new lease", CONTRACT,
        "  redis.call('ZADD', KEYS[3], ms + lease, expired)\n", "",
        (AGAIN,),
    ),
    "lease-of-nothing": Fault(
        "lease", "a settled claim is renewed, and comes back", CONTRACT,
        "if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end\n", "",
        (SPOOL + "a_renewed_claim_is_not_claimed_again_and_a_settled_one_cannot_be_renewed",),
    ),
    "lease-clock": Fault(
        "lease", "a lease that began while the clock was ahead is not cut", CONTRACT,
        "'(' .. ms + lease, '+inf')", "'(' .. ms + lease, '-inf')",
        ("tests/spool/test_clock.py",),
    ),
    "lease-release": Fault(
        "lease", "a worker that stops keeps the lease of what it has not stored", "worker.py",
        "self.outlet.renew(claim, 0)", "self.outlet.renew(claim)",
        (WORKER + "a_stop_ends_the_lease_of_a_claim_that_is_not_stored",),
    ),
    # trim
    "trim-open": Fault(
        "trim", "the marks of open claims are trimmed", CONTRACT,
        "oldest = math.min(oldest, tonumber(string.match(id, ':(%d+):')))", "oldest = oldest",
        (TRIMMED,),
    ),
    "trim-last": Fault(
        "trim", "the last mark that is needed is trimmed too", CONTRACT,
        "'-inf', '(' .. keep[2])", "'-inf', keep[2])",
        (TRIMMED, SPOOL + "settle_leaves_only_the_counter_and_one_mark"),
    ),
    "trim-kafka": Fault(
        "trim", "records of a log that was cut are deleted by the offsets of those before", ADMIN,
        "if topic and topic.epoch(at.partition, found.leader_epoch) == last.epoch:", "if topic:",
        (IN_KAFKA + "records_with_the_offsets_of_settled_ones_are_neither_skipped_nor_deleted",),
    ),
    # ranges
    "ranges-gap": Fault(
        "ranges", "a gap of one before a stored range is not stored", STORE,
        "        if first > start:\n", "        if first > start + 1:\n",
        (ON_SQLITE + "a_claim_whose_entries_end_early_is_stored_in_part_and_its_rest_later",
         ON_SQLITE + "a_number_between_folded_ranges_is_not_stored_until_it_is"),
    ),
    "ranges-rest": Fault(
        "ranges", "what follows the last stored range is not stored", STORE,
        "    if start < claim.end:\n", "    if start < claim.end - 1:\n",
        (ON_SQLITE + "a_claim_with_other_boundaries_stores_only_what_is_not_there",),
    ),
    "ranges-overlap-sqlite": Fault(
        "ranges", "SQLite takes a claim that begins with the last stored body", SQLITE,
        "if last >= claim.first:", "if last > claim.first:",
        (ON_SQLITE + "a_claim_that_begins_with_the_last_stored_body_stores_the_others",),
    ),
    "ranges-overlap-postgres": Fault(
        "ranges", "PostgreSQL takes a claim that begins with the last stored body", TABLES,
        'SPAN = range_sql("stream", "epoch", "first", "last + 1")',
        'SPAN = range_sql("stream", "epoch", "first", "last")',
        (ON_POSTGRES + "a_claim_that_begins_with_the_last_stored_body_stores_the_others",),
    ),
    "ranges-bodies": Fault(
        "ranges", "the second part of a claim is stored without its last body", STORE,
        "if part.first <= body.seq < part.end]", "if part.first <= body.seq < part.end - 1]",
        (ON_SQLITE + "a_claim_with_other_boundaries_stores_only_what_is_not_there",),
    ),
    # the window of keys
    "keys-horizon": Fault(
        "keys' window", "a key is as old as a clock that is behind says", KEYS,
        "int(time.time()), horizon)", "int(time.time()))",
        (KEY + "a_key_is_kept_for_its_window_though_the_clock_was_behind_when_it_was_put",),
    ),
    "keys-cells": Fault(
        "keys' window", "the window of another cell is not kept", EXPIRY,
        "self.ages |= {name: max(age, self.ages.get(name, 0))", "self.ages |= {name: self.ages.get(name, age)",
        (KEY + "keys_are_kept_for_the_longest_window_of_all_cells",),
    ),
    "keys-expired": Fault(
        "keys' window", "a key that expires while it is put is not put again", KEYS,
        "left = [key for key in left if key not in owners]", "left = []",
        ("tests/contrib/postgres/test_postgres_keys.py::test_a_key_that_expires_while_it_is_put_again_is_put",),
    ),
    "keys-replay": Fault(
        "keys' window", "a replayed body leaves its keys to its copy in the same batch", "sluice/store/replay.py",
        "                leave_keys(keys)", "                pass",
        (KEY + "of_two_copies_that_are_dead_in_one_batch_a_replay_stores_one",),
    ),
    "keys-copies": Fault(
        "keys' window", "copies within one claim are all stored", KEYS,
        "seen.add(key)", "pass",
        (KEY + "a_body_with_a_key_is_stored_once_whatever_it_says",),
    ),
    # outbox
    "outbox-unknown": Fault(
        "outbox", "an object is deleted when it is not known whether its note was committed", OUTBOX,
        "made.close(delete=not noted)", "made.close(delete=True)",
        (PARQUET + "rows_whose_commit_was_not_answered_are_published_before_the_next_ones",),
    ),
    "outbox-missing": Fault(
        "outbox", "the note of an object that is missing is forgotten", OUTBOX,
        "                    return False\n            except (Unwritable, Unavailable):",
        "                    pass\n            except (Unwritable, Unavailable):",
        (PARQUET + "an_object_that_is_missing_keeps_its_note_and_holds_up_nothing",),
    ),
    "outbox-order": Fault(
        "outbox", "a stream stores more while one of its objects waits", OUTBOX,
        "        if streams & self.late.keys():\n", "        if False:\n",
        (IN_OUTBOX + "an_object_that_cannot_be_published_holds_up_only_those_of_its_stream",),
    ),
    "outbox-grace": Fault(
        "outbox", "the new object of another worker is published", OUTBOX,
        "elif not why and (destination.own(name) or self.seen[name] + destination.GRACE_SECONDS <= now):",
        "elif not why:",
        (IN_OUTBOX + "an_object_that_cannot_be_published_holds_up_only_those_of_its_stream",),
    ),
    "outbox-address": Fault(
        "outbox", "another destination publishes what waits", OUTBOX,
        "if destination is None or bare_url(address) != destination.place() or destination.address() != address:",
        "if destination is None:",
        (IN_OUTBOX + "what_waits_is_published_by_its_own_destination_only",),
    ),
    # the views' lease
    "views-held": Fault(
        "views' lease", "a script writes without the lease", VIEWS,
        "HELD = f\"\"\"\nif redis.call('GET', KEYS[1]) ~= ARGV[1] then", "HELD = f\"\"\"\nif false then",
        (FOLLOW + "a_script_without_the_lease_changes_nothing",),
    ),
    "views-take": Fault(
        "views' lease", "a second follower takes the lease of the first", VIEWS,
        "ARGV[1], 'NX', 'PX', ARGV[2])", "ARGV[1], 'PX', ARGV[2])",
        (HOLDER,),
    ),
    "views-alive": Fault(
        "views' lease", "the lease of a living follower is ended", LEASE,
        'if holder and not client.ask(("CLIENT", "LIST", "ID", holder.partition(b":")[0]))[0]:', "if holder:",
        (HOLDER,),
    ),
    "views-watch": Fault(
        "views' lease", "a feed is written although the lease has passed on meanwhile", FOLLOWER,
        '*window, ("WATCH", contract.TAKEN), ("GET", contract.HOLDER)', '*window, ("GET", contract.HOLDER)',
        (FOLLOW + "a_feed_is_not_written_once_another_follower_has_the_lease",),
    ),
    "views-position": Fault(
        "views' lease", "a view that could not be written skips its rows", FOLLOWER,
        "if generation in self.generations and not generation.retry_at]", "if generation in self.generations]",
        (FOLLOW + "a_view_that_cannot_be_written_holds_up_no_other",),
    ),
    # retention
    "retention-clock": Fault(
        "retention", "rows are deleted by a clock that jumped ahead", EXPIRY,
        "        before = min(before, allowed)\n", "",
        (ON_SQLITE + "a_clock_that_jumps_before_the_first_deletion_deletes_nothing",),
    ),
    "retention-cells": Fault(
        "retention", "what another cell keeps longer is deleted", EXPIRY,
        "longer = max(longer, (cell, ages[name]), key=lambda each: each[1])", "pass",
        (ON_SQLITE + "what_another_cell_keeps_is_not_deleted_until_that_cell_is_forgotten",),
    ),
    "retention-last-row": Fault(
        "retention", "SQLite's last row is deleted, and its rowid given again", SQLITE,
        "rowid < ({last}) AND", "rowid <= ({last}) AND",
        (ON_SQLITE + "the_last_row_of_a_stream_is_not_deleted_by_age",),
    ),
    "retention-letters": Fault(
        "retention", "a body with two dead letters expires twice", BOOKS,
        'if not self.run_sql(db, "SELECT 1 FROM dead_letters WHERE stream = ? AND batch = ? AND seq = ?", body):',
        "if True:",
        (ON_SQLITE + "a_body_whose_letters_two_workers_delete_is_counted",),
    ),
    # Kafka's offsets
    "kafka-offset": Fault(
        "Kafka's offsets", "the offset behind the next record is committed", KAFKA,
        "self.uncommitted[number] = Place(claim.end - 2, claim.epoch)",
        "self.uncommitted[number] = Place(claim.end - 1, claim.epoch)",
        (IN_KAFKA + "a_worker_that_begins_anew_goes_on_with_the_record_behind_the_last_settled_one",),
    ),
    "kafka-cut": Fault(
        "Kafka's offsets", "an offset counts in a log that was cut since", KAFKA,
        "        if epoch != before.epoch:\n            log.warning(", "        if False:\n            log.warning(",
        (IN_KAFKA + "records_with_the_offsets_of_settled_ones_are_neither_skipped_nor_deleted",),
    ),
    "kafka-commit": Fault(
        "Kafka's offsets", "an offset whose commit was lost is not committed again", KAFKA,
        "        if self.uncommitted and time.monotonic() >= self.commit_at:\n", "        if False:\n",
        (IN_KAFKA + "an_offset_is_committed_again_until_that_succeeds",),
    ),
    "kafka-beginning": Fault(
        "Kafka's offsets", "without a settled offset, a worker begins at the end", KAFKA,
        "if each.partition in self.before else OFFSET_BEGINNING\n", "if each.partition in self.before else -1\n",
        (IN_KAFKA + "a_worker_that_begins_anew_goes_on_with_the_record_behind_the_last_settled_one",),
    ),
    # matching of replies
    "reply-refused-mark": Fault(
        "reply matching", "a push whose mark was refused is accepted", INLET,
        "                if refused:  # the bodies", "                if False:  # the bodies",
        (SPOOL + "bodies_that_a_redis_took_without_their_mark_are_refused",),
    ),
    "reply-report": Fault(
        "reply matching", "the reply to the counts is read last, and theirs by a push", INLET,
        "readers.insert(0, partial(self.read_report, delta, now))",
        "readers.append(partial(self.read_report, delta, now))",
        (SPOOL + "a_push_that_is_refused_beside_a_report_of_counts_is_refused",),
    ),
    "reply-signal": Fault(
        "reply matching", "after a signal, the next group reads the reply that was left", INLET,
        "                self.disconnect(error)\n                self.refuse_all(group)\n                raise",
        "                self.refuse_all(group)\n                raise",
        (SPOOL + "a_signal_during_the_reply_refuses_the_batch",),
    ),
    "reply-polling": Fault(
        "reply matching", "after a signal, the reply to a look is left for the next one", "sluice/base/connect.py",
        "    except BaseException:\n        link.disconnect()\n        raise", "    except MemoryError:\n        raise",
        (SPOOL + "a_signal_during_a_reply_leaves_none_for_the_next_command",),
    ),
    "reply-replicas": Fault(
        "reply matching", "one replica is enough, however many are required", INLET,
        "self.behind = int(self.redis.read_response() < self.required)",
        "self.behind = int(self.redis.read_response() < 0)",
        ("tests/spool/test_replicas.py::test_a_body_that_too_few_replicas_confirm_gets_503_and_retries_add_no_copies",),
    ),
    "reply-mark": Fault(
        "reply matching", "after a lost connection, a push has no mark, and perhaps the numbers of others", INLET,
        "        for backlog in self.backlogs.values():\n            backlog.mark_due = AT_ONCE\n        if",
        "        if",
        (SPOOL + "the_first_push_after_a_lost_connection_or_an_error_is_marked",),
    ),
    "reply-behind": Fault(
        "reply matching", "while replicas are behind, each retry adds another copy", INLET,
        "if self.behind and not self.caught_up(group):", "if False:",
        ("tests/spool/test_replicas.py::test_a_body_that_too_few_replicas_confirm_gets_503_and_retries_add_no_copies",),
    ),
    # order of groups
    "group-twice": Fault(
        "group order", "a group that is sent is sent again", INLET,
        "            if group.done:\n                return\n", "",
        (SPOOL + "a_committed_batch_is_not_sent_again",),
    ),
    "group-open": Fault(
        "group order", "bodies are added to a group that is being sent", INLET,
        "            with self.entry:\n                self.open = Group()\n            try:\n"
        "                self.push_group(group)",
        "            try:\n                self.push(group)\n                self.open = Group()",
        (SPOOL + "no_body_is_added_to_a_batch_that_is_being_sent",),
    ),
    "group-answers": Fault(
        "group order", "answers of one client are sent in another order than its requests", LOOP,
        "        self.answer(pending)\n", "        self.answer(pending[::-1])\n",
        (FASTLANE + "fast_and_slow_requests_in_one_write_are_answered_in_order",),
    ),
    "group-slow": Fault(
        "group order", "the slow lane's answer overtakes those that the fast lane holds", LOOP,
        "                elif not conn.out:\n                    self.decline(conn)",
        "                else:\n                    self.decline(conn)",
        (FASTLANE + "unread_answers_of_the_fast_lane_precede_that_of_the_slow_lane",),
    ),
    # the drain of a reload
    "drain-half": Fault(
        "reload's drain", "a stop cuts off bodies that are being received", LOOP,
        "while (self.connections or self.slow_count) and", "while self.slow_count and",
        (FASTLANE + "requests_read_before_a_stop_are_committed_and_answered",),
    ),
    "drain-idle": Fault(
        "reload's drain", "a gateway that stops does not close with its next answer", LOOP,
        "            pending = self.answers.closing(pending)\n", "            pass\n",
        (FASTLANE + "requests_read_before_a_stop_are_committed_and_answered",),
    ),
    "drain-slow": Fault(
        "reload's drain", "a stop does not wait for requests in the slow lane", LOOP,
        "while (self.connections or self.slow_count) and", "while self.connections and",
        (FASTLANE + "a_stop_waits_for_a_request_that_the_slow_lane_alone_has",),
    ),
    "drain-successor": Fault(
        "reload's drain", "the old gateway is stopped before the new one serves", RELOAD,
        '    wait_until(serving, f"the second {name} serves")\n', "    serving()\n",
        ("tests/run/test_reload.py::test_a_gateway_that_cannot_start_does_not_replace_the_running_one",),
    ),
    # folding of batches
    "folding-gap-postgres": Fault(
        "folding of batches", "PostgreSQL joins ranges over a gap of one", POSTGRES,
        "if ranges and low <= ranges[-1][1] + 1:", "if ranges and low <= ranges[-1][1] + 2:",
        (ON_POSTGRES + "a_number_between_folded_ranges_is_not_stored_until_it_is",),
    ),
    "folding-letters": Fault(
        "folding of batches", "a batch with dead letters is folded", STORE,
        "id > ? AND id <= ? AND NOT {HAS_LETTERS} {self.SKIP_LOCKED}", "id > ? AND id <= ? {self.SKIP_LOCKED}",
        (ON_SQLITE + "old_batches_are_folded_and_their_bodies_stay_stored",),
    ),
    "folding-final": Fault(
        "folding of batches", "batches are folded while a lower id can still appear", STORE,
        "if not self.is_alone(db) or not self.is_final(db, last, highest):",
        "if not self.is_alone(db):",
        (FOLLOW + "a_batch_is_folded_when_no_lower_id_can_appear",),
    ),
    # partitions
    "partition-early": Fault(
        "partitions", "a partition is dropped by its first row, an eighth of the age too early", POSTGRES,
        "if partition.end <= at]", "if partition.start <= at]",
        (PARTITIONS + "a_partition_is_dropped_when_its_last_row_is_old",),
    ),
    "partition-age": Fault(
        "partitions", "by the server's clock, a partition is old after seven eighths of the age", POSTGRES,
        "present - timedelta(seconds=age))", "present - timedelta(seconds=age * 7 / 8))",
        (PARTITIONS + "a_partition_is_dropped_when_its_last_row_is_old",),
    ),
    "partition-clock": Fault(
        "partitions", "a clock ahead of the server drops partitions of its present", POSTGRES,
        "at = min(START + timedelta(microseconds=before), present - timedelta(seconds=age))",
        "at = START + timedelta(microseconds=before)",
        (PARTITIONS + "a_clock_ahead_of_the_server_drops_no_partition_of_its_present",),
    ),
    "partition-late": Fault(
        "partitions", "a row that arrives while its partition is counted is dropped uncounted", POSTGRES,
        '            run_sql(db, f"LOCK TABLE {partition} IN EXCLUSIVE MODE")  # a late row would not be counted\n', "",
        (PARTITIONS + "a_late_row_of_a_partition_that_is_dropped_is_counted",),
    ),
    "partition-count": Fault(
        "partitions", "rows of a dropped partition are not counted", POSTGRES,
        "            self.count_deleted(db, stream, rows)\n            for left", "            for left",
        (PARTITIONS + "a_partition_is_dropped_when_its_last_row_is_old",),
    ),
}  # fmt: skip


class Trial:
    """A copy of the tree, in which one fault after the other is made."""

    def __init__(self) -> None:
        self.tree = copy_tree("planted")
        (self.tree / "var").mkdir(exist_ok=True)
        for place in (ROOT / "var").glob("*"):  # what bin/provision has made, such as a broker of Kafka
            if place.name not in ("mutants", "tmp"):
                (self.tree / "var" / place.name).symlink_to(place)
        harness = self.tree / "proving/harness.py"
        harness.write_text(harness.read_text().replace("PATIENCE = 120.0", f"PATIENCE = {POLL_SECONDS}"))
        self.moments = itertools.count(int(time.time()), 2)

    def write(self, path: str, text: str) -> None:
        """Change a file. Its time differs from that of every earlier version: Python knows compiled files by it."""
        (self.tree / path).write_text(text)
        moment = next(self.moments)
        os.utime(self.tree / path, (moment, moment))

    def sound(self, tests: list[str]) -> str:
        """Run tests without a fault: the first one that fails, or ""."""
        return failing(self.tree, tests, 10 * PATIENCE)

    def find(self, fault: Fault) -> tuple[str, float]:
        """Make a fault: what found it, or "", and after how many seconds."""
        whole, began = (self.tree / fault.path).read_text(), time.monotonic()
        self.write(fault.path, whole.replace(fault.text, fault.wrong))
        try:
            return failing(self.tree, [*fault.tests], PATIENCE), time.monotonic() - began
        finally:
            self.write(fault.path, whole)


def find_by_history(name: str) -> tuple[str, float]:
    """Make one of PLANTS: the first seed whose history shows something wrong, or "", and after how many seconds."""
    command, began = [sys.executable, "-m", "proving.histories", "--first", "--seeds", SEEDS], time.monotonic()
    said = subprocess.run([*command, "--plant", name], cwd=ROOT, capture_output=True, text=True)
    found = re.search(r"^seed \d+", said.stdout, re.MULTILINE)
    return f"history, {found[0]}" if found else "", time.monotonic() - began


def row(name: str, found: str, seconds: float) -> str:
    place, what = "histories", name.replace("-", " ")
    if name in FAULTS:
        place, what, *_ = FAULTS[name]
    by = found.rpartition("::")[2].removeprefix("test_") or "**nothing**"
    return f"| {place} | `{name}` | {what} | {by} | {seconds:.0f} |"


def main() -> int:
    every = [*FAULTS, *PLANTS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, metavar="FILE", help="write the table to this file, too")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of faults (all {len(every)})")
    options = parser.parse_args()
    names = options.names or every
    if unknown := [name for name in names if name not in every]:
        parser.error(f"there is no fault {', '.join(unknown)}; there are {', '.join(every)}")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if a script has started this with &
    tests = [*dict.fromkeys(test for name in names if name in FAULTS for test in FAULTS[name].tests)]
    trial = Trial() if tests else None
    if trial and (failed := trial.sound(tests)):
        sys.exit(f"sluice: {failed} fails without a fault")
    lines = ["| place | fault | what it does | found by | seconds |", "|---|---|---|---|---:|"]
    print(*lines, sep="\n", flush=True)
    survived = 0
    for name in names:
        found, seconds = trial.find(FAULTS[name]) if trial and name in FAULTS else find_by_history(name)
        survived += not found
        lines.append(row(name, found, seconds))
        print(lines[-1], flush=True)
    last = f"{len(names) - survived} of {len(names)} found"
    print(f"\n{last}")
    if options.results:
        head = "# Which test finds a planted fault?", "", "`bin/test --planted --results bench/results/mutants.md`", ""
        options.results.write_text("\n".join([*head, *lines, "", f"{last}.", ""]))
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
