"""The daemon between the list and the database: claim -> decode -> persist -> settle, and bury what makes no sense.

worker.py [run]   until SIGTERM or SIGINT: this batch is finished; a second signal stops at once, and nothing is lost
worker.py drain   until the lists are empty; status 1 if anything went to the dead letters
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from redis.exceptions import RedisError

from sluice import daemon, settings, sinks
from sluice.sinks.schema import load_streams
from sluice.spool import counters
from sluice.spool.contract import LEASE, Claim
from sluice.spool.outlet import Lost, Outlet
from sluice.streams import registry
from sluice.streams.record import Limits, Record, Reject
from sluice.streams.registry import Stream

log = logging.getLogger("sluice.worker")

IDLE = 0.03  # seconds between two looks at short lists: a lone body waits less than 100 ms, idle is under 1 % of a core
# Streams take turns. A claim holds as many bodies as should take this long by what the last one took, and after few
# bodies not many: then neither bodies that are slow to decode nor a burst of them keep the other streams waiting.
TURN = 1.0  # seconds of CPU
FEW = 64  # bodies
SAMPLE = 16  # of so many bodies the decoding of one is timed: looking at the clock takes a thirtieth of storing a body
BACKOFF = (0.1, 10.0)  # seconds between two tries while the sink or Redis is away: the first, and the longest


class StreamState:
    """One stream's way through this worker: the claim at hand, and where many wait, the next one on its way."""

    def __init__(self, stream: Stream, spool: Outlet) -> None:
        self.stream = stream
        counted = spool.counts
        self.decoded = counted.histogram(f"decode_seconds {stream.name}", counters.SECONDS)
        self.persisted = counted.histogram(f"persist_seconds {stream.name}", counters.SECONDS)
        self.errors = counted.counter(f"sink_errors {stream.name}")
        self.claim: Claim | None = None
        self.coming: Callable[[], Claim | None] | None = None  # the next claim, for who waits for it
        self.most = min(FEW, spool.most)  # bodies of the next claim
        self.wait = 0.0  # seconds before the next try while the sink is away
        self.due = 0.0  # when (monotonic) that is


class PartialDecode(Exception):
    """A decoder failed after it gave some records of a body: they must not be stored, for the whole body is buried."""


