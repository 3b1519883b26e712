"""Sluice under systemd: the units, and how gateway and worker use what systemd passes to them.

Here the test plays systemd's part; tests/bare.py (bin/test --bare) boots a real one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from proving.harness import (
    PATIENCE,
    PYTHON,
    ROOT,
    answer,
    connect,
    environment,
    follower,
    gateway,
    get,
    nginx,
    poll,
    post,
    reader,
    redis_server,
    running,
)
from sluice import places, registry, settings
from sluice.run import configure, programs, reload, services
from support.folders import has, needs, whole
from support.posting_clients import Load

UNITS = (
    "sluice-gateway.service", "sluice-worker@1.service", "nginx.service", "redis-server@sluice.service",
    *["sluice-metrics.service", "sluice-page.service"] * has("page"),
    *["sluice-views.service", "sluice-follower.service", "sluice-reader.service"] * has("views"),
    *["sluice-scale.service"] * has("autoscale"),
)  # fmt: skip
GATEWAYS = ["gateway", *["reader"] * has("views")]
EXPOSED = 2.0  # of 10: maximum exposure in `systemd-analyze security`, which calls this OK
EVERY = {
    "INGEST_RUNTIME": "pypy", "INGEST_STORE": "postgresql://host/database", "INGEST_SPOOL": "rediss://u:p@host:6379"
}  # fmt: skip
ENVS = [{}, pytest.param(EVERY, marks=needs("postgres", "sentinel"))]


def installed(tmp: Path, env: dict[str, str]) -> Path:
    """The units of an installation with these settings, and the system's own units that they extend."""
    folder = tmp / "units"
    for path, text in services.system_files(settings.load_settings(services.service_settings("", env)), ROOT).items():
        if services.UNITS in path.parents:
            place = folder / path.relative_to(services.UNITS)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
    return folder


def analyze(units: Path, *words: str) -> subprocess.CompletedProcess:
    env = os.environ | {"SYSTEMD_UNIT_PATH": f"{units}:/lib/systemd/system", "SYSTEMD_COLORS": "0"}
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, env=env, timeout=60)


@pytest.mark.nightly
@pytest.mark.parametrize("env", ENVS, ids=["as it comes", "pypy and postgresql"])
def test_systemd_analyze_accepts_the_units(env: dict[str, str], tmp: Path) -> None:
    names = "sluice.target", *(f"sluice-{name}.socket" for name in GATEWAYS), *UNITS
    done = analyze(installed(tmp, env), "verify", "--man=no", *names)
    assert (done.returncode, done.stderr + done.stdout) == (0, "")


