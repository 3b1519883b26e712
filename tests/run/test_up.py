"""bin/up: the first screen, what a restart keeps, and recovery when any of its processes is killed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import redis

from proving.harness import (
    PATIENCE,
    ROOT,
    Server,
    answer,
    ask,
    connect,
    environment,
    free_port,
    get,
    installation,
    poll,
    post,
    running,
    short_tmp,
    strike,
)
from sluice import registry, settings
from sluice.base.counters import Counter
from sluice.http.endpoints import load_endpoints
from sluice.http.routes import OK, Route
from sluice.run import configure, launch, parts, servers, up
from support import access
from support.folders import has, needs

PROGRAMS = "redis", "worker", "gateway", "nginx", *("views", "follower", "reader") * has("views")


def vote(up: Server, choice: str) -> int:
    return post(up.port, "/votes", b'{"poll":"p","choice":"%b"}' % choice.encode())[0]


def choices(up: Server) -> list[str]:
    """What is stored, in the order of arrival."""
    return [choice for (choice,) in ask(up.home, "SELECT choice FROM votes ORDER BY rowid")]


def stop(up: Server, number: int = signal.SIGTERM) -> int:
    """Ask it to stop; its status. The ten seconds and the order are promises."""
    before = len(up.said())
    up.process.send_signal(number)
    status = up.process.wait(PATIENCE)
    assert not any(up.pids(name) for name in PROGRAMS)
    said = up.said()[before:]
    assert re.search(r"gateway  \| .*Shutting down: Master.*redis    \| .*ready to exit", said, re.DOTALL)
    assert "SIGKILL" not in said
    return status


def refused(env: dict[str, object], tmp: Path) -> tuple[int, str]:
    """The status and the words of a bin/up that does not start."""
    done = subprocess.run([ROOT / "bin/up"], env=environment(tmp, env), capture_output=True, text=True, timeout=60)
    assert done.stdout == ""
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    """An installation for tests that leave it as it is."""
    with short_tmp() as home, installation(home, {"INGEST_DURABILITY": "everysec", "INGEST_MAX_MEMORY": "64m"}) as up:
        yield up


@pytest.mark.contract
def test_a_vote_is_answered_and_stored(shared: Server) -> None:
    assert post(shared.port, "/votes", b'{"poll":"p","choice":"oreo"}')[::2] == (200, b'{"message":"OK"}')
    poll(lambda: choices(shared) == ["oreo"])


@pytest.mark.contract
def test_a_stream_that_no_database_can_hold_stops_the_start(tmp: Path) -> None:
    (tmp / "mine.py").write_text(
        "from sluice import Record, stream\n\n\nclass Batch(Record):\n    n: int = 0\n\n\n"
        "STREAMS = {'batches': stream('batches', Batch)}\n"
    )
    status, words = refused({"INGEST_RECORDS": tmp / "mine.py", "INGEST_PORT": free_port()}, tmp)
    assert (status, words.count("\n")) == (2, 1)
    assert "the stream name 'batches' is reserved" in words


@pytest.mark.contract
def test_the_first_screen_shows_the_addresses_and_a_command_to_try(shared: Server) -> None:
    screen = poll(lambda: (said := shared.said()).partition("log files")[2] and said)
    assert f"http://localhost:{shared.port}" in screen
    assert f"""curl -d '{{"poll":"cookies","choice":"oreo"}}' localhost:{shared.port}/votes""" in screen
    assert f"{shared.home}/ingest.db" in screen
    assert "this machine and private networks may write" in screen
    assert ("this machine may read;" in screen) == has("views")
    assert "Ctrl-C" in screen
    assert "install" not in screen  # not the first start in this checkout


@pytest.mark.contract
@needs("views")
@pytest.mark.parametrize("guarded", [False, pytest.param(True, marks=needs("access"))])
def test_what_the_first_screen_says_to_try_works_at_once(
    guarded: bool, tmp: Path, certificate: tuple[Path, Path]
) -> None:
    env = {"INGEST_API_KEYS": access.keys(tmp), "INGEST_PASSWORDS": access.passwords(tmp)} | access.tls(certificate)
    with installation(tmp, env if guarded else {}, ready=False) as up:
        screen = poll(lambda: (said := up.said()).partition("log files")[2] and said)
        write, read = re.findall("curl .*localhost.*", screen)
        secrets = {"KEY": access.KEY, "NAME:PASSWORD": "jane:s3cret"} if guarded else {}
        assert ("KEY" in write, "PASSWORD" in read) == (guarded, guarded)

        def say(command: str) -> str:
            for name, secret in secrets.items():
                command = command.replace(name, secret)
            return subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60).stdout

        assert say(write) == '{"message":"OK"}'
        poll(lambda: '"total":1' in say(read))


@pytest.mark.contract
def test_a_start_prints_no_more_than_a_screen(tmp: Path) -> None:
    with installation(tmp) as up:
        said = poll(lambda: (said := up.said()).partition("log files")[2] and said)
        assert len([line for line in said.splitlines() if "follower" not in line]) <= 12, said
        assert "unavailable" not in said  # the follower waits for the database that the worker makes
        log = (tmp / "log/redis.log").read_text()
        assert "Redis is starting" in log or "just started" in log  # the log file has all


@pytest.mark.nightly
@pytest.mark.parametrize("moment", [0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2, 1.8, 2.5])
def test_ctrl_c_at_any_moment_of_a_start_ends_it_quietly(moment: float, tmp: Path) -> None:
    """moment: seconds after bin/up began; whatever it does then, what it prints is no traceback."""
    said = interrupted(ROOT, moment, tmp)
    assert not re.search("Traceback|KeyboardInterrupt|SIGKILL", said), said
    assert not any(launch.tag_holders(tag) for tag in launch.home_tags(tmp))


@pytest.mark.nightly
@pytest.mark.parametrize("moment", [0.5, 1.0, 2.0, 3.5, 5.0, 7.0])
def test_ctrl_c_while_a_new_clone_installs_ends_it_quietly(moment: float, tmp: Path) -> None:
    subprocess.run(["git", "clone", "-q", ROOT, tmp / "clone"], check=True)
    said = interrupted(tmp / "clone", moment, tmp / "clone/var")
    installing = said.partition("Sluice takes")[0]  # where it takes less than that, everything runs
    lines = [line for line in installing.splitlines() if not re.match(r"sluice: |\w+ +\| ", line)]
    assert lines == [] and not re.search("could not|Traceback|SIGKILL", said), said
    poll(lambda: not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp).encode() in path.read_bytes()])


def interrupted(checkout: Path, moment: float, home: Path) -> str:
    """What bin/up prints if Ctrl-C is typed that many seconds after it began."""
    env = environment(home, {"INGEST_PORT": free_port()})
    # a process of the background ignores it, and what it starts, until that says otherwise
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        up = subprocess.Popen(
            checkout / "bin/up", env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
    finally:
        signal.signal(signal.SIGINT, ignored)
    with up:
        with contextlib.suppress(subprocess.TimeoutExpired):
            up.wait(moment)
        os.killpg(up.pid, signal.SIGINT)  # a terminal sends it to all of them
        said, _ = up.communicate(timeout=60)
    assert up.returncode in (0, -signal.SIGINT)
    return said


@pytest.mark.nightly
def test_a_start_whose_redis_takes_no_writes_says_why_instead_of_where_to_write(tmp: Path) -> None:
    (tmp / "run").mkdir()
    (tmp / "run/draining").touch()
    with installation(tmp, ready=False) as up:
        poll(lambda: "Sluice takes no writes yet: This cell is draining" in up.said())
        assert "takes writes at" not in up.said()
        (tmp / "run/draining").unlink()
        poll(lambda: "takes writes at" in up.said())


@pytest.mark.contract
def test_every_line_of_output_begins_with_its_program(tmp: Path) -> None:
    with installation(tmp) as up:
        os.kill(up.pids("worker")[0], signal.SIGKILL)
        poll(lambda: "up       | exited: worker" in up.said())
        assert stop(up, signal.SIGHUP) == 0
        lines = up.said().split("\n\n")[-1].splitlines()
        assert {line[:11] for line in lines} >= {"up       | ", "gateway  | ", "redis    | "}
        assert [line for line in lines if not re.match(rf"(up|{'|'.join(PROGRAMS)}) +\| ", line)] == []
        # and the same without the name in files
        assert "Listening at" in (tmp / "log/gateway.log").read_text()


@pytest.mark.contract
def test_all_files_of_an_installation_are_private(shared: Server) -> None:
    vote(shared, "a")
    poll(lambda: choices(shared))
    paths = [path for path in shared.home.rglob("*") if path != shared.log]  # which the test writes
    assert len(paths) > 20
    assert [path for path in paths if path.lstat().st_mode & 0o077] == []


@pytest.mark.nightly
def test_a_stop_is_in_order_and_accepted_bodies_wait_for_the_next_start(tmp: Path) -> None:
    with installation(tmp, {"INGEST_WORKERS": 0}) as up:
        assert up.pids("worker") == []
        assert [vote(up, str(n)) for n in range(100)] == [200] * 100
        assert stop(up, signal.SIGINT) == 0
    with installation(tmp) as up:
        poll(lambda: choices(up) == [str(n) for n in range(100)])


@pytest.mark.nightly
def test_a_request_in_progress_during_the_stop_is_kept_and_an_unfinished_one_does_not_delay_it(tmp: Path) -> None:
    with installation(tmp) as up, connect(up.port) as connection, connect(up.port) as unfinished:
        for client, body in (connection, b'{"poll":"p",'), (unfinished, b"half"):
            client.sendall(b"POST /votes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 25\r\n\r\n" + body)
        poll(lambda: get(up.port, "/healthz")[0] == 200)  # nginx has read the beginning by now
        up.process.terminate()
        poll(lambda: not listens(up.port))
        connection.sendall(b'"choice":"a"}')
        assert answer(connection)[0] == 200
        assert up.process.wait(PATIENCE) == 0
    with installation(tmp) as up:
        poll(lambda: choices(up) == ["a"])


def listens(port: int) -> bool:
    try:
        connect(port, 1).close()
    except OSError:
        return False
    return True


class Poster:
    """Posts one vote after the other from a thread, and notes those that got their 2xx."""

    def __init__(self, up: Server) -> None:
        self.up, self.ended = up, False
        self.taken: list[str] = []
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        number = 0
        while not self.ended:
            try:
                with connect(self.up.port, 5) as connection:
                    while not self.ended:
                        number += 1
                        body = b'{"poll":"p","choice":"%d"}' % number
                        if post(connection, "/votes", body)[0] == 200:
                            self.taken.append(str(number))
            except (OSError, EOFError):  # no answer: not known, and not repeated
                pass

    def __enter__(self) -> Poster:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended = True
        self.thread.join()

    def more(self) -> None:
        """Wait until another vote is taken."""
        count = len(self.taken)
        poll(lambda: len(self.taken) > count, what="another vote to be taken")


def restarted(up: Server, name: str, before: list[int]) -> bool:
    return bool(set(up.pids(name)) - set(before))


def gone(up: Server, name: str, before: list[int]) -> bool:
    return not set(before) & set(up.pids(name))


VICTIMS = {
    "redis": ("redis", 0),
    "worker": ("worker", 0),
    "gunicorn's master": ("gateway", 0),
    "gunicorn's worker": ("gateway", 1),
    "nginx's master": ("nginx", 0),
}


@pytest.mark.nightly
def test_a_killed_program_is_restarted_alone_and_no_body_is_lost_or_stored_twice(tmp: Path) -> None:
    """bin/sluice drill kills each of them ten times, and reports how long each outage lasts."""
    with installation(tmp) as up, Poster(up) as poster:
        for victim, (name, index) in VICTIMS.items():
            others = {other: up.pids(other) for other in PROGRAMS if other != name}
            for _ in "the first", "its successor":
                poster.more()
                before = up.pids(name)
                os.kill(before[index], signal.SIGKILL)
                poll(partial(restarted, up, name, before), what=f"another {victim}")
                poster.more()
                if index == 0:
                    poll(partial(gone, up, name, before), what="the end of what was left of it")
            assert all(set(pids) <= set(up.pids(other)) for other, pids in others.items())  # some may still start
        poster.ended = True
        poster.thread.join()
        poll(lambda: set(poster.taken) <= set(choices(up)))
        stored = choices(up)
        assert len(stored) == len(set(stored))


@pytest.mark.nightly
def test_a_program_killed_ten_times_in_a_burst_is_restarted(tmp: Path) -> None:
    with installation(tmp) as up:
        for name in PROGRAMS:
            for _ in range(10):
                pid = poll(partial(up.pids, name))[0]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        poll(lambda: vote(up, "after") == 200)
        poll(lambda: choices(up) == ["after"])


@pytest.mark.nightly
def test_a_start_ends_the_processes_of_a_killed_bin_up_and_stores_their_bodies(tmp: Path) -> None:
    with installation(tmp) as up:
        assert vote(up, "a") == 200
        up.process.kill()
        up.process.wait()
        os.kill(up.pids("worker")[0], signal.SIGSTOP)  # it has to be waited for
        assert vote(up, "b") == 200  # the rest runs on without it
        left = [pid for name in PROGRAMS for pid in up.pids(name)]
        closing = tmp / "run/closing"
        closing.touch()  # a reload was killed too
        with installation(tmp, {"INGEST_PORT": up.port}) as again:
            poll(lambda: choices(again) == ["a", "b"])
            assert not closing.exists()
            ended = re.findall(r"An earlier bin/up was killed; ended its (\w+)\.", again.said())
            # writes are taken until the worker has ended
            order = ["worker", "nginx", "gateway", *["views"] * has("views"), "redis"]
            assert ended[-len(order) :] == order
            assert set(left).isdisjoint(pid for name in PROGRAMS for pid in again.pids(name))


@pytest.mark.nightly
def test_bin_up_continues_after_the_reader_of_its_output_has_gone(tmp: Path) -> None:
    port = free_port()
    env = environment(tmp, {"INGEST_PORT": port})
    process = subprocess.Popen([ROOT / "bin/up"], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        assert process.stdout
        process.stdout.readline()
        process.stdout.close()
        poll(lambda: get(port, "/readyz")[0] == 200)
        up = Server(process, tmp / "none", tmp, port)
        os.kill(up.pids("worker")[0], signal.SIGKILL)  # something to tell
        vote(up, "a")
        poll(lambda: choices(up) == ["a"])
        process.terminate()
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()


@pytest.mark.nightly
def test_bin_up_goes_on_while_nobody_reads_its_output_and_says_what_it_did_not_show(tmp: Path) -> None:
    """As on a terminal that is held (Ctrl-S), in a pager, or over a connection that is frozen."""
    port = free_port()
    os.mkfifo(tmp / "output")
    reader = os.open(tmp / "output", os.O_RDONLY | os.O_NONBLOCK)
    shown = bytearray()

    def says(text: bytes) -> bool:
        for pid in server.pids("worker"):
            strike(pid, signal.SIGKILL)  # something to tell
        with contextlib.suppress(BlockingIOError):
            while data := os.read(reader, 65_536):
                shown.extend(data)
        return text in shown

    def writes(file: int, data: bytes) -> bool:
        try:
            return os.write(file, data) == len(data)
        except BlockingIOError:
            return False

    env = environment(tmp / "home", {"INGEST_PORT": port})
    with running(["sh", "-c", f'exec "{ROOT}/bin/up" >{tmp}/output 2>&1'], tmp / "none", env) as process:
        poll(lambda: get(port, "/readyz")[0] == 200)
        server = Server(process, tmp / "none", tmp / "home", port)
        log = os.open(f"/proc/{server.pids('worker')[0]}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
        for _ in range(250):  # as if it had much to say
            poll(lambda: writes(log, (b"x" * 99 + b"\n") * 40))
        os.close(log)
        (log_file,) = (server.home / "log").glob("worker*.log")
        poll(lambda: log_file.read_bytes().count(b"x\n") == 10_000)
        for name in "worker", "gateway", "nginx":
            for pid in server.pids(name):
                strike(pid, signal.SIGKILL)
        poll(lambda: post(port, "/votes", b'{"poll":"p","choice":"a"}')[0] == 200)
        poll(lambda: choices(server) == ["a"])
        poll(lambda: says(b" lines are in the log files only: nobody has read them here"))
        assert b"Sluice takes writes" in shown
        process.terminate()
        assert process.wait(PATIENCE) == 0
        assert not any(server.pids(name) for name in PROGRAMS)
    os.close(reader)
    assert len(shown) < 600_000


@pytest.mark.nightly
@pytest.mark.parametrize("output", [">/dev/full 2>&1", ">&- 2>&- <&-"])
def test_bin_up_runs_and_ends_in_order_where_it_can_print_nothing(output: str, tmp: Path) -> None:
    """On a full disk, or started with closed standard streams. An earlier one died, and left its programs running."""
    port = free_port()
    env = environment(tmp, {"INGEST_PORT": port})
    with running(["sh", "-c", f'exec "{ROOT}/bin/up" {output}'], tmp / ".none", env) as process:
        poll(lambda: get(port, "/readyz")[0] == 200)
        up = Server(process, tmp / ".none", tmp, port)
        vote(up, "a")
        poll(lambda: choices(up) == ["a"])
        process.terminate()
        assert process.wait(PATIENCE) == 0
        assert not any(up.pids(name) for name in PROGRAMS)


@pytest.mark.nightly
@pytest.mark.parametrize("env", [{}, {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}])
def test_bin_up_needs_no_variable_and_no_locale(env: dict[str, str], tmp: Path) -> None:
    """As `env -i` and old settings of a locale leave it."""
    port, home = free_port(), tmp / "ä"
    env = env | {"INGEST_PORT": str(port), "INGEST_HOME": str(home)}
    with running([ROOT / "bin/up"], tmp / "out", env) as process:
        poll(lambda: get(port, "/readyz")[0] == 200)
        up = Server(process, tmp / "out", home, port)
        assert vote(up, "a") == 200
        poll(lambda: choices(up) == ["a"])
        done = subprocess.run([ROOT / "bin/sluice", "status"], env=env, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        process.terminate()
        assert process.wait(PATIENCE) == 0
        assert "Traceback" not in up.said()


@pytest.mark.contract
@pytest.mark.parametrize("why", ["2: No such file or directory", "111: Connection refused"])
def test_a_line_that_nobody_has_to_act_upon_is_in_the_log_file_only(why: str) -> None:
    """nginx counts requests at a socket that is not there yet, or that a killed program left."""
    lines = f"[alert] connect() failed ({why})\n[alert] connect() to unix:/gateway failed ({why})\n"
    code = "import sys; from sluice.run import launch; launch.name_lines('nginx'); sys.stdout.write(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, lines], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stderr == lines
    assert done.stdout == f"nginx    | {lines.splitlines(keepends=True)[1]}"


@pytest.mark.contract
def test_a_second_bin_up_in_the_same_home_is_one_line_and_status_1(shared: Server) -> None:
    status, words = refused({"INGEST_PORT": free_port()}, shared.home)
    assert (status, words.count("\n")) == (1, 1)
    assert f"bin/up already runs in {shared.home}" in words
    assert vote(shared, "a") == 200


@pytest.mark.contract
def test_a_port_in_use_is_one_line_and_status_1(shared: Server, tmp: Path) -> None:
    status, words = refused({"INGEST_PORT": shared.port}, tmp)
    assert (status, words) == (1, f"sluice: port {shared.port} is in use; set INGEST_PORT to use another.\n")


@pytest.mark.contract
def test_a_socket_in_use_is_one_line_and_status_1(shared: Server, tmp: Path) -> None:
    redis, views = shared.home / "run/redis.sock", tmp / "run/views.sock"
    status, words = refused({"INGEST_PORT": free_port(), "INGEST_SPOOL": redis}, tmp)
    assert (status, words) == (1, f"sluice: another server listens on {redis}, where bin/up starts its own Redis.\n")
    if not has("views"):
        return
    views.symlink_to(shared.home / "run/views.sock")
    status, words = refused({"INGEST_PORT": free_port()}, tmp)
    assert (status, words) == (
        1,
        f"sluice: another server listens on {views}, where bin/up starts its second Redis.\n",
    )


@pytest.mark.contract
def test_an_unusable_home_is_one_line_and_status_1(tmp: Path) -> None:
    (tmp / "file").write_text("")
    status, words = refused({}, tmp / "file")
    assert (status, words.count("\n")) == (1, 1)
    assert f"{tmp}/file cannot be used" in words


@pytest.mark.contract
def test_a_path_that_nginx_would_read_as_another_is_one_line_and_status_2(tmp: Path) -> None:
    status, words = refused({"INGEST_PORT": free_port()}, tmp / "a$b")
    assert (status, words.count("\n")) == (2, 1)
    assert words.startswith("sluice: INGEST_HOME: nginx and Redis cannot use the path ")
    assert not (tmp / "a$b").exists()
    for name in "a%b", 'a"b', "a\\b", "a\udcff":
        with pytest.raises(settings.SettingError, match="cannot use the path"):
            configure.write_configuration(settings.load_settings({"INGEST_HOME": str(tmp / name)}))
        for setting in "INGEST_HOME", "INGEST_SPOOL", *["INGEST_API_KEYS"] * has("access"):
            with pytest.raises(settings.SettingError, match=f"^{setting}: nginx and Redis cannot use the path "):
                up.check_paths(settings.load_settings({"INGEST_HOME": str(tmp), setting: str(tmp / name)}))


@pytest.mark.nightly
def test_a_relative_home_is_relative_to_the_callers_directory_and_may_have_other_characters(tmp: Path) -> None:
    port, home = free_port(), "a b;{ä'"
    env = environment(tmp, {"INGEST_PORT": port, "INGEST_HOME": home})
    with running(["sh", "-c", f'cd {tmp} && exec "{ROOT}/bin/up"'], tmp / "out", env) as process:
        poll(lambda: get(port, "/readyz")[0] == 200)
        up = Server(process, tmp / "out", tmp / home, port)
        assert vote(up, "a") == 200
        poll(lambda: choices(up) == ["a"])
        assert get(port, "/status/status.json")[0] in (200, 404)
        assert stop(up) == 0


@pytest.mark.contract
@pytest.mark.parametrize("name", ["etc/nginx.conf", "log/syslog", "notes.txt", "src/main.c", "run"])
def test_a_directory_that_something_else_uses_is_refused_and_unchanged(name: str, tmp: Path) -> None:
    """As INGEST_HOME=/, /var or ~ would be."""
    (tmp / name).parent.mkdir(mode=0o755, exist_ok=True)
    (tmp / name).write_text("mine")
    before = {path: (path.stat().st_mode, path.stat().st_mtime_ns) for path in (tmp, *tmp.rglob("*"))}
    match = re.escape(f"INGEST_HOME='{tmp}' has files of another program ({name.partition('/')[0]}): use an empty dir")
    with pytest.raises(settings.SettingError, match=match):
        up.check_home(tmp)
    if name == "run":
        status, words = refused({"INGEST_PORT": free_port()}, tmp)
        assert (status, words.count("\n")) == (2, 1)
        assert re.search(match, words)
    assert {path: (path.stat().st_mode, path.stat().st_mtime_ns) for path in (tmp, *tmp.rglob("*"))} == before
    assert (tmp / name).read_text() == "mine"


@pytest.mark.parametrize("mark", ["etc/sluice.conf", "run/up.lock", "redis/appendonlydir/x"])
def test_a_home_of_an_earlier_version_is_used_and_its_modes_stay(mark: str, tmp: Path) -> None:
    (tmp / mark).parent.mkdir(parents=True)
    (tmp / mark).write_text("")
    (tmp / "log").mkdir(mode=0o750)
    (tmp / "log").chmod(0o750)  # for a collector of logs
    (tmp / "mine.txt").write_text("")
    up.check_home(tmp)
    configure.write_configuration(settings.load_settings({"INGEST_HOME": str(tmp)}))
    assert (tmp / "log").stat().st_mode & 0o777 == 0o750
    assert (tmp / "etc/redis.conf").exists()


def test_a_new_disk_an_empty_home_and_a_restored_database_are_used(tmp: Path) -> None:
    for name in "lost+found", "run":
        (tmp / name).mkdir()
    for name in ".bashrc", "ingest.db", "ingest.db-wal":
        (tmp / name).write_text("")
    up.check_home(tmp)


@pytest.mark.contract
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("whose", ["home", "etc"])
def test_links_in_a_home_that_another_user_prepared_are_not_followed(whose: str, tmp: Path) -> None:
    victim = tmp / "victim"
    victim.write_text("root's")
    (tmp / "home/etc").mkdir(parents=True)
    (tmp / "home/etc/sluice.conf").symlink_to(victim)  # also the mark of a home
    os.chown({"home": tmp / "home", "etc": tmp / "home/etc"}[whose], 65534, 65534)
    status, words = refused({"INGEST_PORT": free_port()}, tmp / "home")
    assert (status, words.count("\n")) == (2, 1)
    assert " belongs to another user: use a directory of your own." in words
    assert victim.read_text() == "root's"


def test_a_home_is_accepted_only_if_no_other_user_can_replace_its_files(tmp: Path) -> None:
    home = tmp / "home"
    up.check_home(home)  # not yet there
    assert home.stat().st_mode & 0o777 == 0o700
    for name in "run", "log":
        (home / name).mkdir(0o755)  # empty: a killed start left it
    up.check_home(home)
    os.chown(home, -1, os.getegid())
    home.chmod(0o775)  # the group is this user's own
    up.check_home(home)
    link = tmp / "link"
    link.symlink_to(home)
    up.check_home(link)
    for path in home, home / "run":
        path.chmod(0o777)
        with pytest.raises(settings.SettingError, match=f"other users may write to {path}: chmod go-w it."):
            up.check_home(home)
        path.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(home, -1, 65534)
        home.chmod(0o775)
        with pytest.raises(settings.SettingError, match="other users may write"):
            up.check_home(home)
        home.chmod(0o755)
        os.chown(link, 65534, -1, follow_symlinks=False)
        with pytest.raises(settings.SettingError, match=f"{link} belongs to another user"):
            up.check_home(link)


@pytest.mark.contract
@pytest.mark.parametrize(
    "name, value",
    [("INGEST_PORT", "http"), ("INGEST_WORKERS", "-1"), ("INGEST_RUNTIME", "jython"), ("INGEST_MAX_BODY", "much")],
)
def test_an_invalid_setting_is_one_line_and_status_2(name: str, value: str, tmp: Path) -> None:
    home = tmp / "home"
    status, words = refused({name: value}, home)
    assert (status, words.count("\n")) == (2, 1)
    assert words.startswith(f"sluice: {name}='{value}' is invalid")
    assert not home.exists()


@pytest.mark.contract
@pytest.mark.parametrize("name", ["INGEST_ROUTES", "INGEST_RECORDS", *["INGEST_VIEWS"] * has("views")])
def test_a_module_that_cannot_be_imported_is_one_line_and_status_2(name: str, tmp: Path) -> None:
    (tmp / "mine.py").write_text("raise RuntimeError('half done')")
    home = tmp / "home"
    status, words = refused({name: tmp / "mine.py"}, home)
    assert (status, words.count("\n")) == (2, 1)
    assert "half done" in words
    assert not home.exists()


@pytest.mark.parametrize(
    "routes",
    [
        '{"/x": "orders"}', '{"x": Route("orders", OK)}',
        pytest.param('{"/status": Route("orders", OK)}', marks=needs("page")),
        '{1: Route("orders", OK)}',
        pytest.param('{"/status/x": Route("orders", OK)}', marks=needs("page")),
        '{"/a b": Route("orders", OK)}', '{"/o/{}": Route("orders", OK)}',
        '{"/x": Route("my-orders", OK)}', '{"/x?y": Route("orders", OK)}', '{"/readyz": Route("orders", OK)}',
        '{"/%78": Route("orders", OK)}',
    ],
)  # fmt: skip
def test_a_route_that_no_request_could_reach_is_an_invalid_setting(routes: str, tmp: Path) -> None:
    (tmp / "mine.py").write_text(f"from sluice import OK, Route\nROUTES = {routes}\n")
    with pytest.raises(settings.SettingError, match=r"INGEST_ROUTES='.*' is invalid: ROUTES\["):
        up.check_modules(settings.load_settings({"INGEST_ROUTES": str(tmp / "mine.py")}))


def test_a_signed_route_that_nothing_checks_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    s = settings.load_settings({})
    monkeypatch.setattr(registry, "contributions", dict)  # as without sluice/contrib
    routes = {"/hooks": Route("votes", OK, signed="github:/secret")}
    with pytest.raises(settings.SettingError, match="nothing here checks the signatures of /hooks"):
        load_endpoints(routes, s, lambda name: Counter())


@pytest.mark.contract
def test_nginx_reads_all_of_its_files_in_a_home_whose_name_is_a_pattern(tmp: Path) -> None:
    s = settings.load_settings({"INGEST_HOME": str(tmp / "[a]*?")})
    configure.write_configuration(s)
    command = ["nginx", "-T", "-p", str(s.home), "-c", str(s.home / "etc/nginx.conf")]
    shown = subprocess.run(command, env={"PATH": servers.program_path()}, capture_output=True, text=True).stdout
    read = set(re.findall(r"^# configuration file (.*):$", shown, re.M))
    written = {str(path) for path in (s.home / "etc").rglob("*.conf")}
    of_others = "redis", "views", "supervisord", *["includes/host"] * (not has("views"))
    assert written - read == {str(s.home / "etc" / f"{name}.conf") for name in of_others}


def test_a_route_to_a_stream_without_a_decoder_stops_the_start(tmp: Path) -> None:
    (tmp / "mine.py").write_text("from sluice import OK, Route\nROUTES = {'/orders': Route('orders', OK)}\n")
    with pytest.raises(settings.SettingError, match="/orders leads to the stream orders.* INGEST_RECORDS"):
        up.check_modules(settings.load_settings({"INGEST_ROUTES": str(tmp / "mine.py")}))


@pytest.mark.parametrize(
    "name, value", [pytest.param("INGEST_ROWS", "parquet:///proc/x", marks=needs("destinations")), ("INGEST_STORE", "sqlite:////proc/x/y.db"),
     ("INGEST_STORE", "sqlite:////proc/y.db")],
)  # fmt: skip
def test_a_directory_that_cannot_be_made_stops_the_start(name: str, value: str) -> None:
    with pytest.raises(settings.SettingError, match=f"^{name}: the directory /proc(/x)? cannot be used: No such file"):
        up.check_places(settings.load_settings({name: value}))
    with pytest.raises(settings.SettingError, match="^INGEST_STORE: /proc is a directory, and SQLite needs a file"):
        up.check_places(settings.load_settings({"INGEST_STORE": "sqlite:////proc"}))
    with pytest.raises(settings.SettingError, match="^INGEST_SPOOL: the directory /dev/null cannot be used"):
        up.check_places(settings.load_settings({"INGEST_SPOOL": "/dev/null/redis.sock"}))


@pytest.mark.parametrize("what", ["file", "directory", "link"])
def test_the_socket_of_redis_takes_the_place_of_nothing_else(what: str, tmp: Path) -> None:
    """Redis deletes whatever is there."""
    path = tmp / "mine"
    if what == "link":
        path.symlink_to("nowhere")
    else:
        path.mkdir() if what == "directory" else path.touch()
    with pytest.raises(settings.SettingError, match="^INGEST_SPOOL: .*/mine is there and is no socket: Redis"):
        up.check_places(settings.load_settings({"INGEST_HOME": str(tmp / "home"), "INGEST_SPOOL": str(path)}))
    assert os.path.lexists(path)


@pytest.mark.contract
def test_too_low_a_limit_of_open_files_is_one_line_and_status_1(tmp: Path) -> None:
    command = f"ulimit -n 256 && exec '{ROOT}/bin/up'"
    env = environment(tmp / "home", {"INGEST_PORT": free_port()})
    done = subprocess.run(["sh", "-c", command], env=env, capture_output=True, text=True, timeout=60)
    words = "sluice: this user may open 256 files, and 1024 are needed: raise the limit that ulimit -Hn shows.\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", words)


@needs("destinations")
def test_the_directories_that_settings_name_are_made(tmp: Path) -> None:
    urls = {"INGEST_ROWS": f"votes=parquet://{tmp}/rows", "INGEST_STORE": f"sqlite:///{tmp}/store/a.db"}
    up.check_places(settings.load_settings(urls | {"INGEST_HOME": str(tmp / "home")}))
    assert sorted(path.name for path in tmp.iterdir()) == ["rows", "store"]


@pytest.mark.contract
@pytest.mark.parametrize("argument, status", [("--help", 0), ("-h", 0), ("start", 2)])
def test_an_argument_prints_the_usage_and_starts_nothing(argument: str, status: int) -> None:
    done = subprocess.run([ROOT / "bin/up", argument], capture_output=True, text=True, timeout=10)
    assert (done.returncode, done.stderr) == (status, "")
    assert done.stdout.startswith("Usage: bin/up.")


@needs("kafka", "destinations")
def test_the_parts_that_a_cell_needs_follow_from_its_settings() -> None:
    assert parts.needed_parts(settings.load_settings({})) == []
    urls = {"INGEST_SPOOL": "kafka://h:1", "INGEST_ROWS": "s3://bucket,gps=kafka://h:1,logs=parquet:///rows"}
    assert parts.needed_parts(settings.load_settings(urls)) == ["kafka", "parquet", "s3"]
    assert parts.needed_parts(settings.load_settings({"INGEST_RUNTIME": "pypy", "INGEST_ROWS": "store"})) == ["pypy"]


@pytest.mark.contract
def test_a_variable_that_is_no_setting_is_named(tmp: Path) -> None:
    _, words = refused({"INGEST_PROT": 1, "INGEST_ROUTES": "none.such"}, tmp / "home")
    assert words.startswith("sluice: INGEST_PROT is not a setting and has no effect: ")


@pytest.mark.nightly
def test_several_gateways_on_pypy_and_several_workers_run_by_the_same_command(tmp: Path) -> None:
    env = {"INGEST_RUNTIME": "pypy", "INGEST_GATEWAYS": 2, "INGEST_WORKERS": 2}
    with installation(tmp, env) as up:
        poll(lambda: len(up.pids("gateway")) == 3)  # and the master
        poll(lambda: up.pids("worker-0") and up.pids("worker-1"))
        for n in range(50):
            assert vote(up, str(n)) == 200
        poll(lambda: sorted(choices(up), key=int) == [str(n) for n in range(50)])
        if has("views"):
            poll(lambda: b'"choices":{"0":1,' in get(up.port, "/votes/tally?poll=p")[2])
        for name in "gateway", *["reader"] * has("views"):
            assert "pypy" in os.readlink(f"/proc/{up.pids(name)[0]}/exe")
        assert stop(up) == 0


@pytest.mark.contract
def test_durability_and_memory_are_passed_to_redis(shared: Server) -> None:
    client = redis.Redis(unix_socket_path=str(shared.home / "run/redis.sock"), decode_responses=True)
    wanted = {
        "appendonly": "yes",
        "appendfsync": "everysec",
        "no-appendfsync-on-rewrite": "no",
        "aof-use-rdb-preamble": "yes",
        "auto-aof-rewrite-min-size": str(16 << 20),
        "maxmemory": str(64 << 20),
        "maxmemory-policy": "noeviction",
        "save": "",
        "port": "0",
        "unixsocketperm": "700",
    }
    assert {name: client.config_get(name)[name] for name in wanted} == wanted
