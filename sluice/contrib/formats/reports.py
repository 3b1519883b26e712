"""Decodes what browsers report: the Reporting API (w3.org/TR/reporting-1) and the older reports of CSP.

A report is a row of `logs` at the time of its arrival: `message` is its type, all else is in the attributes. A report
of CSP (its report-uri; w3.org/TR/CSP3, 5.3) gets the type that it has in the Reporting API. So do the reports of
Expect-CT (RFC 9163, 3.1), Expect-Staple, key pinning (RFC 7469, 3) and, of mail servers, TLS (RFC 8460, 4.4), which
have no type.
"""

from __future__ import annotations

from typing import Any

from sluice.contrib.formats.json_objects import object_decoder
from sluice.streams.record import Invalid, Log

# The types of reports that are in a member of a name, and of those that have such a member
WRAPPED = {"csp-report": "csp-violation", "expect-ct-report": "expect-ct", "expect-staple-report": "expect-staple"}
BARE = {"known-pins": "hpkp", "policies": "tlsrpt"}


def build_report(sent: dict[str, Any]) -> Log:
    """The row of a report. Raises: Invalid."""
    for name, wrapped in WRAPPED.items():
        if isinstance(about := sent.pop(name, None), dict):
            return Log(message=wrapped, attributes={**sent, "body": about})
    kind = sent.pop("type", None) or next((bare for name, bare in BARE.items() if name in sent), None)
    if not isinstance(kind, str) or not kind:
        raise Invalid("missing: type")
    return Log(message=kind, attributes={name: value for name, value in sent.items() if value is not None})


decode = object_decoder(build_report)
