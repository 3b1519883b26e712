"""Settings of Kafka."""

from __future__ import annotations

import pytest

from sluice import settings


def test_bodies_may_wait_in_kafka() -> None:
    url = "kafka://u:p%40@a:9092,b:9092/mine?partitions=8&ssl.ca.location=/ca.pem&properties=/k"
    found = settings.load_settings({"INGEST_SPOOL": url, "INGEST_HOME": "/h"})
    assert (found.spool, found.has_own_redis, found.figures) == (url, False, found.scratch_redis)
    assert found.figures == "/h/run/views.sock"
    assert ":p" not in settings.without_password(url)


@pytest.mark.parametrize(
    "env, words",
    [
        ({"INGEST_RUNTIME": "pypy"}, "its client does not run on PyPy"),
        ({"INGEST_REPLICAS": "1"}, "INGEST_REPLICAS is for Redis"),
    ],
)
def test_what_does_not_go_with_kafka_is_said_in_one_line(env: dict[str, str], words: str) -> None:
    with pytest.raises(settings.SettingError, match=words) as caught:
        settings.load_settings({"INGEST_SPOOL": "kafka://h:9092"} | env)
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password", "ssl.key.password", "ssl.key.pem", "sasl.oauthbearer.client.secret", "sasl.oauthbearer.config",
        "sasl.oauthbearer.assertion.private.key.passphrase",
    ],
)  # fmt: skip
def test_a_url_of_kafka_is_shown_without_the_secrets_of_its_client(name: str) -> None:
    shown = settings.without_password(f"kafka://h:9092/x?client.id=me&{name}=hidden&partitions=2")
    assert shown == f"kafka://h:9092/x?client.id=me&{name}=…&partitions=2"
