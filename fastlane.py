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

import errno
import io
import os
import re
import select
import socket
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, NamedTuple

import gevent
from gevent import socket as gsocket
from gevent.hub import get_hub
from gunicorn.http.wsgi import base_environ
from gunicorn.workers.ggevent import GeventWorker

READ = 65536  # bytes one recv asks for
BODY_MOST = 1 << 20  # a longer body is read by the application itself, in the slow lane
TURN_MOST = 8 << 20  # bytes after which a turn commits what it has, so that no batch outgrows memory
HEADS_MOST = 4096  # parsed heads that are remembered by their exact bytes; nginx sends very few different ones
IN, GONE = select.EPOLLIN, select.EPOLLERR | select.EPOLLHUP

TOKEN = rb"[!#$%&'*+.^`|~0-9A-Za-z-]+"  # RFC 9110, 5.6.2, without "_", which gunicorn treats with suspicion
# The path needs no decoding and cannot be taken for an authority; the query is printable ASCII without a fragment.
REQUEST = re.compile(
    rb"POST ((?:/[A-Za-z0-9._~-]+)*/?)(?:\?([!\"$-~]*))? HTTP/1\.1\r\n((?:" + TOKEN + rb":[\t -~\x80-\xff]*\r\n)+)\r\n"
)
FIELD = re.compile(rb"(" + TOKEN + rb"):[ \t]*([\t -~\x80-\xff]*?)[ \t]*\r\n")
LENGTH = re.compile(r"0|[1-9][0-9]{0,9}")
DECLINED = frozenset((b"TRANSFER-ENCODING", b"EXPECT", b"UPGRADE", b"HTTP2-SETTINGS", b"TRAILER", b"TE"))


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

    def recognise(self, head: bytes, peer: Any, server: Any) -> Plan | None:
        """The plan of a head, which ends with its empty line; None: declined.

        peer: the client's address as accept() gives it. server: the listener's name as getsockname() gives it.
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
                if isinstance(peer, tuple) or "wsgi.url_scheme" in environ:
                    return None
                scheme = environ["wsgi.url_scheme"] = "https" if value == self.schemes[name] else "http"
            environ["HTTP_" + name.decode().replace("-", "_")] = value
        if not LENGTH.fullmatch(environ.get("CONTENT_LENGTH", "")):
            return None
        path, question = target.decode(), query.decode() if query else ""
        name, port = served(server, host, scheme)
        environ.update({
            "PATH_INFO": path,
            "QUERY_STRING": question,
            "RAW_URI": head[5 : head.index(b" ", 5)].decode(),
            "SERVER_NAME": name,
            "SERVER_PORT": port,
            "REMOTE_ADDR": peer[0] if isinstance(peer, tuple) else str(peer or ""),
            "wsgi.url_scheme": scheme,
            "fastlane.head": head,
        })
        if isinstance(peer, tuple):
            environ["REMOTE_PORT"] = str(peer[1])
        return Plan(environ, int(environ["CONTENT_LENGTH"]), keep_alive)


def served(server: Any, host: str, scheme: str) -> tuple[str, str]:
    """SERVER_NAME and SERVER_PORT as gunicorn has them: on a Unix socket they come from the Host field."""
    if not isinstance(server, str):
        return server[0], str(server[1])
    name, *port = server.split(":") if ":" in server else host.split(":")
    if not host and ":" not in server:
        return server, ""
    return name, port[0] if port else {"http": "80", "https": "443"}[scheme]


class Connection:
    """One client connection in the fast lane."""

    __slots__ = ("closing", "declined", "fd", "heads", "listener", "missing", "out", "peer", "pieces", "server", "sock")

    def __init__(self, sock: socket.socket, peer: Any, listener: Listener) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.listener = listener.sock
        self.server = listener.name
        # what a head means depends on who sent it; on a Unix socket everybody is nobody
        self.heads: dict[bytes, Plan] = {} if isinstance(peer, tuple) else listener.heads
        self.pieces: list[bytes] = []  # a request whose body is still coming,
        self.missing = 0  # and how many bytes of it are
        self.out = b""  # what the client has not taken yet
        self.declined: bytes | None = None  # what the slow lane gets once the answers before it are out
        self.closing = False


class Listener(NamedTuple):
    """A listening socket, its name, and the heads that came through it."""

    sock: Any
    name: Any
    heads: dict[bytes, Plan]


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
    """`worker_class = "fastlane.FastLane"`. Behind nginx: it speaks no TLS, and no PROXY protocol.

    An answer's headers list is rendered once and recognised by its identity: applications that make their answers at
    import are quick, the others are correct. `write()` of PEP 3333 and gunicorn's hooks a request are not for the
    fast lane: where hooks are set, every request takes the slow one.
    """

    def patch(self) -> None:
        """Nothing is patched: see the top of this file."""

    def run(self) -> None:
        """Serve until told to stop; then answer what has been read, and let the idle clients close first."""
        self.grammar = Grammar(self.cfg)
        self.plain = not self.cfg.is_ssl and self.cfg.proxy_protocol in (False, "off") and all(
            self.cfg.settings[name].get() is self.cfg.settings[name].default for name in ("pre_request", "post_request")
        )
        self.logged = type(self.log).access is not self.log_class().access or bool(
            self.cfg.accesslog or self.cfg.logconfig or self.cfg.logconfig_dict or self.cfg.syslog
        )
        self.connections: dict[int, Connection] = {}
        self.slow_ones = 0
        self.pending: list[tuple[Connection, Iterable[bytes], Any, bool, dict[str, Any]]] = []
        self.size = 0  # bytes pending
        self.leaving: list[Connection] = []
        self.rendered: dict[int, tuple[Any, str, bytes, bytes]] = {}
        self.started: Any = None
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
            self.rest(1.0)
        for fd in self.listeners:
            self.deafen(fd)
        for sock in self.sockets:
            sock.close()
        # A connection that is closed here may have a request on its way, which the client would see fail (nginx does
        # not repeat a POST). So it is closed with its next answer, or by the client, whose patience is the shorter.
        deadline = time.monotonic() + self.cfg.graceful_timeout
        while (self.connections or self.slow_ones) and time.monotonic() < deadline:
            self.notify()
            self.rest(0.1)
        watcher.stop()
        self.flush()

    @staticmethod
    def log_class() -> type:
        """gunicorn's own logger, which writes an access log only when one is set."""
        from gunicorn.glogging import Logger

        return Logger

    def rest(self, seconds: float) -> None:
        """Let the loop run for so long, or until a signal writes to the wake-up pipe."""
        try:
            gsocket.wait_read(self.PIPE[0], timeout=seconds, timeout_exc=TimeoutError())
            os.read(self.PIPE[0], 4096)
        except (TimeoutError, BlockingIOError):
            pass

    def listen(self) -> None:
        """Accept (again): accepting stops when there are enough connections, or no more descriptors."""
        if self.alive and len(self.connections) < self.worker_connections:
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
        connections = self.connections
        for fd, event in self.poller.poll(0):
            conn = connections.get(fd)
            if conn is None:
                if fd in self.listeners:
                    self.accept(fd)
            elif conn.out:
                self.send(conn, b"")
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
        self.finish()

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
                continue
            sock.setblocking(False)
            self.join(Connection(sock, peer, listener))
            if len(self.connections) >= self.worker_connections:
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
            conn.pieces = []
        while data:
            end = data.find(b"\r\n\r\n") + 4
            head = data[:end]
            plan = conn.heads.get(head) or self.plan(conn, head)
            if plan is None:
                break
            environ, length, keep_alive = plan
            stop = end + length
            if len(data) < stop:
                if length > BODY_MOST:
                    break
                conn.pieces = [data]
                conn.missing = stop - len(data)
                return
            environ = environ.copy()
            environ["wsgi.input"] = io.BytesIO(data[end:stop])
            self.started = None
            try:
                answer = self.wsgi(environ, self.start)
            except Exception:
                self.log.exception("Error handling request %s", environ["RAW_URI"])
                answer, keep_alive = self.broken(), False
            self.pending.append((conn, answer, self.started, keep_alive, environ))
            if not keep_alive:
                conn.closing = True
                return
            data = data[stop:]
        else:
            return
        conn.declined = data
        self.poller.modify(conn.fd, 0)
        self.leaving.append(conn)

    def plan(self, conn: Connection, head: bytes) -> Plan | None:
        """Recognise a head that was not seen before, and remember it; None: declined."""
        plan = self.grammar.recognise(head, conn.peer, conn.server) if self.plain else None
        if plan is not None:
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

    def broken(self) -> Iterable[bytes]:
        """The answer of an application that raised."""
        self.started = "500 Internal Server Error", []
        return ()

    def flush(self) -> None:
        """Iterate the kept answers, the first of which commits for all, and send each."""
        pending, self.pending, self.size = self.pending, [], 0
        begun = time.monotonic()
        for conn, answer, started, keep_alive, environ in pending:
            self.started = started
            try:
                try:
                    body = b"".join(answer)
                finally:
                    if hasattr(answer, "close"):
                        answer.close()
                status, headers = self.started
            except Exception:
                self.log.exception("Error handling request %s", environ["RAW_URI"])
                body, keep_alive = b"".join(self.broken()), False
                status, headers = self.started
            entry = self.rendered.get(id(headers))
            if entry is None or entry[0] is not headers or entry[1] is not status:
                entry = self.render(status, headers, body)
            if keep_alive and self.alive:
                self.send(conn, entry[2] + body)
            else:
                conn.closing = True
                self.send(conn, entry[3] + body)
            if self.logged:
                self.log_access(status, headers, body, environ, time.monotonic() - begun)
        self.nr += len(pending)
        if self.nr >= self.max_requests and self.alive:
            self.log.info("Autorestarting worker after current request.")
            self.alive = False

    def render(self, status: str, headers: list[tuple[str, str]], body: bytes) -> tuple[Any, str, bytes, bytes]:
        """The head of an answer as bytes, staying connected and closing; remembered where it states its length."""
        # no Date and no Server: nginx puts its own in their place
        lines = [f"HTTP/1.1 {status}\r\n", *(f"{name}: {value}\r\n" for name, value in headers)]
        sized = status[:3] in ("204", "304") or any(name.lower() == "content-length" for name, _ in headers)
        if not sized:
            lines.append(f"Content-Length: {len(body)}\r\n")
        head = "".join(lines).encode("latin-1")
        entry = headers, status, head + b"\r\n", head + b"Connection: close\r\n\r\n"
        if sized:
            if len(self.rendered) >= 256:
                self.rendered.clear()
            self.rendered[id(headers)] = entry
        return entry

    def send(self, conn: Connection, data: bytes) -> None:
        """Send, and keep what the client does not take at once; while there is any, nothing more is read from it."""
        if self.connections.get(conn.fd) is not conn:
            return
        waiting = bool(conn.out)
        data = conn.out + data if waiting else data
        try:
            sent = conn.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.drop(conn)
            return
        if sent < len(data):
            conn.out = data[sent:]
            if not waiting:
                self.poller.modify(conn.fd, select.EPOLLOUT)
            return
        conn.out = b""
        if conn.closing:
            self.drop(conn)
        elif waiting and conn.declined is not None:
            self.leaving.append(conn)
        elif waiting:
            self.poller.modify(conn.fd, IN)

    def log_access(self, status: str, headers: Any, body: bytes, environ: dict[str, Any], seconds: float) -> None:
        """gunicorn's access log, for those who want to pay for it."""
        response = SimpleNamespace(status=status, headers=headers, sent=len(body), response_length=len(body))
        request = SimpleNamespace(headers=[(k[5:], v) for k, v in environ.items() if k.startswith("HTTP_")])
        self.log.access(response, request, environ, timedelta(seconds=seconds))

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
        finally:
            self.slow_ones -= 1
            if client.left is None or not self.alive:
                sock.close()
            else:
                conn.sock = socket.socket(fileno=sock.detach())
                conn.sock.setblocking(False)
                conn.fd, conn.declined, conn.pieces = conn.sock.fileno(), None, []
                self.join(conn)
                if client.left or client.data:
                    self.take(conn, client.left + client.data)
                    self.finish()

    def handle_request(self, listener_name: Any, req: Any, sock: Any, addr: Any) -> None:
        """Serve the request that gunicorn parsed; then take the connection away from its keep-alive loop."""
        super().handle_request(listener_name, req, sock, addr)
        drained = 0
        while drained < BODY_MOST:
            data = req.body.read(READ)
            drained += len(data)
            if not data:
                sock.left = req.unreader.buf.getvalue()
                break
        raise StopIteration
