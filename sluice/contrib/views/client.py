"""The connection to the views' Redis of the follower and of the operator's programs, with hiredis."""

from __future__ import annotations

from typing import Any

from hiredis import pack_command
from redis.exceptions import ConnectionError, ResponseError

from sluice.contrib.views.link import Command, Link


class LeaseLost(Exception):
    """This process no longer holds the lease, or Redis was emptied: its positions may be wrong."""


class Full(Exception):
    """Redis refused a script because maxmemory is reached."""


class ViewsClient(Link):
    """One connection to the views' Redis; every call is one round trip."""

    def memory(self) -> tuple[int, int]:
        """The used memory of the views' Redis, and all that it may use: bytes. Raises: RedisError."""
        text: bytes = self.ask(("INFO", "memory"))[0]
        memory = dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)
        return int(memory["used_memory"]), int(memory["maxmemory"]) or 1 << 62

    def ask(self, *commands: Command) -> list[Any]:
        """Send commands, return their replies; to MGET, where the strings are.

        Raises: RedisError; LeaseLost, Full for an error among the replies.
        """
        try:
            packed: list[Any] = []
            for command in commands:
                packed += command if isinstance(command, list) else (pack_command(command),)
            self.send(b"".join(packed))
            replies, error = [], None
            for command in commands:
                try:
                    replies.append(self.strings() if command[0] == "MGET" else self.reply())
                except ResponseError as reply:
                    error = error or reply
                if command[0] == "EXEC" and replies and replies[-1] is None and not error:
                    raise LeaseLost("the lease has passed to another follower")
        except OSError as broken:
            self.close()
            raise ConnectionError(f"{self.path}: {broken.strerror or broken}") from broken
        except BaseException:
            self.close()
            raise
        if not error:
            return replies
        text = str(error)
        if text.startswith("LOST"):
            raise LeaseLost("another follower has the lease, or Redis was emptied")
        if text.startswith("OOM") or "used memory > 'maxmemory'" in text:
            raise Full(text)
        raise error
