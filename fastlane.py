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
import re
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from datetime import timedelta
from io import BytesIO
from types import SimpleNamespace
from typing import Any, NamedTuple

import gevent
from gevent import socket as gsocket
from gevent.hub import get_hub
from gunicorn.glogging import Logger
from gunicorn.http.errors import ParseException
from gunicorn.http.wsgi import Response, base_environ
from gunicorn.workers.ggevent import GeventWorker

READ = 65536  # bytes one recv asks for
BODY_MOST = 1 << 20  # a longer body is read by the application itself, in the slow lane
TURN_MOST = 2 << 20  # bytes after which a turn commits what it has, so that no batch outgrows memory
COMING_MOST = 4 << 20  # bytes of bodies in pieces that are let in at a time; the others wait in the kernel
HEADS_MOST = 1024  # plans a listener remembers by the exact bytes of their heads, some 3 kB each;
HEAD_MOST = 1024  # longer heads are not remembered
LINGER = 2.0  # seconds that a client has to notice that it is refused while it still sends
IN, GONE = select.EPOLLIN, select.EPOLLERR | select.EPOLLHUP

TOKEN = rb"[!#$%&'*+.^`|~0-9A-Za-z-]+"  # RFC 9110, 5.6.2, without "_", which gunicorn treats with suspicion
# The path needs no decoding and cannot be taken for an authority; the query is printable ASCII without a fragment.
REQUEST = re.compile(
    rb"POST ((?:/[A-Za-z0-9._~-]+)*/?)(?:\?([!\"$-~]*))? HTTP/1\.1\r\n((?:" + TOKEN + rb":[\t -~\x80-\xff]*\r\n)+)\r\n"
)
FIELD = re.compile(rb"(" + TOKEN + rb"):[ \t]*([\t -~\x80-\xff]*?)[ \t]*\r\n")
LENGTH = re.compile(r"0|[1-9][0-9]{0,9}")
BROKEN = "500 Internal Server Error", [("Content-Length", "0")]
# What gunicorn can be set to do with a request before the application sees it; the fast lane does none of it.
HOOKS = "pre_request", "post_request", "protocol", "proxy_protocol", "http2_cleartext"
ACCESS_LOGS = "accesslog", "logconfig", "logconfig_dict", "logconfig_json", "syslog"
DECLINED = frozenset((b"TRANSFER-ENCODING", b"EXPECT", b"UPGRADE", b"HTTP2-SETTINGS", b"TRAILER", b"TE"))


# A process that has just been forked takes TERM by a copy of the master's handler until it has its own (init_signals).
# It would never hear of it, serve on, and be killed in the middle of a request at the end of the graceful timeout. As
# it serves nobody yet, TERM may end it at once.
TERM = {signal.SIGTERM}


def hear_of_term() -> None:
    """In a forked process, at its beginning."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TERM)


os.register_at_fork(
    before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, TERM),
    after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, TERM),
    after_in_child=hear_of_term,
)


class Plan(NamedTuple):
    """What a head asks for: the environ but for the body, the body's length in bytes, and whether to stay connected."""

    environ: dict[str, Any]
    length: int
    keep_alive: bool


class Grammar:
    """Heads that are beyond doubt -> plans. Agrees with gunicorn's parser for every head that it does not decline."""

    def __init__(self, cfg: Any) -> None:
        """cfg: gunicorn's settings; its limits hold here too."""
        self.base = base_environ(cfg)
        self.base.update({"REQUEST_METHOD": "POST", "SCRIPT_NAME": "", "SERVER_PROTOCOL": "HTTP/1.1"})
        limits = cfg.limit_request_line, cfg.limit_request_field_size
        self.longest = min(limit for limit in (*limits, 8190) if limit > 0)
        self.fields = cfg.limit_request_fields if cfg.limit_request_fields > 0 else 100
        self.schemes = {name.encode(): value for name, value in cfg.secure_scheme_headers.items()}

    def recognise(self, head: bytes, server: Any) -> Plan | None:
        """The plan of a head, which ends with its empty line; None: declined.

        server: the listener's name as getsockname() gives it.
        """
        match = REQUEST.fullmatch(head)
        if match is None or len(head) > self.longest:
            return None
        target, query, block = match.groups()
        fields = FIELD.findall(block)
        if not target or len(fields) > self.fields:
            return None
        environ = self.base.copy()
        seen = set()
        scheme, host, keep_alive = "http", "", True
        for name, raw in fields:
            name = name.upper()
            if name in seen or name in DECLINED:
                return None
            seen.add(name)
            value = raw.decode("latin-1")
            if name == b"CONTENT-TYPE":
                environ["CONTENT_TYPE"] = value
                continue
            if name == b"CONTENT-LENGTH":
                environ["CONTENT_LENGTH"] = value
                continue
            if name == b"HOST":
                host = value
            elif name == b"CONNECTION":
                if value.lower() not in ("close", "keep-alive"):
                    return None
                keep_alive = value.lower() == "keep-alive"
            elif name in self.schemes:
                # over TCP it would depend on who sent it
                if not isinstance(server, str) or "wsgi.url_scheme" in environ:
                    return None
                scheme = environ["wsgi.url_scheme"] = "https" if value == self.schemes[name] else "http"
            environ["HTTP_" + name.decode().replace("-", "_")] = value
        if not LENGTH.fullmatch(environ.get("CONTENT_LENGTH", "")):
            return None
        path, question = target.decode(), query.decode() if query else ""
        name, port = served(server, host, scheme)
        environ |= {
            "PATH_INFO": path,
            "QUERY_STRING": question,
            "RAW_URI": head[5 : head.index(b" ", 5)].decode(),
            "SERVER_NAME": name,
            "SERVER_PORT": port,
            "REMOTE_ADDR": "",
            "wsgi.url_scheme": scheme,
            "fastlane.head": head,
        }
        return Plan(environ, int(environ["CONTENT_LENGTH"]), keep_alive)


