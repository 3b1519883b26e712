"""Signed webhooks: the worker checks the signature of a kept message before it decodes the body.

A signature's age is not checked here: the message may have waited on the list.
"""

from __future__ import annotations

from sluice.contrib.access.signature import Request, Wrong, check_signature, load_scheme
from sluice.streams.message import parse_message
from sluice.streams.record import Decoded, Invalid, Limits, Reject
from sluice.streams.registry import Stream


def signed_stream(stream: Stream, secrets: str, scheme: str) -> Stream:
    """The stream with a check: a body that is not signed with one of the secrets is buried whole.

    Its routes must have keep_head=True.

    secrets: the path of a file with one secret, or public key (whpk_…), per line; the old and the new one while it is
        replaced.
    scheme: one of `signature.SCHEMES`, such as github, stripe or standard (standardwebhooks.com).
    Raises: SettingError if the scheme is unknown, the file has no valid secret, or a library is not installed.
    """
    rules, known = load_scheme(f"the secret of the stream {stream.name!r}", scheme, secrets)

    def decode(item: bytes, limits: Limits) -> Decoded:
        try:
            message = parse_message(item)
            if message is None:
                raise Wrong("signature: there is no head; the route needs keep_head=True")
            target = message.start.split()[1].decode("latin-1")
            check_signature(rules, known, Request(message.field, message.body, target))
        except (Invalid, Wrong) as error:
            return Decoded((), (Reject(item, str(error), True),))
        return stream.decode(item, limits)

    return stream._replace(decode=decode, part=stream.decode)
