"""Prove the files of a release, as root: `python -m proving.release dist`, which bin/release calls.

Each step runs as `nobody` in namespaces: without network, this checkout, and the system's nginx and Redis.

1. the wheel with its pinned requirements is installed into an empty virtual environment, and `sluice up` runs;
2. the README's commands print what the README says;
3. a drill of a minute on the running cell finds every acknowledged event stored once;
4. a home of the release before, run from its source archive, keeps what is stored and stores what waits;
5. the container image passes 2, 3 and 4, where podman and runc are.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from proving.containers import podman_environment
from proving.harness import ask, environment, free_port, get, poll, post, running
from proving.transcript import check_steps, read_steps
from sluice.places import ROOT
from sluice.run.servers import NAMES, program_path

BEFORE = "fe6a1b22"  # the state before the first release
PYTHON = "/usr/bin/python3"  # of the system: another user may run it
USER = 65534
# $0: what is hidden, line by line; $1: the checkout
APART = """
set -e
for path in $0; do mount --bind /dev/null "$path"; done
mount -t tmpfs none "$1"
ip link set lo up
shift
exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
"""


def hidden() -> str:
    """The system's servers, which the wheel must do without."""
    names = [name for several in NAMES.values() for name in several]
    found = {os.path.realpath(path) for name in names if (path := shutil.which(name, path=program_path()))}
    return "\n".join(sorted(found))


def apart(*command: object, **env: object) -> list[str]:
    """A command in the namespaces, with these variables and no others."""
    clean = [f"{name}={value}" for name, value in {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **env}.items()]
    unshare = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return [*unshare, "bash", "-c", APART, hidden(), str(ROOT), "env", "-i", *clean, *map(str, command)]


def say(text: str) -> None:
    print(f"proof: {text}", flush=True)


