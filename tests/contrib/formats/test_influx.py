"""Metrics in every format: line protocol with every escape, Telegraf's JSON, plain JSON and forms."""

from __future__ import annotations

import gzip
from functools import partial

import pytest
from hypothesis import given
from hypothesis import settings as profiles
from hypothesis import strategies as st

from sluice.contrib.formats import influx
from sluice.streams.body import Remainder
from sluice.streams.built_in import STREAMS
from sluice.streams.record import Metric, Reject
from support import list_items
from support.list_items import LIMITS, kept
from support.table_of_cases import check_each_row

profiles.register_profile("formats", deadline=None)  # a busy machine is no failure
profiles.load_profile("formats")
decoder = STREAMS["metrics"].decode
decode = partial(list_items.decode, "metrics")
reject_reason = partial(list_items.reject_reason, "metrics")


def write(body: bytes, target: str = "/api/v2/write?org=o&bucket=b", *fields: str) -> bytes:
    return kept(body, target, *fields)


def point(line: str) -> tuple[str, dict[str, str], dict[str, object], int | None]:
    """Name, tags, fields and time of one line that is written to InfluxDB's path."""
    metrics = decode(write(line.encode()))
    assert all(type(x) is Metric for x in metrics), metrics
    first = metrics[0]
    assert all((x.name, x.tags, x.time) == (first.name, first.tags, first.time) for x in metrics)
    return first.name, first.tags, {x.field: x.value for x in metrics}, first.time


def value(written: str) -> tuple[object, str]:
    """The value and type of a field of one line."""
    (metric,) = decode(b"m v=" + written.encode())
    assert type(metric) is Metric, metric
    return metric.value, metric.type


# --- line protocol


def test_a_point_is_one_row_per_field():
    line = b'weather,location=us-midwest,season=summer temperature=82,humidity=71i,sky="blue",dry=T 1465839830100400200'
    tags = {"location": "us-midwest", "season": "summer"}
    time = 1465839830100400200
    assert decode(line) == [
        Metric(time=time, name="weather", tags=tags, field="temperature", value=82.0, type="float"),
        Metric(time=time, name="weather", tags=tags, field="humidity", value=71, type="integer"),
        Metric(time=time, name="weather", tags=tags, field="sky", value="blue", type="string"),
        Metric(time=time, name="weather", tags=tags, field="dry", value=1, type="boolean"),
    ]
    assert Metric.__struct_fields__ == ("time", "name", "tags", "field", "value", "type")


@check_each_row(
    ("line", "name", "tags", "fields"),
    [
        (r"my\ name,t=v f=1", "my name", {"t": "v"}, {"f": 1.0}),
        (r"my\,name f=1", "my,name", {}, {"f": 1.0}),
        (r"my=name f=1", "my=name", {}, {"f": 1.0}),
        (r"my\=name f=1", r"my\=name", {}, {"f": 1.0}),
        (r"m\n f=1", r"m\n", {}, {"f": 1.0}),
        (r"m,t\ a\,g\==v f=1", "m", {"t a,g=": "v"}, {"f": 1.0}),
        (r"m,t=v\ a\,l\=ue f=1", "m", {"t": "v a,l=ue"}, {"f": 1.0}),
        (r"m,t=C:\dir f=1", "m", {"t": r"C:\dir"}, {"f": 1.0}),
        (r'"m","t"="v" "f"=1', '"m"', {'"t"': '"v"'}, {'"f"': 1.0}),
        (r"m f\ i\,e\=ld=1", "m", {}, {"f i,e=ld": 1.0}),
        (r'm f="a \"quoted\" \\ text, with = and #"', "m", {}, {"f": 'a "quoted" \\ text, with = and #'}),
        (r'm f="\n\t\,\ \="', "m", {}, {"f": r"\n\t\,\ \="}),
        (r'm f="\\\"",g="\\\\"', "m", {}, {"f": '\\"', "g": "\\\\"}),
        ('m f="",g=1', "m", {}, {"f": "", "g": 1.0}),
        ('m,t=\u00e9\U0001f600 \u00fc="\u2713"', "m", {"t": "\u00e9\U0001f600"}, {"\u00fc": "\u2713"}),
        ('m f="it\'s \u00e9\n2nd\r\nline # not a comment"', "m", {}, {"f": "it's \u00e9\n2nd\r\nline # not a comment"}),
        ("m  f=1   ", "m", {}, {"f": 1.0}),
        ("  m f=1", "m", {}, {"f": 1.0}),
        ("m#,#=# #=1", "m#", {"#": "#"}, {"#": 1.0}),
        ('{"m":1},t=[ f=1', '{"m":1}', {"t": "["}, {"f": 1.0}),
    ],
)
def test_every_escape_and_unusual_name(line, name, tags, fields):
    assert point(line) == (name, tags, fields, None)


