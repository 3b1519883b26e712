"""Run everything in the foreground, until Ctrl-C.

In a checkout this is bin/up, which installs what is missing.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

from sluice import places
from sluice.home_settings import load_for_start
from sluice.settings import Settings


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0; 1 if it cannot start; 2 if a setting is invalid"


load = load_for_start


def run(arguments: argparse.Namespace, s: Settings) -> int:
    caller = os.environ.setdefault("SLUICE_PWD", os.getcwd())  # bin/sluice has left it
    if places.CHECKOUT:
        os.chdir(caller)
        os.execv(places.ROOT / "bin/up", ["bin/up"])
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # see sluice/run/up.py
    os.environ["PYTHONUTF8"] = "1"  # files and output are UTF-8 in any locale
    os.chdir(places.ROOT)
    os.execv(sys.executable, [sys.executable, "-m", "sluice.run.up"])
