"""Decodes what Datadog's agents and libraries post to its intake of logs (docs.datadoghq.com, "Send logs").

A log is a row of `logs`. `status` is its level; `hostname`, `ddsource` and `ddtags` are attributes. A parameter of the
URL with such a name counts for the logs that lack it. The agent asks with an empty object whether it may send.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sluice.contrib.formats.json_objects import object_records
from sluice.contrib.formats.log_fields import build_log
from sluice.streams.body import Budget, Empty
from sluice.streams.decoder import Result
from sluice.streams.message import Message
from sluice.streams.record import Log

PARAMETERS = "ddsource", "ddtags", "hostname", "service"


def decode(body: bytes, message: Message, budget: Budget) -> Iterable[Result]:
    """The logs of a body. Raises: Invalid."""
    beside = {name: value for name in PARAMETERS if (value := message.parameter(name))}

    def rows(sent: dict[str, Any]) -> tuple[Log]:
        if not sent:
            raise Empty("connectivity")
        if "level" not in sent and isinstance(sent.get("status"), str):
            sent["level"] = sent.pop("status")
        budget.charge_bytes(len(message.query))
        return (build_log(beside | sent),)

    return object_records(body, budget, rows)