def test_the_last_of_several_backslashes_before_a_separator_escapes_it():
    assert point(r"m,t=a\\,b f=1") == ("m", {"t": r"a\,b"}, {"f": 1.0}, None)
    assert point(r"m\\ n f=1") == (r"m\ n", {}, {"f": 1.0}, None)


@check_each_row(
    ("written", "stored"),
    [
        ("1", 1.0), ("1.", 1.0), (".5", 0.5), ("-.5", -0.5), ("-0", -0.0), ("1.5e3", 1500.0), ("1E+2", 100.0),
        ("2e-3", 0.002), ("1.e5", 100000.0), ("007", 7.0), ("1.7976931348623157e308", 1.7976931348623157e308),
        ("9" * 300, float("9" * 300)),
    ],
)  # fmt: skip
def test_floats(written, stored):
    assert value(written) == (stored, "float")


@check_each_row(
    ("written", "stored", "kind"),
    [
        ("1i", 1, "integer"), ("-1i", -1, "integer"), ("0i", 0, "integer"), ("-0i", 0, "integer"),
        ("007i", 7, "integer"), ("0" * 9999 + "7i", 7, "integer"),
        ("9223372036854775807i", 2**63 - 1, "integer"), ("-9223372036854775808i", -(2**63), "integer"),
        ("1u", 1, "unsigned"), ("0u", 0, "unsigned"), ("9223372036854775807u", 2**63 - 1, "unsigned"),
        ("9223372036854775808u", "9223372036854775808", "unsigned"),
        ("18446744073709551615u", "18446744073709551615", "unsigned"),
    ],
)  # fmt: skip
def test_integers(written, stored, kind):
    assert value(written) == (stored, kind)


@pytest.mark.parametrize("written", ["t", "T", "true", "True", "TRUE"])
def test_true_is_stored_as_1(written):
    assert value(written) == (1, "boolean")


@pytest.mark.parametrize("written", ["f", "F", "false", "False", "FALSE"])
def test_false_is_stored_as_0(written):
    assert value(written) == (0, "boolean")


