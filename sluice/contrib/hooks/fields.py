"""Which header fields and parameters of a webhook are kept: those that may say something, and no credential.

Gateway and worker share it. It runs on PyPy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote_plus

from sluice.http.request import without_keys

# Names of what only the sender and this server may know. A signature is none: it cannot be used for another body
SECRETS = re.compile(
    r"(?:^|[-_.])(?:auth|authorization|authentication|token|secret|password|passwd|cookie2?|credentials?|apikey|api[-_]key"
    r"|(?:access|shared|private)[-_]?key)(?:$|[-_.])"
)
NO_SECRETS = frozenset(("i-twilio-idempotency-token",))  # although they have such a name
# How the request came, and by which way: of no use to whoever reads the row
DROPPED = frozenset((
    "accept", "accept-charset", "accept-encoding", "accept-language", "baggage", "b3", "cache-control", "cdn-loop",
    "connection", "content-length", "dnt", "elastic-apm-traceparent", "expect", "forwarded", "host", "http2-settings",
    "keep-alive", "newrelic", "origin", "pragma", "priority", "proxy-connection", "referer", "sentry-trace", "te",
    "traceparent", "tracestate", "trailer", "transfer-encoding", "uber-trace-id", "upgrade",
    "upgrade-insecure-requests", "via", "x-amzn-trace-id", "x-cloud-trace-context", "x-real-ip", "x-request-start",
))  # fmt: skip
DROPPED_BEGINNINGS = "cf-", "sec-", "sluice-", "x-b3-", "x-datadog-", "x-envoy-", "x-forwarded-"
# Parameters of a query that are a credential
SECRET_PARAMETERS = re.compile(
    r"(?:^|(?<=&))(?:api-?key|(?:access[-_]?|auth[-_]?)?token|secret|password|hub\.verify_token)=[^&]*(?:&|$)",
    re.IGNORECASE,
)


def is_kept(name: str) -> bool:
    """Whether a header field is worth keeping. name: in lower case."""
    is_secret = SECRETS.search(name) and name not in NO_SECRETS
    return not (is_secret or name in DROPPED or name.startswith(DROPPED_BEGINNINGS))


def without_secrets(query: str, named: Sequence[str] = ()) -> str:
    """A query string without credentials, else as it was sent. named: the parameters that have one here."""
    if "=" not in query:
        return query
    query = without_keys(query)
    if SECRET_PARAMETERS.search(query):
        query = SECRET_PARAMETERS.sub("", query).rstrip("&")
    if not named:
        return query
    return "&".join(pair for pair in query.split("&") if unquote_plus(pair.partition("=")[0]) not in named)
