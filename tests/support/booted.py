"""A copy of this system that its own systemd boots, in namespaces: `with booted(folder) as system`. As root.

All changes go to an overlay on `/`. Its processes have no network but a loopback of their own, and end with the block.
A booted system takes four seconds, where an emulated machine (tests/bare.py) takes minutes; its kernel is this one, so
limits and devices are not tested here.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from proving.harness import poll, strike

NAMESPACES = ["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
# $1: a folder on a disk
TREE = r"""
set -e
mkdir -p "$1/upper" "$1/work" "$1/tree"
mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" none "$1/tree"
cd "$1/tree"
mount -t proc none proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t tmpfs none run
mount -t tmpfs -o mode=755 none dev
mkdir -m 1777 dev/shm
mkdir dev/pts
mount -t devpts -o ptmxmode=666 none dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for name in null zero full random urandom tty; do touch dev/$name; mount --bind /dev/$name dev/$name; done
"""
# without what this system starts
SCRIPT = TREE + 'rm -rf etc/systemd/system/*.target.wants\nexec chroot . bash -ec "$2"'
# systemd sets up sandboxes below its root, which has to be a mount point that it may change
BOOT = (
    TREE
    + r"""
mount -t tmpfs -o mode=1777 none tmp  # systemd empties it
mount -t sysfs -o ro none sys
mount -t cgroup2 none sys/fs/cgroup
ip link set lo up
mkdir -p old
pivot_root . old
cd /
umount -l old
rmdir old
mount --make-rshared /
exec env -i container=sluice PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd
"""
)


class Booted:
    """A copy of this system, in a folder that is on a disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.upper = folder / "upper"
        self.first = 0  # the process that is 1 inside, while it runs

    def prepare(self, script: str) -> str:
        """The output of a bash script in it before it boots, as root and with this machine's network."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("INGEST_")}
        command = ["unshare", *NAMESPACES, "bash", "-c", SCRIPT, "bash", str(self.folder), script]
        return output(command, env)

    def run(self, script: str) -> str:
        """The output of a bash script in it while it runs, as root."""
        inside = ["nsenter", "-t", str(self.first), "-m", "-p", "-n", "-u", "-i", "-C", "-r", "-w"]
        return output(
            [*inside, "bash", "-ec", script],
            {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
        )

    @contextlib.contextmanager
    def up(self) -> Iterator[None]:
        """It runs within the block."""
        (mount,) = re.findall(r"^\S+ (\S+) cgroup2 ", Path("/proc/mounts").read_text(), re.M)[:1]
        group = Path(mount, f"sluice-{os.getpid()}")
        group.mkdir()
        join = f'echo $$ >{group}/cgroup.procs; exec "$@"'
        spaces = ["unshare", *NAMESPACES, "--net", "--uts", "--ipc", "--cgroup"]
        command = ["bash", "-c", join, "bash", *spaces, "bash", "-c", BOOT, "bash", str(self.folder)]
        with open(self.folder / "console", "ab") as console:
            outer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=console, stderr=console)
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        try:
            self.first = poll(lambda: int(children.read_text().split()[0]), 10, "a first process")
            asked = "systemctl is-system-running || true"
            poll(lambda: self.run(asked).strip() in ("starting", "running", "degraded"), 60, "systemd", interval=0.2)
            try:
                yield
            except BaseException:
                print(self.run("systemctl --failed --no-pager; systemctl list-jobs; journalctl --no-pager -n 90"))
                raise
        finally:
            strike(self.first or outer.pid, signal.SIGKILL)  # with 1, all end
            outer.wait(60)
            self.first = 0
            for place, _, _ in os.walk(group, topdown=False):
                poll(partial(remove_cgroup, place), 30, "an empty cgroup")


def remove_cgroup(place: str) -> bool:
    os.rmdir(place)  # while a process ends, it is busy
    return True


def output(command: list[str], env: dict[str, str]) -> str:
    done = subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout
