"""What a wire format is: the paths at which its bodies arrive, and its decoder. The gateway on PyPy reads it, too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from sluice.http.routes import Reply


class Format(NamedTuple):
    """A wire format of a stream, other than the plain objects and forms that every stream has.

    decoder: "module:function", imported when it is first needed: some take 10 MB. The function gets a body, its kept
        message or None, and the budget; it yields the records, and a Reject for each part that cannot be stored.
    paths: each with the reply that its clients expect.
    fields: see `Route`. The decoder knows the path of a body only with them, be they none: ().
    json, empty, get, methods: see `Route`.
    objects: None: the decoder gets whole bodies, those of its paths. Otherwise it gets JSON objects, one at a time, on
        any path of the stream: those that have a field of such a name and are not plain; for (), those of its paths.
    form: "module:function" that makes the record of a form, or returns None if it is not one of this format.
    begins: the decoder also gets the bodies of the stream's other paths that begin so.
    text: the decoder also gets the bodies of the stream's other paths that are neither JSON nor a form.
    """

    stream: str
    decoder: str = ""
    paths: Mapping[str, Reply] = MappingProxyType({})
    fields: tuple[str, ...] | None = None
    json: Reply | None = None
    objects: tuple[str, ...] | None = None
    form: str = ""
    begins: re.Pattern[bytes] | None = None
    text: bool = False
    empty: bool = False
    get: bool = False
    methods: tuple[str, ...] = ()
