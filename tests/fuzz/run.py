#!/usr/bin/env python3
"""`bin/fuzz` after its setup: runs libFuzzer (through atheris) on the targets, and replays the saved corpus.

run.py [TARGET|all [SECONDS]]     search for inputs that reach new branches, then minimise the corpus; status 1 if
                                  an input broke a promise: it is in var/fuzz
run.py --replay TARGET [FILE…]    replay the saved inputs, or these; needs no atheris

The saved inputs of a target are in corpus/TARGET.txt, each as a line that is a literal of Python's `bytes`.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORK = HERE.parents[1] / "var/fuzz"
TARGETS = (
    "cloudevents", "collectd", "encodings", "fastlane", "gelf", "gps", "influx", "loki", "metrics", "multipart", "otlp",
    "packed", "plain", "posted", "prometheus", "reports", "v3",
)  # fmt: skip
HANG = 10  # seconds for one input
MEMORY = 64  # MiB that the process may grow by, from its first input to its last
LENGTH = 4096  # bytes of an input
READ = (
    "sluice.streams",
    "sluice.contrib.formats",
    "sluice.fastlane",
    "gunicorn.http",
)  # the modules whose branches are counted


def main(args: list[str]) -> int:
    """The command; returns its status."""
    if args[:1] == ["--replay"] and len(args) > 1 and args[1] in TARGETS:
        return replay(args[1], {name: Path(name).read_bytes() for name in args[2:]} or saved_inputs(args[1]))
    target, seconds = [*args, *("all", "600")[len(args) :]][:2]
    if len(args) > 2 or target not in ("all", *TARGETS) or not seconds.isdecimal():
        print(f"Usage: bin/fuzz [all|{'|'.join(TARGETS)} [SECONDS]]", file=sys.stderr)
        return 2
    return max([fuzz(name, int(seconds)) for name in (TARGETS if target == "all" else [target])])


def fuzz(target: str, seconds: int) -> int:
    """Fuzz for some seconds, then save the minimised corpus. Returns 1, and saves nothing, if a promise was broken."""
    saved, live, least, found = (WORK / target / name for name in ("saved", "live", "least", "found"))
    shutil.rmtree(saved, ignore_errors=True)
    for folder in saved, live, found:
        folder.mkdir(parents=True, exist_ok=True)
    for data in saved_inputs(target).values():
        (saved / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)  # libFuzzer's names
    limits = [f"-timeout={HANG}", f"-max_len={LENGTH}", f"-artifact_prefix={found}/"]
    status = libfuzzer(target, f"-max_total_time={seconds}", f"-dict={HERE / 'dictionary'}", *limits, live, saved)
    if status:
        return 1
    shutil.rmtree(least, ignore_errors=True)
    least.mkdir()
    if libfuzzer(target, "-merge=1", "-use_counters=0", *limits, least, live, saved):
        return 1
    save_inputs(target, (file.read_bytes() for file in least.iterdir()))
    return 0


def corpus_file(target: str) -> Path:
    return HERE / "corpus" / f"{target}.txt"


def saved_inputs(target: str) -> dict[str, bytes]:
    """The saved inputs of a target: where each is -> its bytes."""
    path = corpus_file(target)
    lines = path.read_text().splitlines() if path.exists() else []
    return {f"{path}:{number}": ast.literal_eval(line) for number, line in enumerate(lines, 1)}


def save_inputs(target: str, inputs: Iterable[bytes]) -> None:
    """Replace the saved inputs of a target."""
    corpus_file(target).write_text("".join(f"{data!r}\n" for data in sorted(inputs)))


def libfuzzer(target: str, *args: object) -> int:
    """Run this file under libFuzzer, which runs it again by its name to merge; returns its status."""
    command = [__file__, *map(str, args)]
    return subprocess.run(command, env=os.environ | {"FUZZ_TARGET": target}).returncode


def under_libfuzzer(target: str) -> None:
    """The process that `libfuzzer` starts. Never returns."""
    import atheris

    with atheris.instrument_imports(include=list(READ)):
        import targets
    function = targets.TARGETS[target]
    function(b"")  # exclude one-time allocations
    atheris.Setup([*sys.argv, f"-rss_limit_mb={peak() + MEMORY}"], function)
    atheris.Fuzz()


def replay(target: str, inputs: dict[str, bytes]) -> int:
    """Run the target on each input. Returns 1 if one crashed, hung, broke a promise or took too much memory."""
    import targets

    function = targets.TARGETS[target]
    function(b"")
    before = peak()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # kills the process: the hang may be in C code
    for place, data in inputs.items():
        print(place, flush=True)
        signal.alarm(HANG)
        try:
            function(data)
        except Exception:
            traceback.print_exc()
            return 1
        signal.alarm(0)
    if peak() - before > MEMORY:
        print(f"{peak() - before} MiB more than before", file=sys.stderr)
        return 1
    return 0


def peak() -> int:
    """Peak resident memory of this process in MiB. (ru_maxrss would include its parent's.)"""
    return int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) // 1024


if __name__ == "__main__":
    if "FUZZ_TARGET" in os.environ:
        under_libfuzzer(os.environ["FUZZ_TARGET"])
    sys.exit(main(sys.argv[1:]))
