"""The lease of the views' Redis: one follower at a time writes. It is renewed whatever its holder waits for."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable

from sluice.contrib.views import contract
from sluice.contrib.views.client import LeaseLost, ViewsClient
from sluice.contrib.views.link import Command

BEAT_SECONDS = 0.5  # between two renewals
LEASE = int(contract.LEASE_SECONDS * 1000)


def take_lease(client: ViewsClient) -> str:
    """Take the lease. Returns: the token, or "" if another follower has it."""
    (connection,) = client.ask(("CLIENT", "ID"))
    token = f"{connection}:{os.getpid()}:{secrets.token_hex(8)}"
    if client.ask(("EVAL", contract.TAKE, 2, contract.HOLDER, contract.TAKEN, token, LEASE))[0]:
        return token
    holder = client.ask(("GET", contract.HOLDER))[0] or b""
    # the lease of a killed follower: its connection is gone, so there is no need to wait
    if holder and not client.ask(("CLIENT", "LIST", "ID", holder.partition(b":")[0]))[0]:
        with contextlib.suppress(LeaseLost):
            client.ask(write_fenced(holder, ("DEL", contract.HOLDER)))
    return ""


def write_fenced(token: str | bytes, *commands: tuple[str | bytes | int, ...]) -> Command:
    """A command that renews the lease and runs these commands, or none of them if another follower has the lease."""
    words = (word for command in commands for word in (len(command), *command))
    return "EVAL", contract.WRITE, 1, contract.HOLDER, token, *words


def keep_lease(socket: str, token: Callable[[], str | None]) -> None:
    """Renew the lease until `token` returns None: a turn of its holder may have to read a whole table."""
    client = ViewsClient(socket)
    while (held := token()) is not None:
        if held:
            with contextlib.suppress(Exception):  # its holder sees what is wrong
                client.ask(write_fenced(held))
        time.sleep(BEAT_SECONDS)
    client.close()
