"""A gunicorn worker class that answers many plain requests with one commit; between nginx and the WSGI callable.

The fast lane knows one kind of request beyond doubt: POST, HTTP/1.1, a strict head, one Content-Length, the whole body
there. Everything else takes the slow lane: its bytes are handed to gunicorn's own gevent handler, unread as it were,
which serves that one request in a greenlet of its own. So there is no second lenient HTTP parser here: the fast lane
recognises a request or declines it.

One turn of the loop: read what is ready, call the application for each request and keep its answer object; then iterate
the kept answers. An application that commits lazily commits once for all of them. The only thing the application may
wait for is that commit, and everybody waits for it anyway; so nothing is monkey-patched, and no lock is ever contended.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from io import BytesIO
from typing import Any

import gevent
from gevent import socket as gsocket
from gevent.hub import get_hub

from sluice.fastlane.answers import BROKEN, Answers, Pending
from sluice.fastlane.connection import BODY_MOST, READ, Connection, Listener, Unread
from sluice.fastlane.grammar import Grammar, ParsedHead
from sluice.fastlane.slow import SlowLane

TURN_MOST = 2 << 20  # bytes after which a turn commits what it has, so that no batch outgrows memory
COMING_MOST = 4 << 20  # bytes of bodies in pieces that are let in at a time; the others wait in the kernel
HEADS_MOST = 1024  # plans a listener remembers by the exact bytes of their heads, some 3 kB each;
HEAD_MOST = 1024  # longer heads are not remembered
IN, GONE = select.EPOLLIN, select.EPOLLERR | select.EPOLLHUP
# What gunicorn can be set to do with a request before the application sees it; the fast lane does none of it.
HOOKS = "pre_request", "post_request", "protocol", "proxy_protocol", "http2_cleartext"
# A process that has just been forked takes TERM by a copy of the master's handler until it has its own (init_signals).
# It would never hear of it, serve on, and be killed in the middle of a request at the end of the graceful timeout. As
# it serves nobody yet, TERM may end it at once.
TERM = {signal.SIGTERM}
registered = False


def hear_of_term() -> None:
    """In a forked process, at its beginning."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TERM)


