"""Passes Ethernet frames between two network interfaces, each direction later or not at all: a slow or a broken cable.

relay.py LEFT RIGHT THERE BACK: seconds from LEFT to RIGHT and from RIGHT to LEFT, or `drop`. It imports nothing of
Sluice, so that it starts at once.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import time
from collections import deque

# linux/if_ether.h, linux/if_packet.h
ETH_P_ALL = 3
SOL_PACKET = 263
VNET_HDR = 15  # what the network card would still have to do with a frame (checksum, segmentation) goes before it
IGNORE_OUTGOING = 23
LARGEST = 1 << 17  # bytes of a frame that is not yet segmented, and more


def attached(interface: str) -> socket.socket:
    """A socket that reads and writes the frames of an interface."""
    found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    found.setsockopt(SOL_PACKET, VNET_HDR, 1)
    found.setsockopt(SOL_PACKET, IGNORE_OUTGOING, 1)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    found.bind((interface, 0))
    found.setblocking(False)
    return found


def main(left: str, right: str, there: str, back: str) -> None:
    """Pass frames on until the process is killed."""
    ends = [attached(left), attached(right)]
    delays = [None if word == "drop" else float(word) for word in (there, back)]
    waiting: list[deque[tuple[float, bytes]]] = [deque(), deque()]
    poller = select.epoll()
    for end in ends:
        poller.register(end.fileno(), select.EPOLLIN)
    while True:
        due = min((queue[0][0] for queue in waiting if queue), default=None)
        poller.poll(None if due is None else max(0.0, due - time.monotonic()))
        for end, delay, queue in zip(ends, delays, waiting, strict=True):
            with contextlib.suppress(BlockingIOError):
                while frame := end.recv(LARGEST):
                    if delay is not None:
                        queue.append((time.monotonic() + delay, frame))
        now = time.monotonic()
        for end, queue in zip(reversed(ends), waiting, strict=True):
            while queue and queue[0][0] <= now:
                with contextlib.suppress(OSError):  # a full queue or a link that is down loses a frame, as a cable does
                    end.send(queue.popleft()[1])


if __name__ == "__main__":
    main(*sys.argv[1:])
