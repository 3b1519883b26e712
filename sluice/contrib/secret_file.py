"""Files of secrets, which nobody else may read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from sluice.settings import SettingError


def read_secret(name: str, path: str | Path) -> str:
    """The text of the file in the setting `name`. Raises: SettingError if nobody or everybody here can read it."""
    try:
        if not Path(path).is_dir() and not stat.S_ISREG(os.stat(path).st_mode):  # to open a pipe may take for ever
            raise SettingError(f"{name}={str(path)!r} is no file.")
        with open(path, encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_mode & 0o007:
                raise SettingError(f"{name}={str(path)!r} is accessible to every user of this machine: chmod 600 it.")
            text = file.read()
        if text.startswith("\ufeff") or "\0" in text:
            what = "a NUL byte" if "\0" in text else "a byte order mark"
            raise SettingError(f"{name}={str(path)!r} has {what}: write it as plain text.")
        return text
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise SettingError(f"{name}={str(path)!r} cannot be read: {why}.") from None
