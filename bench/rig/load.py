"""The load generator, and the CPU time and memory of process groups."""

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

from rig.heads import Requests
from rig.parameters import Figures

TICK = os.sysconf("SC_CLK_TCK")
GENERATOR = "load generator"

KINDS = "GET", "other"  # of requests, as users.c names them
Slots = list[tuple[float, int]]  # of latencies: (upper end in ms, requests)
Parts = Mapping[str, Sequence[int]]  # of a candidate: name -> leaders of process groups


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


def users(
    program: Path, port: int, requests: Requests, parts: Parts, seconds: float, count: int,
    rate: float | str = 0, warm: float = 0, patience: float = 10,
) -> Figures:  # fmt: skip
    """Load by users.c, which describes all options. patience: TIMEOUT.

    Returns: what it prints, CPU seconds of each part for 100,000 requests ("cpu"), resident MB ("memory").
    Raises: Stalled.
    """
    before = {part: cpu(groups) for part, groups in parts.items()}
    own, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [program, port, count, requests.addresses, warm, seconds, patience, rate, requests.path]
    try:
        done = subprocess.run(
            [str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=1.5 * seconds + patience + 100,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Stalled from error
    if done.returncode:
        raise RuntimeError(f"{program.name} failed: {done.stdout} {done.stderr}")
    found: Figures = json.loads(done.stdout)
    # it ends by the clock, once it has the answers to all open requests, one for each connection
    rest = patience if found["errors"] else min(patience, count / max(found["rate"], 1))
    if time.monotonic() - began - found["connecting"] > 1.5 * seconds + 4 + rest:
        raise Stalled
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = {part: cpu(groups) - before[part] for part, groups in parts.items()}
    used[GENERATOR] = now.ru_utime + now.ru_stime - own.ru_utime - own.ru_stime
    whole = sum(answers + failures for answers, failures, _ in found["timeline"])  # also of `warm`, as the CPU
    found["cpu"] = {part: round(one * 1e5 / whole, 3) for part, one in used.items()} if whole else {}
    found["memory"] = {part: memory(groups) for part, groups in parts.items()}
    return found


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