def served(server: Any, host: str, scheme: str) -> tuple[str, str]:
    """SERVER_NAME and SERVER_PORT as gunicorn has them: on a Unix socket they come from the Host field."""
    if not isinstance(server, str):
        return server[0], str(server[1])
    name, *port = server.split(":") if ":" in server else host.split(":")
    if not host and ":" not in server:
        return server, ""
    return name, port[0] if port else {"http": "80", "https": "443"}[scheme]


def remote(peer: Any) -> dict[str, str] | None:
    """What the environ says of a client by its address, as accept() gives it; None: nobody, as on most Unix sockets."""
    if isinstance(peer, tuple):
        return {"REMOTE_ADDR": peer[0], "REMOTE_PORT": str(peer[1])}
    return {"REMOTE_ADDR": os.fsdecode(peer)} if peer else None


# A kept answer: who gets it, the answer, status and headers where they are known, whether to stay, the environ.
Pending = tuple["Connection", Iterable[bytes], Any, bool, dict[str, Any]]
Rendered = tuple[list[tuple[str, str]], str, bytes, bytes, int]


class Connection:
    """One client connection in the fast lane."""

    __slots__ = (
        "closing", "declined", "due", "fd", "heads", "listener", "missing", "out", "peer", "pieces", "remote", "sock",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, peer: Any, listener: Listener) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.remote = remote(peer)
        self.listener = listener
        self.heads = listener.heads
        self.pieces: list[bytes] = []  # a request whose body is still coming,
        self.missing = 0  # how many bytes of it are,
        self.due = 0  # and how many of these count as coming; 0 while it waits to be let in
        self.out: bytes | bytearray = b""  # what the client has not taken yet
        self.declined: bytes | None = None  # what the slow lane gets once the answers before it are out
        self.closing = False


class Listener(NamedTuple):
    """A listening socket, its name, and the heads that came through it."""

    sock: Any
    name: Any
    heads: dict[bytes, Plan]

    def getsockname(self) -> Any:
        """The name, for gunicorn's handler; also when the socket is closed already."""
        return self.name


