"""Writes the configuration of Redis, nginx and supervisord for one cell into $INGEST_HOME/etc.

The rule of access: an address says where a request comes from, not who made it. What an address list protects is closed
to the internet unless a setting opens it, and is not answered at names of strangers nor to pages of other sites.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import sys
from collections.abc import Collection
from pathlib import Path

from sluice import settings
from sluice.base.files import read, replace
from sluice.contrib import views
from sluice.contrib.access import keys
from sluice.parsers import EVERYBODY, PRIVATE, THIS_MACHINE
from sluice.routes import ROUTES, load_routes

ROOT = Path(__file__).resolve().parents[2]
# PyPy sizes the nursery of its garbage collector by the CPU's caches. In a small one, each collection finds many
# requests alive, and copies them (docs/DECISIONS.md)
NURSERY = {"PYPY_GC_NURSERY": "32M"}
MAX_FILES = 65535
STRANGERS = 64  # concurrent requests of a client of the internet, with INGEST_CLIENT_CONNECTIONS=auto
GUESSES = 100  # requests per second of a client, with INGEST_PASSWORDS and INGEST_CLIENT_RATE=auto
FOLDERS = "etc", "run", "log", "tmp", "redis"  # in $INGEST_HOME
PROBES = "/healthz", "/readyz", "/ready", "/health", "/ping", "/query"  # what senders ask besides
HOST_CHECK = 'if ($sluice_host = "") { return 421; }'
# What CloudEvents have besides, for routes of a user's own: each field costs nginx time
OF_EVENTS = {
    "ce-time": "$http_ce_time", "WebHook-Request-Origin": "$http_webhook_request_origin",
    "X-Amz-Firehose-Request-Id": "$http_x_amz_firehose_request_id",
}  # fmt: skip
# for every program. Standard output goes to the terminal, with the program's name before each line; standard error goes
# to the log file, without it (launch.py)
COMMON = """\
directory={root}
startsecs=0
autorestart=true
killasgroup=true
stdout_logfile=/dev/fd/1
stdout_logfile_maxbytes=0
stderr_logfile_maxbytes=10MB
stderr_logfile_backups=2"""


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    """The text with the first of each pair, which must occur, replaced by the second."""
    for old, new in pairs:
        assert old in text, f"the configuration has no {old!r}"
        text = text.replace(old, new)
    return text


def quoted(path: object) -> str:
    """A path in a configuration. Raises: SettingError if nginx, Redis or supervisord would read it as another one."""
    if re.search(r'["$%\\\n\udc80-\udcff]|,(?!nohostname$)', str(path)):
        raise settings.SettingError(
            f'nginx and Redis cannot use the path {str(path)!r}: it has one of " $ % \\ , or is not UTF-8.'
        )
    return f'"{path}"'


def access(s: settings.Settings) -> list[tuple[str, bool, list[tuple[str, str]]]]:
    """Access control in nginx/sluice.conf: the name of each group of lines, whether it is on, and its replacements."""
    origins = "|".join(re.escape(word) for word in s.cors if not word.startswith("/")) or "[^ ]+"
    paths = "|".join(re.escape(word) for word in s.cors if word.startswith("/"))
    # a guess of a password costs nginx milliseconds
    rate = s.client_rate if s.client_rate >= 0 else GUESSES * bool(s.passwords)
    # INGEST_ALLOW=private has no clients that `auto` would count
    strangers = s.client_connections < 0 and s.allow != PRIVATE
    most = STRANGERS if strangers else s.client_connections
    counted = "zone $sluice_stranger " if strangers else "zone $sluice_network "
    return [
        ("api-keys", s.api_keys is not None, [("/etc/sluice/api-keys", quoted(s.home / "etc" / keys.KEYS))]),
        (
            "senders", s.api_keys is not None,
            [
                *((f"/etc/sluice/{name}", quoted(s.home / "etc" / name)) for name in (keys.SENDERS, keys.QUOTAS)),
                ('Sluice-Sender "";', "Sluice-Sender $sluice_sender;"),
                ("if ($sluice_keyless)", "if ($sluice_forbidden)"),
            ],
        ),
        ("passwords", s.passwords is not None, [("/etc/sluice/passwords", quoted(s.passwords))]),
        (
            "tls", s.tls_certificate is not None,
            [
                (f"listen [::]:{s.port} ", f"listen [::]:{s.port} ssl http2 "),
                (f"listen {s.port} ", f"listen {s.port} ssl http2 "),
                ("/etc/sluice/certificate.pem", quoted(s.tls_certificate)),
                ("/etc/sluice/key.pem", quoted(s.tls_key)),
                ("keepalive_requests 1000000;  # of", "keepalive_requests 1000;  # of"),
            ],
        ),
        ("https", s.tls_certificate is not None and s.port == 443, []),
        ("client-rate", rate > 0, [("1000r/s", f"{rate}r/s"), ("=2000 ", f"={2 * rate} ")]),
        ("client-connections", most > 0, [("zone $sluice_stranger ", counted), (" 64;", f" {most};")]),
        ("cors", bool(s.cors), [(r"^[^ ]+ /*(/votes)/*(\?|$)", rf"^({origins}) /*({paths})/*(\?|$)")]),
    ]  # fmt: skip


def with_views(text: str, s: settings.Settings) -> str:
    """nginx/sluice.conf with a location for each view of this cell, made from the first one that it has."""
    paths = views.load(s)
    location = re.search(r"^    location = /gps/latest \{.*?^    \}\n", text, re.MULTILINE | re.DOTALL)
    assert location, "the configuration has no location for a view"
    template = replaced(location[0], ("allow 127.0.0.1; allow ::1;  # INGEST_READ_ALLOW", allows(s.read_allow)))
    if s.read_allow == EVERYBODY or s.api_keys or s.passwords:  # what a page of a stranger cannot use
        template = replaced(template, (HOST_CHECK, ""))
    end = text.index("    # --- end of the views\n")
    text = text[: location.start()] + "".join(template.replace("/gps/latest", path) for path in paths) + text[end:]
    shipped, own = ("|".join(map(re.escape, each)) for each in (views.VIEWS, paths))
    return replaced(text, (f'"~^({shipped})(', f'"~^({own or "(?!)"})('))  # (?!) matches nothing


def with_routes(text: str, s: settings.Settings) -> str:
    """nginx/sluice.conf with a location for each path that needs one: its head is not kept, or it may have batches."""
    routes = load_routes(s.routes)
    passed = re.findall(r"^    (proxy_set_header [^;]*;)", text, re.MULTILINE)
    fields = "\n        ".join([*passed, *(f"proxy_set_header {name} {value};" for name, value in OF_EVENTS.items())])
    plain = {path: not (route.keep_head or route.json or route.signed) for path, route in routes.items()}
    for first, last, takes in ("/metrics", "plain routes", True), ("/write", "batches", False):
        location = re.search(rf"^ +location = {first} \{{\n.*?^ +\}}\n", text, re.MULTILINE | re.DOTALL)
        assert location, f"the configuration has no location for {first}"
        end = re.search(rf"^ +# --- end of the {last}\n", text, re.MULTILINE)
        assert end, f"the configuration has no end of the {last}"
        rest, made = text[: location.start()] + text[end.start() :], ""
        for path, route in routes.items():
            if plain[path] == takes and (takes or route.batch) and f"location = {path} {{" not in rest:
                word = f'"{path}"' if re.search("[;']", path) else path  # for nginx
                one = replaced(location[0], (f"= {first} {{", f"= {word} {{"))
                if takes and path not in ROUTES:  # a location has all its fields, or those of the server
                    one = replaced(one, ("proxy_pass ", f"{fields}\n        proxy_pass "))
                made += one if route.batch else re.sub(r"^ +client_max_body_size .*\n", "", one, flags=re.MULTILINE)
        text = text[: location.start()] + made + text[end.start() :]
    slashed = re.search(r'location ~ "\^\((.*)\)/\$"', text)
    assert slashed, "the configuration has no location for a slash at the end"
    own = "|".join(re.escape(path) for path in (*routes, *PROBES) if f"{path}/" not in routes)
    text = text[: slashed.start(1)] + own + text[slashed.end(1) :]
    return replaced(text, ("client_max_body_size 8m", f"client_max_body_size {s.max_batch}"))


def allows(networks: Collection[str]) -> str:
    return " ".join(f"allow {network};" for network in networks)


def who_may(s: settings.Settings) -> str:
    """One line: who may write and who may read."""
    secrets = ["an API key"] * (s.api_keys is not None) + ["a password"] * (s.passwords is not None)
    need = ", with " * bool(secrets) + " and ".join(secrets)
    return f"{group(s.allow)} may write, {group(s.read_allow)} may read{need}"


def group(networks: tuple[str, ...]) -> str:
    names = {EVERYBODY: "everybody", THIS_MACHINE: "this machine", PRIVATE: "this machine and private networks"}
    return names.get(networks) or " ".join(networks[:3]) + " …" * (len(networks) > 3) or "nobody"


def bind(address: str, port: int) -> None:
    """Bind a TCP socket as nginx does, and close it. Raises: OSError."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        if probe.family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address, port))


