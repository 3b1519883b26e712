"""A connection to the views' Redis, and RESP2.

Feeds have 10 kB and more, and redis-py would copy each three times. Here a value of MGET stays where it was received,
until it becomes a part of an answer or of a new value. No hiredis: the reader runs on PyPy.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from struct import pack as pack_time
from typing import Any, Union

from redis.exceptions import ResponseError

SLOW = "it did not answer in time"
RECEIVE_BYTES = 1 << 16  # that one recv asks for: as many as Redis sends at a time
SIZES = tuple(b"$%d\r\n" % size for size in range(1024))  # the lines before words: formatting one takes 60 ns

Place = tuple[bytes, int, int]  # of a string: the bytes that it is in, its begin and end there
Read = Callable[[list[str]], list[Union[Place, None]]]  # keys -> the strings that the views' Redis has
Command = Union[tuple[Any, ...], list[Any]]  # the words; a list: the pieces of a packed command


def pack_command(*words: bytes) -> bytes:
    """A command in Redis's protocol."""
    sized = [(SIZES[len(word)] if len(word) < len(SIZES) else b"$%d\r\n" % len(word)) + word for word in words]
    return b"*%d\r\n%b\r\n" % (len(words), b"\r\n".join(sized))


class Link:
    """One connection; not thread-safe. Every method raises OSError."""

    def __init__(self, path: str, patience: float = 10.0, name: str = "") -> None:
        """path: of the socket. patience: seconds to wait for more of a reply. name: for CLIENT LIST."""
        self.path, self.patience, self.name = path, patience, name
        self.socket: socket.socket | None = None
        self.data = b""  # received
        self.at = 0  # how much of it has been read
        self.received = 0  # bytes in all

    def connect(self) -> socket.socket:
        link = self.socket = socket.socket(socket.AF_UNIX)
        link.settimeout(self.patience)
        link.connect(self.path)
        if type(link).__module__ == "socket":  # not gevent's: the kernel keeps the time, and Python need not poll
            link.settimeout(None)
            patience = pack_time("ll", int(self.patience), int(self.patience % 1 * 1e6))
            for option in socket.SO_RCVTIMEO, socket.SO_SNDTIMEO:
                link.setsockopt(socket.SOL_SOCKET, option, patience)
        if self.name:
            link.sendall(pack_command(b"CLIENT", b"SETNAME", self.name.encode()))
            self.reply()
        return link

    def close(self) -> None:
        """Close the connection; the next `send` opens it again."""
        link, self.socket, self.data, self.at = self.socket, None, b"", 0
        if link:
            link.close()

    def send(self, commands: bytes) -> None:
        try:
            (self.socket or self.connect()).sendall(commands)
        except BlockingIOError as error:
            raise TimeoutError(SLOW) from error

    def receive(self, size: int) -> bytes:
        """Receive until `data` has `size` bytes that have not been read, and return it: it begins with them."""
        assert self.socket
        rest = self.data[self.at :]
        pieces = [rest] if rest else []
        size -= len(rest)
        while size > 0:
            try:
                piece = self.socket.recv(RECEIVE_BYTES)
            except BlockingIOError as error:
                raise TimeoutError(SLOW) from error
            if not piece:
                raise ConnectionResetError("it has closed the connection")
            pieces.append(piece)
            size -= len(piece)
            self.received += len(piece)
        self.data, self.at = b"".join(pieces), 0
        return self.data

    def line(self) -> bytes:
        """Read a line, without its end."""
        while (end := self.data.find(b"\r\n", self.at)) < 0:
            self.receive(len(self.data) - self.at + 1)
        at, self.at = self.at, end + 2
        return self.data[at:end]

    def reply(self) -> Any:
        """Read one reply: an integer, bytes, None, or a list of these, also of errors. Raises: ResponseError."""
        value = self.value()
        if isinstance(value, ResponseError):
            raise value
        return value

    def value(self) -> Any:
        """Read one reply, or a part of one."""
        line = self.line()
        kind, text = line[:1], line[1:]
        if kind == b"+":
            return text
        if kind == b"-":
            return ResponseError(text.decode(errors="replace"))
        number = int(text)
        if kind == b":":
            return number
        if number < 0:
            return None
        if kind == b"*":
            return [self.value() for _ in range(number)]
        if len(self.data) < self.at + number + 2:
            self.receive(number + 2)
        at, self.at = self.at, self.at + number + 2
        return self.data[at : at + number]

    def strings(self) -> list[Place | None]:
        """Read the reply to MGET. Raises: ResponseError."""
        line = self.line()
        if line[:1] != b"*":
            raise ResponseError(line[1:].decode(errors="replace"))
        places: list[Place | None] = []
        data, at, left = self.data, self.at, int(line[1:])
        end, append = len(data), places.append
        begin, size = b"$", -1  # the line before the last value, and the size in it
        while left:
            if size >= 0 and data.startswith(begin, at):  # values of one view are often of the same size
                start = at + len(begin)
            else:
                start = data.find(b"\n", at) + 1
                begin = data[at:start]
                size = int(begin[1:]) if start else 0  # "$", digits, end of the line
            stop = start + size
            if start and 0 <= size <= end - start - 2:
                append((data, start, stop))
                at = stop + 2
                left -= 1
            elif size < 0:
                append(None)
                at = start
                left -= 1
            else:
                self.at = at
                data, at = self.receive(stop + 2 - at if start else end - at + 1), 0
                end, size = len(data), -1
        self.at = at
        return places
