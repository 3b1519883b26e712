"""bin/up behind its set-up: check the settings, write the configuration, say where everything is, run it all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from sluice import settings
from sluice.run import launch

ROOT = Path(__file__).resolve().parents[2]
FIRST_SCREEN = """\
Sluice takes writes at {url} and stores them in {sink}

  try it     curl -d '{{"poll":"cookies","choice":"oreo"}}' {short}/votes
  look       {url}/status
  stop it    Ctrl-C; what was taken and is not yet stored waits for the next start
  log files  {home}/log
"""
# of every program; the log file is beside the terminal, where lines carry their program's name (launch.py)
COMMON = """\
directory={root}
startsecs=0
autorestart=true
killasgroup=true
stdout_logfile=/dev/fd/1
stdout_logfile_maxbytes=0
stderr_logfile_maxbytes=10MB
stderr_logfile_backups=2"""


class CannotStart(Exception):
    """One line with the reason."""


def require_checkout(what: str) -> None:
    """Raises: SettingError if this is an installed package, which lacks bin/up and what it starts."""
    if not (ROOT / "bin/up").exists():
        raise settings.SettingError(f"{what} needs a checkout of Sluice: run its bin/sluice instead.")


def say(text: str) -> None:
    """Print; that nobody reads (bin/up | head -n 1) is no reason to fail."""
    with contextlib.suppress(BrokenPipeError):
        print(text, flush=True)


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    """The text with the second of each pair put in place of the first, which must be there."""
    for old, new in pairs:
        assert old in text, f"the configuration has no {old!r}"
        text = text.replace(old, new)
    return text


def redis_configuration(s: settings.Settings) -> str:
    """deploy/redis/redis.conf with the places and sizes of this installation."""
    return replaced(
        (ROOT / "deploy/redis/redis.conf").read_text(),
        ("unixsocket /run/sluice/redis.sock", f'unixsocket "{s.redis}"'),
        ("dir /var/lib/sluice", f'dir "{s.home}/redis"'),
        ("appendfsync always", f"appendfsync {s.durability}"),
        ("maxmemory 1073741824", f"maxmemory {s.max_memory}"),
    )


def switched_on(text: str, *names: str) -> str:
    """The text with the lines that begin with one of these names between two # on."""
    for name in names:
        text, count = re.subn(rf"^( *)#{name}# ", r"\1", text, flags=re.MULTILINE)
        assert count, f"the configuration has no {name!r}"
    return text


def access(s: settings.Settings) -> list[tuple[str, bool, list[tuple[str, str]]]]:
    """Who gets in, as nginx/sluice.conf has it: the names of its lines, whether they are on, and what to put in."""
    origins = "|".join(re.escape(word) for word in s.cors if not word.startswith("/")) or "[^ ]+"
    paths = "|".join(re.escape(word) for word in s.cors if word.startswith("/"))
    return [
        ("api-keys", s.api_keys is not None, [("/etc/sluice/api-keys", f'"{s.api_keys}"')]),
        ("passwords", s.passwords is not None, [("/etc/sluice/passwords", f'"{s.passwords}"')]),
        (
            "tls", s.tls_key is not None,
            [
                (f"listen [::]:{s.port} ", f"listen [::]:{s.port} ssl http2 "),
                (f"listen {s.port} ", f"listen {s.port} ssl http2 "),
                ("/etc/sluice/certificate.pem", f'"{s.tls_certificate}"'),
                ("/etc/sluice/key.pem", f'"{s.tls_key}"'),
            ],
        ),
        ("allow", bool(s.allow), [("allow 192.0.2.0/24;", " ".join(f"allow {network};" for network in s.allow))]),
        ("client-rate", s.client_rate > 0, [("1000r/s", f"{s.client_rate}r/s"), ("=2000 ", f"={2 * s.client_rate} ")]),
        (
            "client-connections", s.client_connections > 0,
            [("sluice_connections 100;", f"sluice_connections {s.client_connections};")],
        ),
        ("cors", bool(s.cors), [(r"^[^ ]+ /votes(\?|$)", rf"^({origins}) ({paths})(\?|$)")]),
    ]  # fmt: skip


