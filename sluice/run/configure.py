"""Writes the configuration of Redis, nginx and supervisord for one cell into $INGEST_HOME/etc.

The rule of access: an address says where a request comes from, not who made it. What an address list protects is closed
to the internet unless a setting opens it, and is not answered at names of strangers nor to pages of other sites.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from sluice import registry, settings
from sluice.base.files import read_file, replace_file
from sluice.home_settings import keep_for_verbs
from sluice.places import ROOT
from sluice.run import launch, nginx, servers
from sluice.run.nginx import pattern_of, quoted_path
from sluice.run.programs import needed_programs

# PyPy sizes the nursery of its garbage collector by the CPU's caches. In a small one, each collection finds many
# requests alive, and copies them (docs/DECISIONS.md)
NURSERY = {"PYPY_GC_NURSERY": "32M"}
MAX_FILES = 65535
SCRATCH_MEMORY = 256 << 20  # of the second Redis, unless a contribution has a setting
FOLDERS = "etc", "run", "log", "tmp", "redis"  # in $INGEST_HOME
# Standard output goes to the terminal, with the program's name before each line; standard error goes to the log file,
# without it (launch.py). startsecs=0: a program that exits is always restarted
SECTION = """
[program:{name}]
process_name={process}
numprocs={processes}
command={launch} {process} {signal} {command}
priority={priority}
stopsignal={signal}
stopwaitsecs={stop_seconds}
directory={root}
startsecs=0
autorestart=true
killasgroup=true
stdout_logfile=/dev/fd/1
stdout_logfile_maxbytes=0
stderr_logfile={home}/log/{process}.log
stderr_logfile_maxbytes=10MB
stderr_logfile_backups=2
"""


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    """The text with the first of each pair, which must occur, replaced by the second."""
    for old, new in pairs:
        assert old in text, f"the configuration has no {old!r}"
        text = text.replace(old, new)
    return text


def check_port(address: str, port: int) -> None:
    """Bind a TCP socket as nginx does, and close it. Raises: OSError."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        if probe.family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address, port))


def has_ipv6() -> bool:
    """Whether nginx can listen on IPv6: not without it in the kernel (ipv6.disable=1), nor if a sandbox forbids it."""
    try:
        check_port("::", 0)
    except OSError:
        return False
    return True


def file_limit() -> int:
    """How many files this process may open, at most as many as nginx can use: two for a client with a request."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)


def nginx_configuration(s: settings.Settings, files: int = 0) -> dict[str, str]:
    """nginx's files for this cell, by name. files: how many nginx may open; 0: the limit of this process."""
    files = files or file_limit()
    # One worker for each processor that this process may use; `auto` would also count others. At least two: with few
    # files, one alone could not hold 15,000 clients and their connections to the gateway
    processors = sorted(os.sched_getaffinity(0))
    masks = [f"{1 << number:b}" for number in (processors if len(processors) > 1 else processors * 2)]
    main = replaced(
        (ROOT / "nginx/nginx.conf").read_text(),
        ("/run/sluice/nginx.pid", quoted_path(s.home / "run/nginx.pid")),
        ("include sluice.conf", f"include {pattern_of(s.home / 'etc/sluice.conf')}"),
        ("worker_processes auto", f"worker_processes {len(masks)}"),
        ("worker_cpu_affinity auto", f"worker_cpu_affinity {' '.join(masks)}"),
        ("worker_rlimit_nofile 20000", f"worker_rlimit_nofile {files}"),
        ("worker_connections 20000", f"worker_connections {files}"),
        *(
            (f"/var/lib/sluice/{kind}", quoted_path(s.home / "tmp" / kind))  # noqa: S108  # not shared
            for kind in ("body", "proxy", "fastcgi", "uwsgi", "scgi")
        ),
    )
    if os.geteuid() == 0:
        main = replaced(main, ("#user root;", "user root;"))
    return {"nginx.conf": main} | nginx.configuration(s, has_ipv6()) | nginx_secrets(s)


def nginx_secrets(s: settings.Settings) -> dict[str, str]:
    """What nginx reads of the files of secrets, by name in $INGEST_HOME/etc. Raises: SettingError if one is invalid."""
    return {name: text for check in registry.load_hooks("secrets") for name, text in check(s).items()}


def supervisor_configuration(s: settings.Settings) -> str:
    def plain(value: object) -> str:
        return str(value).replace("%", "%%")  # supervisord expands %(…)s

    runtime = sys.executable if s.runtime == "cpython" else ROOT / ".venv-pypy/bin/python"  # in checkouts only
    found = {
        "{python}": sys.executable,
        "{gateway}": runtime,
        "{redis}": servers.find("redis"),
        "{nginx}": servers.find("nginx"),
    }
    user = "user=root" if os.geteuid() == 0 else ""
    text = (ROOT / "deploy/supervisord.conf").read_text().format(home=plain(s.home), user=user)
    common = {"root": plain(ROOT), "home": plain(s.home)}
    common["launch"] = f'"{plain(sys.executable)}" -I -S "{plain(launch.__file__)}"'
    for name, part in needed_programs(s).items():
        process = f"{name}-%(process_num)s" if part.processes > 1 else name
        text += SECTION.format(name=name, process=process, **common, **part._asdict())
    for word, path in found.items():
        text = text.replace(word, f'"{plain(path)}"')
    return text


def write_secrets(s: settings.Settings) -> None:
    """Write what nginx reads of the files of secrets, before it reads its configuration again. Raises: SettingError."""
    write_files(s.home / "etc", nginx_secrets(s))


def write_files(folder: Path, texts: Mapping[str, str]) -> None:
    """Write the files that have other texts: so a second bin/provision services changes nothing."""
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(OSError):
            if read_file(path) == text:
                continue
        replace_file(path, text)


def write_configuration(s: settings.Settings, files: int = 0) -> None:
    """Write the configuration to $INGEST_HOME/etc, for this user only. files: as in `nginx_configuration`."""
    s.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in FOLDERS:
        (s.home / name).mkdir(mode=0o700, exist_ok=True)
    scratch_redis = replaced(
        (ROOT / "deploy/redis/views.conf").read_text(),
        ("unixsocket /run/sluice/views.sock", f"unixsocket {quoted_path(s.scratch_redis)}"),
        ("dir /run/sluice", f"dir {quoted_path(s.home / 'run')}"),
        ("maxmemory 268435456", f"maxmemory {getattr(s, 'views_memory', SCRATCH_MEMORY)}"),
    )
    texts = {"views.conf": scratch_redis, "supervisord.conf": supervisor_configuration(s)}
    if s.has_own_redis:
        texts["redis.conf"] = replaced(
            (ROOT / "deploy/redis/redis.conf").read_text(),
            ("unixsocket /run/sluice/redis.sock", f"unixsocket {quoted_path(s.spool)}"),
            ("dir /var/lib/sluice", f"dir {quoted_path(s.home / 'redis')}"),
            ("appendfsync always", f"appendfsync {s.durability}"),
            ("maxmemory 1073741824", f"maxmemory {s.max_memory}"),
        )
    else:  # without this file, systemd starts no Redis
        (s.home / "etc/redis.conf").unlink(missing_ok=True)
    keep_for_verbs(s)
    write_files(s.home / "etc", nginx_configuration(s, files) | texts)
