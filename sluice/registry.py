"""What is optional: each folder of `sluice/contrib`, and each package of others, declares in a register what it adds.

A register is a module with a `CONTRIBUTION`. It names what it brings by "module:attribute", which is imported when it
is needed, so that a gateway on PyPy can read each register, and nobody pays for what he does not use. The registers are
`register.py` in each folder of `sluice/contrib`, in the order of their names, then those of installed packages: the
entry points of the group `sluice`. A folder that is deleted is no more known to the core than one that never was.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Callable, NamedTuple

from sluice.places import installing

GROUP = "sluice"  # of entry points
CONTRIB = Path(__file__).with_name("contrib")


class NotInstalled(Exception):
    """A library that an entry needs is not installed. The text is the end of a line: "needs X: … installs it"."""


@dataclass(frozen=True)
class Entry:
    """Something with a name or a scheme.

    target: "module:attribute", or a module. extra: installs what it imports beside the core's packages:
    see `installing` in sluice/places.py.
    """

    target: str
    extra: str = ""

    def load(self, part: str = "") -> Any:
        """What target names; of a package, a part: "module" or "module:attribute". Raises: NotInstalled."""
        try:
            return load_target(f"{self.target}.{part}" if part else self.target)
        except ImportError as error:
            if not self.extra or (error.name or "").partition(".")[0] == "sluice":
                raise
            raise NotInstalled(f"needs {error.name}: {installing(self.extra)} installs it.") from error


class Setting(NamedTuple):
    """One setting, INGEST_ and its name.

    parse: makes its value of a text. Raises: ValueError with the values that are valid. default: a text for `parse`, in
    which $INGEST_HOME stands for that setting. purpose: one line, what it is for.
    """

    parse: Callable[[str], Any]
    default: str
    purpose: str = ""


@dataclass(frozen=True)
class Coding(Entry):
    """A content coding (RFC 9110, 8.4.1). target: "module:function" of a body, which is not empty, and of a limit of
    bytes; it returns the content. Raises: Invalid.

    magic: how such a body begins, if nothing else does. Without it only the head says so, and the gateway keeps it.
    """

    magic: bytes = b""


@dataclass(frozen=True)
class Spool(Entry):
    """What may stand in the list's place: a package with the modules `inlet`, `outlet`, `snapshot` and `inspector`.

    They have the classes Inlet, Outlet, Snapshots and Inspector, made with the URL, the address of the Redis of the
    figures, and what `sluice.spool.open_spool` is given.
    pattern: of its URLs. form: how one is written. lane: the gateway's worker class.
    connect: "module:function" of the address and of the seconds to wait for a reply; it returns a class of connections
        to the Redis that the address names, and their arguments.
    is_redis: whether processes report their counts there; if not, they report to the cell's second Redis.
    max_body: bytes that a body may have; 0: as memory allows.
    """

    pattern: str = ""
    form: str = ""
    lane: str = ""
    connect: str = ""
    is_redis: bool = True
    max_body: int = 0


@dataclass(frozen=True)
class Database(Entry):
    """A database. target: its package, with the modules `store`, `questions` (see `sluice.store.questions`), and
    `copies` with `backup` and `restore`.

    name: for people. store: the class in the module `store`. pattern: of its URLs. form: how one is written.
    magic: the beginning of a copy. check: "module:function" of a URL, which does not connect. Raises: SettingError.
    """

    name: str = ""
    store: str = ""
    pattern: str = ""
    form: str = ""
    magic: bytes = b""
    check: str = ""


@dataclass(frozen=True)
class Destination(Entry):
    """What takes rows instead of a table. form: how a URL is written. pattern: of its URLs.

    stream: the only one that it takes, if it is not for all. column: that it adds to those of a table.
    beside: it can take rows that are in their table, too (`store+URL`): then its objects are in memory.
    """

    form: str = ""
    pattern: str = ""
    stream: str = ""
    column: str = ""
    beside: bool = False


@dataclass(frozen=True)
class Program(Entry):
    """A program that runs beside the gateway and the workers. target: "module:function" of the settings; what it
    returns is a `sluice.run.programs.Part`, or None if the settings need none.

    upgrades: it runs in gunicorn: `bin/sluice reload` starts a second one before it stops the first.
    """

    upgrades: bool = False


@dataclass(frozen=True)
class Contribution:
    """All that one register declares.

    settings: by name. settle: "module:function" of the dictionary of all values, which it may change, before they are
        used. Raises: SettingError.
    formats: the wire formats (`sluice.streams.format.Format`), in the order in which they are tried.
    streams: by name, "module:attribute"; instead of the core's, if that has one of this name.
    routes: path -> `sluice.http.routes.Route`.
    fields: the names of header fields that the decoders of a user's own streams may read.
    paths: patterns of those that nginx answers, so that no route can have them.
    probes: path -> what answers there beside the routes: "module:function" of an environ and of `unready`, which
        returns the 503 of a gateway that takes no writes, or None. It returns a Reply; None: 405.
    reads: "module:function" of the settings; the paths that are read with GET.
    gateway: "module:function" of the routes, the endpoints and the settings, called once when a gateway starts.
    spools, databases, destinations: by the scheme of their URLs.
    row_sources: what views read the rows of a database from, by the scheme of its URLs: "module:class".
    rows: "module:function" of settings and streams, which opens what stores rows elsewhere (`sluice.store.store`).
    network: "module:function" of the settings: whether workers speak with other machines.
    places: "module:function" of the settings; (setting, file) for each file whose folder bin/up makes.
    check: "module:function" of settings, routes and streams, called before anything starts. Raises: SettingError.
    chores: "module:function" of what `rows` opened; it yields the worker's `sluice.store.chores.Chore`s.
    rejections: "module:class" of the settings. Its `tell(reply, path, environ)` is called for each request that a
        gateway rejects, `tell_malformed(status, reason, begin)` for one that cannot be parsed. Neither waits.
    senders: "module:class" of a process's counts: `stored(stream, names)` after a commit, `rejected(status, name)`.
    status: "module:function" of the counters; it yields lines for `sluice status`.
    figures: what `Observer` reads besides: name -> "module:class" of the settings, with `read(counted, trouble)`.
    openers: header field -> "module:function" of a decoder and of what its `contents` gets, for bodies with that field.
        "NAME: VALUE": of those in which its value begins so. The gateway keeps the heads of such bodies.
    codings: what stands in Content-Encoding, beside gzip and deflate.
    keys: the names of header fields that may have the key of a request, after those of the core.
    own_decoder: "module:class" of the decoder of JSON for a user's streams.
    built_in: "module:function" of the built-in streams and the settings; it returns them, some with other decoders.
    extra: "module:function" of a stream that is declared with `extra=True`; it returns the one that has the column.
    samplers: "module:class" of a process's counts and of a stream, with `look(stored, limits, seconds)`: bodies, and
        the seconds of CPU of their decoding.
    verbs: name -> the module.
    programs: by name.
    exports: what a user's modules import from `sluice` besides: name -> "module:attribute".
    nginx: "module:function" of the settings; it returns what `sluice.run.nginx` includes, by KIND or KIND/NAME.conf.
    secrets: "module:function" of the settings; it checks the files of secrets, and returns those that nginx reads, by
        their names in $INGEST_HOME/etc. Called at a start, and before nginx reloads. Raises: SettingError.
    announce: "module:function" of the settings and of the words of the first screen, which it may change; see
        `sluice.run.first_screen`.
    scratch: "module:function" of the settings: whether the cell needs its second Redis, which has no disk.
    page: its page of the documents, below docs/.
    """

    settings: Mapping[str, Setting] = field(default_factory=dict)
    settle: str = ""
    formats: Sequence[Any] = ()
    streams: Mapping[str, str] = field(default_factory=dict)
    routes: Mapping[str, Any] = field(default_factory=dict)
    fields: Sequence[str] = ()
    paths: Sequence[str] = ()
    probes: Mapping[str, Entry] = field(default_factory=dict)
    reads: str = ""
    gateway: str = ""
    spools: Mapping[str, Spool] = field(default_factory=dict)
    databases: Mapping[str, Database] = field(default_factory=dict)
    row_sources: Mapping[str, str] = field(default_factory=dict)
    destinations: Mapping[str, Destination] = field(default_factory=dict)
    rows: str = ""
    network: str = ""
    places: str = ""
    check: str = ""
    chores: str = ""
    rejections: str = ""
    senders: str = ""
    openers: Mapping[str, str] = field(default_factory=dict)
    codings: Mapping[str, Coding] = field(default_factory=dict)
    keys: Sequence[str] = ()
    own_decoder: str = ""
    built_in: str = ""
    extra: str = ""
    samplers: str = ""
    status: str = ""
    figures: Mapping[str, str] = field(default_factory=dict)
    verbs: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, Program] = field(default_factory=dict)
    exports: Mapping[str, str] = field(default_factory=dict)
    nginx: str = ""
    secrets: str = ""
    announce: str = ""
    scratch: str = ""
    page: str = ""


def load_target(target: str) -> Any:
    """What a "module:attribute" or a module names."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name) if name else import_module(module)


