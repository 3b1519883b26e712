"""Decodes what Grafana's Faro sends (github.com/grafana/faro-web-sdk, "TransportBody"): each entry is a row of `logs`.

`meta` belongs to each: its app's name is the service, the rest is the attribute `meta`. `kind` is log, event, exception
or measurement. An exception also has the names of the events that were sent with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from sluice.contrib.formats.log_fields import NO_MESSAGE, build_log
from sluice.contrib.formats.parts import encoded_size
from sluice.streams import body as bodies
from sluice.streams.body import Budget, Empty
from sluice.streams.decoder import NUL, Result, check_text
from sluice.streams.message import Message
from sluice.streams.record import Invalid, Log, Reject

KINDS = {"logs": "log", "events": "event", "exceptions": "exception", "measurements": "measurement"}
META = re.compile(rb'^\{.*"(?:app|sdk|session|page|browser|view)"\s*:', re.DOTALL)
EVENTS = 20  # whose names an exception has
read = msgspec.json.Decoder(dict[str, Any]).decode


def decode(part: bytes, message: Message | None, budget: Budget) -> Iterable[Result]:
    """Raises: Invalid, Empty."""
    if len(part) > budget.limits.record:
        raise Invalid(f"record larger than {budget.limits.record} bytes")
    sent = read(part)
    if not isinstance(sent.get("meta"), dict):
        raise Invalid(NO_MESSAGE)
    entries = [(name, one) for name in KINDS for one in sent.get(name) or () if isinstance(sent[name], list)]
    if not entries:
        raise Empty
    return rows(sent, entries, NUL in part, budget)


def rows(sent: dict[str, Any], entries: list[tuple[str, Any]], has_nul: bool, budget: Budget) -> Iterator[Result]:
    meta = sent.get("meta")
    meta = meta if isinstance(meta, dict) else {}
    app = meta.get("app")
    service = app.get("name") if isinstance(app, dict) else None
    names = [one["name"] for kind, one in entries if kind == "events" and isinstance(one, dict) and "name" in one]
    size = encoded_size(meta)
    for at, (kind, one) in enumerate(entries):
        if budget.left <= 0:
            rest = {"meta": meta} | {name: [each for of, each in entries[at:] if of == name] for name in KINDS}
            yield Reject(msgspec.json.encode(rest), bodies.Remainder.reason)
            return
        try:
            log = entry(kind, one)
            budget.charge_bytes(size)
            log.attributes = {"meta": meta, **log.attributes} if meta else log.attributes
            if kind == "exceptions" and names:
                log.attributes.setdefault("events", names[:EVENTS])
            log.service = log.service or (service if isinstance(service, str) else None)
            yield check_text(log) if has_nul else log
        except (Invalid, msgspec.MsgspecError) as error:
            yield Reject(msgspec.json.encode({"meta": meta, kind: [one]}), bodies.reject_reason(error))


def entry(kind: str, sent: object) -> Log:
    """Raises: Invalid."""
    if not isinstance(sent, dict):
        raise Invalid("not a JSON object")
    fields: dict[str, Any] = {"kind": KINDS[kind], **sent}
    if kind == "exceptions":
        fields["message"] = f"{sent.get('type', 'Error')}: {sent.get('value', '')}"
        fields.setdefault("level", "error")
    elif kind != "logs":
        fields.setdefault("message", str(sent.get("name") or sent.get("type") or ""))
    return build_log(fields)
