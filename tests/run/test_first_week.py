"""docs/FIRST-WEEK.md, typed to the letter: each section from an empty home, in a directory with its files.

In a checkout, and with the commands of an installed package, as the head of the page translates them.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from proving.engines import ENVIRONMENT
from proving.harness import ROOT, environment, free_port, get, installation, poll, post
from proving.postgres import Postgres, postgres_server
from support.folders import ALL, needs

pytestmark = [pytest.mark.nightly, needs(*ALL)]

PAGE = (ROOT / "docs/FIRST-WEEK.md").read_text()
SECTIONS = dict(re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", PAGE, re.M))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
TYPED = [title for title, text in SECTIONS.items() if "```console" in text]
DATABASE = "postgresql://sluice:PASSWORD@HOST/sluice"


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres_server(fsync="off") as running:
        yield running


@pytest.fixture(scope="module", params=["checkout", "package"])
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """The `sluice` of an installed package; None: a checkout's commands.

    What the package needs is that of this checkout's virtual environment.
    """
    if request.param == "checkout":
        return None
    tmp = tmp_path_factory.mktemp("package")
    subprocess.run(["git", "clone", "-q", ROOT, tmp / "clone"], check=True)
    subprocess.run([sys.executable, "-m", "venv", tmp / "venv"], check=True)
    (site,) = tmp.glob("venv/lib/*/site-packages")
    (site / "needed.pth").write_text(sysconfig.get_path("purelib"))
    pip: list[str | Path] = [
        tmp / "venv/bin/pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "--no-build-isolation",
        "--no-deps",
    ]
    subprocess.run([*pip, tmp / "clone"], check=True)
    return tmp / "venv/bin/sluice"


class Terminal:
    """Types the lines of a section in a directory. bin/up runs in the background until the next one."""

    def __init__(self, folder: Path, home: Path, url: str, package: Path | None) -> None:
        self.folder, self.home, self.url, self.package = folder, home, url, package
        self.port = free_port()
        self.up = contextlib.ExitStack()

    def here(self, text: str) -> str:
        """A line, or what it prints, in this directory, with this port and this home."""
        text = (
            text.replace("8080", str(self.port))
            .replace("$PWD", str(self.folder))
            .replace(DATABASE, shlex.quote(self.url))
        )
        if self.package:  # its extras are there already
            text = re.sub(r"\bbin/provision \w+", "true", text).replace("bin/sluice", str(self.package))
        else:
            text = re.sub(r"\bbin/(sluice|provision)\b", rf"{ROOT}/bin/\1", text)
        return text.replace(".venv/bin/python", sys.executable).replace("var/", f"{self.home}/")

    def type(self, line: str, printed: str) -> None:
        line, printed = self.here(line), self.here(printed)
        if line.endswith("bin/up"):
            self.up.close()
        if line.startswith("#"):
            return
        if line.endswith("bin/up"):
            words = (word.partition("=") for word in shlex.split(line)[:-1])
            env: dict[str, object] = {name: value for name, _, value in words}
            command = [self.package, "up"] if self.package else [ROOT / "bin/up"]
            ready = "INGEST_API_KEYS" not in env and "INGEST_TLS_KEY" not in env
            self.up.enter_context(installation(self.home, env | {"INGEST_PORT": self.port}, ready, command))
        else:
            self.said: list[str] = []
            with contextlib.suppress(AssertionError):  # the next assertion shows what was printed
                poll(lambda: printed_is(self.run(line), printed), 30)
                return
            assert self.said[:1] + self.said[-1:] == [printed], line

    def run(self, line: str) -> str:
        env = environment(self.home)
        done = subprocess.run(
            ["bash", "-c", line], cwd=self.folder, env=env, capture_output=True, text=True, timeout=300
        )
        self.said.append(done.stdout + done.stderr)
        return done.stdout


def printed_is(said: str, wanted: str) -> bool:
    """Whether an output is as printed; blanks count as one."""
    parts = (re.escape(" ".join(part.split())) for part in wanted.split("…"))
    return bool(re.fullmatch(r"\s?.*\s?".join(parts), " ".join(said.split())))


@pytest.mark.parametrize("title", TYPED)
def test_a_section_does_what_it_prints(
    title: str, tmp: Path, tmp_path: Path, server: Postgres, package: Path | None
) -> None:
    server.ask("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    for language, text in BLOCK.findall(SECTIONS[title]):
        if language == "python":
            (tmp_path / text.split()[1]).write_text(text)
    terminal = Terminal(tmp_path, tmp, server.url, package)
    with terminal.up:
        for language, text in BLOCK.findall(SECTIONS[title]):
            if language == "console":
                for line, printed in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.M):
                    terminal.type(line, printed)


def test_the_rows_of_the_dashboard_are_found(server: Postgres, tmp: Path) -> None:
    """Each query of deploy/grafana/rows.json, with Grafana's macros as it writes them."""
    server.ask("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    with installation(tmp, {"INGEST_STORE": server.url}) as up:
        bodies = {
            "/votes": b'{"poll":"p","choice":"c"}', "/gps": b'{"device":"bike","lat":48.1,"lon":11.5}',
            "/metrics": b'{"name":"room","value":21.5}', "/logs": b'{"message":"hello","level":"info"}',
        }  # fmt: skip
        for path, body in bodies.items():
            assert post(up.port, path, body)[0] == 200
        post(up.port, "/votes", b"nonsense")
        panels = json.loads((ROOT / "deploy/grafana/rows.json").read_text())["panels"]
        assert len(panels) == 5
        for panel in panels:
            assert panel["title"] and panel["description"]
            between = r"\1 BETWEEN now() - interval '1 hour' AND now() + interval '1 hour'"
            query = re.sub(r"\$__timeFilter\((\w+)\)", between, panel["targets"][0]["rawSql"])
            assert "$__" not in query
            poll(lambda query=query: len(server.ask(query)) == 1, what=panel["title"])  # type: ignore[misc]


def test_pandas_reads_while_everything_runs(tmp: Path, tmp_path: Path) -> None:
    python = ENVIRONMENT / "bin/python"
    if not python.exists():
        pytest.skip("without pandas, which bin/provision engines installs")
    (code,) = [text for language, text in BLOCK.findall(SECTIONS["DuckDB and pandas"]) if language == "python"]
    with installation(tmp) as up:
        assert post(up.port, "/votes", b'{"poll":"p","choice":"c"}')[0] == 200
        poll(lambda: get(up.port, "/votes/tally?poll=p")[0] == 200)
        done = subprocess.run(
            [python, "-c", code.replace("var/", f"{tmp}/")], capture_output=True, text=True, check=True
        )
    assert re.search(r"^c +1$", done.stdout, re.M)
