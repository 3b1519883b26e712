"""IPv6: nginx listens on both families, lists and limits apply to both, and a machine without IPv6 starts.

Some tests run in a thread with its own network namespace or seccomp filter. Both apply to the thread and to the
processes that it starts, and end with them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import select
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from proving.harness import PATIENCE, answer, environment, free_port, installation, poll, post, short_tmp
from sluice.places import ROOT
from sluice.run import configure
from sluice.run.configure import has_ipv6
from support.access import curl, keys
from support.folders import has, needs
from support.nginx_front import front

pytestmark = pytest.mark.contract

T = TypeVar("T")
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000
# three networks of /64; two addresses are in the first one
ONE, SAME, OTHER, THIRD = "fd00:1::1", "fd00:1::a:0:0:1", "fd00:2::1", "2001:db8:0:3::1"
# of the internet, and of the addresses that a provider shares among its customers
PUBLIC, SHARED = "203.0.113.9", "100.64.0.1"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a network namespace")
needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


def in_thread(test: Callable[[], T]) -> T:
    """Run a function in a new thread."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(test).result()


def own_network(ipv6: bool = True) -> None:
    """Move this thread into a new network namespace, with the addresses above on lo, or with IPv6 disabled."""
    assert LIBC.unshare(CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    if ipv6:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        for address in ONE, SAME, OTHER, THIRD:
            subprocess.run(["ip", "address", "add", f"{address}/64", "dev", "lo", "nodad"], check=True)
        for address in PUBLIC, SHARED, "10.1.2.3", "172.31.0.1", "192.168.7.7":
            subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
    else:
        Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1")  # of the thread's network
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def without_ipv6_sockets() -> None:
    """Let socket(AF_INET6) fail with EAFNOSUPPORT in this thread, as in a kernel without IPv6 (seccomp(2))."""
    number = {"x86_64": 41, "aarch64": 198}[platform.machine()]
    load, equal, leave = 0x20, 0x15, 0x06  # BPF: load a word, jump if equal, return
    program = b"".join(
        struct.pack("HBBI", *step)
        for step in (
            (load, 0, 0, 0),  # seccomp_data.nr
            (equal, 0, 3, number),
            (load, 0, 0, 16),  # seccomp_data.args[0]
            (equal, 0, 1, socket.AF_INET6),
            (leave, 0, 0, 0x00050000 | 97),  # SECCOMP_RET_ERRNO, EAFNOSUPPORT
            (leave, 0, 0, 0x7FFF0000),  # SECCOMP_RET_ALLOW
        )
    )
    steps = ctypes.create_string_buffer(program, len(program))
    filters = ctypes.create_string_buffer(struct.pack("HP", len(program) // 8, ctypes.addressof(steps)))
    assert LIBC.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert LIBC.prctl(22, 2, filters, 0, 0) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def sends(source: str, port: int, target: str = "/votes") -> int:
    """Send a request from an address, over its family; returns the status."""
    host = "[::1]" if ":" in source else "127.0.0.1"
    data = ["-d", "x"] if target in ("/votes", "/nowhere") else []
    return curl("-g", *data, "--interface", source, f"http://{host}:{port}{target}")[0]


@contextlib.contextmanager
def occupied(address: str) -> Iterator[int]:
    """A port on which another program listens, on one family only."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as other:
        if ":" in address:
            other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        port = free_port()
        other.bind((address, port))
        other.listen()
        yield port


@needs_ipv6
def test_a_client_posts_over_either_family_and_the_gateway_gets_its_address() -> None:
    with front() as (web, gateway):
        assert [sends(source, web.port, "/nowhere") for source in ("127.0.0.1", "::1")] == [200, 200]
        assert [f"X-Real-IP: {source}\r\n".encode() in head for source, head in
                zip(("127.0.0.1", "::1"), gateway.requests, strict=True)] == [True, True]  # fmt: skip


@needs_root
@needs_ipv6
def test_the_allow_list_has_networks_of_both_families() -> None:
    def test() -> None:
        own_network()
        with front(INGEST_ALLOW=f"127.0.0.2/32 fd00:1::/64 {THIRD}") as (web, _):
            asked = {"127.0.0.1": 403, "127.0.0.2": 200, ONE: 200, SAME: 200, OTHER: 403, THIRD: 200, "::1": 403}
            assert {source: sends(source, web.port) for source in asked} == asked
        with front(INGEST_ALLOW="127.0.0.0/8") as (web, _):  # a list of one family admits none of the other
            assert [sends(source, web.port) for source in ("127.0.0.1", "::1")] == [200, 403]

    in_thread(test)


@needs_root
@needs_ipv6
@pytest.mark.parametrize("allow, status", [("", 403), ("private", 403), ("all", 200), (f"{PUBLIC} {THIRD}", 200)])
def test_unless_set_only_this_machine_and_private_networks_may_write(allow: str, status: int) -> None:
    def test() -> None:
        own_network()
        with front(INGEST_ALLOW=allow) as (web, gateway):
            inside = ["127.0.0.1", "127.9.9.9", "::1", "10.1.2.3", "172.31.0.1", "192.168.7.7", ONE, OTHER]
            assert [sends(source, web.port) for source in (PUBLIC, THIRD)] == [status] * 2
            if PUBLIC not in allow:
                assert {source: sends(source, web.port) for source in inside} == dict.fromkeys(inside, 200)
                assert sends(SHARED, web.port) == status
            # reading is a list of its own
            if has("views"):
                assert [sends(source, web.port, "/gps/latest?device=a") for source in ("::1", PUBLIC)] == [200, 403]

    in_thread(test)


@needs("access")
@needs_root
@needs_ipv6
def test_with_api_keys_every_address_may_write(tmp: Path) -> None:
    def test() -> None:
        own_network()
        with front(INGEST_API_KEYS=keys(tmp)) as (web, _):
            assert sends(PUBLIC, web.port) == 401

    in_thread(test)


@needs("page")
@needs_root
@needs_ipv6
def test_the_list_of_the_status_page_has_networks_of_both_families() -> None:
    lists = {
        "": {"127.0.0.1": 200, "127.0.0.2": 403, "::1": 200, ONE: 403},
        "fd00:1::/64 127.0.0.2": {"127.0.0.1": 403, "127.0.0.2": 200, "::1": 403, SAME: 200, OTHER: 403},
        "0.0.0.0/0 ::/0": {"127.0.0.2": 200, OTHER: 200},
        "none": {"127.0.0.1": 403, "::1": 403},
    }

    def test() -> None:
        own_network()
        for allowed, asked in lists.items():
            with front(INGEST_STATUS_ALLOW=allowed) as (web, _):
                assert {source: sends(source, web.port, "/status/") for source in asked} == asked

    in_thread(test)


@needs("access")
@needs_root
@needs_ipv6
def test_the_addresses_of_one_ipv6_network_share_their_rate() -> None:
    def test() -> None:
        own_network()
        # slow enough that no time limit of the test matters: one request a minute, and two in a burst
        with front(("rate=1r/s", "rate=1r/m"), INGEST_CLIENT_RATE=1, INGEST_ALLOW="all") as (web, _):
            assert [sends(source, web.port) for source in (ONE, SAME, ONE)] == [200, 200, 200]
            assert [sends(source, web.port) for source in (ONE, SAME)] == [429, 429]
            assert [sends(source, web.port) for source in (OTHER, THIRD, "::1", "127.0.0.1")] == [200] * 4
            assert [sends(source, web.port) for source in ("127.0.0.1", "127.0.0.1", "127.0.0.1")] == [200, 200, 429]
            assert sends("127.0.0.2", web.port) == 200

    in_thread(test)


@needs("access")
@needs_root
@needs_ipv6
def test_the_addresses_of_one_ipv6_network_share_their_concurrent_requests() -> None:
    def test() -> None:
        own_network()
        with front(INGEST_CLIENT_CONNECTIONS=1) as (web, _):
            half = b"POST /votes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nx"
            with socket.create_connection(("::1", web.port), PATIENCE, (ONE, 0)) as slow:
                # two at once: the second one answered shows that the first is in progress
                slow.sendall(half)
                with socket.create_connection(("::1", web.port), PATIENCE, (ONE, 0)) as other:
                    other.sendall(half)
                    rejected, _, _ = select.select([slow, other], [], [], 10)
                    assert len(rejected) == 1
                    assert [sends(source, web.port) for source in (SAME, OTHER, "127.0.0.1")] == [429, 200, 200]

    in_thread(test)


@needs("access")
@needs_root
@needs_ipv6
def test_unless_set_a_client_of_the_internet_has_64_concurrent_requests() -> None:
    half = b"POST /votes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nx"

    def rejected(source: str, late: int, port: int) -> int:
        """How many of 80 requests in progress get 429. late: how many of them to wait for."""
        with contextlib.ExitStack() as stack:
            where = ("::1" if ":" in source else "127.0.0.1", port)
            held = [stack.enter_context(socket.create_connection(where, PATIENCE, (source, 0))) for _ in range(80)]
            for connection in held:
                connection.sendall(half)
            poll(lambda: len(select.select(held, [], [], 0)[0]) >= late)
            for connection in held:
                with contextlib.suppress(OSError):
                    connection.sendall(b"x")
            return [answer(connection)[0] for connection in held].count(429)

    def test() -> None:
        own_network()
        with front(INGEST_ALLOW="all") as (web, _):
            most = {PUBLIC: 16, THIRD: 16, "10.1.2.3": 0, ONE: 0}
            assert {source: rejected(source, late, web.port) for source, late in most.items()} == most

    in_thread(test)


@pytest.mark.parametrize("address", ["0.0.0.0", pytest.param("::", marks=needs_ipv6)])  # noqa: S104
def test_a_port_in_use_on_either_family_stops_the_start(address: str, tmp: Path) -> None:
    with occupied(address) as port:
        command, env = [ROOT / "bin/up"], environment(tmp / "home", {"INGEST_PORT": port})
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"sluice: port {port} is in use; set INGEST_PORT to use another.\n"


def started(prepare: Callable[[], None]) -> str:
    """Start bin/up after `prepare`, and post over IPv4; returns the lines of nginx that listen."""

    def test() -> str:
        prepare()
        with short_tmp() as tmp, installation(tmp) as server:
            assert post(server.port, "/votes", b'{"poll":"p","choice":"c"}')[0] == 200
            lines = (tmp / "etc/includes/listen.conf").read_text().splitlines()
            return "\n".join(line.strip() for line in lines if "listen " in line).replace(str(server.port), "PORT")

    return in_thread(test)


BOTH = "listen PORT backlog=65535 reuseport;\n{}listen [::]:PORT backlog=65535 reuseport;"


@pytest.mark.nightly
@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="its system calls have other numbers")
def test_a_machine_whose_kernel_has_no_ipv6_starts() -> None:
    assert started(without_ipv6_sockets) == BOTH.format("# without IPv6: ")


@pytest.mark.nightly
@needs_root
@needs_ipv6
def test_a_machine_whose_ipv6_is_disabled_starts() -> None:
    assert started(lambda: own_network(ipv6=False)) == BOTH.format("")


@needs_ipv6
def test_nginx_listens_on_both_families() -> None:
    files = configure.nginx_configuration(configure.settings.load_settings({}))
    assert "\nlisten [::]:8080 " in files["includes/listen.conf"]
