"""ClickHouse's engine (chDB) behind the part of its HTTP interface that Sluice uses, for tests, bench and drill.

    .venv-engines/bin/python proving/chdb_server.py DIRECTORY PORT

No registry has a server of ClickHouse that knows tokens. The engine opens a directory for one process; this one.
"""

from __future__ import annotations

import re
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import chdb

NOT_SETTINGS = {"query", "database", "client_protocol_version", "session_id", "query_id", "compress", "decompress"}
INSERT = re.compile(r"\s*(INSERT INTO .*?)\s*FORMAT (\w+)\s*", re.DOTALL | re.IGNORECASE)


class Engine:
    """The engine; one query at a time."""

    def __init__(self, directory: str) -> None:
        self.connection = chdb.connect(directory)
        self.lock = threading.Lock()

    def answer(self, given: dict[str, str], body: bytes) -> bytes:
        """The answer to a request. given: the parameters of its URL. Raises: RuntimeError."""
        if body.startswith(b"INSERT INTO "):  # in front of the data
            given["query"], body = body.partition(b"\n")[0].decode(), body.partition(b"\n")[2]
        insert = INSERT.fullmatch(given.get("query", ""))
        params = {name[6:]: value for name, value in given.items() if name.startswith("param_")}
        with self.lock:
            self.connection.query(f"USE `{given.get('database', 'default')}`", "TabSeparated")
            if not insert:
                statement = "\n".join(filter(None, (given.get("query", ""), body.decode())))
                native = re.search(r"FORMAT Native\s*$", statement)
                return self.run(statement, "Native" if native else "TabSeparated", params)
            settings = ", ".join(
                f"{name} = '{value}'"
                for name, value in given.items()
                if name not in NOT_SETTINGS and not name.startswith("param_")
            )
            with tempfile.NamedTemporaryFile() as file:
                file.write(body)
                file.flush()
                statement = f"{insert[1]} FROM INFILE '{file.name}' SETTINGS {settings} FORMAT {insert[2]}"
                return self.run(statement, "TabSeparated", params)

    def run(self, statement: str, form: str, params: dict[str, str]) -> bytes:
        """The result of one statement."""
        return bytes(self.connection.query(statement, form, params=params).bytes() or b"")


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    engine: Engine

    def do_GET(self) -> None:
        """Answer /ping, and queries without a body."""
        self.reply()

    def do_POST(self) -> None:
        """Answer a query."""
        self.reply()

    def reply(self) -> None:
        """Answer any request."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        given = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        status, text = 200, b"Ok.\n"
        if given or body:
            try:
                text = self.engine.answer(given, body)
            except Exception as error:  # whatever it is, the client gets it
                status, text = 500, str(error).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        if status == 500:
            found = re.search(rb"Code: (\d+)", text)
            self.send_header("X-ClickHouse-Exception-Code", found[1].decode() if found else "0")
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *given: Any) -> None:
        """Log nothing."""


if __name__ == "__main__":
    Handler.engine = Engine(sys.argv[1])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
