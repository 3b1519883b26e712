"""Clients by other authors, unmodified, through refusals and a cut answer; libraries that sign and verify.

docs/INTEGRATIONS.md has the table of what each does (`CLIENTS`).
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from proving import harness
from proving.harness import ask, free_port, installation, running
from support.answering_proxy import AnsweringProxy, closing, reply
from support.folders import needs

pytestmark = [pytest.mark.nightly, needs("formats", "hooks", "access")]
poll = partial(harness.poll, interval=0.05)
HERE = Path(__file__).parent / "clients"
PYTHON = harness.ROOT / ".venv-clients/bin/python"
ALERTMANAGER = "prometheus-alertmanager"
ANSWERS = {
    503: reply(503, "Retry-After: 1"),
    429: reply(429, "Retry-After: 1"),
    413: reply(413),
    400: reply(400),
    0: b"",
}
LOG = "SELECT trim(substr(message, instr(message, 'n=') + 2)) FROM logs"


class Client(NamedTuple):
    """sql: finds the numbers that are stored. again: after which answers the client sends again; 0: a cut one.

    copies: rows of what was stored although the answer was cut. fails: the user's program gets an exception for what
    was refused.
    """

    sql: str
    again: frozenset[int]
    copies: int = 1
    fails: bool = False


CLIENTS = {
    "prometheus": Client("SELECT value FROM metrics WHERE name = 'given'", frozenset(), fails=True),
    "elasticsearch": Client(LOG, frozenset((503, 429, 0)), fails=True),
    "splunk": Client(LOG, frozenset((503, 429, 0))),
    "zipkin": Client("SELECT substr(name, 3) FROM spans", frozenset()),
    "seqlog": Client(LOG, frozenset()),
    "logtail": Client(LOG, frozenset((503, 0))),
    "segment": Client("SELECT substr(body, instr(body, 'n=') + 2, 4) FROM hooks", frozenset((503, 429, 0)), copies=2),
}
Send = Callable[[int], str]


@contextlib.contextmanager
def client(name: str, port: int) -> Iterator[Send]:
    command = [str(PYTHON), str(HERE / "send.py"), name, f"http://127.0.0.1:{port}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        written, read = process.stdin, process.stdout

        def send(number: int) -> str:
            print(number, file=written, flush=True)
            return read.readline().strip()

        yield send
        process.kill()


@contextlib.contextmanager
def alertmanager(tmp: Path, port: int) -> Iterator[Send]:
    """Each number is an alert in a group of its own."""
    listen = free_port()
    (tmp / "alertmanager.yml").write_text(
        "route: {receiver: a, group_by: [alertname], group_wait: 0s, group_interval: 1s}\n"
        f"receivers: [{{name: a, webhook_configs: [{{url: 'http://127.0.0.1:{port}/hooks/alerts'}}]}}]\n"
    )
    command = [ALERTMANAGER, f"--config.file={tmp}/alertmanager.yml", f"--storage.path={tmp}/am"]
    command += [f"--web.listen-address=127.0.0.1:{listen}", "--cluster.listen-address="]

    def send(number: int) -> str:
        alerts = [{"labels": {"alertname": f"n={number}"}}]
        body = json.dumps(alerts).encode()
        status = harness.post(listen, "/api/v2/alerts", body, {"Content-Type": "application/json"})[0]
        return "ok" if status == 200 else str(status)

    with running(command, tmp / "am.out", harness.environment(tmp)):
        poll(lambda: harness.get(listen, "/-/ready")[0] == 200)
        yield send


def stored(up: harness.Server, sql: str) -> list[int]:
    return [int(float(str(value).strip('", \\}'))) for (value,) in ask(up.home, sql)]


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_sends_again_or_drops_what_was_refused(name: str, tmp: Path) -> None:
    if not PYTHON.exists():
        pytest.skip("no clients: bin/provision nightly installs them")
    sql, again, copies, fails = CLIENTS[name]
    replies: list[bytes] = []
    with installation(tmp) as up, closing(AnsweringProxy(up.port, replies)) as port, client(name, port) as send:
        for number, (status, answer) in enumerate(ANSWERS.items(), 1):
            refused, later = 1000 + number, 2000 + number
            replies.append(answer)
            outcome = send(refused)
            assert (outcome != "ok") == (fails and status not in again), (status, outcome)
            assert not replies and send(later) == "ok"
            expected = copies if status == 0 else int(status in again)
            poll(lambda: later in stored(up, sql))  # noqa: B023
            poll(lambda: stored(up, sql).count(refused) == expected, what=f"{status}: {expected} rows")  # noqa: B023
        assert ask(up.home, "SELECT reason FROM dead_letters") == []


def test_alertmanager_sends_again_after_each_answer(tmp: Path) -> None:
    """After 503 by itself, after 4xx with the next notification of the group; a cut answer makes a second row."""
    if not shutil.which(ALERTMANAGER):
        pytest.skip("no Alertmanager: bin/provision nightly installs Debian's package")
    sql = 'SELECT substr(body, instr(body, \'"alertname":"n=\') + 15, 4) FROM hooks'
    replies: list[bytes] = []
    with (
        installation(tmp / "home") as up,
        closing(AnsweringProxy(up.port, replies)) as port,
        alertmanager(tmp, port) as send,
    ):
        for number, (status, answer) in enumerate(ANSWERS.items(), 1):
            replies.append(answer)
            assert send(1000 + number) == "ok"
            expected = 1 if status else 2
            poll(lambda: stored(up, sql).count(1000 + number) == expected, what=str(status))  # noqa: B023


def run(sent: dict[str, Any]) -> Any:
    done = subprocess.run(
        [PYTHON, HERE / "sign.py"], input=json.dumps(sent), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_the_libraries_of_svix_stripe_and_slack_sign_is_valid_and_the_reverse() -> None:
    if not PYTHON.exists():
        pytest.skip("no clients: bin/provision nightly installs them")
    from sluice.contrib.access.signature import SCHEMES, Request, Wrong, check_signature
    from sluice.contrib.forward.signing import key_of, signatures

    secret, body, now = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", '{"a":"ä"}', int(time.time())
    for name, fields in run({"secret": secret, "body": body, "id": "msg_1", "time": now}).items():
        scheme = SCHEMES["standard" if name == "svix" else name]
        lower = {key.lower(): value for key, value in fields.items()}

        def checked(content: str) -> str:
            request = Request(lambda field: lower.get(field.lower(), ""), content.encode(), "/hooks/a", "")  # noqa: B023
            try:
                check_signature(scheme, (scheme.key(secret),), request, now)  # noqa: B023
            except Wrong as wrong:
                return str(wrong)
            return ""

        assert (checked(body), checked(body + " ")) == ("", "signature: wrong"), name
    ours = {"webhook-id": "e:1", "webhook-timestamp": str(now)}
    ours["webhook-signature"] = signatures([key_of(secret)], "e:1", now, body.encode())
    assert run({"secret": secret, "body": body, "ours": ours}) == [True, False]
