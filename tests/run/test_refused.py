"""The cause of a 503 is found as docs/OPERATING.md says: from the log of the gateway, and from bin/sluice status."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from redis import Redis

from proving.harness import ROOT, free_port, gateway, poll, post, redis_server
from support.folders import needs
from support.operator_verbs import sluice

pytestmark = pytest.mark.contract

PAGE = (ROOT / "docs/OPERATING.md").read_text()


@needs("sentinel")
@pytest.mark.parametrize("style", ["text", "json", "json,debug"])
def test_the_log_and_status_show_why_posts_get_503(style: str, tmp: Path) -> None:
    (section,) = re.findall(r"^## When posts get 503\n(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)
    refusing, accepting = re.findall(r"^    (.*)$", section, re.MULTILINE)
    (cause,) = re.findall(r"\((.*)\)", refusing)
    port = free_port()
    env = {"INGEST_SPOOL": f"redis://:given@127.0.0.1:{port}", "INGEST_LOG": style}
    with redis_server(tmp, appendfsync="no", port=port) as redis, Redis(unix_socket_path=str(redis.socket)) as admin:
        admin.config_set("requirepass", "other")
        with gateway(tmp, env=env) as server:
            assert [post(server.socket, "/votes", b"{}")[0] for _ in range(3)] == [503] * 3
            code, _, complaint = sluice(tmp, "status", **env)
            assert code == 1 and cause in complaint
            admin.config_set("requirepass", "given")
            poll(lambda: post(server.socket, "/votes", b"{}")[0] == 200)
            poll(lambda: accepting in server.said())
            said = server.said()
    assert said.count(refusing) == said.count(accepting) == 1
    assert "given" not in said + complaint
