"""The planted faults of tests/planted.py: each can be made, and each is found."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

import planted
from proving.harness import ROOT
from proving.histories.plants import PLANTS
from support.folders import whole


@whole
def test_each_fault_can_be_made_and_names_tests_that_exist() -> None:
    odd: list[str] = []
    shared = "".join(path.read_text() for path in (ROOT / "tests").rglob("*_contract.py"))
    for name, fault in planted.FAULTS.items():
        text = (ROOT / fault.path).read_text()
        if text.count(fault.text) != 1 or fault.text == fault.wrong:
            odd.append(f"{name}: {fault.path} does not have its text once")
            continue
        ast.parse(text.replace(fault.text, fault.wrong))
        for test in fault.tests:
            file, _, function = test.partition("::")
            text = (ROOT / file).read_text()
            if function and not re.search(rf"def {function.rpartition('::')[2]}\(", text + shared):
                odd.append(f"{name}: there is no test {test}")
    assert odd == []


@whole
def test_each_fault_of_the_histories_can_be_made() -> None:
    texts = {name: (ROOT / (plant.module.replace(".", "/") + ".py")).read_text() for name, plant in PLANTS.items()}
    assert [name for name, plant in PLANTS.items() if texts[name].count(plant.old) != 1] == []


def test_every_dangerous_place_has_faults() -> None:
    places = {fault.place for fault in planted.FAULTS.values()}
    assert len(planted.FAULTS) >= 40
    assert places == {
        "claim", "settle", "lease", "trim", "ranges", "keys' window", "outbox", "views' lease", "retention",
        "Kafka's offsets", "reply matching", "group order", "reload's drain", "folding of batches", "partitions",
    }  # fmt: skip


@pytest.mark.nightly
def test_every_fault_is_found() -> None:
    done = subprocess.run([sys.executable, "tests/planted.py"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
