"""bin/sluice drill --cells: machines that die, vanish, freeze or are cut off lose and double nothing acknowledged.

`bin/test --nightly tests/proving/test_cells.py --machines 600 -o faulthandler_timeout=0` takes about eleven minutes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proving import kafka, machines
from proving.harness import ROOT, environment, poll
from proving.outages import OUTAGES
from proving.site import Trouble

pytestmark = pytest.mark.nightly

DRILL = [str(ROOT / "bin/sluice"), "drill", "--cells", "3"]


@pytest.fixture
def namespaces() -> None:
    """Skips the test where network namespaces cannot be made, as in most containers."""
    command = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "true"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no network namespaces: {done.stderr.strip()}")


@pytest.mark.parametrize(
    ("spool", "faults"),
    [
        ("redis", ["lose-cell", "deaf-cell", "balancer", "kill-database"]),
        ("kafka", ["lose-cell", "deaf-cell", "worker", "topic-again", "poison"]),
    ],
)
def test_machines_that_fail_lose_and_double_nothing_acknowledged(
    spool: str,
    faults: list[str],
    tmp: Path,
    namespaces: None,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    seconds = request.config.getoption("--machines")
    if spool == "kafka" and not kafka.available():
        pytest.skip(kafka.MISSING)
    short = ["--rounds", "1", "--rate", "200", "--faults", ",".join(faults)]
    options = ["--duration", seconds] if seconds else short
    done = subprocess.run(
        [*DRILL, "--spool", spool, "--report", str(tmp), *map(str, options)],
        env=environment(tmp), capture_output=True, text=True, timeout=600 + 2 * seconds,
    )  # fmt: skip
    print(done.stdout[done.stdout.find("\n# ") :], done.stderr)  # pytest shows the report with a failure
    (report,) = (json.loads(path.read_text()) for path in tmp.glob("*.json"))
    assert (report["trouble"], report["dead"], report["ledger"]["missing"]) == ("", 0, 0)
    assert {"missing", "doubled", "torn", "misdated"} < report["counts"].keys()
    assert {kind for kind, count in report["counts"].items() if count} <= {"unknown"}
    assert report["stored"] == report["acknowledged"] + report["counts"]["unknown"] > 1000
    injected = {entry["fault"] for entry in report["faults"]}
    assert len(injected) == (sum(not fault.named for fault in OUTAGES.values()) if seconds >= 300 else len(faults))
    without = report["without_service"]
    assert without.keys() == {"none", *injected}
    assert [without[name]["cell"] for name in ("lose-cell", "deaf-cell")] == ["dead", "frozen or cut off"]
    dead = max(found["meanwhile"] for found in without.values() if found["cell"] == "dead")
    assert f" {dead:.2f} s with a cell dead, " in done.stdout
    assert done.returncode == 0
    head = ("fault", "times", "longest time of a client without 2xx, seconds")
    for name, found in without.items():
        title = f"sluice drill --cells 3 --spool {spool}"
        record_property("row", (title, head, (name, str(found["times"]), f"{found['meanwhile']:.2f}")))


def processes(folder: Path) -> list[int]:
    """Those that have this TMPDIR."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"TMPDIR={folder}\0".encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:  # it has ended
            pass
    return found


def networks(folder: Path) -> set[str]:
    """The network namespaces of these processes."""
    found = set()
    for pid in processes(folder):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{pid}/ns/net"))
    return found


def test_a_drill_that_is_killed_leaves_no_process_and_no_network(tmp: Path, namespaces: None) -> None:
    env: dict[str, Any] = environment(tmp, {}) | {"TMPDIR": str(tmp)}
    options = ["--duration", "300", "--rate", "100", "--faults", "none", "--report", str(tmp)]
    with subprocess.Popen([*DRILL, *options], env=env, stdout=subprocess.DEVNULL) as drill:
        poll(lambda: len(processes(tmp)) > 40, what="the programs of three cells")
        folders = set()
        for pid in processes(tmp):
            with contextlib.suppress(OSError):  # some end at once
                folders.add(os.readlink(f"/proc/{pid}/cwd"))
        assert os.readlink("/proc/self/ns/net") not in networks(tmp)
        assert len(networks(tmp)) == 5  # of three cells, the database, and the drill with its bridge
        drill.send_signal(signal.SIGKILL)
    poll(lambda: not processes(tmp), what="the end of all processes")
    assert not networks(tmp)
    for path in folders:
        if "/sl-pg-" in path:  # PostgreSQL's data, which is not in TMPDIR
            shutil.rmtree(Path(path).parent)


@pytest.mark.parametrize("words", [["2"], ["3", "--home", "/tmp"], ["3", "--header", "A: b"], ["3", "--faults", "cut"]])
def test_a_wrong_command_line_is_an_error_of_one_line(tmp: Path, words: list[str]) -> None:
    done = subprocess.run([*DRILL[:-1], *words], env=environment(tmp), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_what_machines_need_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Trouble, match="needs root"):
        machines.require()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name, path: None if name == "ip" else name)
    with pytest.raises(Trouble, match=r"needs the program ip \(Debian: iproute2\)"):
        machines.require()
