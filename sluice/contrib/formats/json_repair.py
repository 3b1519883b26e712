"""Mends what programs send for JSON although it is none. Only what could not be decoded is looked at.

Python writes NaN and Infinity, JavaScript that cuts a text half a surrogate pair, and programs that write JSON by hand
leave control characters as they are. Many servers take some of these, so the sender does not learn of it, and one such
value would cost all other records of its body.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from sluice.contrib.formats.charges import charge_work
from sluice.streams.body import BOM, Budget, is_json

TOKENS = 64  # of a text that is mended that cost one record
MENDED = 8  # of them that are replaced, the same

# What needs no mending, much of it at once (no possessive group: CPython before 3.11.5 takes half of one that fails);
# or strings, also one without an end, so that the search does not begin again in it
TOKEN = re.compile(
    rb'((?:"[^"\\\x00-\x1f]*+"[^"NI-]*+){1,64})|"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|-?\b(?:NaN|Infinity)\b', re.DOTALL
)
CONTROL = re.compile(rb"[\x00-\x1f]")
HALF = re.compile(
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|(\\.)", re.DOTALL
)


def repair_json(text: bytes, budget: Budget) -> bytes:
    """The text, where a number that is none is a text, half a surrogate pair is U+FFFD, and a control character in a
    text is escaped; b"" if that is no JSON, either: a dead letter has what was sent. Raises: Exhausted.
    """
    text = text.removeprefix(BOM)
    better = replace_tokens(TOKEN, lambda token: mend_token(token[0], budget), text, budget)
    return better if better != text and is_json(better) else b""


def mend_token(text: bytes, budget: Budget) -> bytes:
    """Raises: Exhausted."""
    if text[:1] != b'"':
        return b'"%b"' % text
    # not by re.sub, which takes 80 bytes of memory and more for each that it replaces
    text = replace_tokens(CONTROL, lambda found: b"\\u%04x" % ord(found[0]), text, budget)
    if b"\\ud" in text or b"\\uD" in text:
        text = replace_tokens(HALF, lambda _: b"\\ufffd", text, budget)
    return text


def replace_tokens(
    pattern: re.Pattern[bytes], better: Callable[[re.Match[bytes]], bytes], text: bytes, budget: Budget
) -> bytes:
    """The text with each token of the pattern in its better form, but for those that are a group. Raises: Exhausted."""
    made, done, mended = bytearray(), 0, 0
    for count, token in enumerate(pattern.finditer(text), 1):
        if not count % TOKENS:
            charge_work(budget, 1)
        if token.lastindex:
            continue
        if (part := better(token)) != token[0]:
            mended += 1
            if not mended % MENDED:
                charge_work(budget, 1)
            made += text[done : token.start()]
            made += part
            done = token.end()
    return bytes(made + text[done:]) if done else text