def bind(address: str, port: int) -> None:
    """Bind a TCP socket as nginx does, and close it. Raises: OSError."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        if probe.family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address, port))


def has_ipv6() -> bool:
    """Whether nginx can listen on IPv6. It cannot if the kernel has no IPv6 (ipv6.disable=1), or a sandbox forbids it;
    with the sysctl disable_ipv6 it can, and no client arrives.
    """
    try:
        bind("::", 0)
    except OSError:
        return False
    return True


def nginx_configuration(s: settings.Settings, files: int = 0) -> dict[str, str]:
    """nginx/ with the places and sizes of this installation, by file name.

    files: how many nginx may open; 0: as many as we.
    """
    files = files or resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = 65535 if files == resource.RLIM_INFINITY else min(files, 65535)
    main = replaced(
        (ROOT / "nginx/nginx.conf").read_text(),
        ("/run/sluice/nginx.pid", f'"{s.home}/run/nginx.pid"'),
        # two at least: where files are few, one alone could not hold 15,000 clients and their connections inward
        ("worker_processes auto", f"worker_processes {max(2, len(os.sched_getaffinity(0)))}"),
        ("worker_rlimit_nofile 20000", f"worker_rlimit_nofile {files}"),
        ("worker_connections 20000", f"worker_connections {files}"),
        *(
            (f"/var/lib/sluice/{kind}", f'"{s.home}/tmp/{kind}"')  # noqa: S108  # our own
            for kind in ("body", "proxy", "fastcgi", "uwsgi", "scgi")
        ),
    )
    server = replaced(
        (ROOT / "nginx/sluice.conf").read_text(),
        *((f"unix:/run/sluice/{path.name} ", f'"unix:{path}" ') for path in s.gateway_sockets),
        ("unix:/run/sluice/metrics.sock;", f'"unix:{s.home}/run/metrics.sock";'),
        ("listen 8080 ", f"listen {s.port} "),
        ("listen [::]:8080 ", f"{'' if has_ipv6() else '#'}listen [::]:{s.port} "),
        ("/usr/share/sluice/status/", f'"{ROOT}/nginx/status/"'),
        ("/run/sluice/status.json", f'"{s.home}/run/status.json"'),
        ("allow 127.0.0.1; allow ::1;", " ".join(f"allow {network};" for network in s.status_allow)),
        ("client_max_body_size 1m", f"client_max_body_size {s.max_body}"),
    )
    for name, on, values in access(s):
        if on:
            server = replaced(switched_on(server, name), *values)
    if os.geteuid() == 0:
        main = replaced(main, ("#user root;", "user root;"))
    return {"nginx.conf": main, "sluice.conf": server}


def program_path() -> str:
    """Where nginx and Redis are looked for: not everybody's PATH has nginx."""
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def supervisor_configuration(s: settings.Settings) -> str:
    """deploy/supervisord.conf with the programs of this installation."""

    def plain(value: object) -> str:
        return str(value).replace("%", "%%")  # supervisord reads %(…)s

    path = program_path()
    python = plain(sys.executable)
    venv = ".venv" if s.runtime == "cpython" else ".venv-pypy"
    least, most = s.workers
    many = most > 1
    config = (ROOT / "deploy/supervisord.conf").read_text()
    if least == most:
        config = config.partition("; --- INGEST_WORKERS=auto")[0]
    return config.format(
        home=plain(s.home),
        launch=f'"{python}" -I -S "{plain(ROOT)}/sluice/run/launch.py"',
        python=f'"{python}"',
        gateway=f'"{plain(ROOT)}/{venv}/bin/python"',
        redis=shutil.which("redis-server", path=path),
        nginx=shutil.which("nginx", path=path),
        user="user=root" if os.geteuid() == 0 else "",
        worker="worker-%(process_num)s" if many else "worker",
        workers=f"process_name=%(program_name)s-%(process_num)s\nnumprocs={least}"
        if many
        else f"autostart={'true' if least else 'false'}",
        least=least,
        more=most - least,
        common=COMMON.format(root=plain(ROOT)),
    )


def prepare(s: settings.Settings, files: int = 0) -> None:
    """Make $INGEST_HOME and the configuration in it, all of it private to this user. files: as above."""
    s.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("etc", "run", "log", "tmp", "redis"):
        (s.home / name).mkdir(exist_ok=True)
        (s.home / name).chmod(0o700)
    texts = {"redis.conf": redis_configuration(s), "supervisord.conf": supervisor_configuration(s)}
    for name, text in (texts | nginx_configuration(s, files)).items():
        path = s.home / "etc" / name
        if not path.exists() or path.read_text() != text:  # a second bin/provision services changes nothing
            path.write_text(text)


def claim_home(s: settings.Settings) -> None:
    """See that no other bin/up runs here, and end what one that was killed has left behind."""
    (s.home / "run").mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(s.home / "run/up.lock", os.O_RDWR | os.O_CREAT, 0o600)  # open until this process ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CannotStart(f"bin/up is running in {s.home} already; INGEST_HOME may name another place.") from None
    # the worker may have a batch to finish; until it has, the others take writes
    for tag in sorted((s.home / "run").resolve().glob("*.tag"), key=lambda path: "wngr".find(path.name[0])):
        if launch.end(tag, signal.SIGTERM, patience=3.0):
            say(f"An earlier bin/up was killed; ended the {tag.stem} that it left.")
    (s.home / "run/closing").unlink(missing_ok=True)  # of a bin/sluice reload that was killed


