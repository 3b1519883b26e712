"""An installation without bin/up, of which a benchmark starts only some programs, and rows for its views."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Iterable, Sequence
from typing import Any

import rig

# isort: split
import redis

from proving import harness
from rig.stand import UNBOUNDED
from sluice import settings
from sluice.contrib import views
from sluice.contrib.views import contract, parts
from sluice.run import configure
from sluice.settings import SCRATCH_SOCKET
from sluice.spool.inlet import Inlet

FOLLOWER: tuple[object, ...] = ("-m", "sluice.contrib.views.follow")
WORKER: tuple[object, ...] = ("worker.py", "run")
PIECE = 5_000  # bodies of one commit


class Site:
    """The programs share the Redis of the stand, a database, and the views' Redis in `home`."""

    def __init__(self, stand: rig.Stand, **env: object) -> None:
        self.stand = stand
        self.home = stand.home()
        # users.c has several addresses
        own = {"INGEST_STORE": f"sqlite:///{self.home}/ingest.db", "INGEST_READ_ALLOW": "127.0.0.0/8"}
        env = own | {"INGEST_VIEWS_MEMORY": "8g"} | UNBOUNDED | env
        self.env = stand.environment(self.home, **env)
        self.settings = settings.load_settings(self.env)
        self.declared = views.load_views(self.settings)
        configure.write_configuration(self.settings)
        self.client: Any = redis.Redis(unix_socket_path=str(self.home / SCRATCH_SOCKET), socket_timeout=60)

    def python(self, name: str, command: Sequence[object], **env: object) -> harness.Server:
        """Start a program of Sluice, such as WORKER."""
        surroundings = self.env | {key: str(value) for key, value in env.items()}
        return self.stand.run(self.home, [rig.OURS["cpython"], *command], surroundings, name=name)

    def views(self) -> harness.Server:
        """Start the views' Redis."""
        command = ["redis-server", self.home / "etc/views.conf"]
        return self.stand.run(self.home, command, self.env, self.home / SCRATCH_SOCKET, "views")

    def reader(self, runtime: str) -> harness.Server:
        """Start the reader."""
        sockets = self.settings.reader_sockets
        command = [rig.OURS[runtime], "-m", "gunicorn", "-c", rig.ROOT / "gunicorn.conf.py", "--workers", 1]
        command += [*itertools.chain(*(("--bind", f"unix:{path}") for path in sockets))]
        command += ["-k", parts.LANE, "sluice.contrib.views.serve:app"]
        return self.stand.run(self.home, command, self.env, sockets[0], "reader")

    def gateway(self, runtime: str) -> harness.Server:
        """Start the gateway."""
        return self.stand.enter(harness.gateway(self.home, self.stand.redis, runtime, env=self.env))

    def put(self, stream: str, bodies: Iterable[bytes]) -> None:
        """Store bodies in the database by a worker, which ends then."""
        inlet = Inlet(str(self.stand.redis.socket), 10**9)
        left = iter(bodies)
        while piece := list(itertools.islice(left, PIECE)):
            for body in piece:
                batch = inlet.append(stream, body)
            inlet.commit(batch)
            assert batch.refused is None, batch.refused
        command = [str(rig.OURS["cpython"]), "worker.py", "burst"]
        done = subprocess.run(command, env=self.env, cwd=rig.ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def synced(self) -> float:
        """All views, except tallies, have the rows that were committed before this time, in seconds since 1970."""
        times = [time.time()]
        for path, view in self.declared.items():
            if not isinstance(view, views.Tally):
                state = (self.client.get(contract.state_key(path)) or b"").decode()
                times.append(int(self.client.hget(contract.info_key(path, state), "synced") or 0) / 1000)
        return min(times)

    def caught_up(self) -> float:
        """Wait until the views have all rows that are in the database now. Returns: the seconds."""
        began = time.time()
        harness.poll(lambda: self.synced() > began, 600, "the views to have all rows")
        return time.time() - began

    def front(self, name: str, parts: dict[str, harness.Server], read: str, **about: Any) -> rig.Candidate:
        """nginx in front of gateway and reader, once it answers a GET of `read`."""
        return self.stand.front(name, self.home, parts, read=read, env=self.env, **about)


class Targets:
    """The targets of a part, and whether they are met."""

    def __init__(self, report: rig.Report) -> None:
        self.report = report
        self.rows: list[list[object]] = []
        self.met = True

    def at_least(self, what: str, measured: float, bar: float) -> None:
        self.add(what, f"min {bar:,g}", measured, measured >= bar)

    def at_most(self, what: str, measured: float, bar: float) -> None:
        self.add(what, f"max {bar:,g}", measured, measured <= bar)

    def ratio(self, what: str, ratio: rig.Ratio, bar: float | None) -> None:
        """bar: None for a figure without a target."""
        if bar is None:
            self.rows.append([what, "", ratio, ""])
        else:
            self.add(what, f"min {bar:,g}", ratio, ratio.sure and ratio.median >= bar)

    def add(self, what: str, bar: str, measured: object, met: bool) -> None:
        """A target of another form."""
        self.rows.append([what, bar, measured, "met" if met else "NOT met"])
        self.met = self.met and met

    def write(self) -> bool:
        """Write the report. Returns: whether all targets are met."""
        self.report.data["targets"] = self.rows
        self.report.table(["target", "", "measured", ""], self.rows)
        self.report.write()
        return self.met