@cache
def contributions() -> dict[str, Contribution]:
    """The contributions, by the name of their folder or entry point."""
    found = {}
    for file in sorted(CONTRIB.glob("*/register.py")):
        name = file.parent.name
        found[name] = import_module(f"{__package__}.contrib.{name}.register").CONTRIBUTION
    if sys.version_info >= (3, 10):
        points = metadata.entry_points(group=GROUP)
    else:
        points = metadata.entry_points().get(GROUP, ())
    return found | {point.name: point.load() for point in points}


def declared_entries(kind: str) -> dict[str, Any]:
    """What all contributions declare of a kind with names, such as "verbs"."""
    return {name: entry for each in contributions().values() for name, entry in getattr(each, kind).items()}


def of_url(kind: str, url: str) -> Any:
    """The entry of a URL's scheme, or None."""
    scheme, separator, _ = url.partition("://")
    return declared_entries(kind).get(scheme) if separator else None


def listed(kind: str) -> list[Any]:
    """What all contributions declare of a kind that is a list: "formats", "fields", "keys" or "paths"."""
    return [entry for each in contributions().values() for entry in getattr(each, kind)]


def load_hooks(kind: str) -> Iterator[Any]:
    """The functions that contributions declare for a hook, such as "check"."""
    for each in contributions().values():
        if target := getattr(each, kind):
            yield load_target(target)
