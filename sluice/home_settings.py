"""The settings of a start, and of the verbs after it: the environment, the user's file, and what is kept of a start.

A start reads the file `settings` in INGEST_HOME, which is the user's, and gives its programs what it has read as their
environment: so an edit of the file counts from the next start for all of them. It writes the settings to
`etc/settings`, for the verbs, which must know the database and the list of the cell that runs.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from sluice import settings
from sluice.base.files import read_file, replace_file
from sluice.settings import STARTED, STORE, SettingError, Settings, of_last_start, variable

FILE = "settings"  # below INGEST_HOME: what its user sets, as lines NAME=value
SOCKET_PATH = 107  # bytes: sun_path in unix(7), without its NUL


def load_for_start(environ: Mapping[str, str] = os.environ) -> Settings:
    """What is not set is as the home's file has it. Raises: SettingError."""
    home, given = settings.home_of(environ), {name: text for name, text in environ.items() if text.strip()}
    found = {name: text for name, text in of_file(home).items() if name not in given}
    with paths_from(home):
        for name in settings.settings_table():
            if text := found.get(variable(name)):
                try:
                    value = settings.parse_setting(name, text)
                except SettingError as error:
                    raise SettingError(f"{home / FILE}: {error}") from None
                found[variable(name)] = str(value) if isinstance(value, (str, Path)) else text
    s = settings.load_settings({**found, **given})
    check_lengths(s)
    return s


def load_for_verb(environ: Mapping[str, str] = os.environ) -> Settings:
    """What is not set is as the last start had it; before the first start, as the home's file has it.

    For what an operator runs, whose shell has the settings of no cell. Raises: SettingError.
    """
    started = of_last_start(settings.home_of(environ))
    return settings.load_settings(environ, last=True) if started else load_for_start(environ)


def check_lengths(s: Settings) -> None:
    """Raises: SettingError for a path that no socket can have, and for bodies that would never be accepted."""
    for name, socket in ("INGEST_HOME", s.gateway_sockets[0]), ("INGEST_SPOOL", s.spool):
        if len(os.fsencode(socket)) > SOCKET_PATH and (name == "INGEST_HOME" or s.has_own_redis):
            raise SettingError(f"{name} is too long: the path of the socket {socket} may have {SOCKET_PATH} bytes.")
    if s.max_body > s.body_limit:
        why = "INGEST_SPOOL" if s.spooling and s.spooling.max_body else "INGEST_MAX_MEMORY"
        raise SettingError(
            f"INGEST_MAX_BODY is too large for {why}: at most {s.body_limit} bytes, or no such body is accepted."
        )


@contextlib.contextmanager
def paths_from(folder: Path) -> Iterator[None]:
    """Meanwhile, relative paths count from there: see `parse_path` in sluice/parsers.py."""
    before = os.environ.get("SLUICE_PWD")
    os.environ["SLUICE_PWD"] = str(folder)
    try:
        yield
    finally:
        del os.environ["SLUICE_PWD"]
        os.environ.update({} if before is None else {"SLUICE_PWD": before})


def of_file(home: Path) -> dict[str, str]:
    """What the user's file in a home sets, by variable; nothing if there is none. Raises: SettingError.

    Those that are no settings are for the programs: AWS_ACCESS_KEY_ID and the like.
    """
    file = home / FILE
    try:
        found = assignments(read_file(file), str(file))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise SettingError(f"{file} cannot be read: {error.strerror}.") from None
    if "INGEST_HOME" in found:
        raise SettingError(f"{file}: INGEST_HOME leads to this file, so only the environment can set it.")
    return found


def assignments(text: str, where: str) -> dict[str, str]:
    """The variables that lines of NAME=value set. Raises: SettingError for the first line of another form.

    A value may be quoted as in a shell; else it is the rest of the line, without a comment after white space.
    """
    found = {}
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line.startswith("#"):
            continue
        name, _, value = map(str.strip, line.partition("="))
        words = [re.sub(r"(^|\s+)#.*", "", value)]
        if value.startswith(("'", '"')):
            try:
                words = shlex.split(value, comments=True)
            except ValueError:  # a quotation without an end
                words = []
        if not re.fullmatch(r"[A-Za-z_]\w*", name) or "=" not in line or len(words) != 1:
            raise SettingError(f"{where}: line {number} is not of the form NAME=value.")
        found[name] = words[0]
    return found


def keep_for_verbs(s: Settings) -> None:
    """Write what `of_last_start` reads, once the settings of a start are checked."""
    lines = {**s.given, "INGEST_CELL": s.cell}
    head = (
        f"# The settings of the last start, for the verbs; the next one writes this file anew, and reads INGEST_CELL\n"
        f"# only. Yours are in {s.home / FILE}.\n"
    )
    text = head + "".join(f"{name}={value}\n" for name, value in sorted(lines.items()) if "\n" not in value)
    before = of_last_start(s.home)
    if before.get("INGEST_STORE") != s.given.get("INGEST_STORE"):
        with contextlib.suppress(FileNotFoundError):
            (s.home / STORE).unlink()  # another database from now on
    if before != lines:
        replace_file(s.home / STARTED, text)
