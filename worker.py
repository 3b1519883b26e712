"""The daemon between the list and the database: claim, decode, persist, settle; bury bodies that cannot be stored.

worker.py [run]   until SIGTERM or SIGINT: finishes the present batch; a second signal exits at once and loses nothing
worker.py burst   until the lists are empty; status 1 if anything was buried in dead_letters

No body holds up the others. Of a claim, a worker decodes bodies for about a second and stores these in one transaction;
the rest of it follows when the other streams had their turn. A body that takes CPU_SECONDS ends this process. A claim
that has ended two of them is stored body by body, and a body that then ends two more is buried as it was sent. So is
one that needs more of the disk than there is, although there is some.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from redis.exceptions import ResponseError

from sluice import registry, settings
from sluice.account import SHARED, Publisher, shared_settings
from sluice.base import counters, daemon
from sluice.parsers import FOREVER, Keep
from sluice.spool import open_spool
from sluice.spool.claim import Claim
from sluice.spool.contract import AT_ONCE, RENEW_SECONDS
from sluice.spool.errors import SPOOL_ERRORS, Lost, NewerLayout, in_one_line
from sluice.spool.outlet import ALONE, MAX_BODIES, MAX_BYTES, Outlet, Request
from sluice.store import transaction_limits
from sluice.store.chores import Chores, worker_chores
from sluice.store.database_identity import has_stored, require_file
from sluice.store.decoding import SAMPLE, Group, decode_claim, trace_of
from sluice.store.registry import check_store, open_destinations, open_store
from sluice.store.store import RowDestinations, Store, key_names
from sluice.store.types import Body, Full, NewerTables, Outcome, Unavailable
from sluice.streams.built_in import load_streams
from sluice.streams.record import Limits, Reject
from sluice.streams.registry import Stream, body_limits

log = logging.getLogger("sluice.worker")

# Between two polls while no claim is full: a lone body waits less than 100 ms, and an idle worker takes less
# than 1 % of a core. Bodies collect meanwhile: few large transactions instead of many small ones.
IDLE_SECONDS = 0.03
# Streams take turns, and of the slow ones only one in each turn. A claim holds as many bodies as should take
# TURN_SECONDS (of CPU, or of decoding if decoders wait for something) at the rate of the last claim, but at most
# FIRST_BODIES or twice as many as the last one: a burst of expensive bodies must not delay the other streams.
FIRST_BODIES = 64
SLOW_SECONDS = 0.25
CPU_SECONDS = 30.0  # for one transaction; SIGPROF then ends the process: no Python code runs beside a hanging pattern
DEADLY = "the worker ended while it decoded this body"
UNFIT = "it becomes more than the disk has room for"
ROOM_BYTES = 8 << 20  # with less room for one transaction, nothing is buried for that: it is the disk that is full
ATTEMPTS = 2  # to store a body alone that did not return; after these it is buried
BACKOFF_SECONDS = (0.1, 10.0)  # between two attempts while the store or Redis is unavailable: first, maximum


class StreamState:
    """One stream in this worker: the claim in progress, the prefetched one, and the size of the one after."""

    def __init__(self, stream: Stream, outlet: Outlet) -> None:
        self.stream = stream
        counts = outlet.counts
        self.decoded = counts.histogram(f"decode_seconds {stream.name}", counters.SECONDS)
        self.persisted = counts.histogram(f"persist_seconds {stream.name}", counters.SECONDS)
        self.errors = counts.counter(f"store_errors {stream.name}")
        self.senders = [make(counts) for make in registry.load_hooks("senders")]
        self.samplers = [make(counts, stream) for make in registry.load_hooks("samplers")]
        self.claim: Claim | None = None
        self.prefetched: Request | None = None  # of the next claim
        self.max_bodies = FIRST_BODIES  # of the next claim
        self.error = ""  # of the last attempt to persist a claim
        self.backoff = 0.0  # seconds between two attempts to persist the claim
        self.unfit = "", 0  # epoch and number of the body that needs more of the disk than there is
        self.retry_at = AT_ONCE  # monotonic
        self.slow, self.began = False, 0.0  # whether the last step was slow; when it began

    def held_claims(self, wait: bool = False) -> list[Claim]:
        """The claim in progress, and the next one, once its reply has come. wait: for that."""
        prefetched = self.prefetched
        return [claim for claim in (self.claim, prefetched(wait) if prefetched else None) if claim]

    def postpone(self) -> None:
        """Keep the claim for a later attempt. Its lease stays alive, and the other streams go on."""
        self.backoff = min(max(self.backoff * 2, BACKOFF_SECONDS[0]), BACKOFF_SECONDS[1])
        self.retry_at = time.monotonic() + self.backoff

    def size_next_claim(self, bodies: int, seconds: float) -> None:
        """bodies, seconds: that were stored, and how long it took."""
        fit = int(bodies * transaction_limits.TURN_SECONDS / max(seconds, 1e-6))
        self.max_bodies = max(1, min(fit, max(FIRST_BODIES, 2 * bodies), MAX_BODIES))


class Worker:
    """The loop: claim, persist and settle a batch of one stream after the other."""

    def __init__(
        self,
        outlet: Outlet,
        url: str,
        streams: dict[str, Stream],
        limits: Limits,
        publisher: Publisher | None = None,
        keep: Keep = FOREVER,
        row_destinations: RowDestinations | None = None,
        used: bool = False,
    ) -> None:
        """url: of the store. limits: of one body. publisher: of the figures of the cell.

        keep: INGEST_KEEP. row_destinations: of INGEST_ROWS. used: see `open_store`.
        """
        self.outlet = outlet
        self.publisher = publisher
        self.limits = limits
        self.store: Store[Any] | None = None
        self.states = [StreamState(stream, outlet) for stream in streams.values()]
        self.connect = partial(open_store, url, streams, keep=keep, row_destinations=row_destinations, used=used)
        self.chores = Chores(worker_chores(streams, keep, row_destinations), self.log_change)
        self.buried = 0
        self.stopping = self.released = False
        # A lock used as an event: unlike Event.set(), release() is safe in a signal handler. Held until `stop`.
        self.wake = threading.Lock()
        self.wake.acquire()
        self.logged: dict[str, str | None] = {}

    def run(self, burst: bool = False) -> None:
        """Work until `stop`; with `burst`, until the lists are empty. Raises: NewerLayout."""
        try:
            self.store = self.store or self.connect()
        except NewerTables:
            raise
        except Unavailable:  # logged when there is something to store
            pass
        threading.Thread(target=self.renew, name="renew", daemon=True).start()
        backoff = BACKOFF_SECONDS[0]
        watchdog = daemon.Watchdog()
        while not self.stopping:
            watchdog.report_alive()
            try:
                held = any(state.claim for state in self.states)
                work = self.outlet.has_work([state.stream.name for state in self.states])
                busy = False
                for state, some in sorted(zip(self.states, work), key=lambda each: (each[0].slow, each[0].began)):
                    if (some or state.claim) and not self.stopping:
                        busy |= self.try_step(state)
                        watchdog.report_alive()
                        if state.slow:
                            busy = True
                            break
                self.publish_figures()
                done = burst and not held and not any(work) and self.outlet.is_empty()
                self.log_change(self.outlet.name, None)
                backoff = BACKOFF_SECONDS[0]
            except NewerLayout:
                raise
            except Exception as error:
                known = isinstance(error, SPOOL_ERRORS)
                self.log_change(self.outlet.name, in_one_line(error) if known else f"an error: {trace_of(error)}")
                self.wake.acquire(timeout=backoff)
                backoff = min(backoff * 2, BACKOFF_SECONDS[1])
                continue
            if done:
                self.chores.do_each(self.store, lambda: self.stopping)
                break
            self.chores.do_next(self.store)
            if not busy:
                self.wake.acquire(timeout=IDLE_SECONDS)
        for state in self.states:
            if state.prefetched and not state.claim:
                with contextlib.suppress(*SPOOL_ERRORS):
                    self.try_step(state)
        self.release()
        if self.store:
            with contextlib.suppress(Unavailable):
                self.store.row_destinations.end(self.store)
        if burst:  # the next figures of this cell may never come
            with contextlib.suppress(*SPOOL_ERRORS):
                self.publish_figures(last=True)

    def publish_figures(self, last: bool = False) -> None:
        """Publish the figures of this cell, if the database is available. Raises: one of SPOOL_ERRORS, NewerTables."""
        if not (self.publisher and self.store):
            return
        try:
            self.publisher.publish(self.store, last)
            self.log_change(self.publisher.name, SHARED if self.publisher.shared else None)
        except NewerTables:
            raise
        except Unavailable:  # logged when there is something to store
            pass

    def stop(self) -> None:
        """Stop after the present batch. Call it once."""
        self.stopping = True
        self.wake.release()

    def try_step(self, state: StreamState) -> bool:
        """`step`, but an error of this stream delays only this stream: its claim is kept for a later attempt, or given
        up if it is lost. Raises: one of SPOOL_ERRORS, NewerLayout.
        """
        try:
            return self.step(state)
        except NewerLayout:
            raise
        except Lost as error:
            log.warning("%s", error)
            state.claim, state.backoff, state.error = None, 0.0, ""
            return True
        except Unavailable as error:
            why = state.error = f"{error.what} is unavailable: {error}"
            if isinstance(error, Full) and state.claim and state.backoff and error.room >= ROOM_BYTES:
                state.unfit = state.claim.epoch, state.claim.first
        except Exception as error:
            # a key of this stream is not as it should be: its script failed, and Redis works
            scripted = isinstance(error, ResponseError) and "script" in str(error)
            if isinstance(error, SPOOL_ERRORS) and not scripted:
                raise
            why = f"an error, tried again: {error if scripted else trace_of(error)}"
            if state.claim:
                state.error = f"unexpected error: {type(error).__name__}"
        state.errors.n += 1
        self.log_change(state.stream.name, why)
        state.postpone()
        return False

    def step(self, state: StreamState) -> bool:
        """Claim, persist and settle one batch of a stream; True if the stream should get its next step at once.

        Raises: Lost, Unavailable, one of SPOOL_ERRORS; nothing is settled then.
        """
        state.slow, state.began = False, time.monotonic()
        if state.began < state.retry_at:
            return False
        if state.claim is None:
            request = state.prefetched or self.outlet.request_claim(state.stream.name, state.max_bodies)
            state.prefetched = None
            state.claim = request()
        claim = state.claim
        if claim is None:
            return False
        cpu, decoding, began = time.thread_time(), state.decoded.sum, time.monotonic()
        try:
            outcome, group, decoding_cpu = self.persist(state, claim)
        finally:
            took = time.monotonic() - began
            state.slow = took >= SLOW_SECONDS
        end = group.end
        state.persisted.add(took)
        self.log_change(state.stream.name, None)
        self.buried += outcome.letters
        if outcome.letters:
            log.warning("%s: %d buried; `bin/sluice dead` lists them", state.stream.name, outcome.letters)
        state.claim, state.backoff, state.error = self.outlet.settle(claim, end), 0.0, ""
        full = claim.count >= state.max_bodies or claim.size >= MAX_BYTES
        seconds = max(time.thread_time() - cpu, SAMPLE * (state.decoded.sum - decoding))
        state.size_next_claim(end - claim.first, seconds)
        with limit_cpu():  # these bodies are settled: one that ends the worker here is not claimed again
            for sampler in state.samplers:
                sampler.look(group.bodies, self.limits, decoding_cpu)
        return bool(full or state.claim or self.outlet.has_more(claim.stream))

    def persist(self, state: StreamState, claim: Claim) -> tuple[Outcome, Group, float]:
        """Store a claim, or its first bodies: these, and the seconds of CPU of their decoding."""
        store = self.store = self.store or self.connect()
        items = self.outlet.read_items(claim)
        if claim.deliveries > 1:
            items = unstored(store, claim, items)
        # the spool executes the next claim while these bodies are stored; before, they would have waited for it
        self.prefetch(state, claim)
        if alone := claim.deliveries >= ALONE or bool(state.backoff):
            with store.transaction(read=True):  # while the database is away, nothing is decoded
                pass
        with self.attempt(state, claim) if claim.deliveries >= ALONE else contextlib.nullcontext() as reason:
            # the disk may have room for what one body becomes
            if not reason and state.backoff and state.unfit == (claim.epoch, claim.first):
                reason = UNFIT
            with limit_cpu():
                cpu = time.thread_time()
                if reason:
                    group = first_reject(claim, items[0], reason)
                else:
                    seconds = 0.0 if alone else transaction_limits.TURN_SECONDS
                    group = decode_claim(claim, items, state.stream, self.limits, state.decoded, seconds)
                cpu = time.thread_time() - cpu
                outcome = store.persist(claim.part(claim.first, group.end), group.bodies, self.limits)
        if not outcome.again and (names := key_names(group.bodies)):
            for count in state.senders:
                count.stored(claim.stream, names.values())
        for kind, n in group.without_rows.items():
            self.outlet.counts.counter(f"without_rows {claim.stream} {kind}").n += n
        return outcome, group, cpu

    @contextlib.contextmanager
    def attempt(self, state: StreamState, claim: Claim) -> Iterator[str]:
        """Count an attempt to store one body alone, as long as it lasts; why it is buried after ATTEMPTS, or ""."""
        name, reason = state.stream.name, ""
        ended = self.outlet.count_attempt(claim) - 1
        if ended >= ATTEMPTS:
            log.error("%s: claim %s has ended %d workers: its first body is buried", name, claim.id, ALONE - 1 + ended)
            reason = DEADLY
        else:
            log.warning("%s: delivery %d of claim %s: stored body by body", name, claim.deliveries, claim.id)
        try:
            yield reason
        finally:
            self.outlet.count_attempt(claim, -1)

    def prefetch(self, state: StreamState, claim: Claim) -> None:
        """Request the next claim while this one is stored.

        Only during a claim of the maximum size: a smaller one has emptied the list, or its time sets the next size. Not
        while the database is away.
        """
        if (
            claim.count == MAX_BODIES
            and claim.size <= MAX_BYTES
            and not (state.prefetched or state.backoff or self.stopping)
        ):
            state.prefetched = self.outlet.request_claim(claim.stream, state.max_bodies)

    def renew(self) -> None:
        """Keep the leases of held claims alive, however long the store takes, and report to Redis. Runs in a thread.

        Goes on while the worker stops: a lease that expires passes to another worker, and `release` would end it there.
        """
        while not self.released:
            with contextlib.suppress(Exception):  # the main loop logs it; if a lease ends, another worker claims
                held = [claim for state in self.states for claim in state.held_claims()]
                for claim in held:
                    self.outlet.renew(claim)
                self.outlet.report_state(held, {state.stream.name: state.error for state in self.states if state.error})
            time.sleep(RENEW_SECONDS)

    def release(self) -> None:
        """End the leases of claims that are not stored, so that other workers need not wait for them."""
        self.released = True
        with contextlib.suppress(*SPOOL_ERRORS):
            for state in self.states:
                for claim in state.held_claims(wait=True):
                    self.outlet.renew(claim, 0)
            self.outlet.report_state()
        self.outlet.close()

    def log_change(self, subject: str, why: str | None) -> None:
        """Log one line when trouble starts or changes, and one when it ends. subject: a stream or the spool."""
        if why != self.logged.get(subject):
            self.logged[subject] = why
            log.warning("%s: %s", subject, why) if why else log.info("%s: recovered", subject)


@contextlib.contextmanager
def limit_cpu() -> Iterator[None]:
    """End this process once it has taken CPU_SECONDS meanwhile."""
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def first_reject(claim: Claim, item: bytes, reason: str) -> Group:
    """The first body of a claim, which is buried as it was sent."""
    body = Body(claim.first, claim.arrival_of(claim.first)[0], item, (), (Reject(item, reason, True),))
    return Group([body], claim.first + 1, Counter())


def unstored(store: Store[Any], claim: Claim, items: Sequence[bytes]) -> list[bytes]:
    """The items of a claim, empty where the database has the body: an operator may have buried what ends workers."""
    rest = [*items]
    with store.transaction(read=True) as db:
        ranges = store.stored_ranges(db, claim)
    for first, last in ranges:
        for at in range(max(0, first - claim.first), min(last + 1 - claim.first, len(rest))):
            rest[at] = b""
    return rest


def main(arguments: list[str]) -> int:
    """Set up logging and signals, then run the worker; returns the exit status."""
    if arguments not in ([], ["run"], ["burst"]):
        print("usage: worker.py [run | burst]", file=sys.stderr)
        return 2
    os.umask(0o077)
    with settings.exit_if_invalid():
        config = settings.load_settings(last=True)
        daemon.start_logging(config.log)
        streams = load_streams(config)
        check_store(config.store)
        require_file(config)
        row_destinations = open_destinations(config, streams)
    snapshots = open_spool("snapshot:Snapshots", config.spool, config.figures)
    known = partial(shared_settings, streams, config.keep, row_destinations)
    publisher = Publisher(
        snapshots, streams, config.cell, not config.has_own_redis, config.replicas, known, config.home
    )
    outlet = open_spool("outlet:Outlet", config.spool, config.figures, replicas=config.replicas)
    worker = Worker(
        outlet, config.store, streams, body_limits(config), publisher, config.keep, row_destinations, has_stored(config)
    )
    daemon.stop_on_signal(worker)
    faulthandler.enable()  # a decoder that ends the process is shown in the log
    faulthandler.register(signal.SIGPROF, chain=True)
    gc.set_threshold(50_000)  # the entries of a claim are thousands of objects without a cycle
    daemon.notify_systemd("READY=1")
    try:
        worker.run(burst=arguments == ["burst"])
    except NewerLayout as error:
        worker.release()
        return settings.complain(error)
    return 1 if worker.buried and arguments == ["burst"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
