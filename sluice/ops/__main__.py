"""The operator's command, `bin/sluice` or the installed `sluice`: runs one verb.

A verb is a module: the first line of its docstring is its help, `arguments(parser)` defines its command line, and
`run(arguments, settings)` returns the exit status. The settings are those of the last start, unless the verb has a
`load` of its own.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import signal
import sys
from importlib.util import find_spec
from typing import Any

from sluice import __version__, places, registry, settings
from sluice.base import terminal
from sluice.base.daemon import Interrupted
from sluice.home_settings import load_for_verb

CORE = {
    verb: f"sluice.ops.{verb}"
    for verb in (
        *("status", "tail", "peek", "rows", "dead", "replay", "discard", "bury", "release", "purge", "expire"),
        *("up", "services", "settings", "reload", "drain", "undrain", "backup", "restore"),
    )
}
DRILL = "drill"  # not in the package: it is in the checkout's `proving`
STATUSES = """\
exit status: 0 no problem; 1 something needs attention: Redis or the database is unavailable, a body is missing
(status), letters are still dead (replay); 2 the command line, a condition or a setting is invalid.
Settings are those of the last start in INGEST_HOME, or of the environment: docs/protocol/operator.md."""


def verb_modules() -> dict[str, str]:
    return CORE | registry.declared_entries("verbs") | {DRILL: "proving.drill"}


def verb_parser(verb: str) -> argparse.ArgumentParser:
    """The command line of one verb; for any other word, the list of all verbs, whose modules are read, not imported."""
    whole = argparse.ArgumentParser(
        prog=terminal.PROGRAM,
        description="Look after a running Sluice.",
        epilog=STATUSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--version", action="store_true", help="show the version")
    known, lines = verb_modules(), whole.add_subparsers(metavar="VERB", title="verbs")
    if verb in known:
        if verb == DRILL and not find_spec("proving"):
            raise settings.SettingError("the drill needs a checkout of Sluice: run its bin/sluice instead.")
        module = importlib.import_module(known[verb])
        own = lines.add_parser(verb, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        module.arguments(own)
        own.set_defaults(run=module.run, load=getattr(module, "load", load_for_verb))
        return whole
    for name, target in known.items():
        file = places.PACKAGE.parent / f"{target.replace('.', '/')}.py"
        if file.exists():  # not the drill, in an installed package
            first = (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0].rstrip(".")
            lines.add_parser(name, help=first[:1].lower() + first[1:])
    return whole


def main(words: list[str]) -> int:
    """Run a verb; returns the exit status. The errors that every verb may raise are handled here."""
    try:
        whole = verb_parser(words[0] if words else "")
    except settings.SettingError as error:
        return settings.complain(error)
    arguments = whole.parse_args(words)
    if not hasattr(arguments, "run"):
        print(f"sluice {__version__}") if arguments.version else whole.print_help()
        return 0

    from sluice.spool.errors import SPOOL_ERRORS, in_one_line
    from sluice.spool.inspector import NoSuchVerb
    from sluice.store.types import Unavailable  # only now: --help needs neither

    try:
        return int(arguments.run(arguments, arguments.load()))
    except (settings.SettingError, registry.NotInstalled, NoSuchVerb) as error:
        return settings.complain(error)
    except SPOOL_ERRORS as error:
        terminal.complain(in_one_line(error))
    except Unavailable as error:
        terminal.complain(f"the database is unavailable: {error}")
    except KeyboardInterrupt:
        return 130
    return 1


def run_command() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # sluice dead | head
    interrupt_on_signal()
    os.umask(0o077)
    try:
        status = main(sys.argv[1:])
        if sys.stdout:  # it may be closed
            sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:  # it is of another file than the one that the output goes to
            raise
        terminal.complain(f"the output cannot be written: {error.strerror}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # where the rest of it goes at the exit
        status = 1
    sys.exit(status)


def interrupt_on_signal() -> None:
    """At SIGINT raise Interrupted."""

    def interrupt(number: int, frame: Any) -> None:
        raise Interrupted

    signal.signal(signal.SIGINT, interrupt)


if __name__ == "__main__":
    run_command()
