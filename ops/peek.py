"""Show the oldest bodies of a stream that wait, ready or claimed, without taking them."""

from __future__ import annotations

import argparse
import shutil

from redis.exceptions import RedisError

from ops import screen
from ops.status import PATIENCE, known
from settings import Settings
from spool import Outlet


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of this verb."""
    parser.add_argument("stream", metavar="STREAM")
    parser.add_argument("--from", metavar="N", type=int, default=0, dest="first", help="from this sequence number on")
    parser.add_argument("--limit", metavar="N", type=int, default=10, help="how many (10)")
    parser.add_argument("--full", action="store_true", help="with the whole body")
    parser.epilog = "exit status: 0; 1 if Redis is away; 2 for a wrong setting or no such stream"


def run(arguments: argparse.Namespace, s: Settings) -> int:
    """Print them; the exit status."""
    left, first = arguments.limit, arguments.first
    try:
        outlet = Outlet(str(s.redis), PATIENCE)
        name = known(arguments.stream, s, outlet)
        while left > 0 and (found := outlet.peek(name, first, left)[1]):
            for seq, state, body in found:
                print(line(seq, state, body, arguments.full))
            left, first = left - len(found), found[-1][0] + 1
    except RedisError as error:
        screen.complain(f"Redis is away: {error}")
        return 1
    if left == arguments.limit:
        print("Nothing waits.")
    return 0


def line(seq: int, state: str, body: bytes, full: bool) -> str:
    """A body for a person: its sequence number and state, and as much of it as the line holds."""
    about = f"{seq}  {state:<7}  "
    if full:
        return f"{about}({len(body)} bytes)\n{screen.printable(body, lines=True)}"
    width = shutil.get_terminal_size().columns
    return screen.cut(about + screen.printable(body[: width * 4]), width)
