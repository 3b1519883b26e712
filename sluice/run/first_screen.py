"""What bin/up shows once it takes writes: where, who may, how to try it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from sluice import places, registry, settings
from sluice.parsers import EVERYBODY, PRIVATE, THIS_MACHINE
from sluice.settings import Settings

FIRST_SCREEN = """\
Sluice takes writes at {url} and stores them in {store}

  try it     {curl} -d '{{"poll":"cookies","choice":"oreo"}}' {short}/votes{read}
  access     {who}; {change}
{more}  stop it    Ctrl-C; accepted bodies that are not yet stored wait for the next start
  log files  {home}/log{notes}
"""
ELSEWHERE = """
  {name}      {spool}; none is started"""
OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
LITTLE_MEMORY = """
  memory     as root, `sysctl vm.overcommit_memory=1`: Redis may rewrite its file when memory is short"""
AS_ROOT = """
  user       root, and so is every program: better a user of its own, or {services}"""


def words_of(s: Settings) -> dict[str, str]:
    """What contributions may change: scheme, and curl, its command and options; write and reads, who may do so; need,
    what a client must show; change, which settings change it; example, of a read; more, lines of their own.
    """
    words = {
        "scheme": "http", "curl": "curl", "write": f"{network_group(s.allow)} may write", "reads": "", "need": "",
        "change": "INGEST_ALLOW changes it", "example": "", "more": "",
    }  # fmt: skip
    for announce in registry.load_hooks("announce"):
        announce(s, words)
    return words


def who_may(s: Settings) -> str:
    """One line: who may write and who may read."""
    words = words_of(s)
    return words["write"] + words["reads"] + words["need"]


def network_group(networks: tuple[str, ...]) -> str:
    names = {EVERYBODY: "everybody", THIS_MACHINE: "this machine", PRIVATE: "this machine and private networks"}
    return names.get(networks) or " ".join(networks[:3]) + " …" * (len(networks) > 3) or "nobody"


def first_screen(s: Settings) -> str:
    words = words_of(s)
    url = f"{words['scheme']}://localhost:{s.port}"
    curl, short = words["curl"], url.removeprefix("http://")
    read = f"\n             {curl} '{short}{words['example']}'" if words["example"] else ""
    notes = ""
    if not s.has_own_redis:
        scheme = s.spool.partition(":")[0]
        name = "Redis" if scheme.startswith("redis") else scheme.title()
        notes = ELSEWHERE.format(name=name, spool=settings.without_password(s.spool))
    with contextlib.suppress(OSError):
        notes += LITTLE_MEMORY * (s.has_own_redis and OVERCOMMIT.read_text().strip() != "1")
    if os.geteuid() == 0:
        notes += AS_ROOT.format(services=places.SERVICES)
    return FIRST_SCREEN.format(
        url=url, short=short, curl=curl, read=read, who=who_may(s), change=words["change"],
        more=words["more"].format(url=url), home=s.home, notes=notes,
        store=settings.without_password(s.store).removeprefix("sqlite:///"),
    )  # fmt: skip
