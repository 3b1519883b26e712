"""Redis on other machines: URLs, passwords, TLS, and failovers by Sentinels under load. Nothing acknowledged is lost.

`bin/test --nightly tests/contrib/sentinel/test_failover.py --failovers 100 -o faulthandler_timeout=0` takes about ten
minutes.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as client

from proving import harness
from proving.harness import PATIENCE, ROOT, environment, free_port, gateway, get, installation, poll, post, running
from proving.replicated import NAME, PASSWORD, Replicated, replicated
from sluice.base import connect
from sluice.contrib.sentinel.connections import VANISHED_MS
from sluice.spool.contract import Keys
from sluice.spool.inlet import Inlet
from support.posting_clients import Clients
from support.runtimes import RUNTIMES

pytestmark = pytest.mark.nightly

VOTES = Keys.for_stream("votes")
VOTE = b'{"poll":"p","choice":"%b"}'
WORKER = [sys.executable, str(ROOT / "worker.py")]
KINDS = ("kill", "freeze", "switch")  # SIGKILL and a restart; SIGSTOP and SIGCONT; SENTINEL FAILOVER


def openssl(*words: object) -> None:
    subprocess.run(["openssl", *map(str, words)], capture_output=True, check=True)


def authority(folder: Path, name: str = "localhost") -> Path:
    """A directory with ca.pem, and with redis.pem and redis.key for this name, as docs/OPERATING.md makes them."""
    folder.mkdir()
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl(
        "req", "-x509", *key, "-days", 2, "-subj", "/CN=Sluice", "-keyout", folder / "ca.key", "-out", folder / "ca.pem"
    )
    more = ["-addext", f"subjectAltName=DNS:{name}", "-CA", folder / "ca.pem", "-CAkey", folder / "ca.key"]
    openssl(
        "req", "-x509", *key, "-days", 2, "-subj", f"/CN={name}", *more,
        "-addext", "basicConstraints=critical,CA:FALSE", "-keyout", folder / "redis.key", "-out", folder / "redis.pem",
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return authority(tmp_path_factory.mktemp("authority") / "tls")


def stored(home: Path) -> list[str]:
    return [choice for (choice,) in harness.ask(home, "SELECT choice FROM votes")]


def fail_over(cluster: Replicated, kind: str, chance: random.Random) -> None:
    """Make the Sentinels promote a replica, and bring the old master back."""
    victim = cluster.settled()
    assert victim.process
    if kind == "kill":
        victim.kill()
    elif kind == "freeze":
        os.kill(victim.process.pid, signal.SIGSTOP)
    else:
        with chance.choice(cluster.sentinels).client() as sentinel:
            sentinel.execute_command("SENTINEL", "FAILOVER", NAME)
    poll(lambda: cluster.master() is not victim, what="a new master")
    if kind == "kill":
        victim.start()
    elif kind == "freeze":
        os.kill(victim.process.pid, signal.SIGCONT)


def test_failovers_under_load_lose_and_double_nothing_acknowledged(
    tmp: Path, tls: Path, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    times = request.config.getoption("--failovers")
    chance = random.Random()
    kinds = [*KINDS, *chance.choices(KINDS, k=times)][:times] if times > 2 else chance.sample(KINDS, times)
    gaps: dict[str, list[float]] = {}
    with replicated(tmp, 2, tls) as cluster:
        env = {"INGEST_SPOOL": cluster.url, "INGEST_REPLICAS": 1}
        with (
            running([*WORKER, "run"], tmp / "worker.out", environment(tmp, env)),
            gateway(tmp, env=env) as gate,
            Clients(gate.socket) as load,
        ):
            for kind in kinds:
                load.wait()
                since = time.monotonic()
                fail_over(cluster, kind, chance)
                load.wait()
                cluster.settled()
                gaps.setdefault(kind, []).append(load.longest_gap(since))
        wanted = set(load.acknowledged)
        with running([*WORKER, "burst"], tmp / "worker.out", environment(tmp, env)) as drain:
            assert drain.wait(PATIENCE) == 0
    found = stored(tmp)
    lost, doubled = len(wanted - set(found)), len(found) - len(set(found))
    head = ("failovers by Sentinel", "times", "seconds without acknowledgements: median", "longest")
    for kind, seconds in gaps.items():
        seconds.sort()
        row = (kind, str(len(seconds)), f"{seconds[len(seconds) // 2]:.1f}", f"{seconds[-1]:.1f}")
        record_property("row", (f"{len(wanted)} acknowledged bodies, {lost} lost, {doubled} doubled", head, row))
    assert (lost, doubled) == (0, 0)
    assert "Traceback" not in gate.said()


def test_a_gateway_that_is_loaded_before_it_forks_follows_a_failover(tmp: Path) -> None:
    with (
        replicated(tmp, 2, None) as cluster,
        gateway(tmp, env={"INGEST_SPOOL": cluster.url}, args=("--preload",)) as gate,
    ):
        poll(lambda: post(gate.socket, "/votes", VOTE % b"a")[0] == 200)
        fail_over(cluster, "switch", random.Random(1))
        with cluster.master().client() as master:
            poll(
                lambda: (
                    post(gate.socket, "/votes", VOTE % b"b")[0]
                    and b'"b"' in b"".join(master.lrange(VOTES.ready, 0, -1))
                ),
            )


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_each_replica_that_may_be_promoted_must_confirm(tmp: Path, tls: Path, runtime: str) -> None:
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(replicated(tmp, 2, None if runtime == "cpython" else tls))
        env = {"INGEST_SPOOL": cluster.url, "INGEST_REPLICAS": 1}
        gate = stack.enter_context(gateway(tmp, runtime=runtime, env=env))
        poll(lambda: post(gate.socket, "/votes", VOTE % b"a")[0] == 200)
        master = cluster.master()
        replica = next(node for node in cluster.nodes if node is not master)
        everyone = [node.process.pid for node in (*cluster.sentinels, replica) if node.process]
        for pid in everyone:  # the Sentinels too: none of them says that the replica is down
            os.kill(pid, signal.SIGSTOP)
        status, _, body = post(gate.socket, "/votes", VOTE % b"b")
        assert (status, b"Fewer than 2 replicas of Redis keep up." in body) == (503, True)
        assert get(gate.socket, "/readyz")[0] == 503
        for pid in everyone[:-1]:
            os.kill(pid, signal.SIGCONT)
        poll(lambda: get(gate.socket, "/readyz")[0] == 200)  # a Sentinel that was stopped for two seconds waits for 30
        poll(lambda: post(gate.socket, "/votes", VOTE % b"c")[0] == 200)


def test_the_sentinel_with_the_highest_epoch_is_believed_and_readers_leave_the_old_master(tmp: Path) -> None:
    (tmp / "other").mkdir()
    with replicated(tmp, 1) as cluster, replicated(tmp / "other", 0) as other:
        # another master of the same name, whose Sentinels have seen no failover; they are asked, too
        hosts = [f"localhost:{one.port}" for one in (*other.sentinels, *cluster.sentinels)]
        redis: Any = connect.connect_client(f"redis+sentinel://:{PASSWORD}@{','.join(hosts)}/{NAME}", 3)
        before = cluster.master()
        with cluster.sentinels[0].client() as sentinel:
            sentinel.execute_command("SENTINEL", "FAILOVER", NAME)
        poll(lambda: cluster.master() is not before, what="a new master")
        after = cluster.master()

        def follows() -> bool:
            return after.port == int(redis.config_get("port")["port"])

        poll(follows, what="a client that only reads follows")
        for sentinel in cluster.sentinels:
            sentinel.kill()
        poll(lambda: not follows(), what="the other Sentinels are asked")


@pytest.fixture
def remote(tmp: Path, tls: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a Redis that is reached by TCP, with a user and a password; the parameter: with TLS or without."""
    port, scheme, end = free_port(), "redis", ""
    command: list[object] = ["redis-server", "--port", port]
    if request.param:
        scheme, end = "rediss", f"?ssl_ca_certs={tls}/ca.pem"
        command = ["redis-server", "--port", 0, "--tls-port", port, "--tls-auth-clients", "no"]
        for name, file in ("cert", "redis.pem"), ("key", "redis.key"), ("ca-cert", "ca.pem"):
            command += [f"--tls-{name}-file", tls / file]
    command += ["--user", "default", "off", "--user", "me", "on", ">p@ss:1", "~*", "&*", "+@all"]
    command += ["--bind", "127.0.0.1", "--save", "", "--dir", tmp]
    url = f"{scheme}://me:p%40ss%3A1@localhost:{port}{end}"
    with running(command, tmp / "redis.out", environment(tmp), signal.SIGKILL):
        poll(lambda: connect.connect_client(url, 3).ping(), what="redis-server")
        yield url


