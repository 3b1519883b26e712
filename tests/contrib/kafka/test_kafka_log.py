"""What gateway, worker and operator say of a Kafka that takes nothing."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from proving.harness import free_port, redis_server
from sluice.contrib.kafka.errors import KafkaUnavailable

pytestmark = pytest.mark.contract
SECRET = "hunter2"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is in the log at the default level."""
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]
    assert SECRET not in "".join(lines)
    return lines


@pytest.mark.nightly
def test_the_gateway_and_the_worker_log_why_kafka_takes_nothing(caplog: pytest.LogCaptureFixture, tmp: Path) -> None:
    kafka = pytest.importorskip("sluice.contrib.kafka.inlet")
    with redis_server(tmp) as redis:
        inlet = kafka.Inlet(f"kafka://u:{SECRET}@127.0.0.1:{free_port()}", str(redis.socket), 1 << 20)
        for _ in range(2):
            group = inlet.append("votes", b"x")
            inlet.commit(group)
            assert group.refused
    (line,) = [line for line in warnings(caplog) if line.startswith("votes: ")]
    assert line.startswith("votes: refusing bodies: Kafka does not acknowledge. (")
    assert "imed out" in line or "Connection refused" in line or "ransport" in line


def test_a_broker_that_does_not_answer_is_one_reason_whichever_step_times_out() -> None:
    kafka, admin = (pytest.importorskip(f"sluice.contrib.kafka.{name}") for name in ("inlet", "admin"))
    confluent = pytest.importorskip("confluent_kafka")
    inlet = kafka.Inlet("kafka://127.0.0.1:1", "/nowhere", 1 << 20)
    reasons = set()
    for text in "Timed out waiting for controller", "Failed while waiting for controller: Local: Timed out":
        timed_out = confluent.KafkaError(confluent.KafkaError._TIMED_OUT, text)
        for error in confluent.KafkaException(timed_out), TimeoutError():
            with pytest.raises(KafkaUnavailable) as away, admin.ask_errors():
                raise error
            reason, cause = inlet.told(admin.error_code(away.value), away.value.reason)
            reasons.add(reason)
            assert cause == away.value.reason
    assert reasons == {inlet.down}
