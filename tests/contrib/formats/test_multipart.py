"""Forms of browsers in multipart/form-data: the fields are one record, files are dead letters."""

from __future__ import annotations

import pytest

from sluice.contrib.formats.multipart import split_parts
from sluice.http import request
from sluice.streams.custom import stream
from sluice.streams.record import Log, Reject, Vote
from support.list_items import LIMITS, decode, kept, reject_reason

TYPE = "Content-Type: multipart/form-data; boundary=----WebKitFormBoundaryAbC123"
LINE = b"------WebKitFormBoundaryAbC123"


def form(*parts: bytes) -> bytes:
    return b"".join(LINE + b"\r\n" + part + b"\r\n" for part in parts) + LINE + b"--\r\n"


def field(name: str, value: str) -> bytes:
    return f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode()


FILE = (
    b'Content-Disposition: form-data; name="a"; filename="blob"\r\nContent-Type: application/json\r\n\r\n{"poll":"x"}'
)
VOTE = field("poll", "a b & c=d"), field("choice", "é\r\nx")


def test_the_fields_are_one_record() -> None:
    assert decode("votes", kept(form(*VOTE, field("voter", "")), "/votes", TYPE)) == [
        Vote(poll="a b & c=d", choice="é\r\nx")
    ]


def test_a_log_may_be_a_form() -> None:
    body = form(field("message", "two\nlines"), field("level", "WARN"), field("a %22b%22", "1"))
    (row,) = decode("logs", kept(body, "/logs", TYPE))
    assert isinstance(row, Log)
    assert (row.message, row.level, row.attributes) == ("two\nlines", "warn", {'a "b"': "1"})


def test_a_file_is_buried_beside_the_record_and_can_be_decoded_again() -> None:
    vote, reject = decode("votes", kept(form(VOTE[0], FILE, VOTE[1]), "/votes", TYPE))
    assert isinstance(vote, Vote) and isinstance(reject, Reject)
    assert reject == Reject(kept(form(FILE), "/votes", TYPE), "files of a form are not stored")
    assert reject_reason("votes", reject.part) == reject.reason


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (form(VOTE[0]), "missing: choice"),
        (form(*VOTE)[:-4], "multipart: truncated"),
        (b"x", "multipart: truncated"),
        (form(b"\r\nx"), "multipart: part without a name"),
        (form(*[field("a", "1")] * (LIMITS.fields + 1)), f"form has more than {LIMITS.fields} fields"),
        (form(field("a", "x" * LIMITS.record)), f"form larger than {LIMITS.record} bytes"),
        (form(b'Content-Disposition: form-data; name="a"\r\n\r\n\xff'), "not UTF-8: invalid start byte"),
    ],
)
def test_an_invalid_form_is_one_dead_letter(body: bytes, reason: str) -> None:
    assert reject_reason("votes", kept(body, "/votes", TYPE)) == reason


def test_the_files_of_a_form_are_one_dead_letter() -> None:
    parts = split_parts(form(*[FILE] * 900), LINE, LIMITS)
    assert parts.files == form(*[FILE] * 900) and not parts.fields and not parts.plain


def test_a_stream_with_a_parser_of_its_own_buries_a_form_as_a_whole() -> None:
    """Else the lines of a field, or of an uploaded file, would be records between dead letters."""
    lines = stream("lines", Log, lambda line: Log(message=line.decode()))
    item = kept(form(field("data", "one\ntwo"), FILE), "/lines", TYPE)
    assert list(lines.decode(item, LIMITS)) == [Reject(item, "multipart: this stream takes lines", True)]


def test_each_choice_of_a_form_is_a_vote() -> None:
    fields = ("poll", "a"), ("choice", "b"), ("choice", "c"), ("voter", "u"), ("choice", "d")
    votes = decode("votes", kept(form(*(field(*pair) for pair in fields)), "/votes", TYPE))
    assert votes == [Vote(poll="a", choice=choice, voter="u") for choice in "bcd"]


@pytest.mark.parametrize(
    ("environ", "kept"),
    [
        ({"CONTENT_TYPE": "Multipart/form-data; boundary=x"}, True), ({"CONTENT_TYPE": "text/plain"}, False),
        ({"HTTP_CONTENT_ENCODING": "Snappy"}, True), ({"HTTP_CONTENT_ENCODING": "zstd"}, False),
        ({"HTTP_X_AMZ_FIREHOSE_REQUEST_ID": "a"}, True), ({"HTTP_WEBHOOK_ID": "a"}, True),
    ],
)  # fmt: skip
def test_the_gateway_keeps_the_head_that_explains_a_body(environ: dict[str, str], kept: bool) -> None:
    assert request.needs_head(environ, False) is kept