@pytest.mark.nightly
@pytest.mark.parametrize("env", ENVS, ids=["as it comes", "pypy and postgresql"])
@pytest.mark.parametrize("unit", UNITS)
def test_the_exposure_of_each_unit_is_ok_or_better(unit: str, env: dict[str, str], tmp: Path) -> None:
    done = analyze(installed(tmp, env), "security", "--offline=true", f"--threshold={EXPOSED * 10:.0f}", unit)
    print(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("runtime", PYTHON)
@pytest.mark.parametrize("name", GATEWAYS)
def test_gateway_and_reader_may_map_writable_code_on_pypy_only(name: str, runtime: str, tmp: Path) -> None:
    units = installed(tmp, {"INGEST_RUNTIME": runtime})
    done = analyze(units, "security", "--offline=true", "--json=short", f"sluice-{name}.service")
    denied = {row["json_field"]: row["set"] for row in json.loads(done.stdout)}["MemoryDenyWriteExecute"]
    assert denied == (runtime != "pypy")


@pytest.mark.parametrize("name", GATEWAYS)
def test_pypy_has_the_nursery_of_bin_up_under_systemd_too(name: str, tmp: Path) -> None:
    units = services.system_files(
        settings.load_settings(services.service_settings("", {"INGEST_RUNTIME": "pypy"})), Path("/srv/sluice")
    )
    ((variable, size),) = configure.NURSERY.items()
    assert f"Environment={variable}={size}\n" in units[services.UNITS / f"sluice-{name}.service.d/zz-pypy.conf"]


def test_every_program_but_the_redis_of_the_list_has_a_bound_of_memory(tmp: Path) -> None:
    units = installed(tmp, {})
    for unit in UNITS:
        folders = [f"{unit}.d", re.sub("@.*", "@.service.d", unit), *["sluice-.service.d"] * unit.startswith("sluice-")]
        texts = [path.read_text() for folder in folders for path in (units / folder).glob("*.conf")]
        assert any("\nMemoryMax=50%\n" in text for text in texts) == (not unit.startswith("redis-server"))


@whole
def test_the_units_follow_the_settings(tmp: Path) -> None:
    plain, every = (
        services.system_files(settings.load_settings(services.service_settings("", env)), Path("/srv/sluice"))
        for env in ({}, EVERY)
    )
    more = {f"sluice-{name}.service.d/zz-pypy.conf" for name in ("gateway", "reader")}
    more |= {"sluice-worker@.service.d/network.conf"}
    users = "scale", "follower", "forward", "metrics", "page", "gateway"
    more |= {f"sluice-{name}.service.d/network.conf" for name in users}
    assert {str(path.relative_to(services.UNITS)) for path in every.keys() - plain.keys()} == more
    unit = plain[services.UNITS / "sluice-gateway.service"]
    assert "ExecStart=/srv/sluice/.venv/bin/python" in unit
    assert "/opt/sluice" not in "".join(every.values())


def test_the_units_of_a_package_run_its_python_in_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "CHECKOUT", False)
    monkeypatch.setattr(sys, "executable", "/opt/sluice/bin/python")
    root = Path("/opt/sluice/lib/python3.11/site-packages/sluice/root")
    files = services.system_files(settings.load_settings(services.service_settings("", {})), root)
    found = set(re.findall(r"/opt/sluice\S*", "".join(files.values())))
    assert found == {str(root), "/opt/sluice/bin/python"}
    assert "exec runuser -u sluice -- /opt/sluice/bin/python -P -m sluice.ops" in files[Path("/usr/local/bin/sluice")]


@needs("destinations", "kafka")
@pytest.mark.parametrize(
    "rows", ["clickhouse://h:8123/d", "gps=kafka://h:9092", "s3://b/p", "metrics=statsd://h:1", ""]
)
def test_a_worker_that_sends_rows_to_another_machine_has_the_network(rows: str) -> None:
    env = {"INGEST_ROWS": rows or "gps=parquet:///var/lib/sluice/rows"}
    units = services.system_files(settings.load_settings(services.service_settings("", env)), Path("/srv/sluice"))
    granted = {path.relative_to(services.UNITS) for path in units if path.name == "network.conf"}
    assert granted == ({Path("sluice-worker@.service.d/network.conf")} if rows else set())


def test_every_program_of_bin_up_has_a_unit() -> None:
    core = programs.needed_programs(settings.load_settings({})).keys()
    names = {re.sub(r"^sluice-|-server|@.*|\.service.*", "", path.name) for path in unit_files()}
    assert core | registry.declared_entries("programs").keys() <= names


@needs("autoscale", "destinations")
def test_every_unit_of_a_contribution_is_enabled_with_its_program() -> None:
    s = settings.load_settings({"INGEST_WORKERS": "auto", "INGEST_ROWS": "votes=https://host/"})
    enabled = {unit for part in programs.declared(s).values() for unit in part.units}
    files = {path.name for folder in programs.unit_folders() for path in folder.iterdir() if path.is_file()}
    assert enabled == files


def unit_files() -> list[Path]:
    return [path for folder in (ROOT / "deploy/systemd", *programs.unit_folders()) for path in folder.iterdir()]


