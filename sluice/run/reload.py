"""Let the gateway, the workers and the rest of a running bin/up go on with the code that is there now.

No request fails meanwhile. The gateway is upgraded (USR2): a second one starts beside it on the same sockets, and only
once that serves is the first one told to stop. Each worker finishes its batch and starts again, and so do
metrics and page. Redis and nginx are left alone, and so are the settings: they are bin/up's, from its start.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sluice import screen, settings
from sluice.run import launch, up

T = TypeVar("T")
PATIENCE = 60.0  # seconds for any one step; a machine that is busy may take long
NOTICE = 5  # seconds for clients to hear of a reload of nginx; the gateway tells them after one at most
AGAIN = 1.0  # seconds after which USR2 is sent again: gunicorn passes over it for a second after the upgrade before


class Stuck(Exception):
    """What does not go on, in one line for a person."""


def run(s: settings.Settings, notice: int | None) -> int:
    """Replace what can be replaced; returns the exit status.

    notice: seconds between the notice to clients and nginx's reload; None: nginx is not reloaded.
    """
    home = s.home.resolve()
    try:
        gateway = master(home, "gateway")
        # of the running one, which were not necessarily ours; it started with them, so they make sense
        environ = Path(f"/proc/{gateway}/environ").read_bytes().split(b"\0")
        up.check_modules(settings.load(dict(os.fsdecode(entry).partition("=")[::2] for entry in environ)))
        upgrade_gateway(home, gateway)
        for name in sorted(tag.stem for tag in launch.tags(home)):
            if name not in ("redis", "gateway", "nginx"):
                restart(home, name)
        if notice is not None:
            reload_nginx(home, master(home, "nginx"), notice)
    except (Stuck, OSError) as stuck:  # a process may end while it is looked at
        screen.complain(stuck)
        return 1
    return 0


def family(home: Path, name: str) -> dict[int, int]:
    """All processes of a program, each with its parent."""
    return {pid: launch.parent_of(pid) for pid in launch.holders(launch.tag(name, home))}


def masters(home: Path, name: str) -> list[int]:
    """Of a program's processes those that none of them started."""
    processes = family(home, name)
    return [pid for pid, parent in processes.items() if parent not in processes]


def master(home: Path, name: str) -> int:
    """The process that started all others of a program. Raises: Stuck if there is none."""
    found = masters(home, name)
    if len(found) != 1:
        raise Stuck(f"no {name} runs in {home}; does bin/up?")
    return found[0]


def wait(until: Callable[[], T], what: str) -> T:
    """Ask until the answer is true, and return it. Raises: Stuck when that takes too long."""
    deadline = time.monotonic() + PATIENCE
    while not (answer := until()):
        if time.monotonic() > deadline:
            raise Stuck(f"not within {PATIENCE:.0f} s: {what}")
        time.sleep(0.02)
    return answer


def upgrade_gateway(home: Path, old: int) -> None:
    """Start a second gateway beside the one whose master is `old`, and end that once the second one serves."""
    before = family(home, "gateway")
    sent = 0.0

    def heir() -> int:
        nonlocal sent
        if time.monotonic() > sent + AGAIN:
            sent = time.monotonic()
            os.kill(old, signal.SIGUSR2)
        # workers that the old one starts meanwhile are its children too, but no leaders
        return next((pid for pid, parent in family(home, "gateway").items() if parent == old and launch.leads(pid)), 0)

    new = wait(heir, "a second gateway")

    def serving() -> bool:
        processes = family(home, "gateway")
        if new not in processes:
            raise Stuck(f"the new gateway does not start, the old one goes on: {home}/log/gateway.log tells why")
        children = [pid for pid, parent in processes.items() if parent == new]
        return bool(children) and all(map(serves, children))

    wait(serving, "the second gateway serves")
    os.kill(old, signal.SIGTERM)
    wait(lambda: not before.keys() & family(home, "gateway").keys(), "the first gateway ends")
    print(f"gateway: process {new} in place of {old}")


def serves(pid: int) -> bool:
    """Whether a gateway process has got as far as its loop: it has the application then, and an epoll set."""
    try:
        files = [os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return False
    return "anon_inode:[eventpoll]" in files


def reload_nginx(home: Path, pid: int, notice: int = NOTICE) -> None:
    """Have nginx read its configuration anew, if there is no mistake in it; the old processes serve whom they have.

    They hang up on idle clients, one of which may have just sent something. So for the seconds of `notice` before that
    each good answer is the last on its connection (sluice/streams/replies.py), and who is active has none that is idle.
    """
    command = [os.readlink(f"/proc/{pid}/exe"), "-t", "-q", "-p", str(home), "-c", str(home / "etc/nginx.conf")]
    test = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if test.returncode:
        raise Stuck(f"nginx goes on with the configuration it has: {test.stderr}")
    closing = home / "run/closing"
    try:
        closing.touch()
        for _ in range(10 * notice):  # turns, not time: a machine that stood still has told nobody
            time.sleep(0.1)
        before = family(home, "nginx")
        os.kill(pid, signal.SIGHUP)
        wait(lambda: family(home, "nginx").keys() - before.keys(), "new processes of nginx")
        # until then the old ones keep connections
        wait(lambda: all(map(retires, before.keys() - {pid})), "nginx's old processes leave")
    finally:
        closing.unlink(missing_ok=True)
    print("nginx: reloaded")


def retires(pid: int) -> bool:
    """Whether a process of nginx takes no more clients, or is gone; it says so in its title."""
    try:
        return b"shutting down" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True


def restart(home: Path, name: str) -> None:
    """End a program that loses nothing by it; bin/up starts it again at once."""
    if old := masters(home, name):
        os.kill(old[0], signal.SIGTERM)
        (new,) = wait(lambda: [pid for pid in masters(home, name) if pid not in old], f"another {name}")
        print(f"{name}: process {new} in place of {old[0]}")
