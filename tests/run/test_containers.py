"""deploy/Containerfile and deploy/compose.yaml: three cells, a balancer and PostgreSQL in containers; one cell dies.

`bin/test --nightly` builds and runs them, as root; two minutes. `--containers=DIR` takes a Debian from a directory
instead of making one, `--containers=FILE` an image saved by podman.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bare import make_root, mirror_of
from proving.containers import podman_environment
from proving.harness import ROOT, free_port, poll, post

pytestmark = pytest.mark.nightly

TOOLS = "buildah", "podman", "podman-compose", "runc", "debootstrap", "/usr/lib/cni/dnsname"
COMPOSE = "podman-compose", "-p", "sluice", "-f", "deploy/compose.yaml"
CELLS = "cell-1", "cell-2", "cell-3"
SOURCES = "/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf"  # how this machine reaches its registries
# in place of the images that compose.yaml takes from a registry: the same programs, from Debian
INSTALL = "RUN apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends"
OTHERS = {
    "others": f"FROM localhost/debian\n{INSTALL} haproxy postgresql\nCOPY start /start\n",
    "balancer": 'FROM localhost/others\nCMD ["haproxy", "-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"]\n',
    "postgres": 'FROM localhost/others\nCMD ["/start"]\n',
}
START = """#!/bin/sh
set -e
data=/var/lib/postgresql/data
chown postgres $data
if [ ! -e $data/PG_VERSION ]; then
    echo "$POSTGRES_PASSWORD" >/tmp/password
    setpriv --reuid=postgres --regid=postgres --clear-groups /usr/lib/postgresql/15/bin/initdb -D $data \\
        -U "$POSTGRES_USER" --pwfile=/tmp/password --auth=scram-sha-256
    echo "host all all all scram-sha-256" >>$data/pg_hba.conf
    echo "CREATE DATABASE $POSTGRES_DB" | setpriv --reuid=postgres --regid=postgres --clear-groups \\
        /usr/lib/postgresql/15/bin/postgres --single -D $data postgres
fi
mkdir -p /run/postgresql
chown postgres /run/postgresql
exec setpriv --reuid=postgres --regid=postgres --clear-groups \\
    /usr/lib/postgresql/15/bin/postgres -D $data -c listen_addresses='*'
"""


def test_the_balancer_names_the_cells_of_the_compose_file() -> None:
    text = (ROOT / "deploy/compose.yaml").read_text()
    assert tuple(re.findall(r"^  (cell-\d+):$", text, re.M)) == CELLS
    assert re.findall(r"INGEST_CELL: ([^}]+)", text) == list(CELLS)
    named = re.findall(r"^    server (\S+) (\S+)$", (ROOT / "deploy/haproxy.cfg").read_text(), re.M)
    assert named == [(name, f"{name}:8080") for name in CELLS]


class Containers:
    """podman with a store of its own, and the programs of compose.yaml in it."""

    def __init__(self, tmp: Path) -> None:
        self.tmp = tmp
        self.port = free_port()
        self.env = podman_environment(tmp) | {
            "POSTGRES_PASSWORD": "abc123", "PORT": str(self.port), "BASE": "localhost/debian",
            "HAPROXY_IMAGE": "localhost/balancer", "POSTGRES_IMAGE": "localhost/postgres",
        }  # fmt: skip

    def run(self, *command: object, cwd: Path = ROOT, stdin: str | None = None) -> str:
        """The output of a command that succeeds."""
        done = subprocess.run(
            [*map(str, command)], env=self.env, cwd=cwd, input=stdin, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def compose(self, *words: str) -> str:
        return self.run(*COMPOSE, *words)

    def build(self, name: str, folder: Path, *options: object) -> None:
        """Build an image, unless the store has it."""
        if subprocess.run(["podman", "image", "exists", name], env=self.env).returncode:
            volumes = [f"--volume={path}:{path}:ro" for path in SOURCES if Path(path).exists()]
            self.run("buildah", "bud", "--isolation", "chroot", *volumes, *options, "-t", name, folder)

    def prepare(self, base: str) -> None:
        """Build all images. base: see the option --containers."""
        if subprocess.run(["podman", "image", "exists", "debian"], env=self.env).returncode:
            if Path(base).is_file():
                loaded = self.run("podman", "load", "-i", base).split()[-1]
                self.run("podman", "tag", loaded, "debian")
            else:
                tree = Path(base) if base else self.tmp / "debian"
                if not base:
                    make_root("bookworm", tree, mirror_of("bookworm"), "ca-certificates")
                self.run("sh", "-c", f"tar -C {tree} -c . | podman import - debian")
        checkout = self.tmp / "checkout"  # without what .gitignore names
        checkout.mkdir(exist_ok=True)
        listed = self.run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        self.run("tar", "--null", "-T", "-", "-cf", self.tmp / "checkout.tar", stdin=listed)
        self.run("tar", "-xf", self.tmp / "checkout.tar", "-C", checkout)
        self.build("sluice", checkout, "-f", checkout / "deploy/Containerfile", "--build-arg", "BASE=localhost/debian")
        others = self.tmp / "others"
        others.mkdir(exist_ok=True)
        (others / "start").write_text(START)
        (others / "start").chmod(0o755)
        for name, text in OTHERS.items():
            (others / name).write_text(text)
            self.build(name, others, "-f", others / name)

    def status(self, cell: str) -> list[dict]:
        """What a cell shows of all cells."""
        said = self.run("podman", "exec", f"sluice_{cell}_1", "sh", "-c", "bin/sluice status --all --json || true")
        return json.loads(said)["cells"]


@pytest.fixture(scope="module")
def containers(request: pytest.FixtureRequest) -> Iterator[Containers]:
    base = request.config.getoption("--containers")
    if base is None:
        pytest.skip("bin/test --nightly runs it, or the option --containers: it takes minutes")
    if os.geteuid() or not mirror_of("bookworm"):
        pytest.skip("needs root, and an archive of Debian in apt's sources")
    if lacking := [tool for tool in TOOLS if not shutil.which(tool)]:
        pytest.skip(f"not installed: {', '.join(lacking)}")
    kept = os.environ.get("CONTAINERS_KEPT")  # a directory to keep the images in
    tmp = Path(kept or tempfile.mkdtemp(prefix="sluice-containers-", dir="/var/tmp"))
    found = Containers(tmp)
    try:
        found.prepare(base)
        yield found
    finally:
        for command in (*COMPOSE, "down", "-v"), ("podman", "network", "rm", "-f", "sluice_default"):
            subprocess.run(command, env=found.env, cwd=ROOT, capture_output=True)
        if not kept:
            shutil.rmtree(tmp)


def test_three_cells_in_containers_store_what_the_balancer_acknowledges_and_one_may_die(containers: Containers) -> None:
    containers.compose("up", "-d", "--no-build")
    posted = 0

    def vote() -> bool:
        body = b'{"poll":"p","choice":"%d"}' % posted
        return post(containers.port, "/votes", body, {"Connection": "close"})[0] == 200

    def put(count: int) -> None:
        nonlocal posted
        for _ in range(count):
            poll(vote)
            posted += 1

    def shown(stored: int) -> dict[str, int]:
        """How many votes each cell has accepted, once all of them are stored."""
        rows = [(one["cell"], row) for one in containers.status("cell-1") for row in one["streams"]]
        votes = {cell: row for cell, row in rows if row["stream"] == "votes"}
        assert sum(row["stored"] for row in votes.values()) == stored
        assert sum(row["missing"] for row in votes.values()) == 0
        return {cell: row["accepted"] for cell, row in votes.items()}

    poll(lambda: post(containers.port, "/gps", b'{"device":"d","lat":1,"lon":2}', {})[0] == 200)

    def spread() -> bool:
        put(10)
        return poll(lambda: shown(posted)).keys() == set(CELLS)

    poll(spread)  # the balancer finds the cells one after the other
    containers.run("podman", "kill", "sluice_cell-2_1")
    put(30)
    before = poll(lambda: shown(posted))["cell-2"]
    containers.run("podman", "start", "sluice_cell-2_1")

    def back() -> bool:
        put(10)
        return poll(lambda: shown(posted))["cell-2"] > before

    poll(back)
