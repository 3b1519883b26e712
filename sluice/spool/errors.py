"""Why the spool does not answer, and why it takes no bodies: these are *refused* with 503, and can be sent again."""

from __future__ import annotations

from typing import NamedTuple

from redis.exceptions import ConnectionError, RedisError

# The reasons of the 503 answers. The counts use them without the period, and without the text after a colon.
REDIS_DOWN = "Redis does not answer."
REDIS_FULL = "Redis is full."
REDIS_READ_ONLY = "Redis refuses to write: %s"
DISK_FULL = "The disk is almost full."
BACKLOG_FULL = "The backlog is over its limit."
REPLICAS_BEHIND = "Fewer than %d replicas of Redis keep up."


class Refusal(NamedTuple):
    """Why the bodies of one stream in one commit get 503. retry_after: whole seconds."""

    reason: str
    retry_after: int


# What to do about a layout from before the first release
EARLIER = "start commit fe6a1b22 with it once, which brings it up to date"


class NewerLayout(Exception):
    """Redis or the database has a layout that only a later version of this program knows."""

    def __init__(self, where: str, layout: int, known: int) -> None:
        super().__init__(f"{where} has layout {layout}, and this version of Sluice knows only {known}: update Sluice")


class NewerKeys(NewerLayout, ConnectionError):
    """See `NewerLayout`. For a gateway, it is a Redis that cannot be reached."""


class SpoolUnavailable(Exception):
    """What is in the list's place of Redis does not answer, or refuses. The text is one line, and names it."""


SPOOL_ERRORS = RedisError, SpoolUnavailable  # what every function of inlet, outlet and inspector may raise


def in_one_line(error: Exception) -> str:
    return str(error) if isinstance(error, SpoolUnavailable) else f"Redis is unavailable: {error}"


class Lost(Exception):
    """The items of a claim are not all in Redis: another worker settled it, or Redis lost it. Nothing is stored."""
