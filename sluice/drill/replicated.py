"""A private Redis with replicas and Sentinels, made from deploy/redis/replicated.conf and sentinel.conf."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sluice import connect
from sluice.drill import harness
from sluice.run.configure import ROOT, replaced

PASSWORD = "change-me"  # noqa: S105  # that of the configurations
NAME = "sluice"  # of the master, likewise


@dataclass
class Node:
    """A Redis or a Sentinel that can be ended and started again."""

    program: str
    config: Path
    port: int
    url: str  # of this server alone
    running: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    process: subprocess.Popen | None = None

    def start(self) -> None:
        """Start it."""
        command, log = [self.program, self.config], self.config.with_suffix(".out")
        self.process = self.running.enter_context(
            harness.running(command, log, harness.environment(self.config.parent), signal.SIGKILL)
        )

    def kill(self) -> None:
        """End it (SIGKILL)."""
        self.running.close()
        self.process = None

    def client(self) -> Any:
        """A client of this server alone."""
        return connect.client(self.url, 10)

    def has_role(self, role: bytes) -> bool:
        """Whether it is a master, or a slave that has caught up once. Raises: RedisError."""
        with self.client() as client:
            found = client.execute_command("ROLE")
        return found[0] == role and (role == b"master" or found[3] == b"connected")


@dataclass
class Replicated:
    """The servers, and the URL that is INGEST_REDIS."""

    nodes: list[Node]
    sentinels: list[Node]
    url: str

    def master(self) -> Node:
        """The Redis that most Sentinels call the master. Raises: AssertionError if they do not agree; RedisError."""
        ports = []
        for sentinel in self.sentinels:
            if sentinel.process:
                with sentinel.client() as client:
                    address = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
                ports.append(int(address[1]))
        assert len(set(ports)) == 1, f"the Sentinels name {ports}"
        return next(node for node in self.nodes if node.port == ports[0])

    def settled(self) -> Node:
        """Wait until each Redis runs and replicates, and the Sentinels know it; returns the master."""

        def found() -> Node | None:
            master = self.master()
            others = [node for node in self.nodes if node is not master]
            known = []
            for sentinel in self.sentinels:
                with sentinel.client() as client:
                    replicas = client.execute_command("SENTINEL", "REPLICAS", NAME)
                    peers = client.execute_command("SENTINEL", "SENTINELS", NAME)
                known.append(
                    sum(map(connect.is_candidate, replicas)) == len(others) and len(peers) == len(self.sentinels) - 1
                )
            roles = [node.has_role(b"slave") for node in others]
            return master if all(known) and all(roles) and master.has_role(b"master") else None

        master = harness.poll(found, 60, "a master with all its replicas", interval=0.05)
        assert master
        return master


def settings_of(text: str, port: int, tls: Path | None) -> str:
    """A configuration with its port; tls: the directory of the certificates; None: without TLS."""
    text = re.sub(r"(?<=^tls-port )\d+", str(port), text, flags=re.M)
    if tls:
        return text.replace("/etc/sluice/", f"{tls}/")
    text = replaced(text, ("port 0\n", ""))
    return re.sub(r"^tls-port ", "port ", re.sub(r"^tls-(?!port).*\n", "", text, flags=re.M), flags=re.M)


@contextlib.contextmanager
def replicated(tmp: Path, replicas: int, tls: Path | None = None) -> Iterator[Replicated]:
    """A master, its replicas and three Sentinels, all of them on localhost, once they know each other.

    tls: a directory with ca.pem, redis.pem and redis.key for localhost; None: without TLS.
    """
    with contextlib.ExitStack() as stack:

        def node(kind: str, number: int, text: str) -> Node:
            home, port = tmp / f"{kind}-{number}", harness.free_port()
            home.mkdir(mode=0o700)
            config = home / f"{kind}.conf"
            config.write_text(settings_of(text, port, tls).replace("dir /var/lib/sluice/redis", f"dir {home}"))
            end = f"?ssl_ca_certs={tls}/ca.pem" if tls else ""
            url = f"redis{'s' if tls else ''}://:{PASSWORD}@localhost:{port}{end}"
            made = Node("redis-server" if kind == "redis" else "redis-sentinel", config, port, url)
            stack.callback(made.kill)
            return made

        text = (ROOT / "deploy/redis/replicated.conf").read_text()
        text = replaced(
            text, ("replica-announce-ip redis-1", "replica-announce-ip localhost"), ("bind * -::*", "bind 127.0.0.1")
        )
        nodes = [node("redis", 0, text)]
        nodes[0].start()
        text = replaced(text, ("#replicaof redis-1 6379", f"replicaof localhost {nodes[0].port}"))
        nodes += [node("redis", n, text) for n in range(1, replicas + 1)]
        for one in nodes[1:]:
            one.start()
        harness.poll(lambda: all(one.has_role(b"slave") for one in nodes[1:]), 30, "the replicas")
        text = replaced(
            (ROOT / "deploy/redis/sentinel.conf").read_text(),
            ("announce-ip redis-1", "announce-ip localhost"),
            ("monitor sluice redis-1 6379", f"monitor sluice localhost {nodes[0].port}"),
            ("bind * -::*", "bind 127.0.0.1"),
            ("down-after-milliseconds sluice 1000", "down-after-milliseconds sluice 500"),
            ("failover-timeout sluice 10000", "failover-timeout sluice 2000"),
        )
        sentinels = [node("sentinel", n, text) for n in range(3)]
        for one in sentinels:
            one.start()
        hosts = ",".join(f"localhost:{one.port}" for one in sentinels)
        end = f"?ssl_ca_certs={tls}/ca.pem" if tls else ""
        found = Replicated(nodes, sentinels, f"redis{'s' if tls else ''}+sentinel://:{PASSWORD}@{hosts}/{NAME}{end}")
        found.settled()
        yield found
