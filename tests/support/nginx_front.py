"""nginx with the real configuration, in front of a stand-in for gateway and reader that records its requests."""

from __future__ import annotations

import contextlib
import re
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

from proving.harness import Server, nginx, short_tmp
from sluice import settings
from sluice.run import configure

HOST = b"Host: localhost\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n" + b'{"message":"OK"}'


class Gateway:
    """Stands in for gateway and reader: records each request and answers `reply`, or closes the connection if it is
    empty. reads: the requests at the reader's sockets; requests: those at the gateway's.
    """

    def __init__(self, home: Path) -> None:
        self.requests: list[bytes] = []
        self.reads: list[bytes] = []
        self.connections = 0
        self.reply = OK
        s = settings.load_settings({"INGEST_HOME": str(home)})
        self.servers = [self.serve(path, self.requests) for path in s.gateway_sockets]
        self.readers = [self.serve(path, self.reads) for path in s.reader_sockets]

    def serve(self, path: Path, record: list[bytes]) -> socketserver.ThreadingUnixStreamServer:
        gateway = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                gateway.connections += 1
                while line := self.rfile.readline():
                    head = line
                    while not head.endswith(b"\r\n\r\n"):
                        head += self.rfile.readline()
                    length = [int(field[16:]) for field in head.split(b"\r\n") if field.startswith(b"Content-Length: ")]
                    record.append(head + self.rfile.read(length[0] if length else 0))
                    if not gateway.reply:
                        return
                    self.wfile.write(gateway.reply)

        path.parent.mkdir(exist_ok=True)
        server = socketserver.ThreadingUnixStreamServer(str(path), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    def close(self) -> None:
        for server in self.servers + self.readers:
            server.shutdown()
            server.server_close()


@contextlib.contextmanager
def front(*change: tuple[str, str], **env: object) -> Iterator[tuple[Server, Gateway]]:
    with short_tmp() as tmp, contextlib.closing(Gateway(tmp)) as gateway, nginx(tmp, env, change) as server:
        yield server, gateway


def problem(title: str, status: int, detail: str) -> bytes:
    """The body of an error, as in docs/protocol/http.md."""
    return b'{"type":"about:blank","title":"%b","status":%d,"detail":"%b"}' % (title.encode(), status, detail.encode())


def as_one_text(s: settings.Settings) -> str:
    """The configuration of these settings with what it includes in place."""
    files = configure.nginx_configuration(s)
    included = {f'"{s.home / "etc" / name}"': text for name, text in files.items()}

    names = "|".join(map(re.escape, included))

    def text_of(match: re.Match[str]) -> str:
        return re.sub("^(?=.)", match[1], expanded(included[match[2]]), flags=re.M)

    def expanded(text: str) -> str:
        return re.sub(rf"^( *)include ({names});\n", text_of, text, flags=re.M)

    return expanded(files["sluice.conf"])
