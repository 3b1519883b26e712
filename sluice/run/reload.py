"""The steps of bin/sluice reload, which sluice/ops/reload.py describes."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sluice import settings
from sluice.base import terminal
from sluice.run import configure, launch, programs, up
from sluice.run.up import Failed

T = TypeVar("T")
PATIENCE_SECONDS = 60.0  # per step; a busy machine may be slow
# for a worker to finish its claim. One that waits for a hung Redis would take a minute; at a second signal it exits at
# once, which loses nothing
FINISH_SECONDS = 10.0
NOTICE_SECONDS = 5  # between the notice to clients and the reload of nginx; the gateway sees it within one
AGAIN_SECONDS = 1.0  # before USR2 is sent again: gunicorn ignores it for a second after an upgrade


def run(s: settings.Settings, notice: int | None) -> int:
    """Returns the exit status. notice: seconds between the notice to clients and nginx's reload; None: no reload."""
    home = s.home.resolve()
    try:
        gateway = program_master(home, "gateway")
        # its settings may differ from those of this process; they are valid, because it started with them
        environ = Path(f"/proc/{gateway}/environ").read_bytes().split(b"\0")
        given = settings.load_settings(dict(os.fsdecode(entry).partition("=")[::2] for entry in environ))
        up.check_modules(given)
        configure.nginx_secrets(given)
        if notice is not None:  # the new gateway keeps heads before nginx puts names into them
            configure.write_secrets(given)
        upgrade_program(home, "gateway", gateway)
        patience, upgraded = FINISH_SECONDS, programs.upgraded()
        for name in sorted(tag.stem for tag in launch.home_tags(home)):
            if name in upgraded and program_masters(home, name):
                upgrade_program(home, name, program_master(home, name))
            elif name not in ("redis", "gateway", "nginx", "views", *upgraded):
                patience = 0.0 if restart_program(home, name, patience) else patience
        if notice is not None:
            reload_nginx(home, program_master(home, "nginx"), notice)
    except (Failed, OSError) as error:  # a process may end while it is examined
        terminal.complain(error)
        return 1
    return 0


def program_processes(home: Path, name: str) -> dict[int, int]:
    """The processes of a program: pid -> parent's pid."""
    return {pid: launch.parent_of(pid) for pid in launch.tag_holders(launch.program_tag(name, home))}


def program_masters(home: Path, name: str) -> list[int]:
    """The processes of a program whose parent is not one of them."""
    processes = program_processes(home, name)
    return [pid for pid, parent in processes.items() if parent not in processes]


def program_master(home: Path, name: str) -> int:
    """The process that started all others of a program. Raises: Failed if there is none, or more than one."""
    pids = program_masters(home, name)
    if len(pids) != 1:
        raise Failed(f"no {name} runs in {home}; is bin/up running? (Services: systemctl try-restart.)")
    return pids[0]


def wait_until(until: Callable[[], T], what: str) -> T:
    """Poll until the result is true, and return it. Raises: Failed after PATIENCE_SECONDS."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (answer := until()):
        if time.monotonic() > deadline:
            raise Failed(f"not within {PATIENCE_SECONDS:.0f} s: {what}")
        time.sleep(0.02)
    return answer


def upgrade_program(home: Path, name: str, old: int) -> None:
    """Start a second gateway or reader beside the one whose master is `old`; stop the first once the second serves."""
    before = program_processes(home, name)
    sent = 0.0

    def successor() -> int:
        nonlocal sent
        if time.monotonic() > sent + AGAIN_SECONDS:
            sent = time.monotonic()
            os.kill(old, signal.SIGUSR2)
        # new workers of the old one are its children too, but do not lead a process group
        return next(
            (pid for pid, parent in program_processes(home, name).items() if parent == old and launch.is_leader(pid)), 0
        )

    new = wait_until(successor, f"a second {name}")

    def serving() -> bool:
        processes = program_processes(home, name)
        if new not in processes:
            raise Failed(f"the new {name} did not start; the old one continues: see {home}/log/{name}.log")
        children = [pid for pid, parent in processes.items() if parent == new]
        return bool(children) and all(map(runs_loop, children))

    wait_until(serving, f"the second {name} serves")
    os.kill(old, signal.SIGTERM)
    wait_until(lambda: not before.keys() & program_processes(home, name).keys(), f"the first {name} ends")
    print(f"{name}: process {new} replaced {old}")


def runs_loop(pid: int) -> bool:
    """Whether a process of gateway or reader runs its loop: it creates the epoll set after it has loaded `app`."""
    try:
        return any(os.readlink(file) == "anon_inode:[eventpoll]" for file in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def reload_nginx(home: Path, pid: int, notice: int = NOTICE_SECONDS) -> None:
    """Make nginx reload its configuration, if that is valid; its old processes finish the requests they have.

    They close idle connections, and a client may just have sent a request on one. So for `notice` seconds before the
    reload, each 2xx response closes its connection (sluice/http/replies.py): an active client then has no idle one.
    """
    up.check_nginx(home)
    closing = home / "run/closing"
    try:
        closing.touch()
        for _ in range(10 * notice):  # turns, not time: while the machine is suspended, no client gets the notice
            time.sleep(0.1)
        before = program_processes(home, "nginx")
        os.kill(pid, signal.SIGHUP)
        wait_until(lambda: program_processes(home, "nginx").keys() - before.keys(), "new nginx processes")
        # until then the old ones accept connections
        wait_until(lambda: all(map(is_retiring, before.keys() - {pid})), "the old nginx processes stop accepting")
    finally:
        closing.unlink(missing_ok=True)
    print("nginx: reloaded")


def is_retiring(pid: int) -> bool:
    """Whether an nginx process accepts no more clients, as its title shows, or has ended."""
    try:
        return b"shutting down" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True


def restart_program(home: Path, name: str, patience: float) -> bool:
    """Stop a program that loses no data; bin/up restarts it at once. Returns: whether it did not end within `patience`
    seconds, and was told again.
    """
    old = program_masters(home, name)
    if not old:
        return False
    os.kill(old[0], signal.SIGTERM)
    due, hung = time.monotonic() + max(patience, AGAIN_SECONDS), False

    def successors() -> list[int]:
        nonlocal hung
        now = program_masters(home, name)
        if not hung and old[0] in now and time.monotonic() > due:
            hung = True
            print(f"{name}: process {old[0]} still waits, ends without its claim")
            with contextlib.suppress(ProcessLookupError):
                os.kill(old[0], signal.SIGTERM)
        return [pid for pid in now if pid not in old]

    (new,) = wait_until(successors, f"another {name}")
    print(f"{name}: process {new} replaced {old[0]}")
    return hung
