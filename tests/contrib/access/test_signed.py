"""Signed webhooks from nginx to the database: a signed body is stored, any other is buried with the reason."""

from __future__ import annotations

import base64
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proving.harness import ROOT, Server, ask, environment, installation, poll, post, short_tmp
from sluice import settings
from sluice.contrib.access.signature import PRIME, SCHEMES, SMALL, PublicKey, Request, check_signature
from sluice.run.up import check_modules
from sluice.streams.message import parse_message

pytestmark = pytest.mark.contract

OWN = """
from pathlib import Path
from sluice.http.routes import OK, Route
SCHEMES = {"github": "github", "stripe": "stripe", "standard": "standard", "public": "standard"}
ROUTES = {f"/{name}": Route(name, OK, keep_head=True) for name in SCHEMES}
ROUTES["/headless"] = Route("github", OK)
for name, scheme in SCHEMES.items():
    ROUTES[f"/door/{name}"] = Route("door", OK, signed=f"{scheme}:{Path(__file__).with_name(name)}.secret")

try:
    from sluice.streams.record import Record
    from sluice import signed, stream
except ImportError:  # the gateway on PyPy has no msgspec
    pass
else:
    class Hook(Record):
        action: str

    STREAMS = {"door": stream("door", Hook)} | {
        name: signed(stream(name, Hook), Path(__file__).with_name(f"{name}.secret"), scheme)
        for name, scheme in SCHEMES.items()
    }
"""
Sign = Callable[[], dict[str, str]]
BODY = b'{"action":"opened"}'
SECRETS = {
    "github": "It's a secret",
    "stripe": "whsec_abc",
    "standard": "whsec_" + base64.b64encode(b"k" * 24).decode(),
}


def digest(key: bytes, data: bytes) -> bytes:
    """HMAC-SHA256, computed by openssl."""
    command = ["openssl", "dgst", "-sha256", "-binary", "-mac", "HMAC", "-macopt", f"hexkey:{key.hex()}"]
    return subprocess.run(command, input=data, capture_output=True, check=True).stdout


def github(body: bytes = BODY, key: bytes = SECRETS["github"].encode()) -> dict[str, str]:
    return {"X-Hub-Signature-256": "sha256=" + digest(key, body).hex()}


def stripe(body: bytes = BODY, at: str = "1700000000") -> dict[str, str]:
    signature = digest(SECRETS["stripe"].encode(), at.encode() + b"." + body).hex()
    return {"Stripe-Signature": f"t={at},v1={'0' * 64},v1={signature},v0=x"}


def standard(body: bytes = BODY, name: str = "msg_1", at: str = "1700000000") -> dict[str, str]:
    signature = base64.b64encode(digest(b"k" * 24, f"{name}.{at}.".encode() + body)).decode()
    return {"webhook-id": name, "webhook-timestamp": at, "webhook-signature": f"v1a,abc v1,{'A' * 43}= v1,{signature}"}


PRIVATE, OTHER = (
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519"], capture_output=True, check=True).stdout
    for _ in range(2)
)


def public(key: bytes = PRIVATE) -> str:
    """The public key, as a sender displays it."""
    command = ["openssl", "pkey", "-pubout", "-outform", "DER"]
    made = subprocess.run(command, input=key, capture_output=True, check=True).stdout
    return "whpk_" + base64.b64encode(made[-32:]).decode()


def asymmetric(body: bytes = BODY, name: str = "msg_1", at: str = "1700000000", key: bytes = PRIVATE) -> dict[str, str]:
    with tempfile.NamedTemporaryFile() as file, tempfile.NamedTemporaryFile() as data:
        Path(file.name).write_bytes(key)
        Path(data.name).write_bytes(f"{name}.{at}.".encode() + body)
        command = ["openssl", "pkeyutl", "-sign", "-rawin", "-inkey", file.name, "-in", data.name]
        made = subprocess.run(command, capture_output=True, check=True).stdout
    signature = base64.b64encode(made).decode()
    return standard(body, name, at) | {"webhook-signature": f"v1,{'A' * 43}= v1a,{'A' * 86}== v1a,{signature}"}


