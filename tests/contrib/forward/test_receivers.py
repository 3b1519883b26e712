"""What INGEST_ROWS may say of a receiver, what is shown of it, its signatures, and the client."""

from __future__ import annotations

import socket
import time
from email.utils import formatdate
from pathlib import Path

import pytest

from proving.receiver import Post, Reply, receiving
from sluice import settings
from sluice.contrib.destinations.registry import check_destinations as check_rows
from sluice.contrib.forward.client import ANSWER_BYTES, RETRY_SECONDS, Client, retry_after
from sluice.contrib.forward.parts import check, forward
from sluice.contrib.forward.signing import Secrets, key_of, signatures
from sluice.contrib.forward.target import Target
from sluice.settings import SettingError
from sluice.streams.built_in import STREAMS


def test_a_url_has_its_options_behind_the_hash() -> None:
    plain = Target.of("https://u%40:p%3A@host:8443/a/b?c=d#order=device&age=30m&timeout=3&parallel=2&secret=/x")
    assert plain.url == "https://host:8443/a/b?c=d"
    assert (plain.login, plain.shown) == ("Basic dUA6cDo=", "https://host:8443/…")
    assert (plain.order, plain.age, plain.timeout, plain.parallel, plain.secret) == ("device", 1800, 3, 2, "/x")
    bare = Target.of("http://host")
    assert (bare.shown, bare.order, bare.age, bare.parallel) == ("http://host", "", 3 * 86_400, 8)
    assert Target.of("http://host/a").mark != Target.of("http://host/b").mark
    assert Target.of("http://host/a#age=1d").mark == Target.of("http://host/a").mark


@pytest.mark.parametrize(
    "rows, why",
    [
        ("votes=https://host/#order=device", "order=device is no field of votes, which has poll, choice, voter"),
        ("votes=https://host/#secret=/nowhere", "No such file or directory"),
        ("votes=https://host/#seconds=1", "expected store or one of"),
        ("votes=https://host:99999/", "Port out of range 0-65535"),
        ("votes=store+parquet:///a", "takes rows instead of their table, not beside it"),
    ],
)
def test_an_invalid_receiver_stops_the_start(rows: str, why: str) -> None:
    s = settings.load_settings({"INGEST_ROWS": rows})
    with pytest.raises(SettingError, match=why):
        for each in check_rows, check:
            each(s, {}, STREAMS)


def test_the_program_runs_if_rows_are_posted() -> None:
    assert forward(settings.load_settings({})) is None
    assert forward(settings.load_settings({"INGEST_ROWS": "votes=parquet:///a"})) is None
    assert forward(settings.load_settings({"INGEST_ROWS": "gps=store+http://host/,votes=parquet:///a"})) is not None


def test_a_signature_is_that_of_standard_webhooks() -> None:
    """The example of its documents."""
    key = key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    made = signatures([key, key], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert made == " ".join(["v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="] * 2)


def test_a_file_of_secrets_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    one, two = (f"whsec_{letter * 32}" for letter in "AB")
    file.write_text(f"{one}\n\n")
    secrets = Secrets(str(file))
    assert secrets.read() == [key_of(one)]
    new = tmp_path / "new"
    new.write_text(f"{two}\n{one}\n")
    new.replace(file)
    assert secrets.read() == [key_of(two), key_of(one)]
    for wrong in "", "hunter2", "whsec_c2hvcnQ=":
        new.write_text(wrong)
        new.replace(file)
        with pytest.raises(ValueError, match="secret") as raised:
            secrets.read()
        assert "hunter2" not in str(raised.value)


def test_retry_after_is_seconds_or_a_date_and_at_most_a_day() -> None:
    assert retry_after("7") == 7.0
    assert 5.0 < retry_after(formatdate(time.time() + 8, usegmt=True)) <= 8.0
    assert retry_after(formatdate(time.time() - 60, usegmt=True)) == 0.0
    assert retry_after("999999999999") == RETRY_SECONDS
    assert [retry_after(odd) for odd in ("", "soon", "-1", "1.5")] == [0.0] * 4


def test_a_connection_is_kept_and_made_anew_when_the_receiver_has_closed_it() -> None:
    with receiving() as receiver:
        client = Client(receiver.url, 5.0)
        assert client.post([("Idempotency-Key", b"1")], b"a").taken
        first = client.connection
        assert client.post([("Idempotency-Key", b"2")], b"b").taken
        assert client.connection is first
        assert first is not None
        first.sock.shutdown(socket.SHUT_RDWR)  # as one that the receiver has closed
        assert client.post([("Idempotency-Key", b"3")], b"c").taken
        assert client.connection is not first
        assert receiver.keys == ["1", "2", "3"]
        client.close()


def test_a_receiver_that_closes_each_connection_has_as_long_for_each_answer() -> None:
    def rule(post: Post, number: int) -> Reply:
        return Reply() if number else Reply(fields=(("Connection", "close"),))

    with receiving(rule) as receiver:
        client = Client(receiver.url, 30.0)
        for key in b"1", b"2":  # the second one connects anew, for which there is less time
            assert client.post([("Idempotency-Key", key)], b"").taken
        assert client.connection is not None
        assert client.connection.sock.gettimeout() == 30.0
        client.close()


def test_a_large_answer_is_not_read() -> None:
    with receiving(lambda post, number: Reply(500, (("X-Long", "a" * 1000),))) as receiver:
        client = Client(receiver.url, 5.0)
        answer = client.post([("Idempotency-Key", b"1")], b"")
        assert (answer.status, answer.words) == (500, "answered 500 Internal Server Error")
        assert ANSWER_BYTES < 1 << 16
        client.close()


def test_a_field_that_would_be_two_is_not_sent() -> None:
    with receiving() as receiver:
        client = Client(receiver.url, 5.0)
        answer = client.post([("X-A", b"1\r\nX-B: 2")], b"")
        assert (answer.status, receiver.posts) == (0, [])
        client.close()