class Worker:
    """Claims, persists and settles, one stream after the other."""

    def __init__(self, spool: Outlet, url: str, streams: dict[str, Stream], bounds: Limits) -> None:
        """url: of the sink. bounds: what one body may cost."""
        self.spool = spool
        self.url = url
        self.streams = streams
        self.bounds = bounds
        self.sink: sinks.Sink | None = None
        self.states = [StreamState(stream, spool) for stream in streams.values()]
        self.letters = 0
        self.stopping = False
        # held until `stop`: unlike an Event it may be let go of by a signal that comes at any point of a wait for it
        self.wake = threading.Lock()
        self.wake.acquire()
        self.said: dict[str, str | None] = {}

    def run(self, drain: bool = False) -> None:
        """Work until told to stop; with `drain` until there is nothing left."""
        with contextlib.suppress(sinks.Unavailable):  # it is said when there is something to store
            self.sink = self.sink or sinks.connect(self.url, self.streams)
        renewing = threading.Thread(target=self.renew, name="renew", daemon=True)
        renewing.start()
        backoff = BACKOFF[0]
        watchdog = daemon.Watchdog()
        while not self.stopping:
            watchdog.turn()
            try:
                held = [state for state in self.states if state.claim]
                waiting = self.spool.waiting([state.stream.name for state in self.states])
                busy = False
                for state, some in zip(self.states, waiting, strict=True):
                    if (some or state.claim) and not self.stopping:
                        busy |= self.step(state)
                self.say("redis", None)
                backoff = BACKOFF[0]
            except RedisError as error:
                self.say("redis", f"Redis is away: {error}")
                self.wake.acquire(timeout=backoff)
                backoff = min(backoff * 2, BACKOFF[1])
                continue
            if drain and not held and not any(waiting):
                break
            if not busy:
                self.wake.acquire(timeout=IDLE)
        for state in self.states:
            if state.coming and not state.claim:
                with contextlib.suppress(RedisError):
                    self.step(state)
        self.release()

    def stop(self) -> None:
        """Stop after the batch at hand. To be called once."""
        self.stopping = True
        self.wake.release()

    def step(self, state: StreamState) -> bool:
        """Carry one batch of a stream as far as it goes; whether to go on at once."""
        if state.claim is None:
            coming = state.coming or self.spool.claiming(state.stream.name, state.most)
            state.coming = None
            state.claim = coming()
            if state.claim is None:
                return False
        elif time.monotonic() < state.due:
            return False
        claim = state.claim
        start, began = time.thread_time(), time.monotonic()
        try:
            if self.sink is None:
                self.sink = sinks.connect(self.url, self.streams)
            try:
                outcome = self.sink.persist(claim, lambda: self.decode(state, claim))
            except PartialDecode:
                outcome = self.sink.persist(claim, lambda: self.decode(state, claim, whole=True))
        except sinks.Unavailable as error:
            state.errors.n += 1
            self.say(state.stream.name, f"the sink is away: {error}")
            return self.postpone(state)
        except Lost as error:
            log.warning("%s", error)
            state.claim = None
            return True
        except RedisError:
            raise
        except Exception as error:
            log.error("%s: this was not foreseen; it will be tried again\n%s", state.stream.name, trace(error))
            return self.postpone(state)
        state.persisted.add(time.monotonic() - began)
        self.say(state.stream.name, None)
        self.letters += outcome.letters
        if outcome.letters:
            log.warning("%s: %d buried; `bin/sluice dead` lists them", state.stream.name, outcome.letters)
        self.spool.settle(claim)
        full = claim.count >= state.most or claim.size >= self.spool.size
        fit = int(claim.count * TURN / max(time.thread_time() - start, 1e-6))
        state.most = max(1, min(fit, max(FEW, 2 * claim.count), self.spool.most))
        state.claim, state.wait = None, 0.0
        # what was less than a claim is left to grow for a moment: few large transactions instead of many small ones
        return full

    def postpone(self, state: StreamState) -> bool:
        """Try this claim again later. It is kept, and its lease alive; the other streams go on."""
        state.wait = min(max(state.wait * 2, BACKOFF[0]), BACKOFF[1])
        state.due = time.monotonic() + state.wait
        return False

    def decode(self, state: StreamState, claim: Claim, whole: bool = False) -> Iterator[sinks.Entry]:
        """The entries of a claim. A decoder that fails costs its body, not the batch.

        whole: nothing of a body is given away before all of it is decoded.
        Raises: PartialDecode, if not `whole`; Lost.
        """
        stream = state.stream
        decode, bounds, seq, until = stream.decode, self.bounds, claim.first, 0
        for body in self.spool.bodies(claim):
            if seq >= until:
                received, until = claim.received(seq)
                # Redis moves the next ones while these, which it has given away, are stored
                if claim.count == self.spool.most and state.coming is None and not self.stopping:
                    state.coming = self.spool.claiming(stream.name, state.most)
            given = False
            try:
                things = decode(body, bounds) if seq % SAMPLE else timed(decode, body, bounds, state.decoded)
                for thing in list(things) if whole else things:
                    given = True
                    yield seq, received, body, thing
            except Exception as error:
                if given:
                    raise PartialDecode from error
                log.error("%s: the decoder failed\n%s", stream.name, trace(error))
                yield seq, received, body, Reject(body, f"the decoder failed: {type(error).__name__}", True)
            seq += 1

    def renew(self) -> None:
        """Keep the leases of held claims alive, however long the sink takes, and tell Redis how this worker is."""
        while not self.stopping:
            held = [claim for state in self.states if (claim := state.claim)]
            with contextlib.suppress(RedisError):  # the main loop says so; whoever comes takes up a lost lease
                for claim in held:
                    self.spool.renew(claim)
                self.spool.report(held)
            time.sleep(LEASE / 4)

    def release(self) -> None:
        """Give back what is claimed and not stored, so that it need not wait for the end of its lease."""
        with contextlib.suppress(RedisError):
            for state in self.states:
                for claim in filter(None, (state.claim, state.coming and state.coming())):
                    self.spool.renew(claim, 0)
            self.spool.report()

    def say(self, what: str, trouble: str | None) -> None:
        """One log line when trouble starts or changes, one when it ends."""
        if trouble != self.said.get(what):
            self.said[what] = trouble
            log.warning("%s: %s", what, trouble) if trouble else log.info("%s: on its way again", what)


def trace(error: Exception) -> str:
    """Where an error came from, and its kind; not its text, which may quote a body."""
    return "".join(traceback.format_tb(error.__traceback__)) + type(error).__name__


def timed(
    decode: Callable[[bytes, Limits], Iterable[Record | Reject]], body: bytes, bounds: Limits, times: counters.Histogram
) -> Iterator[Record | Reject]:
    """What a decoder gives, and how long that took without what the sink did in between."""
    took, began = 0.0, time.perf_counter()
    for thing in decode(body, bounds):
        took += time.perf_counter() - began
        yield thing
        began = time.perf_counter()
    times.add(took + time.perf_counter() - began)


def main(arguments: list[str]) -> int:
    """Set up logging and signals, and work; the exit status."""
    if arguments not in ([], ["run"], ["drain"]):
        print("usage: worker.py [run | drain]", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    config = settings.load_or_exit()
    if style := daemon.formatter(config.log):
        logging.getLogger().handlers[0].setFormatter(style)
    try:
        streams = load_streams(config)
    except settings.SettingError as error:
        return settings.complain(error)
    spool = Outlet(str(config.redis), replicas=config.replicas)
    worker = Worker(spool, config.sink, streams, registry.limits(config))

    def stop(number: int, frame: Any) -> None:
        if worker.stopping:
            os._exit(128 + number)
        worker.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    daemon.notify("READY=1")
    worker.run(drain=arguments == ["drain"])
    return 1 if worker.letters and arguments == ["drain"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