@pytest.fixture(scope="module")
def up() -> Iterator[Server]:
    with short_tmp() as tmp:
        (tmp / "own.py").write_text(OWN)
        for name, secret in SECRETS.items():
            (tmp / f"{name}.secret").touch(0o600)
            (tmp / f"{name}.secret").write_text(f"an older one\n\n{secret}\n" if name != "standard" else secret)
        (tmp / "public.secret").touch(0o600)
        (tmp / "public.secret").write_text(f"{public(OTHER)}\n{SECRETS['standard']}\n{public()}\n")
        with installation(tmp / "var", {"INGEST_ROUTES": tmp / "own.py", "INGEST_RECORDS": tmp / "own.py"}) as server:
            yield server


def fate(up: Server, stream: str, body: bytes, headers: dict[str, str], target: str = "") -> list[str]:
    """The reasons of the dead letters of a body; an empty list if all of it is stored."""
    batch = "SELECT max(id) FROM batches HAVING max(id)"
    before = ask(up.home, batch)
    assert post(up.port, target or f"/{stream}", body, headers)[0] == 200
    poll(lambda: ask(up.home, batch) not in ([], before))
    letters = ask(
        up.home, f"SELECT reason FROM dead_letters WHERE batch = ({batch}) AND stream = '{stream}' ORDER BY id"
    )
    assert letters or ask(up.home, f"SELECT 1 FROM {stream} WHERE batch = ({batch})")
    return [reason for (reason,) in letters]


@pytest.mark.parametrize(
    "stream, sign", [("github", github), ("stripe", stripe), ("standard", standard), ("public", asymmetric)]
)
def test_a_signed_body_is_stored_and_a_changed_one_is_not(stream: str, sign: Sign, up: Server) -> None:
    assert fate(up, stream, BODY, sign()) == []
    assert fate(up, stream, BODY + b" ", sign()) == ["signature: wrong"]