@check_each_row(
    ("line", "reason"),
    [
        ("m", "no field"),
        ("m,t=v", "no field"),
        ("m ", "no field"),
        ("m 5", "not a field: '5'"),
        ("m f", "not a field: 'f'"),
        ("m f=", "not a field: 'f='"),
        ("m =1", "not a field: '=1'"),
        ("m f=1,", "not a field: ''"),
        ("m f=1,,g=2", "not a field: ''"),
        ("m f=1, g=2", "not a timestamp: 'g=2'"),
        ('m f="1", g=2', "not a field: ' g=2'"),
        ("m f=1 g=2", "not a timestamp: 'g=2'"),
        ("m f=1 5 6", "not a timestamp: '5 6'"),
        ("m f=1 5.5", "not a timestamp: '5.5'"),
        ("m f=1 +5", "not a timestamp: '+5'"),
        ("m f=1 \u0665", "not a timestamp: '\u0665'"),
        ("m f=1 9223372036854775808", "timestamp out of range"),
        ("m f=1 -9223372036854775809", "timestamp out of range"),
        ("m f=1 " + "9" * 5000, "timestamp out of range"),
        (",t=v f=1", "not a name and tags: ',t=v'"),
        ("m,t f=1", "not a name and tags: 'm,t'"),
        ("m,=v f=1", "not a name and tags: 'm,=v'"),
        ("m,t=v=w f=1", "not a name and tags: 'm,t=v=w'"),
        ("m,,t=v f=1", "not a name and tags: 'm,,t=v'"),
        ("m,t=v,t=w f=1", "duplicate tag"),
        ("m f=nano", "not a value: 'nano'"),
        ("m,t=,t f=1", "not a name and tags: 'm,t=,t'"),
        ("m f=+1", "not a value: '+1'"),
        ("m f=1_0", "not a value: '1_0'"),
        ("m f=0x1", "not a value: '0x1'"),
        ("m f=\u0665", "not a value: '\u0665'"),
        ("m f=.", "not a value: '.'"),
        ("m f=1e", "not a value: '1e'"),
        ("m f=i", "not a value: 'i'"),
        ("m f=1.5i", "not a value: '1.5i'"),
        ("m f=-1u", "not a value: '-1u'"),
        ("m f=tRUE", "not a value: 'tRUE'"),
        ("m f=text", "not a value: 'text'"),
        ("m f='text'", "not a value: \"'text'\""),
        ("m f=1e999", "float out of range"),
        ("m f=" + "9" * 5000, "float out of range"),
        ("m f=9223372036854775808i", "integer out of range"),
        ("m f=-9223372036854775809i", "integer out of range"),
        ("m f=" + "9" * 5000 + "i", "integer out of range"),
        ("m f=18446744073709551616u", "unsigned integer out of range"),
        ('m f="', "not a field: 'f=\"'"),
        ('m f="open', "not a field: 'f=\"open'"),
        ('m f="a"b', "not a timestamp: 'b'"),
        ('m f="a\\"', "not a field: 'f=\"a\\\\\"'"),
        ("m f=a\"b\"", "not a value: 'a\"b\"'"),
        ("m\tn f=1", "control character in a name or tag"),
        ("m,t=a\tb f=1", "control character in a name or tag"),
        ("m f\x01=1", "control character in a field's name"),
        ('m f\x01="a"', "control character in a field's name"),
        ("m\0 f=1", "control character in a name or tag"),
        ('m f="\0"', "text with a NUL"),
        ("m f=1\r5", "not a value: '1\\r5'"),
        ("m\\", "not a name and tags: 'm\\\\'"),
        ("m\\ f=1", "no field"),
    ],
)  # fmt: skip
def test_an_invalid_line_is_buried_and_the_others_are_stored(line, reason):
    before, after, reject = decode(write(b"a v=1\n" + line.encode() + b"\nb v=2"))
    assert (before.name, after.name) == ("a", "b")
    assert (reject.reason, reject.whole) == (reason[:200], False)
    assert reject.part == write(line.encode())
    assert reject_reason(reject.part) == reject.reason
    plain = next(x for x in decode(b"a v=1\n" + line.encode() + b"\nb v=2") if isinstance(x, Reject))
    assert (plain.reason.removesuffix(influx.REMEDY), plain.whole) == (reject.reason, False)
    assert reject_reason(plain.part) == plain.reason


@check_each_row(
    ("written", "name"),
    [("NaN", "NaN"), ("nan", "NaN"), ("inf", "+Inf"), ("+Inf", "+Inf"), ("-inf", "-Inf"), ("-Infinity", "-Inf")],
)
@check_each_row("more", ["", ',note="NaN"'])
def test_a_number_that_is_not_finite_is_a_text_in_a_field_of_its_own(written, name, more):
    rows = decode(f"m value={written},a\\ b={written},ok=1{more}".encode())
    expected = [("state", name, "string"), ("a b_state", name, "string"), ("ok", 1.0, "float")]
    assert [(row.field, row.value, row.type) for row in rows] == expected + [("note", "NaN", "string")] * bool(more)
    (row,) = decode(f"m value={written}".encode())
    assert (row.field, row.value) == ("state", name)


@check_each_row("tags", ["t=", "t=,", "", "a=1,t=", "t=,a=1", "t=,a=1,", "t\\ u=,a=1", "t=,t=,a=1"])
@check_each_row("field", ["f=1", 'f="x y"'])
def test_a_tag_without_a_value_counts_as_not_sent(tags, field):
    (row,) = decode(f"m,{tags} {field} 5".encode())
    assert (row.name, row.tags, row.time) == ("m", {"a": "1"} if "a=1" in tags else {}, 5)


def test_an_invalid_field_makes_its_whole_line_invalid():
    assert reject_reason(b"m a=1,b=2,c=x") == "not a value: 'x'"
    assert [x.field for x in decode(b"m a=1,b=x\nm c=1,d=2")[:2]] == ["c", "d"]


def test_comments_empty_lines_and_crlf_are_skipped():
    body = b'# c="\n\n  \r\n #x\r\nm f=1 5\r\n\n\nm f="a" 6\r\n# end="'
    assert [(x.value, x.time) for x in decode(write(body))] == [(1.0, 5), ("a", 6)]
    assert decode(b"# nothing but a comment\n") == []
    assert decode(write(b"# nothing but a comment\n")) == []