def check_places(s: settings.Settings) -> None:
    """See that the port and Redis's socket are free: a start that must fail says so once, not for ever."""
    for address in ("0.0.0.0", "::")[: 1 + has_ipv6()]:  # noqa: S104  # as nginx listens
        try:
            bind(address, s.port)
        except OSError as error:
            why = "is in use" if error.errno == errno.EADDRINUSE else f"is not available ({error.strerror})"
            raise CannotStart(f"port {s.port} {why}; INGEST_PORT may name another.") from None
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(s.redis))
        except OSError:
            return
        raise CannotStart(f"a server answers on {s.redis} already; bin/up starts its own Redis there.")


def check_modules(s: settings.Settings) -> None:
    """See that a user's own modules can be imported: neither gateway nor worker would start, over and over.

    Raises: SettingError if not.
    """
    if s.routes and not isinstance(getattr(settings.extension("INGEST_ROUTES", s.routes), "ROUTES", None), dict):
        raise settings.SettingError(f"INGEST_ROUTES={s.routes!r} has no dictionary ROUTES.")
    if s.records:
        from sluice.sinks.schema import load_streams

        load_streams(s)


def check_access(s: settings.Settings) -> None:
    """See that the files that say who gets in are what nginx/sluice.conf takes them for. Raises: SettingError."""
    for name, path in ("INGEST_PASSWORDS", s.passwords), ("INGEST_TLS_KEY", s.tls_key):
        if path:
            settings.secret(name, path)
    known: set[str] = set()
    for number, line in enumerate(settings.secret("INGEST_API_KEYS", s.api_keys).splitlines() if s.api_keys else (), 1):
        if not re.fullmatch(r"\s*(#.*)?", line):
            entry = re.fullmatch(r"\s*([A-Za-z0-9_-]{32,46})\s+[\w.@-]+\s*;\s*(#.*)?", line)
            if not entry or entry[1].lower() in known:  # nginx does not tell upper case from lower
                why = "a key that is there already" if entry else "not KEY NAME; with 32 to 46 letters in KEY"
                raise settings.SettingError(f"INGEST_API_KEYS: line {number} of {s.api_keys} is {why}.")
            known.add(entry[1].lower())


def check_nginx(s: settings.Settings) -> None:
    """See that nginx takes its configuration, with the certificate, the keys and the networks that it names."""
    nginx = shutil.which("nginx", path=program_path())
    assert nginx
    command = [nginx, "-t", "-q", "-p", str(s.home), "-c", str(s.home / "etc/nginx.conf")]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode:
        why = re.search(r"\[emerg\] (?:\d+#\d+: )?(.*)", done.stderr)
        raise CannotStart(f"nginx does not take its configuration: {why[1] if why else done.stderr.strip()}")


def own_stdout() -> None:
    """supervisord opens /dev/fd/1 anew. The terminal of another user (su) and sockets refuse that; a pipe does not."""
    # bin/up > file: opened twice, the two would write over each other
    fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) | os.O_APPEND)
    try:
        os.close(os.open("/dev/fd/1", os.O_WRONLY | os.O_APPEND))
    except OSError:
        read, write = os.pipe()
        if os.fork() == 0:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)  # it ends after the last line
            os.dup2(read, 0)
            os.close(write)
            os.execvp("cat", ["cat"])
        os.dup2(write, 1)
        os.close(read)
        os.close(write)


def main() -> int:
    s = settings.load_or_exit()
    os.umask(0o077)
    os.environ.update(INGEST_HOME=str(s.home), INGEST_REDIS=str(s.redis), PYTHONUNBUFFERED="1")
    try:
        check_modules(s)
        check_access(s)
        claim_home(s)
        check_places(s)
        prepare(s)
        check_nginx(s)
    except settings.SettingError as error:
        return settings.complain(error)
    except CannotStart as error:
        print(f"sluice: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"sluice: {s.home} cannot be used: {error}", file=sys.stderr)
        return 1
    url = f"http{'s' if s.tls_key else ''}://localhost:{s.port}"
    sink = settings.without_password(s.sink).removeprefix("sqlite:///")
    say(FIRST_SCREEN.format(url=url, short=url.removeprefix("http://"), home=s.home, sink=sink))
    own_stdout()

    from sluice.run import supervise  # supervisord; only here, for everything above also serves the tests

    supervise.run(str(s.home / "etc/supervisord.conf"))
    # lines that nobody read any more would be the exit status (120) when Python flushes them at last
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
