"""The guard around a user's decoder, which may raise anything, and may wait without end.

A decoder that uses CPU without end is ended with its process (`CPU_SECONDS` in worker.py). One that waits for a lock or
a host uses none: a thread looks whether the same call still runs, and interrupts it. Looks count, not a clock: a
process that was stopped for a minute has not waited for its decoder.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import Any

from sluice.streams.record import Decoded, Limits
from sluice.streams.registry import Decode, Stream

LOOK_SECONDS = 0.5
WAIT_SECONDS = 30.0  # of one call, by looks
MORE_SECONDS = 10.0  # after which a call that cannot be interrupted ends its process


class WaitedTooLong(BaseException):
    """A decoder has waited too long. No `except Exception` of its own hides it."""


class Guard:
    """Watches the decoder that runs now in this process. calls: that began. running: whether one has not ended."""

    def __init__(self) -> None:
        self.calls = 0
        self.running = False
        self.thread: threading.Thread | None = None

    def guard_stream(self, stream: Stream) -> Stream:
        """The stream with guarded decoders."""
        part = stream.part and self.guard_decoder(stream.part)
        return stream._replace(decode=self.guard_decoder(stream.decode), part=part)

    def guard_decoder(self, decode: Decode) -> Decode:
        def call(item: bytes, limits: Limits) -> Decoded:
            if self.thread is None:
                self.start()
            self.calls += 1
            self.running = True
            try:
                return decode(item, limits)
            except WaitedTooLong:  # perhaps after its end
                self.running = False
                raise
            finally:
                self.running = False

        return call

    def start(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread can be interrupted
        signal.signal(signal.SIGALRM, self.interrupt)
        self.thread = threading.Thread(target=self.watch, name="guard", daemon=True)
        self.thread.start()

    def forget(self) -> None:
        """A child has no thread of its parent."""
        self.thread = None

    def interrupt(self, number: int, frame: Any) -> None:
        if self.running:
            raise WaitedTooLong

    def watch(self) -> None:
        """Runs in a thread."""
        seen, looks, main = 0, 0, threading.main_thread().ident
        pause = threading.Event()
        while not pause.wait(LOOK_SECONDS):
            with contextlib.suppress(Exception):  # the next look may succeed
                looks = looks + 1 if self.running and self.calls == seen else 0
                seen = self.calls
                if looks == WAIT_SECONDS // LOOK_SECONDS and main:
                    signal.pthread_kill(main, signal.SIGALRM)
                elif looks * LOOK_SECONDS > WAIT_SECONDS + MORE_SECONDS:
                    os.abort()  # faulthandler shows where it was


GUARD = Guard()
os.register_at_fork(after_in_child=GUARD.forget)