def test_white_space_around_lines_and_blank_lines_are_skipped():
    body = b'\tm f=1 5\t\r\n\x0c\n\t \x0b\n\t# c="\nm f="a" 6\x0c\n\t#="'
    for item in body, write(body), write(b"\xef\xbb\xbf" + body):
        assert [(x.name, x.value, x.time) for x in decode(item)] == [("m", 1.0, 5), ("m", "a", 6)]


@pytest.mark.parametrize("line", [b'{"name":"a","value":1}', b"name=a&value=1", b"#", b"", b"[", b"v x"])
def test_an_invalid_line_with_a_byte_order_mark_is_invalid_alone_too(line):
    for head in b"", write(b""):
        reject = decode(head + b"a v=1\n\xef\xbb\xbf" + line)[1]
        assert reject_reason(reject.part) == reject.reason


def test_a_quoted_string_may_contain_newlines_commas_and_blanks():
    body = b'm f="1\n2",g="x,y=1 z" 5\nm f="3" 6'
    assert [(x.field, x.value, x.time) for x in decode(body)] == [("f", "1\n2", 5), ("g", "x,y=1 z", 5), ("f", "3", 6)]
    # an unterminated quote ends with its line
    metric, reject = decode(b'm f="open\nm f=2')
    assert (reject.part, metric.value) == (b'm f="open', 2.0)


def test_invalid_utf8_makes_only_its_line_invalid():
    metric, reject = decode(b"m,t=\xff f=1\nm f=2")
    assert (reject, metric.value) == (Reject(b"m,t=\xff f=1", "not UTF-8: invalid start byte", False), 2.0)


def test_a_line_is_limited_to_256_kib():
    long = b"m " + b",".join([b"f=1"] * 70_000)
    metric, reject = decode(gzip.compress(long + b"\nm f=2"))
    assert (reject.reason, metric.value) == ("line longer than 262144 bytes", 2.0)


def test_a_line_may_have_a_quarter_of_the_bytes_of_a_record():
    (metric,) = decode(b"m f=10", LIMITS._replace(record=24))
    assert metric.value == 10
    (reject,) = decode(b"m f=10", LIMITS._replace(record=23))
    assert reject.reason == "line longer than 5 bytes"


def test_many_devices_and_long_names_are_not_confused():
    lines = [f"m,d={n % 1500},x={'y' * (n % 3 * 400)}z f={n}" for n in range(5000)]
    metrics = decode(gzip.compress("\n".join(lines).encode()))
    assert [(x.tags["d"], len(x.tags["x"]), x.value) for x in metrics] == [
        (str(n % 1500), n % 3 * 400 + 1, float(n)) for n in range(5000)
    ]


def test_only_so_many_parsed_heads_are_kept_and_no_long_ones():
    heads: dict[str, influx.Head] = {}
    for n in range(influx.HEADS):
        influx.parse_head(f"m,d={n}", heads)
    assert len(heads) == influx.HEADS
    for size in influx.MAX_HEAD + 1, influx.MAX_HEAD:
        long = "m,d=".ljust(size, "x")
        assert influx.parse_head(long, heads)[:2] == ("m", {"d": long[4:]})
    assert list(heads) == [long]


def test_of_eight_mebibytes_of_lines_those_beyond_the_limit_are_one_reject():
    line = b"cpu,host=a value=1.5 1766600000000000000\n"
    decoded = decoder(gzip.compress(line * 200_000), LIMITS)
    assert len(decoded.records) == LIMITS.records
    (rest,) = decoded.rejects
    assert (rest.part.count(b"\n"), rest.reason) == (200_000 - LIMITS.records - 1, Remainder.reason)


@check_each_row(
    ("precision", "stamp", "nanoseconds"),
    [
        (None, 1766600000123456789, 1766600000123456789),
        ("ns", 1766600000123456789, 1766600000123456789),
        ("n", 5, 5),
        ("us", 1766600000123456, 1766600000123456000),
        ("u", 1766600000123456, 1766600000123456000),
        ("%C2%B5", 1766600000123456, 1766600000123456000),  # µ
        ("ms", 1766600000123, 1766600000123000000),
        ("s", 1766600000, 1766600000000000000),
        ("m", 29443333, 1766599980000000000),
        ("h", 490722, 1766599200000000000),
        ("s", -5, -5000000000),
        ("ns", -9223372036854775808, -(2**63)),
        ("s", 0, 0),
    ],
)
@check_each_row("path", ["/write", "/api/v2/write"])
def test_precision_is_read_from_the_query_string(path, precision, stamp, nanoseconds):
    target = f"{path}?db=d" + (f"&precision={precision}" if precision else "")
    (metric,) = decode(write(f"m f=1 {stamp}".encode(), target))
    assert metric.time == nanoseconds
    good, bad = decode(write(f"m f=1 {stamp}\nm f=x {stamp}".encode(), target))
    assert bad.part.startswith(f"POST {target} HTTP/1.1\r\n".encode())


