"""bin/sluice, the operator's command: finds the verb and runs it.

A verb is a module with a first line that says what it does, `arguments(parser)`, and `run(arguments, settings)`, which
returns the exit status.
"""

from __future__ import annotations

import argparse
import signal
import sys

from sluice import settings
from sluice.ops import dead, drill, metrics, peek, purge, reload, replay, requeue, status, tail, top

VERBS = (status, top, tail, peek, dead, replay, requeue, purge, metrics, reload, drill)
STATUSES = """\
exit status: 0 all is well; 1 there is something to look at: Redis or the database is away, a body is missing
(status), letters stay dead (replay); 2 a wrong command line, condition or setting.
Settings come from the environment, as for bin/up: PROTOCOL.md, section 6."""


def parser() -> argparse.ArgumentParser:
    """The command line of all verbs."""
    every = argparse.ArgumentParser(
        prog="bin/sluice",
        description="Look after a running Sluice.",
        epilog=STATUSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = every.add_subparsers(metavar="VERB", title="verbs")
    for verb in VERBS:
        about = (verb.__doc__ or "").strip()
        first = about.partition("\n")[0].rstrip(".")
        one = verbs.add_parser(
            verb.__name__.rpartition(".")[2],
            help=first[0].lower() + first[1:],
            description=about,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.arguments(one)
        one.set_defaults(run=verb.run)
    return every


def main(words: list[str]) -> int:
    """Run a verb; the exit status."""
    every = parser()
    arguments = every.parse_args(words)
    if not hasattr(arguments, "run"):
        every.print_help()
        return 0
    try:
        return arguments.run(arguments, settings.load())
    except settings.SettingError as error:
        return settings.complain(error)
    except KeyboardInterrupt:
        return 130


def command() -> None:
    """The installed command `sluice`."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # bin/sluice dead | head
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    command()