@whole
def test_no_command_of_the_page_starts_a_service_that_is_off() -> None:
    """`restart` starts what does not run, such as sluice-scale, which is installed and only enabled when it is used."""
    page = (ROOT / "docs/OPERATING.md").read_text()
    commands = re.findall(r"^\| `systemctl (\S+) ([^`]*)`", page, re.M)
    assert {verb for verb, _ in commands} == {"try-restart", "reload", "stop"}
    installed = {path.stem for path in unit_files()} | {"nginx", "sluice.target"}
    named = {word.strip("'").rstrip("*") for _, units in commands for word in units.split()}
    assert named <= installed | {"sluice-worker@"}
    assert {"sluice-gateway", "sluice-reader", "sluice-worker@", "sluice-scale", "sluice-follower"} <= named


def test_every_kernel_limit_that_is_set_exists() -> None:
    lines = re.findall(r"^([\w.]+) = ", (ROOT / "deploy/systemd/sysctl.conf").read_text(), re.M)
    assert lines
    assert [name for name in lines if not Path("/proc/sys", name.replace(".", "/")).exists()] == []


def test_settings_of_the_environment_override_those_of_the_file() -> None:
    file = services.defaults(
        services.service_settings("", {"INGEST_PORT": "80", "INGEST_STORE": "postgresql:///x?a='b'&c=d e"})
    )
    found = services.service_settings(file, {"INGEST_PORT": "81", "HOME": "/root"})
    assert found == {
        "INGEST_HOME": "/var/lib/sluice",
        "INGEST_PORT": "81",
        "INGEST_STORE": "postgresql:///x?a='b'&c=d e",
    }
    assert services.service_settings(services.defaults(found), {}) == found


@pytest.mark.contract
@pytest.mark.parametrize(
    "env, status, words",
    [
        ({"INGEST_HOME": "/srv"}, 2, "services do not accept INGEST_HOME, nor a socket"),
        ({"INGEST_SPOOL": "/run/redis.sock"}, 2, "services do not accept INGEST_HOME, nor a socket"),
        ({"INGEST_PORT": "http"}, 2, "INGEST_PORT='http' is invalid"),
        ({"INGEST_STORE": "sqlite:////srv/x.db"}, 2, "the services can write only in /var/lib/sluice"),
        ({}, 1, "services cannot read" if os.geteuid() == 0 else "this needs root"),
    ],
)
def test_what_services_do_not_support_is_reported_in_one_line(
    env: dict[str, str], status: int, words: str, tmp: Path
) -> None:
    script = "import sys; from pathlib import Path; from sluice.run import services\n"
    script += f"services.DEFAULTS = Path('{tmp}/none')\n"
    script += "services.ROOT = Path('/home/ann/sluice')\nservices.main([])"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("INGEST_")} | env
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", 1)
    assert words in done.stderr


# --- an installation of its own, while systemd does not run ------------------------------------------

UNITS_OF_CONTRIB = [unit for part in programs.declared(settings.load_settings({})).values() for unit in part.units]
APART = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "bash", "-ec"]
SYSTEM = r"""
mount -t tmpfs none "$0"
for folder in etc var usr/local; do
    mkdir -p "$0/$folder.upper" "$0/$folder.work"
    mount -t overlay -o "lowerdir=/$folder,upperdir=$0/$folder.upper,workdir=$0/$folder.work" none "/$folder"
done
mount -t tmpfs none /run
rm -f /etc/nginx/conf.d/* /etc/nginx/sites-enabled/*
"""


