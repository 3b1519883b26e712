"""The proxies of docs/BEHIND-A-PROXY.md, with TLS and the prefix /ingest/, as the page prints them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proving.harness import ROOT, Server, environment, free_port, listening, poll, running
from sluice.run.configure import replaced
from sluice.run.servers import program_path

PAGE = (ROOT / "docs/BEHIND-A-PROXY.md").read_text()
Front = Callable[[Path, int, Path], contextlib.AbstractContextManager[int]]


def recipe(language: str) -> str:
    return "\n".join(re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)[:1])


def started() -> dict[str, object]:
    """The settings of the page's start."""
    line = next(line for line in PAGE.splitlines() if line.endswith(" bin/up"))
    found = re.findall(r"(INGEST_\w+)=(?:'([^']*)'|(\S+))", line)
    return {name: quoted or plain for name, quoted, plain in found} | {
        "INGEST_HOSTS": "localhost", "INGEST_STATUS_ALLOW": "127.0.0.1", "INGEST_READ_ALLOW": "127.0.0.1",
    }  # fmt: skip


@contextlib.contextmanager
def program(name: str, tmp: Path, port: int, *words: object, stop: int = signal.SIGTERM) -> Iterator[int]:
    found = shutil.which(name, path=program_path())
    if not found:
        pytest.skip(f"{name} is not installed; bin/provision nightly installs it")
    env = environment(tmp) | {"HOME": str(tmp), "XDG_DATA_HOME": str(tmp), "XDG_CONFIG_HOME": str(tmp)}
    with running([found, *words], tmp / f"{name}.out", env, stop) as process:
        poll(listening(Server(process, tmp / f"{name}.out", tmp, port), port), what=name)
        yield port


@contextlib.contextmanager
def nginx(tmp: Path, port: int, pem: Path) -> Iterator[int]:
    public = free_port()
    lines = replaced(
        recipe("nginx"), ("listen 443", f"listen 127.0.0.1:{public}"), ("127.0.0.1:8080", f"127.0.0.1:{port}"),
        ("sluice.example.com;\n    ssl", "localhost;\n    ssl"),
    )  # fmt: skip
    lines = re.sub(r"/etc/letsencrypt/\S+;", f"{pem};", lines)
    paths = "".join(
        f"{kind}_temp_path {tmp}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;\n" if os.geteuid() == 0 else ""
    head = f"{user}daemon off;\npid {tmp}/pid;\nerror_log stderr;\nevents {{}}\n"
    (tmp / "front.conf").write_text(f"{head}http {{\naccess_log off;\n{paths}{lines}}}\n")
    with program("nginx", tmp, public, "-p", tmp, "-c", tmp / "front.conf", stop=signal.SIGQUIT):
        yield public


@contextlib.contextmanager
def caddy(tmp: Path, port: int, pem: Path) -> Iterator[int]:
    public = free_port()
    options = "{\nadmin off\nauto_https disable_redirects\nskip_install_trust\n}\n"
    lines = replaced(
        recipe("caddy"), ("127.0.0.1:8080", f"127.0.0.1:{port}"),
        ("sluice.example.com {", f"https://localhost:{public} {{\nbind 127.0.0.1\ntls {pem} {pem}"),
    )  # fmt: skip
    (tmp / "Caddyfile").write_text(options + lines)
    with program("caddy", tmp, public, "run", "--adapter", "caddyfile", "--config", tmp / "Caddyfile"):
        yield public


@contextlib.contextmanager
def haproxy(tmp: Path, port: int, pem: Path) -> Iterator[int]:
    public = free_port()
    lines = replaced(
        recipe("haproxy"), ("bind :443", f"bind 127.0.0.1:{public}"), ("/etc/haproxy/sluice.pem", str(pem)),
        ("127.0.0.1:8080", f"127.0.0.1:{port}"),
    )  # fmt: skip
    defaults = "defaults\nmode http\ntimeout connect 5s\ntimeout client 35s\ntimeout server 60s\n"
    (tmp / "front.cfg").write_text(defaults + lines)
    with program("haproxy", tmp, public, "-db", "-f", tmp / "front.cfg"):
        yield public
