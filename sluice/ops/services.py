"""Run everything as services of systemd; as root.

They start now and at every boot. It sets up nginx, Redis, gateway, workers and the other programs, each in a sandbox
and as the user `sluice`. INGEST_ variables before the command become its settings, in /etc/default/sluice. Run it again
after a change of them, and after an upgrade. In a checkout this is bin/provision services.
"""

from __future__ import annotations

import argparse
import os

from sluice import places, settings
from sluice.settings import Settings


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0; 1 if they cannot run, or take no writes; 2 if a setting is invalid"


def load() -> Settings:
    return settings.load_settings({})  # `services.main` reads those of the services


def run(arguments: argparse.Namespace, s: Settings) -> int:
    if places.CHECKOUT:
        os.execv(places.ROOT / "bin/provision", ["bin/provision", "services"])
    from sluice.run import services  # which also imports supervisord

    services.main([])
    return 0