def test_an_unknown_precision_is_invalid():
    assert reject_reason(write(b"m f=1 5", "/write?precision=d")) == "unknown precision: 'd'"
    assert reject_reason(write(b"m f=1 9223372036854775807", "/write?precision=s")) == "timestamp out of range"


def test_a_body_on_an_influxdb_path_is_always_line_protocol():
    assert reject_reason(write(b'{"name":"room","value":1}')).startswith("not a name and tags: ")
    assert reject_reason(write(b"name=room&value=1")) == "no field"
    assert decode(write(b"", "/write?db=x")) == []  # clients test the connection so
    assert decode(write(b" ", "/write")) == []
    assert point('{"name":"a"} f=1')[0] == '{"name":"a"}'


def test_the_official_client_of_v2_is_accepted():
    # the bytes that influxdb-client 1.50 sends for a Point, batched and compressed
    lines = b'h2o_feet,location=coyote\\ creek level\\ description="below 3 \\"feet\\"",water_level=2i 1766600000\n'
    fields = ["Content-Type: text/plain", "Content-Encoding: gzip", "Authorization: Token t"]
    target = "/api/v2/write?org=my-org&bucket=b&precision=s"
    assert decode(write(gzip.compress(lines), target, *fields)) == [
        Metric(
            time=1766600000000000000,
            name="h2o_feet",
            tags={"location": "coyote creek"},
            field=field,
            value=stored,
            type=kind,
        )
        for field, stored, kind in [("level description", 'below 3 "feet"', "string"), ("water_level", 2, "integer")]
    ]


def test_the_escapes_of_the_official_clients_are_read_as_influxdb_reads_them():
    # influxdb-client 1.50: a newline in a key becomes \n, a backslash at the end of a tag an escaped space
    line = 'a\\,b\\ c\\n,k\\=e\\ y=v\\,a\\=l\\  f=true,g=1,s="a\nb\\\\"'
    assert point(line) == ("a,b c\\n", {"k=e y": "v,a=l "}, {"f": 1, "g": 1.0, "s": "a\nb\\"}, None)
    # influxdb 5.3: backslashes are doubled everywhere, a newline in a text becomes \n
    line = 'cpu\\ load,b=x\\\\,host=server\\ 01\\,a\\=b n=3i,ok=True,s="q\\"\\\\x\\ny",value=0.64 1766600000\n'
    assert reject_reason(write(line.encode())).startswith("not a name and tags: ")  # x\\, escapes the comma
    line = line.replace("b=x\\\\,", "")
    assert point(line) == (
        "cpu load",
        {"host": "server 01,a=b"},
        {"n": 3, "ok": 1, "s": 'q"\\x\\ny', "value": 0.64},
        1766600000,
    )


names = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1).filter(lambda x: not x.endswith("\\"))
values = st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(exclude_categories=["Cs"]))


@given(
    names, st.dictionaries(names, names), st.dictionaries(names, values, min_size=1), st.integers(-(2**63), 2**63 - 1)
)
def test_valid_line_protocol_is_read_back(name, tags, fields, time):
    def escape(text: str, what: str) -> str:
        return "".join("\\" + c if c in what else c for c in text)

    def quote(stored: float | str) -> str:
        return repr(stored) if isinstance(stored, float) else '"' + escape(stored, '"\\') + '"'

    if any("\0" in x for x in fields.values() if isinstance(x, str)) or name[0] == "#":
        return
    # a literal backslash before an escaped character is not distinguishable from the escape
    if any(f"\\{c}" in x for x in [name, *tags, *tags.values(), *fields] for c in ",= "):
        return
    line = escape(name, ", ") + "".join(f",{escape(k, ',= ')}={escape(v, ',= ')}" for k, v in tags.items())
    line += " " + ",".join(f"{escape(k, ',= ')}={quote(v)}" for k, v in fields.items()) + f" {time}"
    assert point(line) == (name, tags, fields, time)


