"""A gunicorn worker class that answers many plain requests with one commit; between nginx and the WSGI callable.

The fast lane takes POST with one Content-Length and GET without, both with HTTP/1.1 and a strict head. All other
requests take the slow lane: gunicorn's own gevent handler gets all their bytes, and serves that one request in a
greenlet. So there is no second lenient HTTP parser: the fast lane recognises a request or declines it.

One turn of the loop: read what is ready, call the application for each request and keep its answer object; then iterate
the answers. An application that commits when its answer is iterated commits once for all of them. The commit is all
that the application may wait for, and all clients wait for it; so nothing is monkey-patched, and no lock is contended.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import os
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any, Union

import gevent
from gevent import socket as gsocket
from gevent.hub import get_hub
from gunicorn.glogging import Logger

from sluice.fastlane.answers import BROKEN, CONTENT_LENGTH, CONTENT_LENGTHS, Answers, Pending
from sluice.fastlane.connection import (
    CLOSING,
    DECLINED,
    IDLE,
    LEFT,
    READ_BYTES,
    RECEIVING,
    WAITING,
    Connection,
    Listener,
)
from sluice.fastlane.grammar import Grammar, Heads, ParsedHead
from sluice.fastlane.interface import MAX_BODY_BYTES, Later, Options
from sluice.fastlane.slow import SlowLane

MAX_TURN_BYTES = 2 << 20  # read, after which a turn commits: limits the memory of a group
# Of incomplete bodies that are read at a time; the others wait in the kernel. 64 bodies of 1 MiB at once would
# take 145 MB without this limit, and take 52 MB with it
MAX_ADMITTED_BYTES = 4 << 20
GRACE_FRACTION = 0.75  # of gunicorn's graceful_timeout, at the end of which the master kills the process
IN, OUT = select.EPOLLIN, select.EPOLLOUT
# A commit that takes longer than SLOW_SECONDS, beside ANSWER_SECONDS for each answer, is a slow one: see `gather`
SLOW_SECONDS, ANSWER_SECONDS = 0.001, 0.00001
MAX_GATHER_SECONDS = 0.01
# Settings of gunicorn that act on a request before the application, or log it: the fast lane supports none of them
HOOKS = "pre_request", "post_request", "protocol", "proxy_protocol", "http2_cleartext"
ACCESS_LOGS = "accesslog", "logconfig", "logconfig_dict", "logconfig_json", "syslog"
TERM = {signal.SIGTERM}
Parse = Callable[[bytes, Any, Heads], Union[ParsedHead, None]]  # Grammar.parse


@functools.cache  # gunicorn calls setup() each time it reads the setting; handlers cannot be unregistered
def end_forked_process_on_term() -> None:
    """Let SIGTERM end a process of the gateway between `fork` and init_signals.

    Until then the process has a copy of the master's handler, which only notes the signal: the process would serve on
    until it is killed in the middle of a request. It has no clients yet, so the default action is safe.
    """

    def in_child() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TERM)

    os.register_at_fork(
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, TERM),
        after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, TERM),
        after_in_child=in_child,
    )


class FastLane(SlowLane):
    """`worker_class = "sluice.fastlane.loop.FastLane"`. It has no timeouts: nginx in front of it waits for slow clients
    and closes idle connections. It speaks neither TLS nor the PROXY protocol.
    """

    alive: bool
    waits = False  # whether all answers may raise Later
    poller: Any
    wsgi: Callable[..., Any]  # for gunicorn's handler
    application: Callable[..., Any]  # for the fast lane

    @classmethod
    def setup(cls) -> None:
        """gunicorn calls this in the master, before it forks."""
        end_forked_process_on_term()

    def patch(self) -> None:
        """gunicorn's gevent worker monkey-patches here; the fast lane does not."""

    def prepare(self) -> None:
        """Set up all state but the sockets."""
        self.make_room()
        settings = [self.cfg.settings[name] for name in (*HOOKS, *ACCESS_LOGS) if name in self.cfg.settings]
        supported = (
            self.cfg.keepalive
            and not self.cfg.is_ssl
            and "SCRIPT_NAME" not in os.environ
            and self.cfg.logger_class.access is Logger.access
            and all(setting.get() == setting.default for setting in settings)
        )
        self.application = self.wsgi
        options: Options = getattr(self.wsgi, "fastlane", Options())
        self.max_body = min(MAX_BODY_BYTES, options.max_body)
        self.tick, self.rejected = options.tick, options.rejected
        self.answers = Answers(self.cfg)
        self.grammar = Grammar(self.cfg, options.fields, options.plainness)
        self.parse: Parse = self.grammar.parse if supported else lambda head, server, heads: None
        self.connections: dict[int, Connection] = {}  # by descriptor; without those in the slow lane
        self.slow_count = 0  # greenlets beside the loop: one for each connection in the slow lane
        self.pending: list[Pending] = []
        self.size = 0  # bytes read since the last commit
        self.answered = 0  # requests, by the last commit
        self.commit_seconds = 0.0  # that it took, if it was slow
        self.gathering = False  # whether more requests are read before their answers are made
        self.admitted = 0  # bytes that the connections in state RECEIVING lacked when they were admitted
        self.waiting: deque[Connection] = deque()  # those in state WAITING; some may have left it
        self.declined: list[Connection] = []  # for the slow lane at the end of this turn
        self.until = 0.0  # monotonic: when the main greenlet continues
        self.signalled = False  # a signal arrived; the main greenlet continues
        self.started: Any = None  # status and headers of the answer that is being made
        # gunicorn would end this process at max_requests and only then start another: see run()
        self.restart_at: int = self.max_requests
        self.max_requests: int = sys.maxsize

    def run(self) -> None:
        """Serve until told to stop; then answer what was read, and let idle clients close first."""
        self.prepare()
        # SCHED_BATCH: this process does not preempt nginx, which may have more requests to pass on: larger batches
        with contextlib.suppress(AttributeError, OSError):  # not on every system, not in every container
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        if hasattr(gc, "freeze"):  # CPython would look for cycles every few turns; the hot path makes none
            gc.freeze()
            gc.set_threshold(50_000)
        self.poller = select.epoll()
        self.listeners = {}
        for sock in self.sockets:
            sock.setblocking(False)
            self.listeners[sock.fileno()] = Listener(sock, sock.getsockname(), {})
        self.poller.register(self.PIPE[0], IN)
        self.start_accepting()
        # One watcher for all connections: gevent's loop wakes this process, and one epoll_wait returns all that are
        # ready. A watcher for each connection costs a callback each (docs/DECISIONS.md).
        watcher = get_hub().loop.io(self.poller.fileno(), 1)
        watcher.start(self.turn)
        while self.alive:
            self.notify()
            self.start_accepting()
            if self.nr >= self.restart_at:
                self.log.info("max_requests: asking the master for another process")
                self.restart_at = sys.maxsize
                os.kill(self.ppid, signal.SIGHUP)  # it starts another process, and only then ends this one
            self.wait(1.0)
            try:
                self.tick()
            except Exception:
                self.log.exception("Error in the application's tick")
        for fd in self.listeners:
            self.accept(fd)  # closing the socket would reset the connections in its backlog
            self.stop_accepting(fd)
        for sock in self.sockets:
            sock.close()
        # If this side closed an idle connection, a request that nginx is sending would fail: nginx does not repeat a
        # POST. So a connection closes with its next answer, or nginx closes it (keepalive_timeout of the upstream).
        deadline = time.monotonic() + self.cfg.graceful_timeout * GRACE_FRACTION
        while (self.connections or self.slow_count) and time.monotonic() < deadline:
            self.notify()
            self.wait(0.1)
        watcher.stop()
        self.turn()
        if self.connections:
            self.log.warning("closed %d connections that were still open", len(self.connections))

    def wait(self, seconds: float) -> None:
        """Let gevent's loop run, until a signal writes to the wake-up pipe."""
        self.until, self.signalled = time.monotonic() + seconds, False
        try:
            gsocket.wait_read(self.PIPE[0], timeout=seconds, timeout_exc=TimeoutError())
            os.read(self.PIPE[0], 4096)
        except (TimeoutError, BlockingIOError):
            pass

    def start_accepting(self) -> None:
        """Accept from all listeners, unless there are enough connections."""
        if self.alive and len(self.connections) + self.slow_count < self.worker_connections:
            for fd in self.listeners:
                try:
                    self.poller.register(fd, IN)
                except FileExistsError:
                    pass

    def stop_accepting(self, fd: int) -> None:
        """Leave new connections in the listener's backlog."""
        try:
            self.poller.unregister(fd)
        except (FileNotFoundError, ValueError, OSError):
            pass

    def turn(self) -> None:
        """Take turns of the loop until gevent has something to do, or this process is to stop: read all that is ready,
        answer all of it with one commit, wait for more.

        gevent's loop would wake this process by a wait and a callback of its own, 3 us for each turn.
        """
        try:
            ready = self.poller.poll(0)
            while ready:
                self.read(ready)
                if self.commit_seconds:
                    self.gather()
                self.finish()
                rest = self.until - time.monotonic()
                if rest <= 0 or self.slow_count or self.signalled:
                    return
                ready = self.poller.poll(rest)
        except Exception:  # gevent stops a watcher whose callback raises, and with it all service
            self.log.exception("Error in the loop")

    def read(self, ready: list[tuple[int, int]]) -> None:
        """Read what is ready, and call the application for each request in it."""
        connections = self.connections
        for fd, _ in ready:
            conn = connections.get(fd)
            if conn is None:
                if fd in self.listeners:
                    self.accept(fd)
                elif fd == self.PIPE[0]:
                    self.signalled = True
            elif conn.out:
                self.resume(conn)
            else:
                try:
                    data = conn.sock.recv(READ_BYTES)
                except BlockingIOError:
                    continue
                except OSError:
                    data = b""
                if data:
                    self.take(conn, data)
                    if self.size > MAX_TURN_BYTES:
                        self.flush()
                else:
                    self.end(conn)

    def gather(self) -> None:
        """Before a commit that will be slow, as the last one was, read what comes meanwhile.

        The clients of the last commit are sending their next requests. If those that have sent one already did not wait
        for them, each half of the clients would wait for the commits of both: half as many requests for each sync.
        """
        if self.answered + len(self.pending) <= 2:  # a single client
            return
        deadline = time.monotonic() + min(self.commit_seconds / 4, MAX_GATHER_SECONDS)
        pause = min(self.commit_seconds, 4 * MAX_GATHER_SECONDS) / 16  # without a request, after which none is expected
        self.gathering = True
        try:
            while self.pending and not self.signalled and time.monotonic() < deadline:
                if not select.select([self.poller], [], [], pause)[0]:  # epoll_wait takes whole milliseconds
                    return
                count = len(self.pending)
                self.read(self.poller.poll(0))
                if len(self.pending) <= count:
                    return
        finally:
            self.gathering = False

    def finish(self) -> None:
        """End a turn: answer, then pass the declined connections to the slow lane."""
        if self.pending:
            self.flush()
        if self.declined:
            declined, self.declined = self.declined, []
            kept = {item[0] for item in self.pending}  # no answer may overtake the one before it
            for conn in declined:
                if conn in kept:
                    self.declined.append(conn)
                elif not conn.out:
                    self.decline(conn)

    def accept(self, fd: int) -> None:
        """Accept all connections in the backlog: when it is full, the kernel refuses the next one at once."""
        listener = self.listeners[fd]
        while True:
            try:
                sock, peer = listener.sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self.log.warning("cannot accept more than %d connections: %s", len(self.connections), error)
                    self.stop_accepting(fd)  # run() tries again within a second
                return
            sock.setblocking(False)
            self.join(Connection(sock, peer, listener))
            if len(self.connections) + self.slow_count >= self.worker_connections:
                for each in self.listeners:
                    self.stop_accepting(each)
                return

    def join(self, conn: Connection) -> None:
        """Add a connection to the fast lane."""
        conn.state = IDLE
        self.connections[conn.fd] = conn
        self.poller.register(conn.fd, IN)

    def leave(self, conn: Connection) -> None:
        """Remove a connection from the fast lane; its socket stays open."""
        if conn.state != LEFT:
            conn.state = LEFT
            del self.connections[conn.fd]
            self.poller.unregister(conn.fd)
            self.release(conn)

    def drop(self, conn: Connection) -> None:
        """Close a connection."""
        self.leave(conn)
        conn.sock.close()

    def end(self, conn: Connection) -> None:
        """The client sends no more. The application answers a body that was cut off."""
        if self.gathering and any(item[0] is conn for item in self.pending):
            return  # the next turn sees the end again, when the answers are sent
        if conn.pieces:
            conn.state = DECLINED
            self.decline(conn)
        else:
            self.drop(conn)

    def watch(self, conn: Connection) -> None:
        """Poll for what the state of the connection allows."""
        reading = conn.state in (IDLE, RECEIVING)
        self.poller.modify(conn.fd, OUT if conn.out else IN if reading else 0)

    def take(self, conn: Connection, data: bytes) -> None:
        """Call the application for each complete request in the bytes received; keep or decline the rest."""
        self.size += len(data)
        if conn.pieces:
            conn.pieces.append(data)
            conn.missing -= len(data)
            if conn.missing > 0:
                return
            data = b"".join(conn.pieces)
            conn.pieces = []
            conn.state = IDLE
            self.release(conn)
        wsgi, pending = self.application, self.pending
        while True:
            end = data.find(b"\r\n\r\n") + 4
            head = data[:end]
            parsed = conn.heads.get(head) or self.parse(head, conn.listener.name, conn.heads)
            if parsed is None:
                break
            environ, length, keep_alive = parsed
            stop = end + length
            if len(data) < stop:
                if length > self.max_body:
                    break
                conn.pieces = [data]
                conn.missing = stop - len(data)
                self.admit(conn)
                return
            if conn.remote is not None:
                environ = {**environ, **conn.remote}
            if length:
                environ["wsgi.input"] = BytesIO(data[end:stop])
            self.started = None
            try:
                answer = wsgi(environ, self.start)
            except Exception:
                self.log.exception("Error handling request %s", environ["PATH_INFO"])
                answer, self.started = (), BROKEN
            if length:
                environ["wsgi.input"] = None  # or a body would be kept with each cached head
            pending.append((conn, answer, self.started, keep_alive, environ))
            if not keep_alive or len(data) == stop:
                return
            data = data[stop:]
            if self.waits or getattr(answer, "waits", False):
                break
        conn.pieces = [data]
        conn.state = DECLINED
        self.watch(conn)
        self.declined.append(conn)

    def admit(self, conn: Connection) -> None:
        """Receive an incomplete body, or let it wait behind others: too many at once would not fit into memory."""
        if self.waiting or (self.admitted and self.admitted + conn.missing > MAX_ADMITTED_BYTES):
            conn.state = WAITING
            self.waiting.append(conn)
            self.watch(conn)
        else:
            conn.state = RECEIVING
            conn.admitted = conn.missing
            self.admitted += conn.admitted

    def release(self, conn: Connection) -> None:
        """A body is complete, or never will be: admit the bodies that waited for it."""
        self.admitted -= conn.admitted
        conn.admitted = 0
        while self.waiting:
            first = self.waiting[0]
            if first.state == WAITING:
                if self.admitted and self.admitted + first.missing > MAX_ADMITTED_BYTES:
                    break
                first.state = RECEIVING
                first.admitted = first.missing
                self.admitted += first.admitted
                self.watch(first)
            self.waiting.popleft()

    def start(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], Any]:
        """PEP 3333's start_response, one for all requests: answers are made one after the other."""
        self.started = status, headers
        return self.write

    def write(self, data: bytes) -> None:
        """PEP 3333's write()."""
        raise NotImplementedError("the fast lane has no write(): return the body's chunks")

    def flush(self) -> None:
        """Answer all that is pending."""
        pending, self.pending, self.size = self.pending, [], 0
        if not self.alive:
            pending = self.answers.closing(pending)
        self.nr += len(pending)
        begun = time.monotonic()
        self.answer(pending)
        seconds = time.monotonic() - begun - ANSWER_SECONDS * len(pending)
        self.answered, self.commit_seconds = len(pending), seconds if seconds > SLOW_SECONDS else 0.0

    def answer(self, pending: Iterable[Pending]) -> None:
        """Iterate the answers, the first of which commits for all, and send each."""
        rendered, render = self.answers.rendered, self.answers.render
        for item in pending:
            conn, answer, started, keep_alive, environ = item
            self.started = started
            try:
                try:
                    body = b"".join(answer)
                except Later as later:
                    self.hold(item, later)
                    continue
                finally:
                    if hasattr(answer, "close"):
                        answer.close()
                status, headers = self.started
                entry = rendered.get(id(headers))
                if entry is None or entry[0] is not headers or entry[1] is not status:
                    entry = render(status, headers)
            except Exception:
                self.log.exception("Error handling request %s", environ["PATH_INFO"])
                (status, headers), body = BROKEN, b""
                entry = render(status, headers)
            head = entry[2] if keep_alive else entry[3]
            if len(body) == entry[4]:
                data = head + body
            elif entry[4] < 0:
                size = len(body)
                length = CONTENT_LENGTHS[size] if size < len(CONTENT_LENGTHS) else CONTENT_LENGTH % size
                data = head + length + body  # one copy of the body
            else:  # as gunicorn does: cut what is too long, close after what is too short
                body = body[: entry[4]]
                keep_alive = keep_alive and len(body) == entry[4]
                data = (head if keep_alive else entry[3]) + body
            self.send(conn, data, keep_alive)

    def hold(self, item: Pending, later: Later) -> None:
        """An answer is not ready. A lane whose applications may raise Later says what happens then."""
        raise NotImplementedError

    def send(self, conn: Connection, data: bytes, keep_alive: bool) -> None:
        """Send an answer; keep in `out` what the client does not take at once."""
        if conn.state == LEFT:
            return
        if not keep_alive:
            conn.state = CLOSING
        if conn.out:
            conn.out += data
            return
        try:
            sent = conn.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.drop(conn)
            return
        if sent < len(data):
            conn.out = bytearray(data[sent:])
            self.wait_for_reader(conn)
        elif not keep_alive:
            self.drop(conn)

    def wait_for_reader(self, conn: Connection) -> None:
        """A client has not taken all of its answer."""
        self.watch(conn)

    def resume(self, conn: Connection) -> None:
        """Send more of `out`; then continue as the state says."""
        try:
            sent = conn.sock.send(conn.out)
        except BlockingIOError:
            return
        except OSError:
            self.drop(conn)
            return
        del conn.out[:sent]
        if conn.out:
            return
        if conn.state == CLOSING:
            self.drop(conn)
        elif conn.state == DECLINED:
            self.declined.append(conn)
        else:
            self.watch(conn)

    def decline(self, conn: Connection) -> None:
        """Pass a connection to the slow lane, unless it was closed meanwhile."""
        if conn.state == DECLINED:
            self.leave(conn)
            self.slow_count += 1
            gevent.spawn(self.slow, conn)

    def slow(self, conn: Connection) -> None:
        """Serve one request in the slow lane; the connection returns to the fast lane for its next one."""
        try:
            left = self.serve(conn)
        finally:
            self.slow_count -= 1
        if left is None:
            return
        self.join(conn)
        if left:
            self.take(conn, left)
            self.finish()