class FastLane(SlowLane):
    """`worker_class = "fastlane.FastLane"`. Behind nginx, which waits for slow clients and hangs up on idle ones: the
    fast lane has no timeouts. It speaks no TLS, and no PROXY protocol.

    An answer's headers list is rendered once and recognised by its identity: applications that make their answers at
    import are quick, the others are correct. `write()` of PEP 3333 and gunicorn's hooks a request are not for the
    fast lane: where hooks are set, every request takes the slow one.
    """

    alive: bool
    poller: Any

    @classmethod
    def setup(cls) -> None:
        """gunicorn calls this in the master before it forks, each time that it reads the setting."""
        global registered
        if not registered:
            registered = True
            os.register_at_fork(
                before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, TERM),
                after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, TERM),
                after_in_child=hear_of_term,
            )

    def patch(self) -> None:
        """Nothing is patched: see the top of this file."""

    def prepare(self) -> None:
        """What the fast lane needs to know before the first request."""
        self.grammar = Grammar(self.cfg)
        settings = [self.cfg.settings[name] for name in HOOKS if name in self.cfg.settings]
        self.plain = (
            self.cfg.keepalive
            and not self.cfg.is_ssl
            and "SCRIPT_NAME" not in os.environ
            and all(setting.get() == setting.default for setting in settings)
        )
        # an application that says what it takes at most is asked before a longer body is read
        self.body_most = min(BODY_MOST, getattr(self.wsgi, "max_body", BODY_MOST))
        # an application may have something to do now and then, such as to tell what it has counted
        self.tick: Callable[[], None] = getattr(self.wsgi, "tick", lambda: None)
        self.answers = Answers(self.cfg, self.log)
        self.connections: dict[int, Connection] = {}
        self.slow_ones = 0
        self.pending: list[Pending] = []
        self.size = 0  # bytes pending
        self.coming = 0  # bytes of the bodies that come in pieces and were let in
        self.queue: deque[Connection] = deque()  # those whose bodies were not let in yet
        self.leaving: list[Connection] = []
        self.started: Any = None
        # gunicorn's own way is to end at once, and to start another process once this one has ended: see run()
        self.most: int = self.max_requests
        self.max_requests: int = sys.maxsize

    def run(self) -> None:
        """Serve until told to stop; then answer what has been read, and let the idle clients close first."""
        self.prepare()
        # Woken while nginx still has requests to pass on, it does not push nginx off its core: larger batches
        with contextlib.suppress(AttributeError, OSError):  # not everywhere, and not everybody may
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        if hasattr(gc, "freeze"):  # else CPython looks for circles every few turns, and there are none
            gc.freeze()
            gc.set_threshold(50_000)
        self.poller = select.epoll()
        self.listeners = {}
        for sock in self.sockets:
            sock.setblocking(False)
            self.listeners[sock.fileno()] = Listener(sock, sock.getsockname(), {})
        self.listen()
        # One watcher for all connections: gevent's loop wakes this process, and one epoll_wait tells who is ready.
        # A watcher a connection costs a callback each; DECISIONS.md has the measurement.
        watcher = get_hub().loop.io(self.poller.fileno(), 1)
        watcher.start(self.turn)
        while self.alive:
            self.notify()
            self.listen()
            if self.nr >= self.most:
                self.log.info("max_requests: asking for another process")
                self.most = sys.maxsize
                os.kill(self.ppid, signal.SIGHUP)  # which starts it, and only then ends this one
            self.rest(1.0)
            self.tick()
        for fd in self.listeners:
            self.accept(fd)  # who is let in by now would be cut off
            self.deafen(fd)
        for sock in self.sockets:
            sock.close()
        # A connection that is closed here may have a request on its way, which the client would see fail (nginx does
        # not repeat a POST). So it is closed with its next answer, or by the client, whose patience is the shorter.
        # gunicorn's master kills at the end of the graceful timeout, whatever is being done.
        deadline = time.monotonic() + self.cfg.graceful_timeout * 0.75
        while (self.connections or self.slow_ones) and time.monotonic() < deadline:
            self.notify()
            self.rest(0.1)
        watcher.stop()
        self.turn()
        if self.connections:
            self.log.warning("hung up on %d clients that kept their connections open", len(self.connections))

    def rest(self, seconds: float) -> None:
        """Let the loop run for so long, or until a signal writes to the wake-up pipe."""
        try:
            gsocket.wait_read(self.PIPE[0], timeout=seconds, timeout_exc=TimeoutError())
            os.read(self.PIPE[0], 4096)
        except (TimeoutError, BlockingIOError):
            pass

    def listen(self) -> None:
        """Accept (again): accepting stops when there are enough connections, or no more descriptors."""
        if self.alive and len(self.connections) + self.slow_ones < self.worker_connections:
            for fd in self.listeners:
                try:
                    self.poller.register(fd, IN)
                except FileExistsError:
                    pass

    def deafen(self, fd: int) -> None:
        """Stop accepting from one listener."""
        try:
            self.poller.unregister(fd)
        except (FileNotFoundError, ValueError, OSError):
            pass

    def turn(self) -> None:
        """One turn of the loop: read all that is ready, then answer all with one commit."""
        try:
            self.read()
            self.finish()
        except Exception:  # gevent stops a watcher whose callback raises, and nobody would be served any more
            self.log.exception("Error in the loop")

    def read(self) -> None:
        """Read what is ready, and call the application for each request in it."""
        connections = self.connections
        for fd, _ in self.poller.poll(0):
            conn = connections.get(fd)
            if conn is None:
                if fd in self.listeners:
                    self.accept(fd)
            elif conn.out:
                self.resume(conn)
            else:
                try:
                    data = conn.sock.recv(READ)
                except BlockingIOError:
                    continue
                except OSError:
                    data = b""
                if data:
                    self.take(conn, data)
                    if self.size > TURN_MOST:
                        self.flush()
                else:
                    self.end(conn)

    def finish(self) -> None:
        """The end of a turn: answer, then part with the connections that the fast lane declined."""
        if self.pending:
            self.flush()
        if self.leaving:
            leaving, self.leaving = self.leaving, []
            for conn in leaving:
                if not conn.out:
                    self.decline(conn)

    def accept(self, fd: int) -> None:
        """Take all connections that wait: a full backlog refuses the next at once."""
        listener = self.listeners[fd]
        while True:
            try:
                sock, peer = listener.sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self.log.warning("cannot accept more than %d connections: %s", len(self.connections), error)
                    self.deafen(fd)  # run() tries again within a second
                return
            sock.setblocking(False)
            self.join(Connection(sock, peer, listener))
            if len(self.connections) + self.slow_ones >= self.worker_connections:
                for every in self.listeners:
                    self.deafen(every)
                return

    def join(self, conn: Connection) -> None:
        """A connection enters the fast lane."""
        self.connections[conn.fd] = conn
        self.poller.register(conn.fd, IN)

    def leave(self, conn: Connection) -> None:
        """A connection leaves the fast lane; its socket stays open."""
        if self.connections.get(conn.fd) is conn:
            del self.connections[conn.fd]
            self.poller.unregister(conn.fd)
            if conn.pieces:
                self.arrived(conn)

    def drop(self, conn: Connection) -> None:
        """A connection ends."""
        self.leave(conn)
        conn.sock.close()

    def end(self, conn: Connection) -> None:
        """The client sends no more. A body that was cut off gets its answer from the application."""
        if conn.pieces:
            conn.declined = b"".join(conn.pieces)
            self.decline(conn)
        else:
            self.drop(conn)

    def take(self, conn: Connection, data: bytes) -> None:
        """Call the application for each whole request in the bytes that came; keep or decline the rest."""
        self.size += len(data)
        if conn.pieces:
            conn.pieces.append(data)
            conn.missing -= len(data)
            if conn.missing > 0:
                return
            data = b"".join(conn.pieces)
            self.arrived(conn)
        wsgi, pending = self.wsgi, self.pending
        while True:
            end = data.find(b"\r\n\r\n") + 4
            head = data[:end]
            plan = conn.heads.get(head) or self.plan(conn, head)
            if plan is None:
                break
            environ, length, keep_alive = plan
            stop = end + length
            if len(data) < stop:
                if length > self.body_most:
                    break
                conn.pieces = [data]
                conn.missing = stop - len(data)
                self.expect(conn)
                return
            environ = environ.copy()
            if conn.remote is not None:
                environ.update(conn.remote)
            environ["wsgi.input"] = BytesIO(data[end:stop])
            self.started = None
            try:
                answer = wsgi(environ, self.start)
            except Exception:
                self.log.exception("Error handling request %s", environ["PATH_INFO"])
                answer, self.started = (), BROKEN
            pending.append((conn, answer, self.started, keep_alive, environ))
            if not keep_alive or len(data) == stop:
                return
            data = data[stop:]
        conn.declined = data
        self.poller.modify(conn.fd, 0)
        self.leaving.append(conn)

    def expect(self, conn: Connection) -> None:
        """Let a body in that comes in pieces, or let it wait: many long ones at once would not fit into memory."""
        if self.coming and self.coming + conn.missing > COMING_MOST:
            self.poller.modify(conn.fd, 0)
            self.queue.append(conn)
        else:
            conn.due = conn.missing
            self.coming += conn.due

    def arrived(self, conn: Connection) -> None:
        """A body that came in pieces is here, or will never be; let in who waits."""
        self.coming -= conn.due
        conn.pieces, conn.due = [], 0
        while self.queue and (not self.coming or self.coming + self.queue[0].missing <= COMING_MOST):
            waiting = self.queue.popleft()
            # it may have left meanwhile, or be here: a client that is gone is read from all the same
            if waiting.pieces and not waiting.due and self.connections.get(waiting.fd) is waiting:
                waiting.due = waiting.missing
                self.coming += waiting.due
                if not waiting.out:
                    self.poller.modify(waiting.fd, IN)

    def plan(self, conn: Connection, head: bytes) -> ParsedHead | None:
        """Recognise a head that was not seen before, and remember it; None: declined."""
        plan = self.grammar.recognise(head, conn.listener.name) if self.plain else None
        if plan is not None and len(head) <= HEAD_MOST:
            if len(conn.heads) >= HEADS_MOST:
                conn.heads.clear()
            conn.heads[head] = plan
        return plan

    def start(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], Any]:
        """PEP 3333's start_response. One for all: answers are iterated one after the other."""
        self.started = status, headers
        return self.write

    def write(self, data: bytes) -> None:
        """PEP 3333's write()."""
        raise NotImplementedError("the fast lane has no write(): return the body's chunks")

    def flush(self) -> None:
        """Iterate the kept answers, the first of which commits for all, and send each."""
        pending, self.pending, self.size = self.pending, [], 0
        if not self.alive:
            pending = self.answers.closing(pending)
        begun = time.monotonic()
        rendered, render, logged = self.answers.rendered, self.answers.render, self.answers.logged
        for conn, answer, started, keep_alive, environ in pending:
            self.started = started
            try:
                try:
                    body = b"".join(answer)
                finally:
                    if hasattr(answer, "close"):
                        answer.close()
                status, headers = self.started
                entry = rendered.get(id(headers))
                if entry is None or entry[0] is not headers or entry[1] is not status:
                    entry = render(status, headers, body)
            except Exception:
                self.log.exception("Error handling request %s", environ["PATH_INFO"])
                (status, headers), body = BROKEN, b""
                entry = render(status, headers, body)
            if len(body) != entry[4]:  # as gunicorn has it; what is said of an answer's length must be true
                body, keep_alive = body[: entry[4]], keep_alive and len(body) > entry[4]
            if keep_alive:
                self.send(conn, entry[2] + body)
            else:
                conn.closing = True
                self.send(conn, entry[3] + body)
            if logged:
                self.answers.log_access(status, headers, body, environ, time.monotonic() - begun)
        self.nr += len(pending)

    def send(self, conn: Connection, data: bytes) -> None:
        """Send, and keep what the client does not take at once; while there is any, nothing more is read from it."""
        if self.connections.get(conn.fd) is not conn:
            return
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
            self.poller.modify(conn.fd, select.EPOLLOUT)
        elif conn.closing:
            self.drop(conn)

    def resume(self, conn: Connection) -> None:
        """Send more of what the client has not taken yet; once it is out, read from the client again."""
        try:
            sent = conn.sock.send(conn.out)
        except BlockingIOError:
            return
        except OSError:
            self.drop(conn)
            return
        conn.out = conn.out[sent:]
        if conn.out:
            return
        if conn.closing:
            self.drop(conn)
        elif conn.declined is not None:
            self.leaving.append(conn)
        else:
            self.poller.modify(conn.fd, IN)

    def decline(self, conn: Connection) -> None:
        """Hand a connection to the slow lane, with what was read of its request."""
        if self.connections.get(conn.fd) is conn:
            self.leave(conn)
            self.slow_ones += 1
            gevent.spawn(self.slow, conn)

    def slow(self, conn: Connection) -> None:
        """Serve one request with gunicorn's own handler; the connection comes back to the fast lane for its next."""
        sock = gsocket.socket(fileno=conn.sock.detach())
        client = Unread(sock, conn.declined or b"")
        try:
            self.handle(conn.listener, client, conn.peer)
            if client.left is None:
                self.hang_up(sock)
        finally:
            self.slow_ones -= 1
            if client.left is None:
                sock.close()
            else:
                conn.sock = socket.socket(fileno=sock.detach())
                conn.sock.setblocking(False)
                conn.fd, conn.declined, conn.pieces = conn.sock.fileno(), None, []
                self.join(conn)
                if client.left or client.data:
                    self.take(conn, client.left + client.data)
                    self.finish()