# --- Telegraf's JSON

STANDARD = (
    b'{"fields":{"field_1":30,"field_2":4.5,"field_N":59,"n_images":660},'
    b'"name":"docker","tags":{"host":"raynor"},"timestamp":1458229140}'
)


def test_telegrafs_json_is_one_row_per_field():
    wanted = [
        Metric(time=1458229140000000000, name="docker", tags={"host": "raynor"}, field=field, value=stored, type=kind)
        for field, stored, kind in [
            ("field_1", 30, "integer"),
            ("field_2", 4.5, "float"),
            ("field_N", 59, "integer"),
            ("n_images", 660, "integer"),
        ]
    ]
    assert decode(STANDARD) == wanted
    assert decode(b'{"metrics":[' + STANDARD + b" ,\n" + STANDARD + b"]}") == wanted * 2
    assert decode(b"[" + STANDARD + b',{"metrics":[' + STANDARD + b"]}]") == wanted * 2
    assert decode(STANDARD + b"\n" + STANDARD + b"\n") == wanted * 2
    assert decode(gzip.compress(STANDARD)) == wanted


def test_an_invalid_point_of_a_batch_is_buried_alone():
    bad = [b'{"name":"a"}', b'{"name":"a","fields":{}}', b"5"]
    metric, *rejects = decode(b'{"metrics":[' + b",".join([b'{"name":"a","fields":{"b":1}}', *bad]) + b"]}")
    assert metric.value == 1
    assert [x.part for x in rejects] == [b'{"metrics":[' + x + b"]}" for x in bad]
    assert [x.reason for x in rejects[:2]] == ["missing: fields", "no field"]
    for reject in rejects:
        assert reject_reason(reject.part) == reject.reason


def test_a_field_of_telegrafs_json_may_have_any_scalar_value():
    body = b'{"name":"a","fields":{"t":true,"f":false,"s":"x","n":null,"u":18446744073709551615,"big":1%s}}' % (
        b"0" * 20
    )
    assert [(x.field, x.value, x.type) for x in decode(body)] == [
        ("t", 1, "boolean"),
        ("f", 0, "boolean"),
        ("s", "x", "string"),
        ("u", "18446744073709551615", "unsigned"),
        ("big", 1e20, "float"),
    ]
    assert decode(b'{"name":"a","fields":{"n":null}}') == []
    assert reject_reason(b'{"name":"a","fields":{}}') == "no field"
    assert reject_reason(b'{"name":"a","fields":{"":1}}') == "field without a name"
    assert reject_reason(b'{"metrics":5}') == "metrics is not an array"
    assert decode(b'{"metrics":[]}') == []


def test_a_record_is_limited_in_size_and_a_batch_is_not():
    large = b'{"name":"a","fields":{"b":"' + b"x" * (1 << 20) + b'"}}'
    assert reject_reason(gzip.compress(large)) == "record larger than 1048576 bytes"
    batch = b'{"metrics":[' + b",".join([STANDARD] * 10_000) + b"," + large + b"]}"
    *metrics, reject = decode(gzip.compress(batch))
    assert (len(metrics), reject.reason) == (40_000, "record larger than 1048576 bytes")


def test_a_record_may_have_as_many_bytes_as_its_limit():
    point = b'{"name":"a","fields":{"b":1,"c":2}}'
    for item in point, b"[" + point + b"]", b'{"metrics":[' + point + b"]}", gzip.compress(point):
        assert [metric.value for metric in decode(item, LIMITS._replace(record=len(point)))] == [1, 2]
        (reject,) = decode(item, LIMITS._replace(record=len(point) - 1))
        assert reject.reason == f"record larger than {len(point) - 1} bytes"
    plain = b'{"name":"a","value":1}'
    metric, _ = decode(b"[" + plain + b",0]", LIMITS._replace(record=len(plain)))
    assert metric.value == 1
    (reject,) = decode(plain, LIMITS._replace(record=len(plain) - 1))
    assert reject.reason == f"record larger than {len(plain) - 1} bytes"


def test_a_body_of_lines_is_decoded_up_to_its_limit():
    *metrics, rest = decode(b"m f=1\n# a comment\nm f=2\nm f=3\nm f=4", LIMITS._replace(records=3))
    assert [metric.value for metric in metrics] == [1, 2]
    assert rest == Reject(b"m f=3\nm f=4", Remainder.reason)


