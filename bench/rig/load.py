"""The load generators, and the CPU time and memory of process groups."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rig.parameters import Figures

TICK = os.sysconf("SC_CLK_TCK")
GENERATOR = "load generator"

KINDS = "GET", "other"  # of requests, as users.c names them
Slots = list[tuple[float, int]]  # of latencies: (upper end in ms, requests)
Parts = Mapping[str, Sequence[int]]  # of a candidate: name -> leaders of process groups

# wrk's own summary lacks the 99.9th percentile and the kinds of errors.
DONE = """
function done(summary, latency)
  local e = summary.errors
  io.write(string.format('WRK {"requests":%d,"duration":%f,"p50":%f,"p99":%f,"p999":%f,"mean":%f,"max":%f,' ..
    '"connect":%d,"read":%d,"write":%d,"status":%d,"timeout":%d}', summary.requests, summary.duration / 1e6,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, latency:percentile(99.9) / 1e3,
    latency.mean / 1e3, latency.max / 1e3, e.connect, e.read, e.write, e.status, e.timeout))
end
"""

# The heads of --heads: of a client that traces its requests. wrk's pairs() has no order, so all heads are made before
HEADS = """
local made, at = {}, 0
function init()
  for n = 1, HEADS do
    wrk.headers['traceparent'] = string.format('00-%032x-%016x-01', n * 7919, n * 104729)
    wrk.headers['User-Agent'] = 'Mozilla/5.0 (X11; Linux x86_64; rv:' .. 100 + n % 40 .. '.0) Gecko/20100101 Firefox'
    made[n] = wrk.format()
  end
end
function request()
  at = at % HEADS + 1
  return made[at]
end
"""


class Stalled(Exception):
    """The load generator did not end in time: the machine was suspended, as virtual machines sometimes are."""


def body(size: int, line: bool = False) -> bytes:
    """A valid GPS position, padded to `size` bytes. line: in line protocol."""
    if line:
        text = b'gps,device=a1b2c3 lat=48.13743,lon=11.57549,speed=2.5,note=""'
        return text[:-1] + b"x" * (size - len(text)) + b'"'
    text = b'{"device":"a1b2c3","lat":48.13743,"lon":11.57549,"time":1766600000,"speed":2.5'
    padding = size - len(text) - 1
    if padding < 10:
        return text + b" " * padding + b"}"
    return text + b',"note":"' + b"x" * (padding - 10) + b'"}'


def get(target: str) -> bytes:
    """A request, for `users`."""
    return b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % target.encode()


def post(target: str, body: bytes) -> bytes:
    """A request, for `users`."""
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (target.encode(), len(body)) + body


def wrk(tmp: Path, url: str, parts: Parts, seconds: float, connections: int, body: bytes, heads: int = 0) -> Figures:
    """Load by wrk on one thread. heads: so many different ones, with more fields, one after the other; 0: a short one.

    Returns: rate (2xx/s), p50, p99, p999, mean, max (ms), errors, and CPU and memory as in `measured`.
    """
    lua = tmp / "load.lua"
    lua.write_text(
        f"wrk.method = 'POST'\nwrk.body = [==[{body.decode()}]==]\n"
        "wrk.headers['Content-Type'] = 'application/json'\n"
        + (heads and HEADS.replace("HEADS", str(heads)) or "")
        + DONE
    )
    command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "10s", "-s", lua, url]
    text, more = measured(tmp, command, parts, seconds)
    found = json.loads(text.rpartition("WRK ")[2])
    good = found["requests"] - found["status"]
    errors = {name: found.pop(name) for name in ("connect", "read", "write", "status", "timeout")}
    return {
        "rate": good / found["duration"],
        **{name: found[name] for name in ("p50", "p99", "p999", "mean", "max")},
        "errors": sum(errors.values()),
        "errors by kind": {name: number for name, number in errors.items() if number},
        "requests": good,
        "connections": connections,
        "size": len(body),
        **per_100k(more, good),
    }


def users(
    tmp: Path, program: Path, port: int, requests: Path, parts: Parts, seconds: float, count: int,
    rate: float | str = 0, warm: float = 0, patience: float = 10,
) -> Figures:  # fmt: skip
    """Load by users.c, which describes all options. requests: a file of whole HTTP requests. patience: TIMEOUT.

    Returns: what it prints, and CPU and memory as in `measured`.
    """
    command = [program, port, count, warm, seconds, patience, rate, requests]
    text, more = measured(tmp, command, parts, seconds + patience + 60)
    found: Figures = json.loads(text)
    whole = sum(answers + failures for answers, failures, _ in found["timeline"])  # also of `warm`, as the CPU
    return found | per_100k(more, whole)


def summed(runs: Iterable[Figures], kinds: Sequence[str] = KINDS) -> Slots:
    """The latencies of these kinds of requests in all runs."""
    found: Counter[float] = Counter()
    for run in runs:
        for kind in kinds:
            for end, count in run["slots"][kind]:
                found[end / 1000] += count
    return sorted(found.items())


def percentile(slots: Slots, part: float) -> float:
    """The upper end of the slot in which this percentile is."""
    left = sum(count for _, count in slots) * part / 100
    for end, count in slots:
        left -= count
        if left <= 0:
            return end
    return slots[-1][0]


def measured(tmp: Path, command: Sequence[object], parts: Parts, seconds: float) -> tuple[str, Figures]:
    """Run a load generator for about `seconds`.

    Returns: its output, and CPU seconds ("cpu") and resident MB ("memory") of each part. Raises: Stalled.
    """
    before = {part: cpu(groups) for part, groups in parts.items()}
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    began, late = time.monotonic(), 1.5 * seconds + 4  # generators end by the clock, even if the server hangs
    try:
        done = subprocess.run(
            [str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=late + 30, env=os.environ | {"HOME": str(tmp)},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Stalled from error
    if time.monotonic() - began > late:
        raise Stalled
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stdout} {done.stderr}")
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = {part: cpu(groups) - before[part] for part, groups in parts.items()}
    used[GENERATOR] = now.ru_utime + now.ru_stime - own.ru_utime - own.ru_stime
    return done.stdout, {"cpu": used, "memory": {part: memory(groups) for part, groups in parts.items()}}


def processes(groups: Iterable[int]) -> dict[int, list[str]]:
    """The processes of these groups, and the children of their leaders: each of PostgreSQL's leads a group of its own.

    Returns: pid -> the fields of /proc/PID/stat from the state on.
    """
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
            if int(fields[1]) in groups or int(fields[2]) in groups:
                found[int(pid)] = fields
    return found


def cpu(groups: Iterable[int]) -> float:
    """CPU seconds of these process groups, including ended children."""
    return sum(sum(map(int, fields[11:15])) for fields in processes(groups).values()) / TICK


def stolen() -> float:
    """Seconds that the host has kept from this machine's processors since it started, while they had work."""
    return int(Path("/proc/stat").read_text().split()[8]) / TICK


def memory(groups: Iterable[int], key: str = "VmRSS") -> float:
    """Resident MB of process groups; shared pages count in each process. key: VmHWM for the peak."""
    total = 0
    for pid in processes(groups):
        with contextlib.suppress(OSError, IndexError):
            total += int(Path(f"/proc/{pid}/status").read_text().partition(key + ":")[2].split()[0])
    return total / 1024


def per_100k(figures: Figures, requests: int) -> Figures:
    """The figures with CPU seconds per 100,000 requests instead of the total."""
    times = {part: round(used * 1e5 / requests, 3) for part, used in figures["cpu"].items()} if requests else {}
    return figures | {"cpu": times}