def install(dist: Path, tmp: Path) -> Path:
    """A virtual environment with the wheel, made as nobody and without the network. Returns: its `sluice`."""
    wheels = tmp / "wheels"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "--only-binary=:all:"]
    version = subprocess.run([PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True)
    (requirements,) = dist.glob("*.requirements.txt")
    wanted = [f"--python-version={version.stdout.decode().strip()}", "-d", wheels, "-r", requirements]
    subprocess.run([*pip, *map(str, wanted)], check=True)
    for file in dist.iterdir():
        shutil.copy(file, wheels)
    begun = time.monotonic()
    script = f"""
        cd {tmp}/user
        {PYTHON} -m venv venv
        venv/bin/pip install --quiet --no-index --find-links {wheels} --require-hashes -r {wheels}/{requirements.name}
        venv/bin/pip install --quiet --no-index --no-deps {wheels}/*.whl
    """.replace(f"{wheels}/*.whl", str(next(iter(wheels.glob("sluice_ingest-*.whl")))))
    subprocess.run(apart("bash", "-ec", script, HOME=tmp / "user"), check=True)
    size = sum(path.stat().st_size for path in (tmp / "user/venv").rglob("*") if path.is_file())
    say(f"installed in {time.monotonic() - begun:.0f} s, {size / 1e6:.0f} MB")
    return tmp / "user/venv/bin/sluice"


def steps_here() -> list[tuple[str, str]]:
    """The commands of the README that this machine can run."""
    steps = read_steps((ROOT / "README.md").read_text())
    return [step for step in steps if "sqlite3" not in step[0] or shutil.which("sqlite3")]


# within the namespaces: $1 the `sluice`, $2 the port, $3 seconds of the drill, $4 the transcript, $5 the drill's report
CELL = r"""
import json, os, re, subprocess, sys, time
sys.path.insert(0, "proving")
from proving.transcript import check_steps
sluice, port, seconds, steps, report = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4]), sys.argv[5]
home = os.environ["HOME"] + "/.local/share/sluice"
begun = time.monotonic()
up = subprocess.Popen([sluice, "up"], env={**os.environ, "INGEST_PORT": port}, stdout=open("up.out", "w"))
while not subprocess.run(["curl", "-sf", f"localhost:{port}/readyz"], stdout=subprocess.DEVNULL).returncode == 0:
    assert up.poll() is None and time.monotonic() < begun + 120, open("up.out").read()
    time.sleep(0.05)
print(f"proof: `sluice up` took requests after {time.monotonic() - begun:.1f} s", flush=True)
check_steps(steps, sluice, port, home)
print(f"proof: {len(steps)} commands of the README print what it says", flush=True)
drill = [sluice, "drill", "--home", home, "--duration", seconds, "--rate", "500", "--report", report]
env = {**os.environ, "PYTHONPATH": os.path.abspath("proving")}
done = subprocess.run(drill, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
assert done.returncode == 0, done.stdout
counts = re.findall(r"[\d,]+ acknowledged", done.stdout)
print(f"proof: the drill of {seconds} s found each event stored once: {counts[-1]}", flush=True)
up.terminate()
assert up.wait(30) == 0
"""


def prove_cell(sluice: Path, seconds: int, tmp: Path) -> None:
    user = tmp / "user"
    shutil.copytree(ROOT / "proving", user / "proving/proving", ignore=shutil.ignore_patterns("__pycache__"))
    (user / "cell.py").write_text(CELL)
    python = sluice.with_name("python")
    words = [python, "cell.py", sluice, free_port(), seconds, json.dumps(steps_here()), user / "report"]
    subprocess.run(apart("env", "-C", user, *words, HOME=user), check=True)


def home_before(tmp: Path) -> tuple[str, Path]:
    """A home that the release before has left in tmp: rows, dead letters, and bodies that wait in Redis.

    Returns: that release, and the home.
    """
    tags = subprocess.run(
        ["git", "tag", "--merged", "HEAD^", "--sort=-v:refname", "v*"], capture_output=True, text=True, cwd=ROOT
    )
    before = (tags.stdout.split() or [BEFORE])[0]
    tree, home = tmp / "before", tmp / "home"
    tree.mkdir()
    home.mkdir(mode=0o700)
    archive = subprocess.run(["git", "archive", before], check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout
    subprocess.run(["tar", "-x", "-C", tree], input=archive, check=True)
    port = free_port()

    def vote(choice: str) -> None:
        assert post(port, "/votes", f'{{"poll":"p","choice":"{choice}"}}'.encode())[0] == 200

    for workers, choice in (1, "stored"), (0, "waits"):
        env = environment(home, {"INGEST_PORT": port, "INGEST_WORKERS": workers})
        with running([tree / "bin/up"], tmp / f"{choice}.out", env, signal.SIGTERM, cwd=tree, seconds=60):
            poll(lambda: get(port, "/readyz")[0] == 200, 300)
            for _ in range(100):
                vote(choice)
            post(port, "/votes", b'{"poll":')
            if workers:
                poll(lambda: len(ask(home, "SELECT 1 FROM dead_letters")) == 1)
    return before, home


def check_kept(home: Path) -> None:
    """What `home_before` has left is in the database, each once, after another release ran there."""
    choices = ask(home, "SELECT choice, count(*) FROM votes WHERE poll = 'p' GROUP BY choice")
    letters = ask(home, "SELECT count(*) FROM dead_letters")
    assert sorted(choices) == [("stored", 100), ("waits", 100)] and letters == [(2,)], (choices, letters)


def prove_upgrade(sluice: Path, tmp: Path, before: str, home: Path) -> None:
    port = free_port()
    subprocess.run(["chown", "-R", f"{USER}:{USER}", home], check=True)
    script = f"""
        {sluice} up >up.out & up=$!
        until {sluice} status --json 2>/dev/null | grep -q '"stored": 200'; do sleep 0.2; kill -0 $up; done
        curl -sf localhost:{port}/votes/tally?poll=p >/dev/null
        kill $up; wait $up
    """
    environ = {"HOME": tmp / "user", "INGEST_HOME": home, "INGEST_PORT": port}
    subprocess.run(apart("env", "-C", tmp / "user", "timeout", 120, "bash", "-ec", script, **environ), check=True)
    check_kept(home)
    say(f"a home of {before} has its 200 rows and 2 dead letters, each once")


def prove_image(dist: Path, seconds: int, tmp: Path, before: str, home: Path) -> None:
    """The image as the README has it, and under the drill; then with the home of the release before as its volume."""
    archive = next(dist.glob("*.oci.tar"), None)
    if not archive or not (shutil.which("podman") and shutil.which("runc")):
        say("the image is not proved: there is none, or no podman, or no runc")
        return
    (tmp / "images").mkdir()
    env = podman_environment(tmp / "images")

    def podman(*words: object) -> str:
        done = subprocess.run(["podman", *map(str, words)], env=env, stdout=subprocess.PIPE, text=True)
        assert done.returncode == 0, f"podman {' '.join(map(str, words))}: {done.stdout}"
        return done.stdout

    @contextlib.contextmanager
    def container(volume: Path, *options: object) -> Iterator[int]:
        """The image with this volume. Yields: its port, once it takes requests."""
        port, began = free_port(), time.monotonic()
        mounted = f"{volume}:/var/lib/sluice:U"  # U: of the image's user
        variables = "--network", "host", "-e", f"INGEST_PORT={port}", "-v", mounted
        podman("run", "-d", "--name", "proved", *variables, *options, name)
        try:
            poll(lambda: get(port, "/readyz")[0] == 200, 120)
            say(f"the image took requests after {time.monotonic() - began:.1f} s")
            yield port
            podman("stop", "-t", "30", "proved")
        finally:
            print(podman("logs", "proved"), flush=True)
            podman("rm", "-f", "proved")

    def stored() -> int:
        said = podman("exec", "proved", "sluice", "status", "--json")
        return int(next(row["stored"] for row in json.loads(said)["streams"] if row["stream"] == "votes"))

    name = podman("load", "-q", "-i", archive).split()[-1]
    (tmp / "new").mkdir(mode=0o700)
    with container(tmp / "new", "-v", f"{tmp / 'user/proving'}:/proving:ro") as port:
        os.environ.update(env)  # for the commands of the README
        check_steps(steps_here(), "podman exec proved sluice", str(port), str(tmp / "new"))
        say(f"in the image, {len(steps_here())} commands of the README print what it says")
        drill = f"drill --home /var/lib/sluice --duration {seconds} --rate 500 --report /var/lib/sluice/report"
        said = podman("exec", "-e", "PYTHONPATH=/proving", "proved", "sluice", *drill.split())
        counts = re.findall(r"[\d,]+ acknowledged", said)
        say(f"in the image, the drill of {seconds} s found each event stored once: {counts[-1]}")
    with container(home):
        poll(lambda: stored() == 200)
    check_kept(home)
    size = int(podman("image", "inspect", "--format", "{{.Size}}", name))
    say(f"the image has {size / 1e6:.0f} MB, {archive.stat().st_size / 1e6:.0f} MB packed")
    say(f"in the image, a home of {before} has its 200 rows and 2 dead letters, each once")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dist", type=Path)
    parser.add_argument("--seconds", type=int, default=60, help="of the drill (%(default)s)")
    arguments = parser.parse_args()
    if os.geteuid():
        print("sluice: the proof needs root, for namespaces: nothing is proved", file=sys.stderr)
        return 1
    tmp = Path(tempfile.mkdtemp(prefix="sl-release-", dir="/tmp"))
    try:
        tmp.chmod(0o755)
        (tmp / "user").mkdir()
        os.chown(tmp / "user", USER, USER)
        sluice = install(arguments.dist.resolve(), tmp)
        prove_cell(sluice, arguments.seconds, tmp)
        before, home = home_before(tmp)
        shutil.copytree(home, tmp / "volume", symlinks=True, ignore=shutil.ignore_patterns("*.sock", "run"))
        prove_upgrade(sluice, tmp, before, home)
        prove_image(arguments.dist.resolve(), arguments.seconds, tmp, before, tmp / "volume")
    except (subprocess.CalledProcessError, AssertionError) as error:
        print(f"sluice: the release is not proved: {error}", file=sys.stderr)
        return 1
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(tmp)
    return 0


if __name__ == "__main__":
    sys.exit(main())
