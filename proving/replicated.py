"""Private Redis servers with replicas and Sentinels, from deploy/redis/replicated.conf and sentinel.conf."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from proving import harness
from sluice.base import connect
from sluice.places import ROOT
from sluice.run.configure import replaced

PASSWORD = "change-me"  # noqa: S105  # that of the configurations
NAME = "sluice"  # of the master, likewise
# Sentinels notice a dead master earlier, and try again earlier when their election has failed
FASTER = (
    ("down-after-milliseconds sluice 2000", "down-after-milliseconds sluice 1000"),
    ("failover-timeout sluice 3000", "failover-timeout sluice 2000"),
)
# Milliseconds, for SENTINEL DEBUG. PING: well below the 1000 above, and above 200: the last INFO of a replica that may
# be promoted must be younger than five of them, and is asked for every second. A Redis that was away is looked at every
# ten seconds, and made a replica eight later; with these periods it takes a tenth of that. A Sentinel that was frozen
# itself decides nothing for half a minute (TILT), and then finds the replica of a master that died meanwhile too old.
PERIODS = {"PING-PERIOD": 300, "INFO-PERIOD": 500, "PUBLISH-PERIOD": 200, "TILT-PERIOD": 1000}


# runs a command, with a log and an environment, and kills it at the end
Run = Callable[[list[object], Path, Mapping[str, str]], contextlib.AbstractContextManager[subprocess.Popen[bytes]]]
kill_at_end: Run = partial(harness.running, stop=signal.SIGKILL)


@dataclass
class Node:
    """A Redis or a Sentinel that can be ended and started again."""

    program: str
    config: Path
    host: str
    port: int
    url: str  # of this server alone
    run: Run
    running: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        command, log = [self.program, self.config], self.config.with_suffix(".out")
        self.process = self.running.enter_context(self.run(command, log, harness.environment(self.config.parent)))

    def kill(self) -> None:
        """End it (SIGKILL)."""
        self.running.close()
        self.process = None

    def client(self) -> Any:
        """A client of this server alone."""
        return connect.connect_client(self.url, 10)

    def has_role(self, role: bytes) -> bool:
        """Whether it is a master, or a slave that has caught up once. Raises: RedisError."""
        with self.client() as client:
            found = client.execute_command("ROLE")
        return found[0] == role and (role == b"master" or found[3] == b"connected")


@dataclass
class Replicated:
    """The servers, the URL that is INGEST_SPOOL, and the name of the master."""

    nodes: list[Node]
    sentinels: list[Node]
    url: str
    name: str = NAME

    def master(self) -> Node:
        """The Redis that most Sentinels call the master. Raises: AssertionError if they do not agree; RedisError."""
        ports = []
        for sentinel in self.sentinels:
            if sentinel.process:
                with sentinel.client() as client:
                    address = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)
                ports.append(int(address[1]))
        assert len(set(ports)) == 1, f"the Sentinels name {ports}"
        return next(node for node in self.nodes if node.port == ports[0])

    def settled(self) -> Node:
        """Wait until each Redis runs and replicates, and the Sentinels know it; returns the master."""

        def attends(sentinel: Node) -> bool:  # whether it takes part in decisions
            with sentinel.client() as client:
                client.execute_command("SENTINEL", "DEBUG", *sum(PERIODS.items(), ()))  # it forgets them when it ends
                return bool(client.info("sentinel")["sentinel_tilt"] == 0)

        from sluice.contrib.sentinel.sentinels import is_candidate

        def found() -> Node | None:
            if not all(map(attends, self.sentinels)):
                return None
            master = self.master()
            others = [node for node in self.nodes if node is not master]
            known = []
            for sentinel in self.sentinels:
                with sentinel.client() as client:
                    replicas = client.execute_command("SENTINEL", "REPLICAS", self.name)
                    peers = client.execute_command("SENTINEL", "SENTINELS", self.name)
                known.append(sum(map(is_candidate, replicas)) == len(others) and len(peers) == len(self.sentinels) - 1)
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


def redis_text(host: str, *changes: tuple[str, str], follow: Node | None = None) -> str:
    """The configuration of a Redis on a host. follow: its master, if it begins as a replica."""
    if follow:
        changes += (("#replicaof redis-1 6379", f"replicaof {follow.host} {follow.port}"),)
    announce = ("replica-announce-ip redis-1", f"replica-announce-ip {host}")
    return replaced((ROOT / "deploy/redis/replicated.conf").read_text(), announce, *changes)


def sentinel_text(host: str, masters: Mapping[str, Node], *changes: tuple[str, str]) -> str:
    """The configuration of a Sentinel on a host. masters: the masters that it watches, by name."""
    text = (ROOT / "deploy/redis/sentinel.conf").read_text()
    text = replaced(text, ("announce-ip redis-1", f"announce-ip {host}"), *FASTER, *changes)
    lines = rf"^sentinel \S+ {NAME}\b.*\n"
    own = "".join(re.findall(lines, text, re.M))
    text = re.sub(lines, "", text, flags=re.M)
    for name, master in masters.items():
        where = f"monitor {NAME} redis-1 6379", f"monitor {NAME} {master.host} {master.port}"
        text += re.sub(rf"(?<= ){NAME}\b", name, replaced(own, where))
    return text


def node(
    kind: str, home: Path, text: str, host: str, port: int, tls: Path | None = None, run: Run = kill_at_end
) -> Node:
    """A Redis or a Sentinel (kind: redis, sentinel) with this configuration, in a new directory; not started."""
    home.mkdir(mode=0o700)
    config = home / f"{kind}.conf"
    config.write_text(settings_of(text, port, tls).replace("dir /var/lib/sluice/redis", f"dir {home}"))
    end = f"?ssl_ca_certs={tls}/ca.pem" if tls else ""
    url = f"redis{'s' if tls else ''}://:{PASSWORD}@{host}:{port}{end}"
    return Node("redis-server" if kind == "redis" else "redis-sentinel", config, host, port, url, run)


def url_of(sentinels: list[Node], name: str, tls: Path | None = None) -> str:
    """INGEST_SPOOL for the master of this name."""
    hosts = ",".join(f"{one.host}:{one.port}" for one in sentinels)
    end = f"?ssl_ca_certs={tls}/ca.pem" if tls else ""
    return f"redis{'s' if tls else ''}+sentinel://:{PASSWORD}@{hosts}/{name}{end}"


@contextlib.contextmanager
def replicated(tmp: Path, replicas: int, tls: Path | None = None) -> Iterator[Replicated]:
    """A master, its replicas and three Sentinels, all of them on localhost, once they know each other.

    tls: a directory with ca.pem, redis.pem and redis.key for localhost; None: without TLS.
    """
    host, here = "localhost", ("bind * -::*", "bind 127.0.0.1")
    with contextlib.ExitStack() as stack:

        def started(kind: str, number: int, text: str) -> Node:
            made = node(kind, tmp / f"{kind}-{number}", text, host, harness.free_port(), tls)
            stack.callback(made.kill)
            made.start()
            return made

        nodes = [started("redis", 0, redis_text(host, here))]
        nodes += [started("redis", n, redis_text(host, here, follow=nodes[0])) for n in range(1, replicas + 1)]
        harness.poll(lambda: all(one.has_role(b"slave") for one in nodes[1:]), 30, "the replicas")
        sentinels = [started("sentinel", n, sentinel_text(host, {NAME: nodes[0]}, here)) for n in range(3)]
        found = Replicated(nodes, sentinels, url_of(sentinels, NAME, tls))
        found.settled()
        yield found