def has_ipv6() -> bool:
    """Whether nginx can listen on IPv6: not without it in the kernel (ipv6.disable=1), nor if a sandbox forbids it."""
    try:
        bind("::", 0)
    except OSError:
        return False
    return True


def file_limit() -> int:
    """How many files this process may open, at most as many as nginx can use: two for a client with a request."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)


def nginx_configuration(s: settings.Settings, files: int = 0) -> dict[str, str]:
    """The files of nginx/ for this cell, by name. files: how many nginx may open; 0: the limit of this process."""
    files = files or file_limit()
    # One worker for each processor that this process may use; `auto` would also count others. At least two: with few
    # files, one alone could not hold 15,000 clients and their connections to the gateway
    processors = sorted(os.sched_getaffinity(0))
    masks = [f"{1 << number:b}" for number in (processors if len(processors) > 1 else processors * 2)]
    main = replaced(
        (ROOT / "nginx/nginx.conf").read_text(),
        ("/run/sluice/nginx.pid", quoted(s.home / "run/nginx.pid")),
        ("worker_processes auto", f"worker_processes {len(masks)}"),
        ("worker_cpu_affinity auto", f"worker_cpu_affinity {' '.join(masks)}"),
        ("worker_rlimit_nofile 20000", f"worker_rlimit_nofile {files}"),
        ("worker_connections 20000", f"worker_connections {files}"),
        *(
            (f"/var/lib/sluice/{kind}", quoted(s.home / "tmp" / kind))  # noqa: S108  # not shared
            for kind in ("body", "proxy", "fastcgi", "uwsgi", "scgi")
        ),
    )
    rejected = f"syslog:server=unix:{s.rejected},nohostname"
    server = replaced(
        with_views(with_routes((ROOT / "nginx/sluice.conf").read_text(), s), s),
        *(
            (f"unix:/run/sluice/{path.name} ", f"{quoted(f'unix:{path}')} ")
            for path in s.gateway_sockets + s.reader_sockets
        ),
        ("access_log off;  # bin", f"access_log {quoted(rejected)} sluice_rejected;  # bin"),
        ("unix:/run/sluice/metrics.sock;", f"{quoted(f'unix:{s.home}/run/metrics.sock')};"),
        (f"{allows(PRIVATE[:5])}\n    {allows(PRIVATE[5:])}  # INGEST_ALLOW", allows(s.allow)),
        ("(localhost|", f"({'|'.join(map(re.escape, ('localhost', *s.hosts)))}|"),
        ("listen 8080 ", f"listen {s.port} "),
        ("listen [::]:8080 ", f"{'' if has_ipv6() else '#'}listen [::]:{s.port} "),
        ("/usr/share/sluice/status/", quoted(f"{ROOT}/sluice/contrib/page/status/")),
        *((f"/run/sluice/{name}.json", quoted(s.home / f"run/{name}.json")) for name in ("status", "errors")),
        ("allow 127.0.0.1; allow ::1;  # INGEST_STATUS_ALLOW", allows(s.status_allow)),
        ("client_max_body_size 1m", f"client_max_body_size {s.max_body}"),
    )
    if s.status_allow == EVERYBODY:
        head, end, rest = server.partition("# --- end of the views\n")
        server = head + end + replaced(rest, (HOST_CHECK, ""))
    for name, on, values in access(s):
        if on:
            server, count = re.subn(rf"^( *)#{name}# ", r"\1", server, flags=re.MULTILINE)
            assert count, f"the configuration has no {name!r}"
            server = replaced(server, *values)
    if os.geteuid() == 0:
        main = replaced(main, ("#user root;", "user root;"))
    return {"nginx.conf": main, "sluice.conf": server} | keys.files(s)


def program_path() -> str:
    """The PATH for nginx and Redis; that of a user often lacks /usr/sbin."""
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def supervisor_configuration(s: settings.Settings) -> str:
    def plain(value: object) -> str:
        return str(value).replace("%", "%%")  # supervisord expands %(…)s

    path = program_path()
    python = plain(sys.executable)
    venv = ".venv" if s.runtime == "cpython" else ".venv-pypy"
    workers = s.workers
    many = workers.min > 1
    return (
        (ROOT / "deploy/supervisord.conf")
        .read_text()
        .format(
            home=plain(s.home),
            launch=f'"{python}" -I -S "{plain(ROOT)}/sluice/run/launch.py"',
            python=f'"{python}"',
            gateway=f'"{plain(ROOT)}/{venv}/bin/python"',
            reader=" ".join(f'--bind "unix:{plain(path)}"' for path in s.reader_sockets),
            own_redis=s.has_own_redis,
            views=s.views != "off",
            views_redis=s.has_scratch_redis,
            redis=shutil.which("redis-server", path=path),
            nginx=shutil.which("nginx", path=path),
            user="user=root" if os.geteuid() == 0 else "",
            worker="worker-%(process_num)s" if many else "worker",
            workers=f"process_name=%(program_name)s-%(process_num)s\nnumprocs={workers.min}"
            if many
            else f"autostart={workers.min > 0}",
            scale=workers.max > workers.min,
            common=COMMON.format(root=plain(ROOT)),
        )
    )


def write_keys(s: settings.Settings) -> None:
    """Write what nginx reads of INGEST_API_KEYS, before it reads its configuration again."""
    for name, text in keys.files(s).items():
        replace(s.home / "etc" / name, text)


def is_text(path: Path, text: str) -> bool:
    try:
        return read(path) == text
    except OSError:
        return False


def write(s: settings.Settings, files: int = 0) -> None:
    """Write the configuration to $INGEST_HOME/etc, for this user only. files: as in `nginx_configuration`."""
    s.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in FOLDERS:
        (s.home / name).mkdir(mode=0o700, exist_ok=True)
    views_redis = replaced(
        (ROOT / "deploy/redis/views.conf").read_text(),
        ("unixsocket /run/sluice/views.sock", f"unixsocket {quoted(s.scratch_redis)}"),
        ("dir /run/sluice", f"dir {quoted(s.home / 'run')}"),
        ("maxmemory 268435456", f"maxmemory {s.views_memory}"),
    )
    texts = {"views.conf": views_redis, "supervisord.conf": supervisor_configuration(s)}
    if s.has_own_redis:
        texts["redis.conf"] = replaced(
            (ROOT / "deploy/redis/redis.conf").read_text(),
            ("unixsocket /run/sluice/redis.sock", f"unixsocket {quoted(s.spool)}"),
            ("dir /var/lib/sluice", f"dir {quoted(s.home / 'redis')}"),
            ("appendfsync always", f"appendfsync {s.durability}"),
            ("maxmemory 1073741824", f"maxmemory {s.max_memory}"),
        )
    else:  # without this file, systemd starts no Redis
        (s.home / "etc/redis.conf").unlink(missing_ok=True)
    settings.keep_for_verbs(s)
    for name, text in (nginx_configuration(s, files) | texts).items():
        path = s.home / "etc" / name
        if not is_text(path, text):  # so a second bin/provision services changes nothing
            replace(path, text)
