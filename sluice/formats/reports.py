"""Decodes what browsers report: the Reporting API (w3.org/TR/reporting-1) and the older reports of CSP.

A report is a row of `logs` at the time of its arrival: `message` is its type, all else is in the attributes. A report
of CSP (its report-uri; w3.org/TR/CSP3, 5.3) gets the type that it has in the Reporting API.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sluice.formats.objects import records
from sluice.streams.body import Budget
from sluice.streams.decoder import Result
from sluice.streams.message import Message
from sluice.streams.record import Invalid, Log


def decode(body: bytes, message: Message, budget: Budget) -> Iterator[Result]:
    """The reports of a body. Raises: Invalid."""
    return records(body, budget, lambda sent: (report(sent),))


def report(sent: dict[str, Any]) -> Log:
    """The row of a report. Raises: Invalid."""
    if isinstance(about := sent.pop("csp-report", None), dict):
        return Log(message="csp-violation", attributes={**sent, "body": about})
    kind = sent.pop("type", None)
    if not isinstance(kind, str) or not kind:
        raise Invalid("missing: type")
    return Log(message=kind, attributes={name: value for name, value in sent.items() if value is not None})