def test_a_query_string_may_have_100_parameters():
    query = "&".join(["precision=s", *(f"p{n}=" for n in range(99))])
    assert decode(write(b"m f=1 1", f"/write?{query}"))[0].time == 10**9
    assert reject_reason(write(b"m f=1 1", f"/write?{query}&x=")) == "query string has more than 100 parameters"


# --- plain JSON and forms


@check_each_row(
    ("written", "stored", "kind"),
    [
        ("21.5", 21.5, "float"), ("1e3", 1000.0, "float"), ("21", 21, "integer"), ("-0", 0, "integer"),
        ("true", 1, "boolean"), ("false", 0, "boolean"), ('"on"', "on", "string"), ('""', "", "string"),
        ('"1"', "1", "string"),
        ("9223372036854775807", 2**63 - 1, "integer"), ("-9223372036854775808", -(2**63), "integer"),
        ("9223372036854775808", "9223372036854775808", "unsigned"),
        ("18446744073709551615", "18446744073709551615", "unsigned"),
        ("18446744073709551616", 18446744073709551616.0, "float"),
        ("-9223372036854775809", -9223372036854775809.0, "float"),
    ],
)  # fmt: skip
def test_a_json_value_keeps_its_type(written, stored, kind):
    (metric,) = decode(f'{{"name":"room","value":{written}}}'.encode())
    assert (metric.value, type(metric.value), metric.type) == (stored, type(stored), kind)


def test_a_plain_metric_may_have_field_tags_and_time():
    body = b'{"name":"room","field":"temp","tags":{"floor":"2"},"value":1.5,"time":1766600000123}'
    assert decode(body) == [
        Metric(time=1766600000123000000, name="room", tags={"floor": "2"}, field="temp", value=1.5, type="float")
    ]


@pytest.mark.parametrize(
    "body",
    [
        b'{"name":"","value":1}',
        b'{"value":1}',
        b'{"name":"a","value":[1]}',
        b'{"name":"a","value":' + b"1" * 400 + b"}",
        b"name=a",
        b"name=&value=1",
        b"name=a&value=",
    ],
)
def test_a_metric_without_name_or_value_is_invalid(body):
    assert reject_reason(body)


@check_each_row(
    ("written", "stored", "kind"),
    [
        ("21.5", 21.5, "float"), ("21", 21, "integer"), ("-1e3", -1000.0, "float"), ("true", 1, "boolean"),
        ("false", 0, "boolean"), ("on", "on", "string"), ("007", "007", "string"), ("nan", "nan", "string"),
        ("1_0", "1_0", "string"), ("%C3%A9+x", "\u00e9 x", "string"), ("18446744073709551615",) * 2 + ("unsigned",),
    ],
)  # fmt: skip
def test_a_form_value_written_as_json_is_stored_as_json(written, stored, kind):
    (metric,) = decode(f"name=room&value={written}&time=1766600000&field=f".encode())
    assert (metric.name, metric.field, metric.time) == ("room", "f", 1766600000000000000)
    assert (metric.value, type(metric.value), metric.type) == (stored, type(stored), kind)


def test_a_form_is_distinguished_from_line_protocol():
    assert decode(b"value=1&name=room\r\n")[0].name == "room"
    assert decode(b"name=my value=1")[0].name == "name=my"
    assert decode(b"a=b,name=c value=1")[0].tags == {"name": "c"}
    assert reject_reason(b"a=b,name=c") == "no field"
    assert reject_reason(b"name=a&value=1e999") == "value out of range"
    assert reject_reason(b'{"name":"a","fields":{"v":1%b}}' % (b"0" * 400)) == "value out of range"


@check_each_row(
    ("query", "stamp"),
    [
        ("precision=nanosecond", "1766600000000000000"),
        ("precision=microsecond", "1766600000000000"),
        ("precision=millisecond", "1766600000000"),
        ("precision=second", "1766600000"),
        *(
            (auto, "1766600000" + "0" * zeros)
            for auto in ("precision=auto", "db=a&no_sync=true")
            for zeros in (0, 3, 6, 9)
        ),
        ("precision=auto", "0" * 5000 + "1766600000"),
    ],
)
def test_version_3_names_the_unit_or_guesses_it(query: str, stamp: str) -> None:
    (found,) = decode(write(b"m v=1 " + stamp.encode(), f"/api/v3/write_lp?{query}"))
    assert found.time == 1_766_600_000 * 10**9
