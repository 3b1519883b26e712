"""What no history may show: the drill's and the ledger's invariants.

- What was acknowledged is stored, or a dead letter, or has the key of a body that is, or was purged or deleted by age.
- No body is stored twice, whatever claims it was in; no key within its window.
- accepted = ready + claimed + stored + dead + duplicate + expired + purged, at any moment, and no term is negative.
- At the end these terms are what the rows, the letters and Redis's list say.
- A worker that lives and reaches Redis keeps its claim.
- A view has the values that a rebuild gives.
- Nothing waits for ever, and nothing fails in a way that the product does not know.

If Redis's log lost its end (everysec), what was acknowledged may be gone; all the rest holds.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from typing import Any

import apsw

from proving.histories.clock import Process
from proving.histories.processes import LIST, STREAMS, VIEWS, VIEWS_LIST, key_of
from proving.histories.wire import Socket
from sluice.account import stream_balance, stream_ledger
from sluice.base.times import microseconds
from sluice.contrib.views.check import Checker
from sluice.parsers import FOREVER
from sluice.spool.contract import LEASE_SECONDS
from sluice.spool.errors import SPOOL_ERRORS
from sluice.spool.inspector import Inspector
from sluice.store.types import Unavailable

TERMS = "ready", "claimed", "stored", "dead", "duplicate", "expired", "purged"
LOOK_SECONDS = 3.0  # between two looks at the sum
GRACE_SECONDS = 1.5  # beyond a lease, in which a worker that is not disturbed renews it
MARGIN_SECONDS = 1.5  # of a window: keys have whole seconds, and a claim is stored after it began


class Checks:
    """wrong: what was found.

    batches: id -> when it was stored (microseconds since 1970), and when it was first seen (monotonic).
    """

    def __init__(self, history: Any) -> None:
        self.history, self.world = history, history.world
        self.wrong: list[str] = []
        self.batches: dict[int, tuple[int, float]] = {}
        # id of a claim -> the worker that got it last, and whether it had another one then
        self.holders: dict[str, tuple[str, bool]] = {}

    @property
    def cast(self) -> Any:
        return self.history.cast

    def report(self, text: str) -> None:
        if text not in self.wrong:
            self.wrong.append(text)
            self.world.say(f"! {text}")

    def done(self) -> bool:
        return bool(self.wrong)

    # --- leases

    def claimed(self, link: Socket, stream: str, reply: Any) -> None:
        """A worker gets a claim; was it another one's, which is alive and well? stream: the key of its list."""
        if not isinstance(reply, list):
            return
        id, deliveries = reply[0].decode(), reply[5]
        holder, ahead = self.holders.get(id, ("", False))
        mine = self.cast.programs.get(link.process.name)
        self.holders[id] = (
            link.process.name,
            mine is not None
            and any(state.prefetched and f"{{{state.stream.name}}}" in stream for state in mine.states),
        )
        # one that is requested ahead is not renewed before its turn
        if deliveries == 1 or holder in ("", link.process.name) or ahead:
            return
        process, program = self.cast.processes[holder], self.cast.programs.get(holder)
        since = max(self.cast.disturbed.get(holder, 0.0), self.cast.disturbed.get("", 0.0), process.began)
        if (
            process.alive
            and not process.stalled > self.world.seconds
            and program
            and not program.stopping
            and any(state.claim and state.claim.id == id for state in program.states)
            and self.world.seconds - since > LEASE_SECONDS + GRACE_SECONDS
        ):
            self.report(f"the claim {id} of {holder}, which lives, was given to {link.process.name}")

    # --- the sum

    def observe(self) -> None:
        """Look at the ledger now and then."""
        inspector, store = Inspector(LIST, 3.0), None
        while True:
            self.world.sleep(LOOK_SECONDS)
            with contextlib.suppress(*SPOOL_ERRORS, Unavailable):
                store = store or self.cast.store(self.cast.life)
                try:
                    for name in STREAMS:
                        self.look(store, name, inspector)
                    with store.transaction(read=True) as db:
                        for id, at in store.run_sql(db, "SELECT id, persisted_at FROM batches"):
                            self.batches.setdefault(id, (microseconds(at), self.world.seconds))
                finally:
                    if store.db:
                        store.db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                    store.close()

    def look(self, store: Any, name: str, inspector: Inspector) -> dict[str, Any]:
        snapshot = inspector.take_snapshot(name)
        ledger = stream_ledger(store, name, snapshot, "cell")
        figures: dict[str, Any] = {**stream_balance(snapshot, ledger)}
        terms = {term: figures[term] for term in TERMS}
        left = figures["accepted"] - sum(terms.values())
        if min(terms.values()) < 0:
            self.report(f"{name}: a term of the sum is negative: {figures}")
        if left and not self.history.lost:
            self.report(f"{name}: the sum leaves {left}: {figures}")
        return figures

    def pause(self) -> None:
        self.history.observer.kill()

    def resume(self) -> None:
        observer = self.history.observer = Process(self.world, "observer")
        self.world.spawn(observer, self.observe)

    # --- the end

    def left(self) -> dict[str, Any]:
        """What is not stored yet."""
        found: dict[str, Any] = {}
        for key, value in self.cast.redis.data.items():
            if key.endswith(b"}") or b":claim:" in key:
                found[key.decode()] = len(value)
        senders = [process.name for process in self.world.processes if process.name[0] == "e" and process.tasks]
        if senders:
            found["senders"] = senders
        with contextlib.suppress(apsw.Error), contextlib.closing(apsw.Connection(f"{self.history.place}/db")) as db:
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            if noted := db.execute("SELECT count(*) FROM batches_objects").get:
                found["notes"] = noted
        return found

    def drained(self) -> bool:
        cast = self.cast
        there = all(cast.processes[name].alive for name in self.history.names())
        return there and cast.redis.up and not self.left()

    def final(self) -> None:
        """All is stored: compare it with what was sent."""
        self.world.sleep(3.0)
        store = self.cast.store(self.cast.life)
        inspector = Inspector(LIST, 3.0)
        found = Found(self)
        for name in STREAMS:
            figures = self.look(store, name, inspector)
            found.check_stream(name, figures)
        store.close()
        found.check_events()
        self.check_views()

    def check_views(self) -> None:
        keep = FOREVER if not self.history.kept_short else self.cast.keep(self.longest())
        checker = Checker(VIEWS_LIST, self.cast.url, self.cast.streams(None, self.cast.life), keep)
        for path, view in VIEWS.items():
            for _ in range(20):  # until it is built
                checked = checker.check(path, view)
                if checked.state == "served":
                    break
                self.world.sleep(1.0)
            if checked.state != "served":
                self.report(f"{path} is {checked.state}")
            elif checked.different:
                self.report(f"{path} differs from its rebuild in {checked.different}")
        checker.close()

    def longest(self) -> Any:
        """Settings with which rows may have been deleted by age."""
        life = self.cast.life
        return type(life)(life.unique, dict.fromkeys(STREAMS, 1), life.far, life.version)


