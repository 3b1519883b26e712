"""A private PostgreSQL server for tests and bench, removed when its `with` block ends."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg

from proving import harness

USER = "nobody"  # runs the server if the caller is root: PostgreSQL refuses to run as root


def programs() -> Path:
    """The directory of the server's programs: POSTGRES_BIN, or that of the newest one, which Debian leaves off PATH."""
    if chosen := os.environ.get("POSTGRES_BIN"):
        return Path(chosen)
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("postgres")
    assert found or on_path, "no PostgreSQL server found; bin/provision test installs it"
    return (found[-1] if found else Path(str(on_path))).parent


class Postgres:
    """A server whose role `sluice` owns the database `sluice` and needs no password on the Unix socket."""

    def __init__(self, home: Path, config: dict[str, object], prefix: Sequence[str] = ()) -> None:
        """prefix: of its command."""
        self.home = home
        self.prefix = prefix
        self.port = harness.free_port()
        self.config = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": home,
            "unix_socket_permissions": "0777",
            "hba_file": home / "hba.conf",
            "log_lock_waits": "on",
        } | config
        self.running = contextlib.ExitStack()

    @property
    def url(self) -> str:
        """The connection string, over the Unix socket."""
        return f"postgresql://sluice@/sluice?host={self.home}&port={self.port}"

    def start(self) -> None:
        """Start the server and wait until it answers queries, which includes any recovery."""
        options = [f"--{name}={value}" for name, value in self.config.items()]
        command = [*self.prefix, *unprivileged(), programs() / "postgres", "-D", self.home / "data", *options]
        # SIGINT is PostgreSQL's fast shutdown: open transactions are rolled back, and a checkpoint is written. Killed
        # before that is done, the server would leave processes that do not let another one start in its directory
        env = harness.environment(self.home)
        running = harness.running(command, self.home / "postgres.out", env, signal.SIGINT, seconds=120)
        self.process = self.running.enter_context(running)

        def ready() -> bool:
            if self.process.poll() is not None:
                raise harness.Died(self.said())
            with self.connect(dbname="postgres"):
                return True

        harness.poll(ready, what="postgres")

    def stop(self) -> None:
        """Stop the server; open transactions are rolled back."""
        self.running.close()

    def kill(self) -> None:
        """Send SIGKILL to the server and its backends."""
        pid = self.process.pid
        backends = list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
        os.killpg(pid, signal.SIGKILL)  # not the backends, each of which leads a group
        for backend in backends:
            with contextlib.suppress(ProcessLookupError):
                os.kill(backend, signal.SIGKILL)
        self.process.wait()
        # as long as one of them has the shared memory, no other server starts in this directory
        harness.poll(lambda: not any(map(has_memory, backends)), what="the end of the backends")
        self.stop()

    def connect(self, dbname: str = "sluice") -> psycopg.Connection:
        """A connection in autocommit."""
        return psycopg.connect(self.url, dbname=dbname, autocommit=True, connect_timeout=int(harness.PATIENCE))

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """All rows of a query; none for a command."""
        with self.connect() as db:
            cursor = db.execute(query)
            return cursor.fetchall() if cursor.description else []

    def said(self) -> str:
        """The contents of its log."""
        return (self.home / "postgres.out").read_text(errors="replace")

    def configure(self, **lines: str) -> None:
        """Change settings of the running server; ALTER SYSTEM with reload."""
        for name, value in lines.items():
            self.ask(f"ALTER SYSTEM SET {name} = '{value}'")
        self.ask("SELECT pg_reload_conf()")


def has_memory(pid: int) -> bool:
    """Whether a process has not ended: one that has is a zombie, or gone."""
    try:
        return bool(Path(f"/proc/{pid}/maps").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return False


def unprivileged() -> list[str]:
    """A command prefix that drops root."""
    if os.geteuid():
        return []
    return ["setpriv", f"--reuid={USER}", f"--regid={pwd.getpwnam(USER).pw_gid}", "--clear-groups", "--"]


@contextlib.contextmanager
def postgres_server(
    prefix: Sequence[str] = (), clients: str = "127.0.0.1/32 scram-sha-256", **config: object
) -> Iterator[Postgres]:
    """A new server. prefix: of its command. clients: who may connect over TCP. config: settings for postgresql.conf."""
    home = Path(tempfile.mkdtemp(prefix="sl-pg-", dir="/tmp"))
    try:
        (home / "hba.conf").write_text(f"local all all trust\nhost all all {clients}\n")
        (home / "hba.conf").chmod(0o644)  # bin/sluice makes files for its own user
        if not os.geteuid():
            shutil.chown(home, USER)
        home.chmod(0o755)
        options = ["-U", "sluice", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]
        command: list[Any] = [*unprivileged(), programs() / "initdb", "-D", home / "data", *options]
        subprocess.run(command, check=True, capture_output=True, cwd=home, timeout=120)
        server = Postgres(home, config, prefix)
        try:
            server.start()
            with server.connect(dbname="postgres") as db:
                db.execute("CREATE DATABASE sluice")
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)
