"""Keys of bodies with a signature."""

from __future__ import annotations

import hmac
from pathlib import Path

import pytest

from sluice.contrib.access.signed_stream import signed_stream
from support.keys_contract import VOTE, Here, keyed

pytestmark = pytest.mark.contract


def test_a_body_that_is_not_its_senders_does_not_take_its_key(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("It's a Secret to Everybody\n")
    secret.chmod(0o600)
    here = Here(f"sqlite:///{tmp_path}/ingest.db")
    votes = here.streams["votes"]
    here.streams["votes"] = signed_stream(votes, str(secret), "github")
    forged = keyed("d", VOTE, field="X-GitHub-Delivery")
    right = hmac.new(b"It's a Secret to Everybody", VOTE, "sha256").hexdigest()
    genuine = forged.replace(b"\r\n\r\n", f"\r\nX-Hub-Signature-256: sha256={right}\r\n\r\n".encode())
    assert here.put("votes", forged) == (0, 1)
    assert here.put("votes", genuine, genuine) == (1, 0)
