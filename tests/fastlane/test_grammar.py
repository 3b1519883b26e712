"""For any bytes the fast lane declines, or it agrees with gunicorn's own parser: method, target, headers, body, and
where the next request begins. DESIGN.md calls that the property to test; `tests/wire.py` makes the bytes.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import wire
from sluice.drill import harness

EXAMPLES = 100_000  # of all parts together
PYPY_EXAMPLES = 20_000
QUICK = settings(
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
TAME = st.binary(max_size=64)  # Hypothesis likes short strings best, and few choices make few oddities
WILD = st.binary(min_size=48, max_size=48)


@pytest.mark.parametrize("choices", [TAME, TAME, WILD, WILD], ids=["tame", "tame again", "wild", "wild again"])
def test_requests_of_all_sorts_are_declined_or_read_as_gunicorn_reads_them(choices: st.SearchStrategy[bytes]) -> None:
    everywhere = wire.Everywhere()

    @settings(QUICK, max_examples=EXAMPLES // 4)
    @given(choices)
    def agree(data: bytes) -> None:
        everywhere.agree(data)

    agree()
    seen = everywhere.seen
    assert seen["examples"] >= EXAMPLES // 4
    # neither side of the "or" is empty
    assert EXAMPLES // 20 < seen["taken"] < EXAMPLES // 4 * 0.9, seen


BEGINNINGS = b"", b"POST ", b"POST /gps HTTP/1.1\r\n", b"POST /gps HTTP/1.1\r\nContent-Length:"


def test_any_bytes_at_all_are_declined_or_read_as_gunicorn_reads_them() -> None:
    everywhere = wire.Everywhere()

    @settings(QUICK, max_examples=5_000)
    @given(st.binary(max_size=200), st.sampled_from(BEGINNINGS))
    def agree(data: bytes, before: bytes) -> None:
        everywhere.agree_on(before + data)

    agree()


def post(*fields: bytes, body: bytes = b"", line: bytes = b"POST /gps HTTP/1.1", end: bytes = b"\r\n") -> bytes:
    return end.join([line, b"Host: localhost", *fields, b"", b""]) + body


SMUGGLED = b"POST /votes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx"
CHUNKED = b"Transfer-Encoding: chunked"
CHUNKS = b"3\r\nabc\r\n0\r\n\r\n"
FIVE = b"Content-Length: 5"
BODY = b"12345"

# What the fast lane must decline, by the place where the rule stands.
DECLINED = {
    # RFC 9112, 2.2: messages
    "a_bare_lf_for_every_line_end": post(FIVE, body=BODY, end=b"\n"),
    "a_bare_lf_after_the_request_line": post(FIVE, body=BODY).replace(b"\r\n", b"\n", 1),
    "a_bare_lf_at_the_end_of_the_head": post(FIVE).replace(b"\r\n\r\n", b"\r\n\n") + BODY,
    "a_bare_lf_between_two_fields": post(b"X: y\nContent-Length: 5", body=BODY),
    "a_bare_cr_between_two_fields": post(b"X: y\rContent-Length: 5", body=BODY),
    "a_bare_cr_in_a_value": post(b"X: a\rb", FIVE, body=BODY),
    "a_bare_cr_in_the_request_line": post(FIVE, body=BODY, line=b"POST /g\rps HTTP/1.1"),
    "two_crs_before_the_lf": post(FIVE, body=BODY).replace(b"localhost\r\n", b"localhost\r\r\n"),
    "an_empty_line_before_the_request": b"\r\n" + post(FIVE, body=BODY),
    "blanks_before_the_request": b"  " + post(FIVE, body=BODY),
    "a_byte_order_mark": b"\xef\xbb\xbf" + post(FIVE, body=BODY),
    "white_space_before_the_first_field": post(FIVE, body=BODY).replace(b"Host", b" Host"),
    "no_fields": b"POST /gps HTTP/1.1\r\n\r\n",
    "half_a_head": b"POST /gps HTTP/1.1\r\nHost: localhost\r\n",
    "nothing_but_a_line_end": b"\r\n\r\n",
    # 3: the request line
    "another_method": post(FIVE, body=BODY, line=b"PUT /gps HTTP/1.1"),
    "get": post(line=b"GET /gps HTTP/1.1"),
    "a_lower_case_method": post(FIVE, body=BODY, line=b"post /gps HTTP/1.1"),
    "http_1_0": post(FIVE, body=BODY, line=b"POST /gps HTTP/1.0"),
    "http_0_9": b"POST /gps\r\n\r\n",
    "http_1_10": post(FIVE, body=BODY, line=b"POST /gps HTTP/1.10"),
    "http_2": post(FIVE, body=BODY, line=b"POST /gps HTTP/2.0"),
    "lower_case_http": post(FIVE, body=BODY, line=b"POST /gps http/1.1"),
    "the_http_2_preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a_tls_greeting": bytes.fromhex("1603010200010001fc0303"),
    "the_proxy_protocol": b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n" + post(FIVE, body=BODY),
    "two_blanks_in_the_request_line": post(FIVE, body=BODY, line=b"POST  /gps HTTP/1.1"),
    "a_tab_in_the_request_line": post(FIVE, body=BODY, line=b"POST\t/gps HTTP/1.1"),
    "a_blank_at_the_end_of_the_request_line": post(FIVE, body=BODY, line=b"POST /gps HTTP/1.1 "),
    "a_blank_in_the_target": post(FIVE, body=BODY, line=b"POST /gps /votes HTTP/1.1"),
    "the_absolute_form": post(FIVE, body=BODY, line=b"POST http://other/gps HTTP/1.1"),
    "the_authority_form": post(FIVE, body=BODY, line=b"POST localhost:80 HTTP/1.1"),
    "the_asterisk_form": post(FIVE, body=BODY, line=b"POST * HTTP/1.1"),
    "no_target": post(FIVE, body=BODY, line=b"POST  HTTP/1.1"),
    "a_target_without_a_slash": post(FIVE, body=BODY, line=b"POST gps HTTP/1.1"),
    "a_target_that_is_only_a_query": post(FIVE, body=BODY, line=b"POST ?a=b HTTP/1.1"),
    "a_target_that_begins_with_two_slashes": post(FIVE, body=BODY, line=b"POST //other/gps HTTP/1.1"),
    "a_percent_in_the_path": post(FIVE, body=BODY, line=b"POST /%67ps HTTP/1.1"),
    "a_nul_in_the_target": post(FIVE, body=BODY, line=b"POST /g\x00ps HTTP/1.1"),
    "latin_1_in_the_target": post(FIVE, body=BODY, line=b"POST /g\xe9ps HTTP/1.1"),
    "latin_1_in_the_query": post(FIVE, body=BODY, line=b"POST /gps?\xe9 HTTP/1.1"),
    "a_fragment": post(FIVE, body=BODY, line=b"POST /gps#x HTTP/1.1"),
    "a_fragment_behind_the_query": post(FIVE, body=BODY, line=b"POST /gps?a#x HTTP/1.1"),
    "parameters_of_a_path": post(FIVE, body=BODY, line=b"POST /gps;a=b HTTP/1.1"),
    # 5: fields
    "a_blank_before_the_colon": post(b"Content-Length : 5", body=BODY),
    "a_tab_before_the_colon": post(b"Content-Length\t: 5", body=BODY),
    "a_blank_in_a_name": post(b"X Y: z", FIVE, body=BODY),
    "an_underscore_in_a_name": post(b"X_Y: z", FIVE, body=BODY),
    "a_length_with_an_underscore": post(b"Content_Length: 5", body=BODY),
    "script_name_from_outside": post(b"SCRIPT_NAME: /gps", FIVE, body=BODY),
    "an_empty_name": post(b": z", FIVE, body=BODY),
    "no_colon": post(b"nonsense", FIVE, body=BODY),
    "latin_1_in_a_name": post(b"X\xdf: z", FIVE, body=BODY),
    "a_nul_in_a_name": post(b"X\x00: z", FIVE, body=BODY),
    "a_nul_in_a_value": post(b"X: \x00", FIVE, body=BODY),
    "a_delete_in_a_value": post(b"X: \x7f", FIVE, body=BODY),
    "a_vertical_tab_in_a_value": post(b"X: a\x0bb", FIVE, body=BODY),
    "a_folded_line": post(b"X: y\r\n z", FIVE, body=BODY),
    "a_line_folded_with_a_tab": post(b"X: y\r\n\tz", FIVE, body=BODY),
    "a_folded_length": post(b"Content-Length:\r\n 5", body=BODY),
    "two_hosts": post(b"Host: other", FIVE, body=BODY),
    "a_field_that_comes_twice": post(b"X: y", b"x: z", FIVE, body=BODY),
    "a_line_that_is_too_long": post(FIVE, body=BODY, line=b"POST /" + b"a" * 8190 + b" HTTP/1.1"),
    "a_field_that_is_too_long": post(b"X: " + b"a" * 8190, FIVE, body=BODY),
    # 6: the length of a body. TE.CL, CL.TE, TE.TE, CL.CL, CL.0 are how attackers call the first ones
    "chunks": post(CHUNKED, body=CHUNKS),
    "a_length_and_chunks": post(b"Content-Length: 5", CHUNKED, body=b"0\r\n\r\n" + SMUGGLED),
    "chunks_and_a_length": post(CHUNKED, b"Content-Length: 4", body=b"5c\r\n" + SMUGGLED + b"\r\n0\r\n\r\n"),
    "two_codings": post(CHUNKED, b"Transfer-Encoding: identity", body=CHUNKS),
    "chunked_twice": post(b"Transfer-Encoding: chunked, chunked", body=CHUNKS),
    "xchunked": post(b"Transfer-Encoding: xchunked", FIVE, body=BODY),
    "chunked_behind_a_vertical_tab": post(b"Transfer-Encoding: \x0bchunked", FIVE, body=BODY),
    "chunked_behind_a_form_feed": post(b"Transfer-Encoding:\x0cchunked", FIVE, body=BODY),
    "chunked_in_quotes": post(b'Transfer-Encoding: "chunked"', FIVE, body=BODY),
    "chunked_in_capitals": post(b"TRANSFER-ENCODING: CHUNKED", FIVE, body=BODY),
    "chunked_behind_a_comma": post(b"Transfer-Encoding: ,chunked", FIVE, body=BODY),
    "chunked_with_a_parameter": post(b"Transfer-Encoding: chunked;q=1", FIVE, body=BODY),
    "gzip_chunked": post(b"Transfer-Encoding: gzip, chunked", FIVE, body=BODY),
    "identity": post(b"Transfer-Encoding: identity", FIVE, body=BODY),
    "no_coding": post(b"Transfer-Encoding:", FIVE, body=BODY),
    "a_coding_with_a_blank_before_the_colon": post(b"Transfer-Encoding : chunked", FIVE, body=BODY),
    "a_coding_with_an_underscore": post(b"Transfer_Encoding: chunked", FIVE, body=BODY),
    "a_coding_folded_away": post(b"X: y\r\n Transfer-Encoding: chunked", FIVE, body=BODY),
    "a_coding_behind_a_bare_lf": post(b"X: y\nTransfer-Encoding: chunked", FIVE, body=BODY),
    "a_folded_coding": post(b"Transfer-Encoding:\r\n chunked", FIVE, body=BODY),
    "no_length": post(body=SMUGGLED),
    "two_lengths_that_differ": post(FIVE, b"Content-Length: 0", body=BODY),
    "two_lengths_that_agree": post(FIVE, FIVE, body=BODY),
    "two_lengths_in_one": post(b"Content-Length: 5, 5", body=BODY),
    "two_different_lengths_in_one": post(b"Content-Length: 5, 0", body=BODY),
    "a_length_with_a_plus": post(b"Content-Length: +5", body=BODY),
    "a_length_below_zero": post(b"Content-Length: -5", body=BODY),
    "a_hexadecimal_length": post(b"Content-Length: 0x5", body=BODY),
    "a_length_with_a_leading_zero": post(b"Content-Length: 05", body=BODY),
    "a_length_with_an_underscore_in_it": post(b"Content-Length: 1_0", body=BODY * 2),
    "a_length_with_a_point": post(b"Content-Length: 5.0", body=BODY),
    "a_length_in_superscript": post(b"Content-Length: \xb2", body=BODY),
    "a_length_in_arabic_digits": post("Content-Length: \u0665".encode(), body=BODY),
    "a_length_behind_a_vertical_tab": post(b"Content-Length: \x0b5", body=BODY),
    "a_length_before_a_nul": post(b"Content-Length: 5\x00", body=BODY),
    "a_length_and_a_word": post(b"Content-Length: 5 bytes", body=BODY),
    "an_empty_length": post(b"Content-Length:", body=BODY),
    "a_length_beyond_64_bits": post(b"Content-Length: 18446744073709551621", body=BODY),
    "a_length_of_5000_digits": post(b"Content-Length: " + b"5" * 5000, body=BODY),
    # 7, 9, 11, and RFC 9110: what asks for more than an answer
    "chunk_extensions": post(CHUNKED, body=b"3;a=b;c\r\nabc\r\n0\r\n\r\n"),
    "a_chunk_extension_with_a_line_end": post(CHUNKED, body=b'3;a="\r\n"\r\nabc\r\n0\r\n\r\n'),
    "a_chunk_of_negative_size": post(CHUNKED, body=b"-1\r\nabc\r\n0\r\n\r\n"),
    "a_chunk_of_hexadecimal_size": post(CHUNKED, body=b"0x3\r\nabc\r\n0\r\n\r\n"),
    "trailers": post(CHUNKED, b"Trailer: X", body=b"0\r\nX: y\r\n\r\n"),
    "a_trailer_announced_without_chunks": post(b"Trailer: X", FIVE, body=BODY),
    "te": post(b"TE: trailers", FIVE, body=BODY),
    "expect": post(b"Expect: 100-continue", FIVE, body=BODY),
    "expect_something_else": post(b"Expect: 200-ok", FIVE, body=BODY),
    "upgrade_to_http_2": post(
        b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAM", FIVE, body=BODY
    ),
    "upgrade_without_connection": post(b"Upgrade: websocket", FIVE, body=BODY),
    "connection_names_a_field": post(b"Connection: keep-alive, X-Y", FIVE, body=BODY),
    "connection_names_the_length": post(b"Connection: Content-Length", FIVE, body=BODY),
    "connection_close_and_more": post(b"Connection: close, keep-alive", FIVE, body=BODY),
    "an_empty_connection": post(b"Connection:", FIVE, body=BODY),
}

# What it must take, or it would not be worth its name, and how many requests that are.
TAKEN = {
    "nginx": (post(b"X-Real-IP: 192.0.2.1", b"Content-Type: text/plain", b"User-Agent: curl/7", FIVE, body=BODY), 1),
    "no_body": (post(b"Content-Length: 0"), 1),
    "close": (post(b"Connection: close", FIVE, body=BODY), 1),
    "nothing_behind_a_close": (post(b"Connection: close", FIVE, body=BODY) + SMUGGLED, 1),
    "keep_alive": (post(b"connection: Keep-Alive", FIVE, body=BODY), 1),
    "a_query": (post(FIVE, body=BODY, line=b"POST /traccar?id=1&lat=48.1&x=%20[]? HTTP/1.1"), 1),
    "no_host": (b"POST /gps HTTP/1.1\r\nContent-Length: 5\r\n\r\n12345", 1),
    "odd_but_allowed": (post(b"!#$%&'*+.^`|~:\t \xe9 \t", b"X:", FIVE, body=BODY), 1),
    "a_body_that_looks_like_a_request": (post(b"Content-Length: %d" % len(SMUGGLED), body=SMUGGLED), 1),
    "a_body_of_line_ends": (post(b"Content-Length: 8", body=b"\r\n\r\n\r\n\r\n"), 1),
    "two": (SMUGGLED * 2, 2),
    "a_plain_one_before_chunks": (SMUGGLED + post(CHUNKED, body=CHUNKS), 1),
    "a_plain_one_before_a_stray_byte": (SMUGGLED + b"x" + SMUGGLED, 1),
    "a_plain_one_before_a_line_end": (SMUGGLED + b"\r\n" + SMUGGLED, 1),
    "a_body_that_is_not_whole": (post(b"Content-Length: 6", body=BODY), 0),
    "a_body_that_will_never_be_whole": (post(b"Content-Length: 4294967295", body=BODY), 0),
}


@pytest.fixture(scope="module")
def everywhere() -> wire.Everywhere:
    return wire.Everywhere()


@pytest.mark.parametrize("name", DECLINED)
def test_a_request_that_can_be_read_in_two_ways_is_declined(everywhere: wire.Everywhere, name: str) -> None:
    assert everywhere.agree_on(DECLINED[name]) == 0
    # nor behind one that is taken, nor when its head was seen to be fine before
    assert everywhere.agree_on(SMUGGLED + DECLINED[name]) == 1
    assert everywhere.agree_on(SMUGGLED + DECLINED[name] + SMUGGLED) == 1


@pytest.mark.parametrize("name", TAKEN)
def test_a_plain_request_is_taken(everywhere: wire.Everywhere, name: str) -> None:
    data, requests = TAKEN[name]
    for _ in "parsed", "remembered":
        assert everywhere.agree_on(data) == requests


@pytest.mark.parametrize("name", TAKEN)
def test_a_request_in_two_pieces_is_the_same_request(everywhere: wire.Everywhere, name: str) -> None:
    data, _ = TAKEN[name]
    for cut in range(1, len(data)):
        everywhere.places[0].check([data[:cut], data[cut:]])


def test_heads_are_forgotten_before_they_fill_the_memory(everywhere: wire.Everywhere) -> None:
    place = everywhere.places[0]
    for number in range(3_000):
        assert place.check([post(b"X: %d" % number, FIVE, body=BODY)]) == 1
    assert len(place.listener.heads) <= 1024
    before = len(place.listener.heads)
    assert place.check([post(b"X: " + b"y" * 5_000, FIVE, body=BODY)]) == 1
    assert len(place.listener.heads) == before


def test_script_name_in_the_environment_leaves_everything_to_gunicorn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRIPT_NAME", "/gps")
    assert wire.Everywhere().agree_on(SMUGGLED) == 0


@pytest.mark.parametrize(
    ("setting", "value"),
    [("keepalive", 0), ("proxy_protocol", True), ("protocol", "uwsgi"), ("http2_cleartext", "both")],
)
def test_what_only_gunicorn_can_do_is_left_to_it(setting: str, value: object) -> None:
    place = wire.Place("", "/run/gateway-0.sock", **{setting: value})
    assert place.fast([SMUGGLED]) == ([], False, SMUGGLED)


@pytest.mark.skipif(not Path(harness.PYTHON["pypy"]).exists(), reason="no .venv-pypy here; bin/test makes it")
def test_the_older_gunicorn_on_pypy_agrees_too() -> None:
    command = [harness.PYTHON["pypy"], wire.__file__, str(PYPY_EXAMPLES), "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
