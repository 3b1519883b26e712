"""Numeric metrics as gauges for a statsd server, over UDP: best effort.

A packet may be lost on its way, and so are those of a worker that dies between the commit of a claim and their sending.
Nothing is sent twice. A line is `NAME:VALUE|g|#TAG:VALUE,…`; the tags are DogStatsD's, which the common servers read
(docs.datadoghq.com/developers/dogstatsd/datagram_shell). statsd has no time of its own: a gauge is as of its arrival.
"""

from __future__ import annotations

import logging
import re
import socket
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from sluice.base.override import override
from sluice.contrib.destinations.destination import Destination, InMemory, Rows
from sluice.streams.record import Metric
from sluice.streams.registry import Stream

PACKET_BYTES = 1432  # an Ethernet frame of 1,500 without the heads of IPv6 and UDP, and some room for tunnels
RESERVED = re.compile(r"[:|@#,\s]+")  # what ends a name, a tag or a line

log = logging.getLogger("sluice.contrib.destinations.statsd")


class Statsd(Destination):
    lasting = False

    def __init__(self, url: str, stream: Stream) -> None:
        super().__init__(url, stream)
        host, _, port = url.partition("://")[2].rpartition(":")
        self.where = host.strip("[]"), int(port)
        self.socket: socket.socket | None = None
        self.opened: InMemory[list[bytes]] | None = None
        self.trouble = ""

    @override
    def open(self, received: int) -> InMemory[list[bytes]]:
        self.opened = InMemory(uuid.uuid4().hex, metric_lines)
        return self.opened

    @override
    def publish(self, name: str, carried: bytes | None) -> bool:
        # sends the lines that were opened last
        opened, self.opened = self.opened, None
        if opened is None or opened.name != name:
            return False
        trouble = ""
        try:
            if self.socket is None:
                ((family, kind, protocol, _, address), *_) = socket.getaddrinfo(*self.where, type=socket.SOCK_DGRAM)
                self.socket = socket.socket(family, kind, protocol)
                self.socket.connect(address)
            for packet in pack_lines(each for group in opened.groups for each in group):
                self.socket.send(packet)
        except OSError as error:  # nobody listened when the packet before arrived
            trouble = str(error)
            if self.socket is not None:
                self.socket.close()
            self.socket = None
        if trouble != self.trouble:
            self.trouble = trouble
            log.warning("metrics are lost: %s", trouble) if trouble else log.info("metrics are sent again")
        return True


def metric_lines(batch: int, rows: Rows) -> list[bytes]:
    metrics: Any = rows.records
    return [metric_line(one) for one in metrics if one.type != "string"]


def metric_line(metric: Metric) -> bytes:
    """The line of a number, or two: a gauge with a sign is a change, so a negative one is first set to 0."""
    name = RESERVED.sub("_", metric.name if metric.field == "value" else f"{metric.name}.{metric.field}")
    tags = ",".join(f"{RESERVED.sub('_', key)}:{RESERVED.sub('_', value)}" for key, value in metric.tags.items())
    end = f"|g|#{tags}" if tags else "|g"
    reset = f"{name}:0{end}\n" if str(metric.value).startswith("-") else ""
    return f"{reset}{name}:{metric.value}{end}".encode()


def pack_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Lines in packets of at most PACKET_BYTES; a longer line is a packet of its own."""
    held: list[bytes] = []
    size = 0
    for each in lines:
        if held and size + len(each) > PACKET_BYTES:
            yield b"\n".join(held)
            held, size = [], 0
        held.append(each)
        size += len(each) + 1
    if held:
        yield b"\n".join(held)