@pytest.mark.parametrize("remote", [False, True], indirect=True, ids=["redis", "rediss"])
def test_bin_up_uses_a_redis_elsewhere_and_starts_none(tmp: Path, remote: str) -> None:
    home = tmp / "home"
    home.mkdir()
    env = {"INGEST_SPOOL": remote}
    with installation(home, env) as up:
        assert post(up.port, "/votes", VOTE % b"a")[0] == 200
        poll(lambda: stored(home) == ["a"])
        assert up.pids("redis") == []
        poll(lambda: "none is started" in up.said())  # the first screen may come after the first answers
        assert "p%40ss" not in up.said()
        command = [str(ROOT / "bin/sluice"), "status"]
        done = subprocess.run(command, env=environment(home, env), capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        command = [str(ROOT / "bin/sluice"), "drill", "--home", str(home), "--duration", "1"]
        done = subprocess.run(command, env=environment(home, env), capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert "has no Redis of its own" in done.stderr


@pytest.mark.parametrize("remote", [True], indirect=True)
@pytest.mark.parametrize("case", ["another authority", "no authority", "another name", "no TLS"])
def test_the_certificate_of_redis_is_checked(tmp: Path, remote: str, case: str) -> None:
    url, _, query = remote.partition("?")
    wrong = {
        "another authority": f"{url}?ssl_ca_certs={authority(tmp / 'other')}/ca.pem",
        "no authority": url,
        "another name": f"{url.replace('localhost', '127.0.0.1')}?{query}",
        "no TLS": url.replace("rediss:", "redis:"),
    }
    with pytest.raises(client.RedisError):
        connect.connect_client(wrong[case], 3).ping()


@pytest.mark.parametrize("remote", [False, True], indirect=True, ids=["redis", "rediss"])
def test_a_redis_whose_machine_has_vanished_ends_its_connection(remote: str) -> None:
    link = connect.connection(remote, 3)
    link.connect()
    assert link._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == VANISHED_MS
    link.disconnect()


@pytest.mark.parametrize("remote", [False], indirect=True)
def test_a_push_whose_reply_is_lost_is_not_sent_again(tmp: Path, remote: str) -> None:
    port = int(remote.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", 0)) as server:

        def relay() -> None:
            """Pass everything on, but close instead of the first reply to an RPUSH."""
            near, _ = server.accept()
            with near, socket.create_connection(("127.0.0.1", port)) as far:
                request = b""
                while b"\r\nRPUSH\r\n" not in request:
                    request = near.recv(65536)
                    far.sendall(request)
                    reply = far.recv(65536)
                    if b"\r\nRPUSH\r\n" not in request:
                        near.sendall(reply)

        thread = threading.Thread(target=relay)
        thread.start()
        inlet = Inlet(remote.replace(f":{port}", f":{server.getsockname()[1]}"))
        group = inlet.append("votes", b"a")
        inlet.commit(group)
        thread.join()
    assert group.refused
    assert connect.connect_client(remote, 3).lrange(VOTES.ready, 0, -1) == [b"a"]


@pytest.mark.parametrize("remote", [False], indirect=True)
def test_a_gateway_leaves_a_redis_that_became_a_replica(tmp: Path, remote: str) -> None:
    redis: Any = connect.connect_client(remote, 3)
    with gateway(tmp, env={"INGEST_SPOOL": remote}) as gate:
        assert post(gate.socket, "/votes", VOTE % b"a")[0] == 200
        (before,) = [one["id"] for one in redis.client_list() if one["name"].startswith("sluice:gateway")]
        redis.replicaof("127.0.0.1", "1")  # no server listens there
        assert post(gate.socket, "/votes", VOTE % b"b")[0] == 503
        assert get(gate.socket, "/readyz")[0] == 503
        redis.replicaof("NO", "ONE")
        assert post(gate.socket, "/votes", VOTE % b"c")[0] == 200
        (after,) = [one["id"] for one in redis.client_list() if one["name"].startswith("sluice:gateway")]
    assert before != after
    assert redis.lrange(VOTES.ready, 0, -1) == [VOTE % b"a", VOTE % b"c"]


def test_a_worker_elsewhere_drains_the_promoted_replica_of_a_dead_cell(tmp: Path) -> None:
    with replicated(tmp, 1) as cluster:
        for sentinel in cluster.sentinels:
            sentinel.kill()
        master, replica = cluster.nodes
        with gateway(tmp, env={"INGEST_SPOOL": master.url, "INGEST_REPLICAS": 1}) as gate:
            poll(lambda: get(gate.socket, "/readyz")[0] == 200)
            acknowledged = [n for n in map(str, range(50)) if post(gate.socket, "/votes", VOTE % n.encode())[0] == 200]
        master.kill()
        with replica.client() as at:
            at.replicaof("NO", "ONE")
        env = environment(tmp, {"INGEST_SPOOL": replica.url})
        done = subprocess.run([*WORKER, "burst"], env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    assert acknowledged and set(acknowledged) <= set(stored(tmp))  # a 503 on a busy machine may hide a stored body


def test_without_any_sentinel_nothing_is_accepted_and_the_worker_says_why(tmp: Path) -> None:
    env = {"INGEST_SPOOL": f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{free_port()}/main"}
    with gateway(tmp, env=env) as gate, contextlib.ExitStack() as stack:
        assert post(gate.socket, "/votes", VOTE % b"a")[0] == 503
        stack.enter_context(running([*WORKER, "run"], tmp / "worker.out", environment(tmp, env)))
        poll(lambda: "no Sentinel names the master of main" in (tmp / "worker.out").read_text())