FIELD = "X-Hub-Signature-256"
WRONG: dict[str, tuple[str, dict[str, str], str]] = {
    "nothing": ("github", {}, f"signature: {FIELD} is missing"),
    "another_secret": ("github", github(key=b"It's a secret."), "signature: wrong"),
    "an_empty_secret": ("github", github(key=b"\0"), "signature: wrong"),  # HMAC fills keys up with zeros
    "the_signature_cut_short": ("github", {FIELD: github()[FIELD][:-2]}, "signature: wrong"),
    "no_signature_in_the_field": ("github", {FIELD: "sha256="}, "signature: wrong"),
    "an_older_algorithm": ("github", {FIELD: "sha1=" + "0" * 40}, f"signature: {FIELD} is not understood"),
    "not_hexadecimal": ("github", {FIELD: "sha256=" + "x" * 64}, f"signature: {FIELD} is not understood"),
    "another_time": (
        "stripe", {"Stripe-Signature": stripe()["Stripe-Signature"].replace("17", "18", 1)}, "signature: wrong"
    ),
    "two_times": (
        "stripe", {"Stripe-Signature": "t=1," + stripe()["Stripe-Signature"]},
        "signature: Stripe-Signature is not understood",
    ),
    "no_time": ("stripe", {"Stripe-Signature": "v1=" + "0" * 64}, "signature: Stripe-Signature is not understood"),
    "another_name": ("standard", standard() | {"webhook-id": "msg_2"}, "signature: wrong"),
    "no_name": ("standard", {"webhook-signature": "v1,AAAA"}, "signature: webhook-signature is not understood"),
    # a signature of 1.2.BODY must not be valid for BODY at the second 2
    "a_point_in_the_name": (
        "standard", standard(at="2.2") | {"webhook-id": "msg_1.2", "webhook-timestamp": "2"},
        "signature: webhook-signature is not understood",
    ),
    "another_private_key": (
        "public", asymmetric(key=subprocess.check_output(["openssl", "genpkey", "-algorithm", "ed25519"])),
        "signature: wrong",
    ),
    "another_time_of_ed25519": ("public", asymmetric() | {"webhook-timestamp": "1700000001"}, "signature: wrong"),
    "a_signature_of_ed25519_cut_short": (
        "public", {**asymmetric(), "webhook-signature": asymmetric()["webhook-signature"][:-4]}, "signature: wrong"
    ),
    "too_many_signatures": (
        "public", {**asymmetric(), "webhook-signature": f"v1a,{'A' * 86}== " * 8 + asymmetric()["webhook-signature"]},
        "signature: wrong",
    ),
    "a_signature_of_ed25519_where_there_are_secrets_only": ("standard", asymmetric(), "signature: wrong"),
    "a_point_in_the_time": ("standard", standard(at="2.2"), "signature: webhook-signature is not understood"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_body_without_a_valid_signature_is_buried_with_the_reason(case: str, up: Server) -> None:
    stream, headers, reason = WRONG[case]
    assert fate(up, stream, BODY, headers) == [reason]


def test_a_query_string_does_not_replace_a_signed_body(up: Server) -> None:
    reasons = fate(up, "github", b"", github(b""), "/github?action=opened")
    assert reasons == ["signature: only a body can be signed"]


def test_a_route_without_the_head_stores_nothing_in_a_signed_stream(up: Server) -> None:
    reasons = fate(up, "github", BODY, github(), "/headless")
    assert reasons == ["signature: there is no head; the route needs keep_head=True"]


def test_an_invalid_record_of_a_signed_body_is_replayed_without_its_own_signature(up: Server) -> None:
    body = BODY + b'\n{"act":"closed"}\n{"action":1}'
    reasons = fate(up, "github", body, github(body))
    assert len(reasons) == 2
    assert not any("signature" in reason for reason in reasons)
    mended = OWN.replace("action: str", 'action: str | int = ""')
    (up.home.parent / "mended.py").write_text(mended)
    command: list[str | Path] = [ROOT / "bin/sluice", "replay", "--where"]
    env = environment(up.home, {"INGEST_RECORDS": up.home.parent / "mended.py"})
    done = subprocess.run([*command, "NOT whole"], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 letters: 2 stored" in done.stdout
    # an unsigned body stays dead, even if the decoder would accept it
    assert len(fate(up, "github", BODY, {})) == 1
    whole = subprocess.run([*command, "whole"], env=env, capture_output=True, text=True, timeout=60)
    assert "0 stored" in whole.stdout


@pytest.mark.parametrize(
    "stream, sign", [("github", github), ("stripe", stripe), ("standard", standard), ("public", asymmetric)]
)
def test_at_the_door_a_wrong_or_an_old_signature_gets_401_and_stores_nothing(
    stream: str, sign: Callable[..., dict[str, str]], up: Server
) -> None:
    now = {} if stream == "github" else {"at": str(int(time.time()))}
    path = f"/door/{stream}"
    accepted = "SELECT coalesce(sum(last - first + 1), 0) FROM batches_ranges WHERE stream = 'door'"
    before = ask(up.home, accepted)
    wrong = [
        (BODY + b" ", sign(**now)),
        (BODY, {}),
        (b"", sign(b"", **now)),
        (BODY, {name: "x" for name in sign(**now)}),
    ]
    if now:
        wrong += [(BODY, sign(at=str(int(time.time()) + off))) for off in (-310, 310)]
    for body, headers in wrong:
        status, fields, answer = post(up.port, path + "?action=opened", body, headers)
        assert (status, fields["www-authenticate"]) == (401, "Webhook")
        assert b"ignature: " in answer
    assert post(up.port, path, BODY, sign(**now))[0] == 200
    poll(lambda: ask(up.home, accepted)[0][0] == before[0][0] + 1)  # this one alone


def verify(item: bytes, scheme: str, secret: str) -> None:
    message = parse_message(item)
    assert message
    check_signature(SCHEMES[scheme], [SCHEMES[scheme].key(secret)], Request(message.field, message.body))


def test_the_signatures_in_the_senders_documentation_are_valid() -> None:
    """GitHub's documentation, and the reference of Standard Webhooks."""
    message = b"POST /x HTTP/1.1\r\nX-Hub-Signature-256: sha256=%b\r\n\r\nHello, World!"
    signature = b"757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    verify(message % signature, "github", "It's a Secret to Everybody")
    message = (
        b"POST /x HTTP/1.1\r\nwebhook-id: msg_p5jXN8AQM9LWM0D4loKWxJek\r\nwebhook-timestamp: 1614265330\r\n"
        b'webhook-signature: v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=\r\n\r\n{"test": 2432232314}'
    )
    verify(message, "standard", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")


@pytest.mark.parametrize(
    "text, scheme, words",
    [
        (None, "github", "cannot be read: No such file"), ("", "github", "has no line with a secret of github"),
        ("whsec_?", "standard", "has no line with a secret of standard"),
        ("whsec_", "standard", "has no line with a secret of standard"),  # anybody could sign with it
        ("whpk_AAAA", "standard", "has no line with a secret of standard"),
        (f"whpk_{'A' * 43}=", "standard", "the public key has a small order"),
        ("x", "gitea", "'gitea' is no scheme that signs: expected github, stripe, standard, shopify"),
    ],
)  # fmt: skip
def test_an_invalid_secret_stops_the_start_with_one_line(
    text: str | None, scheme: str, words: str, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    if text is not None:
        secret.touch(0o600)
        secret.write_text(text)
    (tmp_path / "own.py").write_text(
        "from sluice import signed, stream\nfrom sluice.streams.record import Vote\n"
        f"STREAMS = {{'x': signed(stream('x', Vote), {str(secret)!r}, {scheme!r})}}"
    )
    env = environment(tmp_path, {"INGEST_RECORDS": tmp_path / "own.py"})
    done = subprocess.run([sys.executable, ROOT / "worker.py"], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert words in done.stderr
    assert "whsec" not in done.stderr


def test_a_public_key_for_which_anybody_can_sign_is_refused() -> None:
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    invalid = pytest.importorskip("cryptography.exceptions").InvalidSignature
    neutral = bytes([1]) + bytes(31)  # the point R of a signature whose number S is 0, of 1 to 8 messages in 8

    def is_forged(key: bytes) -> bool:
        for n in range(200):
            with contextlib.suppress(invalid):
                ed25519.Ed25519PublicKey.from_public_bytes(key).verify(neutral + bytes(32), b"%d" % n)
                return True
        return False

    sign = 1 << 255  # of x
    keys = [(y + x).to_bytes(32, "little") for y in (*SMALL, PRIME, PRIME + 1) for x in (0, sign)]
    assert all(map(is_forged, keys[:10])) and len(keys) == 14
    for key in keys:
        with pytest.raises(settings.SettingError, match="anybody can sign for it"):
            PublicKey(key)
    assert not is_forged(base64.b64decode(public().removeprefix("whpk_")))


@pytest.mark.nightly
def test_a_public_key_needs_its_library_and_cpython(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text(public())
    (tmp_path / "own.py").write_text(
        f"from sluice import OK, Route\nROUTES = {{'/votes': Route('votes', OK, signed='standard:{secret}')}}"
    )
    s = settings.load_settings({"INGEST_ROUTES": str(tmp_path / "own.py"), "INGEST_RUNTIME": "pypy"})
    with pytest.raises(settings.SettingError, match="INGEST_RUNTIME=pypy cannot check the public key of /votes"):
        check_modules(s)
    # a Python that has only the packages of the gateway
    program = "import sys; sys.modules['cryptography'] = None; from sluice.routes import *\n"
    program += "from sluice.contrib.access.signature import *\n"
    program += f"print(load_signed(load_routes({str(tmp_path / 'own.py')!r})))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "a public key needs cryptography: bin/provision webhooks installs it." in done.stderr
