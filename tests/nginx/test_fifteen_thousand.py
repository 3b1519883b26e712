"""15,000 connected clients post at once through nginx, and no request fails.

Run as a program, this file is half of the clients: on a small machine, one process may not have enough descriptors.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import subprocess
import sys
from collections import Counter

import pytest

pytestmark = pytest.mark.nightly

CLIENTS, POSTS = 15_000, 4
PROCESSES = 2


def test_fifteen_thousand_clients_post_at_once_and_no_request_fails() -> None:
    with short_tmp() as tmp, installation(tmp) as up:
        command = [sys.executable, __file__, up.port, CLIENTS // PROCESSES]
        crowd = [
            subprocess.Popen([*map(str, command), str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for n in range(PROCESSES)
        ]
        try:
            for half in crowd:  # all clients connect before the first one posts
                assert half.stdout and half.stdout.readline() == "connected\n"
            for half in crowd:
                assert half.stdin
                half.stdin.write("post\n")
                half.stdin.flush()
            answers = sum((Counter(json.loads(half.communicate(timeout=120)[0])) for half in crowd), Counter())
        finally:
            for half in crowd:
                half.kill()
                half.wait()
        assert answers == {"200": CLIENTS * POSTS}

        sql = "SELECT count(*), count(DISTINCT choice) FROM votes"
        poll(lambda: ask(tmp, sql) == [(CLIENTS * POSTS, CLIENTS * POSTS)], what="everything to be stored once")


def main(port: int, clients: int, number: int) -> None:
    """Connect, wait for a line on stdin, let each client post bodies in turn; print the count of each status."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    poller = select.epoll()
    connections: dict[int, socket.socket] = {}
    for n in range(clients):
        connection = socket.socket()
        # several source addresses, as one has fewer than 30,000 ephemeral ports
        connection.setsockopt(socket.SOL_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
        connection.bind((f"127.0.{1 + number}.{1 + n % 8}", 0))
        connection.connect(("127.0.0.1", port))
        connection.setblocking(False)
        connections[connection.fileno()] = connection
        poller.register(connection.fileno(), select.EPOLLIN)
    print("connected", flush=True)
    sys.stdin.readline()

    answers: Counter[str] = Counter()
    left = dict.fromkeys(connections, POSTS)

    def post(fd: int) -> None:
        left[fd] -= 1
        body = f'{{"poll":"p","choice":"{number}-{fd}-{left[fd]}"}}'
        head = f"POST /votes HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        connections[fd].send((head + body).encode())

    for fd in connections:
        post(fd)
    waiting = set(connections)
    while waiting:
        events = poller.poll(30)
        if not events:
            answers["no answer"] += len(waiting)
            break
        for fd, _ in events:
            try:
                data = connections[fd].recv(4096)  # an answer fits into one packet
                answers[data[9:12].decode() if data else "hung up"] += 1
                again = bool(data) and left[fd] > 0
                if again:
                    post(fd)
            except OSError as error:
                answers[type(error).__name__] += 1
                again = False
            if not again:
                waiting.discard(fd)
                poller.unregister(fd)
    print(json.dumps(answers))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
else:
    from proving.harness import ask, installation, poll, short_tmp
