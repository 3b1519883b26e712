"""Where rows are posted, and how: a URL of INGEST_ROWS, whose fragment has the options.

https://USER:PASSWORD@HOST/PATH?QUERY#order=hook&age=3d&timeout=15&parallel=8&secret=/PATH
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from sluice.parsers import TIMES


@dataclass(frozen=True)
class Target:
    """A receiver.

    url: without login and options. login: the value of Authorization, or "". order: the field of a record: rows that
    have the same value there are posted one after the other; "": all in parallel. age: seconds after which a row that
    was not taken is a dead letter. timeout: seconds for an answer. parallel: requests at the same time. secret: the
    file with the secrets of signatures, or "".
    """

    url: str
    login: str = ""
    order: str = ""
    age: int = 3 * 86_400
    timeout: int = 15
    parallel: int = 8
    secret: str = ""

    @classmethod
    def of(cls, url: str) -> Target:
        """Raises: ValueError for a URL that names no host or an invalid port."""
        plain, _, options = url.partition("#")
        parts = urlsplit(plain)
        if not parts.hostname:
            raise ValueError("a host is missing")
        parts.port  # noqa: B018  # raises
        given = dict(parse_qsl(options, keep_blank_values=True))
        login, _, host = parts.netloc.rpartition("@")
        age = given.get("age", "3d")
        return cls(
            parts._replace(netloc=host).geturl(),
            f"Basic {base64.b64encode(unquote(login).encode()).decode()}" if login else "",
            given.get("order", ""),
            int(age[:-1]) * TIMES[age[-1]],
            int(given.get("timeout", cls.timeout)),
            int(given.get("parallel", cls.parallel)),
            given.get("secret", ""),
        )

    @property
    def shown(self) -> str:
        """What people see of it: a path and a query may be secrets, as those of chat services are."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}" + ("/…" if parts.path.strip("/") or parts.query else "")

    @property
    def mark(self) -> str:
        """What tells its URL from others that are shown alike."""
        return hashlib.sha256(self.url.encode()).hexdigest()[:16]
