"""Show the oldest ready or claimed bodies, without taking them."""

from __future__ import annotations

import argparse

from sluice import ledger
from sluice.base import terminal
from sluice.settings import Settings
from sluice.streams.message import after_head


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stream", metavar="STREAM")
    parser.add_argument(
        "--from", metavar="N", type=terminal.whole_number, default=0, dest="first", help="first sequence number to show"
    )
    parser.add_argument("--limit", metavar="N", type=terminal.whole_number, default=10, help="how many to show (10)")
    parser.add_argument("--full", action="store_true", help="show whole bodies")
    parser.epilog = "exit status: 0; 1 if Redis is unavailable; 2 if a setting is invalid or there is no such stream"


def run(arguments: argparse.Namespace, s: Settings) -> int:
    inspector = ledger.stream_inspector(arguments.stream, s)
    body = None
    for seq, state, body in inspector.waiting(arguments.stream, arguments.first, arguments.limit):
        print(terminal.body_line(seq, state, body if arguments.full else after_head(body), arguments.full))
    if body is None:
        print("No body is ready or claimed.")
    return 0