class Found:
    """What the database and the sinks have.

    rows: (stream, event, copy, part) -> where: (batch, sequence number, when it arrived). letters: (stream, event,
    copy) -> (batch, sequence number).
    """

    def __init__(self, checks: Checks) -> None:
        self.checks, self.history, self.cast = checks, checks.history, checks.cast
        self.rows: dict[Any, list[tuple[int, int, int]]] = defaultdict(list)
        self.letters: dict[Any, list[tuple[int, int]]] = defaultdict(list)
        self.bodies: dict[str, set[tuple[int, int]]] = defaultdict(set)
        with contextlib.closing(apsw.Connection(f"{self.history.place}/db")) as db:
            if (said := db.execute("PRAGMA integrity_check").get) != "ok":
                checks.report(f"the database is damaged: {said}")
            there = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            for name in sorted(there.intersection(STREAMS)):
                query = f"SELECT id, copy, part, batch, seq, received_at FROM {name}"  # noqa: S608
                for id, copy, part, batch, seq, at in db.execute(query):
                    self.add(name, id, copy, part, batch, seq, microseconds(at))
            for name, batch, seq, body in db.execute("SELECT stream, batch, seq, body FROM dead_letters"):
                self.bodies[name].add((batch, seq))
                if (known := key_of(body)) is None:
                    checks.report(f"{name}: a dead letter of no event: {body!r}")
                else:
                    self.letters[name, known[0]].append((batch, seq))
        self.dead = {name: len({*(pair for (of, _), some in self.letters.items() if of == name for pair in some)})
                     for name in STREAMS}  # fmt: skip
        for name, sink in self.cast.sinks.items():
            for batch, seq, received, values in sink.rows:
                self.add(name, values["id"], values["copy"], values["part"], batch, seq, received)

    def add(self, name: str, id: str, copy: int, part: int, batch: int, seq: int, received: int) -> None:
        self.rows[name, id, copy, part].append((batch, seq, received))
        self.bodies[name].add((batch, seq))

    def check_stream(self, name: str, figures: dict[str, Any]) -> None:
        """The ledger against the rows, the letters and what was pushed."""
        history, report = self.history, self.checks.report
        if history.lost:
            return
        pushed = history.pushed[name]
        if figures["accepted"] != pushed:
            report(f"{name}: accepted is {figures['accepted']}, and Redis got {pushed}")
        purged = sum(count for item, count in history.discarded.items() if self.stream_of(item) == name)
        if figures["purged"] != purged:
            report(f"{name}: purged is {figures['purged']}, and {purged} were")
        if figures["ready"] or figures["claimed"]:
            report(f"{name}: {figures['ready']} ready and {figures['claimed']} claimed at the end")
        if history.kept_short:
            return
        if figures["dead"] != self.dead[name]:
            report(f"{name}: dead is {figures['dead']}, and {self.dead[name]} bodies have letters")
        there = len(self.bodies[name])
        if figures["stored"] + figures["dead"] != there:
            report(f"{name}: stored is {figures['stored']} and dead {figures['dead']}, and {there} bodies are there")

    def stream_of(self, item: bytes) -> str:
        known = key_of(item)
        return self.history.posted[known[0]].stream if known else ""

    def check_events(self) -> None:
        history, report = self.history, self.checks.report
        by_event: dict[str, list[Any]] = defaultdict(list)
        for (name, id, copy, part), places in self.rows.items():
            event = history.posted.get(id)
            if event is None or event.stream != name or copy >= max(1, len(event.attempts)):
                report(f"{name}: a row of {id}, copy {copy}, which was not sent")
                continue
            by_event[id] += [(copy, part, *place) for place in places]
            if name != "content" and len(places) > 1:
                report(f"{name}: {id}, copy {copy}, part {part} is stored {len(places)} times: {places}")
        windows = {
            name: 0 if name == "plain" else min(life.unique[name] for life in history.cast.lives) for name in STREAMS
        }
        for id, event in history.posted.items():
            rows, letters = by_event[id], self.letters[event.stream, id]
            self.check_acknowledged(event, rows, letters)
            if (window := windows[event.stream]) and not history.kept_short:
                self.check_window(event, rows, window)

    def check_acknowledged(self, event: Any, rows: list[Any], letters: list[Any]) -> None:
        history = self.history
        if history.lost or history.kept_short:
            return
        acknowledged = [attempt for attempt in event.attempts if attempt.status == "acknowledged"]
        discarded = Counter(history.discarded)
        if event.stream == "plain":
            there = {copy for copy, *_ in rows} | {copy for copy in self.copies_of_letters(event.id)}
            for attempt in acknowledged:
                if attempt.copy not in there and not discarded[attempt.item]:
                    self.checks.report(f"{event.id}.{attempt.copy} was acknowledged, and is not there")
        elif acknowledged and not rows and not letters:
            gone = sum(discarded[item] for item in {attempt.item for attempt in event.attempts})
            if not gone:
                self.checks.report(f"{event.id} was acknowledged, and is not there")

    def copies_of_letters(self, id: str) -> set[int]:
        copies = set()
        with contextlib.closing(apsw.Connection(f"{self.history.place}/db")) as db:
            for (body,) in db.execute("SELECT body FROM dead_letters WHERE stream = 'plain'"):
                known = key_of(body)
                if known and known[0] == id:
                    copies.add(known[1])
        return copies

    def check_window(self, event: Any, rows: list[Any], window: int) -> None:
        """Two bodies of an event are stored only if a window is between them."""
        if event.kind in ("bad", "half") and event.stream == "content":
            return  # they have no key
        history = self.history
        bodies = {(batch, seq, received) for _, _, batch, seq, received in rows}
        seen = self.checks.batches
        if not history.stepped:
            times = [max(received / 1e6, seen[batch][0] / 1e6) for batch, _, received in bodies if batch in seen]
        elif history.boots == 1:  # a clock that was set makes time pass twice as fast at most, until the next boot
            times = [seen[batch][1] for batch, *_ in bodies if batch in seen]
            window = window // 2 - int(LOOK_SECONDS) - 1
        else:
            return
        times.sort()
        for one, other in zip(times, times[1:]):
            if other - one < window - MARGIN_SECONDS:
                self.checks.report(
                    f"{event.id} is stored twice within {other - one:.1f} s, and its key is kept for {window} s"
                )