@pytest.fixture
def system(tmp: Path) -> Callable[[str], list[str]]:
    """Runs a script on a copy of this system without systemd; returns its lines. Each call has a copy of its own."""
    probe = f"{SYSTEM} setpriv --reuid=65534 --clear-groups test -x {shlex.quote(str(ROOT / '.venv/bin/python'))}"
    done = subprocess.run([*APART, probe, tmp], capture_output=True, text=True)
    if done.returncode or str(ROOT).startswith(services.HIDDEN):
        pytest.skip(f"no mount namespace, or services cannot read this checkout: {done.stderr.strip()}")

    def run(script: str) -> list[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("INGEST_")}
        command: list[str | Path] = [*APART, SYSTEM + script, tmp]
        done = subprocess.run(command, cwd=ROOT, env=clean, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
        return done.stdout.splitlines()

    return run


@pytest.mark.nightly
def test_services_are_installed_once_and_start_with_systemd(system: Callable[[str], list[str]]) -> None:
    lines = system("""
        INGEST_PORT=8099 bin/provision services
        bin/provision services
        stat -c '%n %a %U' /etc/default/sluice /var/lib/sluice/etc/sluice.conf
        ls /etc/systemd/system/sluice.target.wants
        grep -q 'listen .*:8099' /var/lib/sluice/etc/includes/listen.conf
    """)
    later = "sluice: systemd is not running; the services start when it does."
    texts = services.system_files(settings.load_settings(services.service_settings("", {})), ROOT)
    first = lines.index(later)
    assert {f"sluice: wrote {path}" for path in (services.DEFAULTS, *texts)} <= set(lines[:first])
    assert lines[first + 1 :] == [
        later,
        "/etc/default/sluice 600 root",
        "/var/lib/sluice/etc/sluice.conf 600 sluice",
        *sorted([*UNITS_OF_CONTRIB, "sluice-views.service", "sluice-worker@1.service"]),
    ]


@needs("access")
@pytest.mark.nightly
def test_settings_that_cannot_be_used_change_nothing(system: Callable[[str], list[str]]) -> None:
    lines = system("""
        INGEST_PORT=8099 bin/provision services
        sums() { find /etc/default/sluice /etc/systemd/system /var/lib/sluice/etc -type f -exec sha256sum {} +; }
        before=$(sums)
        for name in VIEWS RECORDS TLS_CERTIFICATE API_KEYS; do
            env "INGEST_$name=/none" INGEST_RUNTIME=pypy bin/provision services && exit 1
        done
        [[ $before == $(sums) ]]
        echo same
    """)
    assert lines[-1] == "same"
    assert lines[-3].startswith("sluice: INGEST_API_KEYS='/none' cannot be read")
    assert lines[-2] == "sluice: the error is above; the services keep their settings"


@pytest.mark.nightly
def test_services_that_settings_turn_off_are_disabled(system: Callable[[str], list[str]]) -> None:
    lines = system("""
        INGEST_RUNTIME=pypy bin/provision services
        find /etc/systemd/system -name zz-pypy.conf | wc -l
        touch /etc/nginx/conf.d/other.conf
        INGEST_RUNTIME=cpython INGEST_VIEWS=off INGEST_WORKERS=2 bin/provision services
        find /etc/systemd/system -name zz-pypy.conf -o -path '*/nginx.service.d/*' | wc -l
        ls /etc/systemd/system/sluice.target.wants
    """)
    assert lines.index("2") < lines.index("0")
    on = "sluice-metrics.service", "sluice-page.service", "sluice-worker@1.service", "sluice-worker@2.service"
    assert lines[lines.index("0") + 1 :] == [*on]
    (other,) = (line for line in lines if "already uses /etc/nginx/conf.d/other.conf" in line)
    assert "include /var/lib/sluice/etc/sluice.conf in its http block" in other


# --- notifications, sockets and watchdog -------------------------------------------------------------


class Manager:
    """Plays systemd's part for one program: receives its notifications."""

    def __init__(self, tmp: Path) -> None:
        self.path = tmp / "notify"
        self.inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.inbox.bind(str(self.path))
        self.inbox.setblocking(False)

    def heard(self) -> list[str]:
        """The notifications since the last call."""
        lines: list[str] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                lines += self.inbox.recv(4096).decode().splitlines()
        return lines

    def env(self, seconds: float = 0.3) -> dict[str, str]:
        """The environment of a unit with this WatchdogSec= that logs to the journal."""
        return {
            "NOTIFY_SOCKET": str(self.path),
            "WATCHDOG_USEC": f"{seconds * 1e6:.0f}",
            "JOURNAL_STREAM": "8:1",
            "PYTHONUNBUFFERED": "1",
        }


@pytest.fixture
def manager(tmp: Path) -> Iterator[Manager]:
    found = Manager(tmp)
    yield found
    found.inbox.close()


def alive(manager: Manager) -> None:
    poll(lambda: "WATCHDOG=1" in manager.heard(), what="a sign of life")


@pytest.mark.nightly
def test_the_worker_notifies_readiness_and_keeps_feeding_the_watchdog(tmp: Path, manager: Manager) -> None:
    with redis_server(tmp, appendfsync="no") as redis:
        env = environment(tmp, manager.env() | {"INGEST_SPOOL": str(redis.socket)})
        with running([sys.executable, ROOT / "worker.py"], tmp / "worker.out", env) as worker:
            poll(lambda: "READY=1" in manager.heard())
            alive(manager)
            alive(manager)
            os.kill(redis.pid, signal.SIGKILL)  # it feeds the watchdog while it waits for Redis
            poll(lambda: "Redis is unavailable" in (tmp / "worker.out").read_text())
            manager.heard()
            alive(manager)
            os.kill(worker.pid, signal.SIGSTOP)
            state = Path(f"/proc/{worker.pid}/stat")
            poll(lambda: state.read_text().split()[2] == "T")
            manager.heard()
            assert not select.select([manager.inbox], [], [], 1.0)[0]
            os.kill(worker.pid, signal.SIGCONT)
            alive(manager)


@pytest.mark.nightly
@pytest.mark.parametrize("runtime", PYTHON)
def test_the_gateway_notifies_readiness_and_feeds_the_watchdog_from_its_loop(
    runtime: str, tmp: Path, manager: Manager
) -> None:
    with redis_server(tmp, appendfsync="no") as redis, gateway(tmp, redis, runtime, env=manager.env()) as server:
        assert "READY=1" in manager.heard()
        alive(manager)
        alive(manager)
        # the commit, and so the loop, waits for Redis; if it lasted longer, systemd would restart the gateway
        os.kill(redis.pid, signal.SIGSTOP)
        with connect(server.socket) as client:
            client.sendall(b"POST /votes HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            manager.heard()
            assert answer(client)[0] == 503  # after spool.TIMEOUT_SECONDS
            assert len(manager.heard()) <= 2
        os.kill(redis.pid, signal.SIGCONT)
        alive(manager)


@pytest.mark.nightly
@needs("views")
@pytest.mark.parametrize("runtime", PYTHON)
def test_reader_and_follower_notify_readiness_and_feed_the_watchdog(runtime: str, tmp: Path, manager: Manager) -> None:
    with reader(tmp, runtime, env=manager.env()):
        assert "READY=1" in manager.heard()
        alive(manager)
        alive(manager)
    manager.heard()
    with follower(tmp, manager.env()):
        poll(lambda: "READY=1" in manager.heard())
        alive(manager)  # while it waits for the views' Redis
        alive(manager)


@contextlib.contextmanager
def activated(tmp: Path, sockets: list[socket.socket], env: dict[str, str], runtime: str) -> Iterator[subprocess.Popen]:
    """The gateway with listening sockets that it inherits, as from sluice-gateway.socket."""
    words = " ".join(f"{at}<&{sock.fileno()}" for at, sock in enumerate(sockets, 3))
    command = f'exec {words}; LISTEN_PID=$$ LISTEN_FDS={len(sockets)} exec "$0" -m gunicorn'
    with open(tmp / "gateway.out", "ab") as out:
        process = subprocess.Popen(
            ["bash", "-c", command, PYTHON[runtime]], cwd=ROOT, env=env, stdout=out, stderr=out,
            pass_fds=[sock.fileno() for sock in sockets], start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        process.wait(PATIENCE)


def progressed(load: Load, taken: int) -> bool:
    return load.taken > taken or bool(load.failed)


@pytest.mark.nightly
@pytest.mark.parametrize("runtime", PYTHON)
def test_repeated_restarts_behind_inherited_sockets_fail_no_request(runtime: str, tmp: Path) -> None:
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(redis_server(tmp, appendfsync="no"))
        front = stack.enter_context(nginx(tmp))
        env = environment(tmp, {"INGEST_SPOOL": redis.socket})
        sockets = []
        for path in settings.load_settings(env).gateway_sockets:
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.bind(str(path))
            sock.listen(4096)
            sockets.append(sock)
        loads = [Load(front.port, fresh) for fresh in (False, True, True)]
        for _ in range(3):
            with activated(tmp, sockets, env, runtime):
                poll(lambda: get(front.port, "/readyz")[0] == 200)
                for load in loads:
                    if not load.ident:
                        load.start()
                    poll(partial(progressed, load, load.taken + 5))
            # no process accepts now; connections wait in the backlog
        with activated(tmp, sockets, env, runtime):
            for load in loads:
                load.ended.set()
                load.join()
        assert [load.failed for load in loads] == [[], [], []]
        with connect(redis.socket) as connection:
            connection.sendall(b"LLEN ingest:{votes}\r\n")
            assert int(connection.recv(64)[1:]) == sum(load.taken for load in loads)


@pytest.mark.nightly
def test_clients_get_notice_before_nginx_reloads(tmp: Path) -> None:
    def connection() -> str:
        return post(front.port, "/votes", b"{}")[1]["connection"]

    unit = (ROOT / "deploy/systemd/nginx.service.d/sluice.conf").read_text()
    with redis_server(tmp, appendonly="no") as redis, gateway(tmp, redis), nginx(tmp) as front:
        places = {"/var/lib/sluice": tmp, "/run/sluice": tmp / "run", "$MAINPID": front.pid}
        lines = re.findall(r"^ExecReload=([^+\n].+)$", unit, re.M)
        assert lines[2] == f"/bin/sleep {reload.NOTICE_SECONDS}"
        lines[2] = "true"
        for line in lines:
            if "-HUP" in line:
                poll(lambda: connection() == "close")
            for place, here in places.items():
                line = line.replace(place, str(here))
            subprocess.run(line.split(), check=True, timeout=60)
        poll(lambda: connection() == "keep-alive")


@needs("access")
@pytest.mark.nightly
def test_nginx_does_not_reload_if_every_user_can_read_a_file_of_secrets(tmp: Path) -> None:
    unit = (ROOT / "deploy/systemd/nginx.service.d/sluice.conf").read_text()
    (line,) = re.findall(r"^ExecReload=\+(.+)$", unit, re.M)
    assert line == "/usr/bin/env -C /opt/sluice /opt/sluice/.venv/bin/python -m sluice.run.services check"
    (tmp / "keys").write_text(f"{'k' * 32} me;\n")
    (tmp / "etc").mkdir()
    (tmp / "defaults").write_text(f"INGEST_API_KEYS={tmp}/keys\n")
    script = "from pathlib import Path; from sluice.run import services\n"
    script += f"services.HOME = Path('{tmp}'); services.DEFAULTS = services.HOME / 'defaults'\n"
    command = [sys.executable, "-c", f"{script}services.main(['check'])"]
    for mode, status in (0o644, 2), (0o600, 0):
        (tmp / "keys").chmod(mode)
        done = subprocess.run(command, cwd=ROOT, env=environment(tmp), capture_output=True, text=True, timeout=30)
        assert (done.returncode, "accessible to every user" in done.stderr) == (status, status == 2)


@pytest.mark.nightly
def test_log_lines_go_to_the_journal_with_their_priority(tmp: Path, manager: Manager) -> None:
    with redis_server(tmp, appendfsync="no") as redis:
        env = manager.env() | {"INGEST_SPOOL": str(redis.socket)}
        with gateway(tmp, redis, env=env) as server:
            pass
        with running([sys.executable, ROOT / "worker.py"], tmp / "worker.out", environment(tmp, env)):
            os.kill(redis.pid, signal.SIGKILL)
            poll(lambda: "Redis is unavailable" in (tmp / "worker.out").read_text())
    lines = server.said().splitlines() + (tmp / "worker.out").read_text().splitlines()
    assert [line for line in lines if not re.match(r"<[0-7]>[\w.]+: ", line)] == []
    assert any(line.startswith("<4>sluice.worker: redis: Redis is unavailable") for line in lines)
    assert any(line.startswith("<6>gunicorn.error: Starting gunicorn") for line in lines)


@needs("views")
@pytest.mark.nightly
@pytest.mark.parametrize("runtime", PYTHON)
def test_log_lines_are_json_if_set(runtime: str, tmp: Path) -> None:
    env = {"INGEST_LOG": "json"}
    with redis_server(tmp, appendfsync="no") as redis:
        with reader(tmp, runtime, env=env) as reading:
            assert get(reading.socket, "/gps/latest?device=a")[0] == 503
            assert "the views' Redis is unavailable" in reading.said()
        with gateway(tmp, redis, runtime, env=env) as server:
            pass
        with running([sys.executable, ROOT / "worker.py"], tmp / "worker.out", environment(tmp, env)):
            os.kill(redis.pid, signal.SIGKILL)
            poll(lambda: "Redis is unavailable" in (tmp / "worker.out").read_text())
    lines = [json.loads(line) for line in (server.said() + (tmp / "worker.out").read_text()).splitlines()]
    assert {tuple(line) for line in lines} == {("time", "level", "logger", "process", "message")}
    assert {line["level"] for line in lines} == {"info", "warning"}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"]) for line in lines)


@pytest.mark.nightly
def test_an_error_is_one_line_of_json_with_its_traceback() -> None:
    script = "import logging; from sluice.base import daemon; from sluice.parsers import parse_log_style\n"
    script += "h = logging.StreamHandler(); h.setFormatter(daemon.formatter(parse_log_style('json')))\n"
    script += "logging.getLogger().addHandler(h)\ntry: 1 / 0\nexcept Exception: logging.exception('it \\'broke\\'')"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    line = json.loads(done.stderr)
    assert (line["level"], line["message"]) == ("error", "it 'broke'")
    assert "ZeroDivisionError" in line["traceback"]


@pytest.mark.nightly
@pytest.mark.parametrize("style", ["text", "debug", "json", "json,debug"])
def test_each_line_of_a_log_has_a_time_and_debugging_messages_are_shown_if_set(style: str) -> None:
    script = "import logging; from sluice.base import daemon; from sluice.parsers import parse_log_style\n"
    script += (
        f"daemon.start_logging(parse_log_style({style!r})); log = logging.getLogger('x')\nlog.debug('d'); log.info('i')"
    )
    env = {name: value for name, value in os.environ.items() if name != "JOURNAL_STREAM"}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    texts = [json.loads(line)["message"] for line in lines] if "json" in style else [line[-1] for line in lines]
    assert texts == (["d", "i"] if "debug" in style else ["i"])
    assert all(re.search(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line) for line in lines)


# --- Vagrant ---------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_every_path_and_port_in_the_vagrantfile_exists() -> None:
    text = (ROOT / "Vagrantfile").read_text()
    code = "".join(line.partition("#")[0] for line in text.splitlines(keepends=True))
    paths = re.findall(r"/opt/sluice/([\w./-]+)", code)
    assert "bin/provision" in paths and "bench" in paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert re.findall(r"guest: (\d+), host: (\d+)", code) == [("8080", "8080")]
    assert settings.load_settings({}).port == 8080
    excluded = re.findall(r'"([\w./-]+)/"', code)
    assert {".venv", ".venv-pypy", "bench/.venv", "var"} <= set(excluded)
    usage = subprocess.run([ROOT / "bin/provision", "?"], capture_output=True, text=True).stderr
    assert all(f"|{target}|" in usage for target in re.findall(r"bin/provision (\w+)", code))


@pytest.mark.nightly
def test_the_siege_can_be_started_through_a_link(tmp: Path) -> None:
    (tmp / "bench").symlink_to(ROOT / "bench")
    (tmp / "siege").write_text("#!/bin/sh\n")  # so that the script installs nothing
    (tmp / "siege").chmod(0o755)
    env = environment(tmp, {"INGEST_PORT": "1", "PATH": f"{tmp}:{os.environ['PATH']}"})
    done = subprocess.run(["bench/siege.sh"], cwd=tmp, env=env, capture_output=True, text=True, timeout=30)
    assert "nothing listens on port 1" in done.stderr
