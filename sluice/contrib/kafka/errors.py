"""Why Kafka takes or gives nothing."""

from __future__ import annotations

from sluice.spool.errors import SpoolUnavailable


class KafkaUnavailable(SpoolUnavailable):
    """Kafka does not answer, or refuses. reason: in one line."""

    def __init__(self, reason: object) -> None:
        super().__init__(f"Kafka is unavailable: {reason}")
        self.reason = reason