class Unread:
    """A socket for gunicorn's handler that has the bytes before it which were read too early.

    left: what had been read after the request, once it was served and the connection may stay; None: it ends.
    """

    def __init__(self, sock: Any, data: bytes) -> None:
        self.sock = sock
        self.data = data
        self.left: bytes | None = None

    def recv(self, size: int) -> bytes:
        """What was read too early first, then the socket's own."""
        if not self.data:
            received: bytes = self.sock.recv(size)
            return received
        data, self.data = self.data[:size], self.data[size:]
        return data

    def close(self) -> None:
        """gunicorn is done with it; whether the connection is too, `left` says."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sock, name)


class FastLane(GeventWorker):
    """`worker_class = "fastlane.FastLane"`. Behind nginx, which waits for slow clients and hangs up on idle ones: the
    fast lane has no timeouts. It speaks no TLS, and no PROXY protocol.

    An answer's headers list is rendered once and recognised by its identity: applications that make their answers at
    import are quick, the others are correct. `write()` of PEP 3333 and gunicorn's hooks a request are not for the
    fast lane: where hooks are set, every request takes the slow one.
    """

    alive: bool
    poller: Any

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
        # gunicorn's own logger writes an access log only when one is set
        self.logged = self.cfg.logger_class.access is not Logger.access or any(
            self.cfg.settings[name].get() for name in ACCESS_LOGS if name in self.cfg.settings
        )
        self.connections: dict[int, Connection] = {}
        self.slow_ones = 0
        self.pending: list[Pending] = []
        self.size = 0  # bytes pending
        self.coming = 0  # bytes of the bodies that come in pieces and were let in
        self.queue: deque[Connection] = deque()  # those whose bodies were not let in yet
        self.leaving: list[Connection] = []
        self.rendered: dict[int, Rendered] = {}
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

    def plan(self, conn: Connection, head: bytes) -> Plan | None:
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
            pending = self.farewell(pending)
        begun = time.monotonic()
        rendered, logged = self.rendered, self.logged
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
                    entry = self.render(status, headers, body)
            except Exception:
                self.log.exception("Error handling request %s", environ["PATH_INFO"])
                (status, headers), body = BROKEN, b""
                entry = self.render(status, headers, body)
            if len(body) != entry[4]:  # as gunicorn has it; what is said of an answer's length must be true
                body, keep_alive = body[: entry[4]], keep_alive and len(body) > entry[4]
            if keep_alive:
                self.send(conn, entry[2] + body)
            else:
                conn.closing = True
                self.send(conn, entry[3] + body)
            if logged:
                self.log_access(status, headers, body, environ, time.monotonic() - begun)
        self.nr += len(pending)

    @staticmethod
    def farewell(pending: list[Pending]) -> list[Pending]:
        """The same, but the last answer of each client closes, unless the slow lane has something to answer still."""
        last = {item[0]: number for number, item in enumerate(pending)}
        return [
            (conn, answer, started, keep_alive and (number < last[conn] or conn.declined is not None), environ)
            for number, (conn, answer, started, keep_alive, environ) in enumerate(pending)
        ]

    def render(self, status: str, headers: list[tuple[str, str]], body: bytes) -> Rendered:
        """An answer's head as bytes, for staying connected and for closing, and the length of its body.

        Remembered where the length does not depend on the body. Raises: whatever gunicorn says of a wrong header.
        """
        response = Response(SimpleNamespace(method="POST", version=(1, 1)), None, self.cfg)
        response.start_response(status, headers)
        # no Date and no Server: nginx puts its own in their place
        lines = [f"HTTP/1.1 {status}\r\n", *(f"{name}: {value}\r\n" for name, value in response.headers)]
        length = 0 if status[:3] in ("204", "304") else response.response_length
        sized = length is not None
        if not sized:
            length = len(body)
            lines.append(f"Content-Length: {length}\r\n")
        head = "".join(lines).encode("latin-1")
        entry = headers, status, head + b"\r\n", head + b"Connection: close\r\n\r\n", length
        if sized:
            if len(self.rendered) >= 256:
                self.rendered.clear()
            self.rendered[id(headers)] = entry
        return entry

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

    def log_access(self, status: str, headers: Any, body: bytes, environ: dict[str, Any], seconds: float) -> None:
        """gunicorn's access log, for those who want to pay for it."""
        response = SimpleNamespace(status=status, headers=headers, sent=len(body), response_length=len(body))
        names = [name for name in environ if name.startswith(("HTTP_", "CONTENT_"))]
        request = SimpleNamespace(headers=[(n.removeprefix("HTTP_").replace("_", "-"), environ[n]) for n in names])
        try:
            self.log.access(response, request, environ, timedelta(seconds=seconds))
        except Exception:  # a logger of somebody's own: the answers that follow are not its hostages
            self.log.exception("Error in the access log")

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:
        """gunicorn's, for the slow lane. It quotes what it does not understand, which may be a body or a secret."""
        if isinstance(exc, ParseException):
            vars(exc).update({name: "..." for name, value in vars(exc).items() if isinstance(value, (str, bytes))})
        elif hasattr(req, "uri"):
            req.uri = req.path
        super().handle_error(req, client, addr, exc)

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

    def hang_up(self, sock: Any) -> None:
        """Let the client close first, for a while: closing on bytes that were not read resets the connection, which may
        cost the client an answer that it has not read yet, a 413 above all (RFC 9112, 9.6).
        """
        with gevent.Timeout(LINGER, False):
            try:
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(READ):
                    gevent.sleep(0)  # a client that sends without a pause would have the loop for itself
            except OSError:
                pass

    def handle_request(self, listener_name: Any, req: Any, sock: Any, addr: Any) -> None:
        """Serve the request that gunicorn parsed; then take the connection away from its keep-alive loop."""
        super().handle_request(listener_name, req, sock, addr)
        drained = 0
        with gevent.Timeout(LINGER, False):
            while drained < BODY_MOST:
                try:
                    data = req.body.read(READ)
                except Exception:  # there is no end to find in what the client sends; it has its answer
                    break
                drained += len(data)
                if getattr(req.body, "failed", False):  # the application may have swallowed it
                    break
                if not data:
                    sock.left = req.unreader.buf.getvalue()
                    break
        raise StopIteration
