"""Positions as real clients send them, and invalid values."""

from __future__ import annotations

import gzip
from functools import partial

import msgspec
import pytest

from sluice.contrib.formats.owntracks import OTHERS
from sluice.streams.built_in import STREAMS
from sluice.streams.record import Decoded, Gps, Reject
from support import list_items
from support.list_items import LIMITS, kept
from support.table_of_cases import check_each_row

SECOND = 10**9
decoder = STREAMS["gps"].decode
decode = partial(list_items.decode, "gps")
reject_reason = partial(list_items.reject_reason, "gps")


# --- plain JSON and forms


@check_each_row("name", ["location", "position", "geometry", "features"])
@check_each_row("value", [b'"Home"', b"[]", b"[1]", b"{}", b"5"])
def test_a_position_may_have_a_field_with_the_name_of_a_format(name: str, value: bytes) -> None:
    assert decode(b'{"device":"a","lat":1,"lon":2,"%b":%b}' % (name.encode(), value)) == [Gps(device="a", lat=1, lon=2)]


def test_a_plain_position():
    body = (
        b'{"device":"a1","lat":48.13743,"lon":11.57549,"altitude":519,"speed":12.5,"accuracy":4,"bearing":359.5,'
        b'"battery":80,"time":1766600000}'
    )
    wanted = Gps(
        time=1766600000 * SECOND,
        device="a1",
        lat=48.13743,
        lon=11.57549,
        altitude=519.0,
        speed=12.5,
        accuracy=4.0,
        bearing=359.5,
        battery=80.0,
    )
    assert decoder(body, LIMITS) == Decoded((wanted,))
    names = ("time", "device", "lat", "lon", "altitude", "speed", "accuracy", "bearing", "battery")
    assert Gps.__struct_fields__ == names
    assert all(type(getattr(wanted, name)) is float for name in names[2:])
    form = b"device=a1&lat=48.13743&lon=11.57549&altitude=519&speed=12.5&accuracy=4&bearing=359.5&battery=80"
    assert decode(form + b"&time=1766600000") == [wanted]  # metres a second, not knots
    assert decode(form + b"&timestamp=2025-12-24T19:13:20%2B01:00") == [wanted]


@pytest.mark.parametrize("written", ["90", "-90", "0", "-0.0", "89.999999999", '"48.1"', '" 48.1 "', "1e1", '"1E1"'])
def test_latitudes_within_range_are_stored(written):
    (gps,) = decode(f'{{"device":"a","lat":{written},"lon":180}}'.encode())
    assert (gps.lat, gps.lon) == (float(written.strip('"')), 180.0)


@check_each_row(
    ("body", "reason"),
    [
        (b'{"device":"a","lat":91,"lon":1}', "latitude out of range: 91.0"),
        (b'{"device":"a","lat":-90.000001,"lon":1}', "latitude out of range: -90.000001"),
        (b'{"device":"a","lat":1,"lon":180.5}', "longitude out of range: 180.5"),
        (b'{"device":"a","lat":1,"lon":-181}', "longitude out of range: -181.0"),
        (b'{"device":"a","lat":"nan","lon":1}', "latitude out of range: nan"),
        (b'{"device":"a","lat":1,"lon":"inf"}', "longitude out of range: inf"),
        (b'{"device":"a","lat":"4,8,1","lon":1}', "latitude is not a number: '4,8,1'"),
        (b'{"device":"a","lat":"1_0","lon":1}', "latitude is not a number: '1_0'"),
        (b'{"device":"a","lat":"\\u0661","lon":1}', "latitude is not a number: '\u0661'"),
        (b'{"device":"a","lon":1}', "missing: latitude"),
        (b'{"device":"a","lat":1}', "missing: longitude"),
        (b'{"device":"a","lat":"","lon":1}', "missing: latitude"),
        (b'{"device":"a","lat":null,"lon":1}', "missing: latitude"),
        (b'{"device":"a","lat":true,"lon":1}', "latitude is not a number: 'true'"),
        (b'{"device":"a","lat":[1],"lon":1}', "latitude is not a number: '[1]'"),
        (b"device=a&lat=91&lon=1", "latitude out of range: 91.0"),
        (b"device=a&lat=1", "missing: longitude"),
    ],
)  # fmt: skip
def test_an_invalid_position_has_its_reason(body, reason):
    assert reject_reason(body) == reason


@check_each_row(
    ("name", "written"),
    [
        ("speed", "-1"), ("speed", '"-0.1"'), ("accuracy", "-1"), ("bearing", "-1"), ("bearing", "360.1"),
        ("battery", "-1"), ("battery", "100.5"), ("battery", "255"), ("speed", '"nan"'), ("altitude", '"-Infinity"'),
        ("altitude", '"1e999"'), ("speed", '""'), ("speed", "null"),
    ],
)  # fmt: skip
def test_an_optional_value_out_of_range_is_unknown_and_the_position_is_stored(name, written):
    assert decode(f'{{"device":"a","lat":1,"lon":2,"{name}":{written}}}'.encode()) == [
        Gps(device="a", lat=1.0, lon=2.0)
    ]


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("speed", "0"),
        ("accuracy", "0"),
        ("bearing", "0"),
        ("bearing", "360"),
        ("battery", "0"),
        ("battery", "100"),
        ("altitude", "-430.5"),
    ],
)
def test_optional_values_at_the_ends_of_their_range_are_stored(name, written):
    for text in (written, f'"{written}"'):
        (gps,) = decode(f'{{"device":"a","lat":1,"lon":2,"{name}":{text}}}'.encode())
        assert getattr(gps, name) == float(written)


def test_a_device_may_be_a_number():
    assert decode(b'{"device":17,"lat":1,"lon":2}') == [Gps(device="17", lat=1.0, lon=2.0)]


# --- OwnTracks

OWNTRACKS = (
    b'{"_type":"location","BSSID":"c0:ff:ee","SSID":"home","acc":35,"alt":154,"batt":85,"bs":1,"cog":270,"conn":"w",'
    b'"created_at":1766600001,"inregions":["Home"],"lat":51.5033640,"lon":-0.1276250,"m":2,"p":101.3,"t":"u","tid":"ne",'
    b'"topic":"owntracks/jane/phone","tst":1766600000,"vac":10,"vel":54}'
)


def owntracks(device: str) -> Gps:
    return Gps(
        time=1766600000 * SECOND,
        device=device,
        lat=51.503364,
        lon=-0.127625,
        altitude=154.0,
        speed=15.0,
        accuracy=35.0,
        bearing=270.0,
        battery=85.0,
    )


@pytest.mark.parametrize(
    ("fields", "target", "body", "device"),
    [
        (["X-Limit-U: jane", "X-Limit-D: mobile"], "/owntracks", OWNTRACKS, "jane/mobile"),
        (["x-limit-d: mobile", "x-limit-u: jane"], "/owntracks?u=x&d=y", OWNTRACKS, "jane/mobile"),
        (["X-Limit-U: jane"], "/owntracks", OWNTRACKS, "jane"),
        (["X-Limit-D: mobile"], "/owntracks", OWNTRACKS, "mobile"),
        ([], "/owntracks?u=jane&d=my%20phone", OWNTRACKS, "jane/my phone"),
        (["X-Limit-U:", "X-Limit-D: "], "/owntracks", OWNTRACKS, "jane/phone"),
        ([], "/owntracks", OWNTRACKS, "jane/phone"),
        ([], "/owntracks", OWNTRACKS.replace(b"owntracks/", b"other/"), "other/jane/phone"),
        ([], "/owntracks", OWNTRACKS.replace(b'"topic":"owntracks/jane/phone",', b""), "ne"),
    ],
)
def test_owntracks(fields, target, body, device):
    assert decode(kept(body, target, "User-Agent: OwnTracks", *fields)) == [owntracks(device)]


def test_owntracks_without_its_head_is_named_by_its_topic():
    assert decode(OWNTRACKS) == [owntracks("jane/phone")]
    assert decode(b"[" + OWNTRACKS + b"," + OWNTRACKS + b"]") == [owntracks("jane/phone")] * 2


def test_owntracks_with_only_the_required_fields_is_a_position():
    body = b'{"_type":"location","tid":"ne","lat":1,"lon":2,"tst":1766600000}'
    assert decode(kept(body)) == [Gps(time=1766600000 * SECOND, device="ne", lat=1.0, lon=2.0)]
    assert decode(kept(body.replace(b'"tid"', b'"vel":-1,"cog":-1,"batt":-1,"alt":null,"tid"'))) == decode(kept(body))
    (gps,) = decode(kept(body.replace(b'"tid":"ne",', b"")))
    assert gps.device == "owntracks"
    assert reject_reason(kept(body.replace(b'"lat":1', b'"lat":91'))) == "latitude out of range: 91.0"


def of_type(kind):
    return kept(OWNTRACKS.replace(b'"_type":"location"', b'"_type":"%s"' % kind), "/owntracks", "X-Limit-U: jane")


@check_each_row("kind", sorted(OTHERS))
def test_an_owntracks_message_without_a_position_is_valid_and_has_no_row(kind):
    decoded = STREAMS["gps"].decode(of_type(kind.encode()), LIMITS)
    assert ([*decoded], decoded.without_rows) == ([], {kind: 1})


def test_an_owntracks_transition_is_a_position():
    assert decode(of_type(b"transition")) == [owntracks("jane")]


@pytest.mark.parametrize("kind", ["encrypted", "other"])
def test_an_owntracks_message_that_may_hide_a_position_is_invalid(kind):
    assert reject_reason(of_type(kind.encode())) == f"not a position: _type '{kind}'"


def test_an_owntracks_type_that_is_not_a_string_is_invalid():
    assert reject_reason(kept(b'{"_type":5}')).startswith("wrong type or range: ")
    assert reject_reason(kept(b'{"_type":"%s"}' % (b"x" * 1000))) == "not a position: _type '" + "x" * 39


def test_an_empty_owntracks_body_has_no_position():
    assert decode(kept(b"")) == decode(kept(b"", "/owntracks?u=jane&d=phone")) == []
    assert reject_reason(kept(b"", "/owntracks?u=jane&d=phone&lon=1")) == "missing: latitude"
    assert reject_reason(kept(b"device=phone", "/owntracks?u=jane")) == "missing: latitude"


def test_a_tracker_without_a_fix_has_no_position():
    assert decode(b"id=1&timestamp=1767268800&cell=310,260,1,2&batt=50") == []
    assert reject_reason(b"id=1&timestamp=1767268800&batt=50") == "missing: latitude"


@pytest.mark.parametrize("geometry", [b"", b'"geometry":null,'])
def test_an_action_of_overland_may_have_no_position(geometry):
    bare = b'{"type":"Feature",%b"properties":{"action":"will_terminate"}}' % geometry
    assert decode(b'{"locations":[%b,%b]}' % (bare, FEATURE)) == decode(b'{"locations":[%b]}' % FEATURE)
    assert reject_reason(b'{"locations":[%b]}' % bare.replace(b"action", b"auction"))


def test_an_invalid_owntracks_payload_among_valid_ones_keeps_the_head():
    bad = OWNTRACKS.replace(b"location", b"encrypted")
    good, reject = decode(kept(OWNTRACKS + b"\n" + bad, "/owntracks", "X-Limit-U: jane", "Content-Length: 999"))
    assert good == owntracks("jane")
    assert reject == Reject(kept(bad, "/owntracks", "X-Limit-U: jane"), "not a position: _type 'encrypted'", False)
    assert reject_reason(reject.part) == reject.reason


# --- Overland

FEATURE = b"""{
      "type": "Feature",
      "geometry": {
        "type": "Point",
        "coordinates": [
          -122.030581, \n          37.331800
        ]
      },
      "properties": {
        "timestamp": "2015-10-01T08:00:00-0700",
        "altitude": 0,
        "speed": 4,
        "horizontal_accuracy": 30,
        "vertical_accuracy": -1,
        "motion": ["driving","stationary"],
        "pauses": false,
        "activity": "other_navigation",
        "desired_accuracy": 100,
        "deferred": 1000,
        "significant_change": "disabled",
        "locations_in_payload": 1,
        "battery_state": "charging",
        "battery_level": 0.89,
        "device_id": "phone",
        "wifi": ""
      }
    }"""
OVERLAND = (
    b'{\n  "locations": [\n    ' + FEATURE + b'\n  ],\n  "current": {"type":"Feature"},\n  "trip": {"mode":"bike"}\n}'
)
POSITION = Gps(
    time=1443711600 * SECOND,
    device="phone",
    lat=37.3318,
    lon=-122.030581,
    altitude=0.0,
    speed=4.0,
    accuracy=30.0,
    battery=89.0,
)


def test_overland():
    assert decode(OVERLAND) == [POSITION]
    assert decode(gzip.compress(OVERLAND)) == [POSITION]
    assert decode(b'{"locations":[' + b",".join([FEATURE] * 1000) + b"]}") == [POSITION] * 1000
    assert decode(kept(OVERLAND, "/overland", "Authorization: Bearer x")) == [POSITION]


def test_overland_below_zero_is_unknown():
    body = OVERLAND.replace(b'"speed": 4', b'"speed": -1, "course": -1').replace(b'"altitude": 0', b'"altitude": null')
    body = body.replace(b'"horizontal_accuracy": 30', b'"horizontal_accuracy": -1').replace(b"0.89", b"-1")
    assert decode(body) == [Gps(time=POSITION.time, device="phone", lat=37.3318, lon=-122.030581)]
    (gps,) = decode(OVERLAND.replace(b'"speed": 4', b'"course": 90.5'))
    assert (gps.speed, gps.bearing) == (None, 90.5)


def test_overlands_device_may_be_beside_the_locations():
    # as Colota sends them
    body = OVERLAND.replace(b'"device_id": "phone"', b'"device_id": ""')
    assert [gps.device for gps in decode(body)] == ["overland"]
    assert [gps.device for gps in decode(kept(body, "/overland?device=mine"))] == ["mine"]
    assert decode(body[:-1] + b',"device_id":"phone"}') == [POSITION]
    assert decode(OVERLAND[:-1] + b',"device_id":"other"}') == [POSITION]


def test_an_invalid_overland_feature_is_buried_alone_with_its_device():
    bad = [
        (FEATURE.replace(b"37.331800", b"97"), "latitude out of range: 97.0"),
        (FEATURE.replace(b'"Point"', b'"LineString"'), "not a position: geometry 'LineString'"),
        (FEATURE.replace(b"-122.030581, ", b""), "missing: latitude"),
        (b'{"type":"Feature","geometry":{"type":"Point","coordinates":[]},"properties":{}}', "missing: latitude"),
        (b'{"type":"Feature","geometry":null,"properties":{}}', None),
        (b'{"type":"Feature","properties":{}}', "missing: geometry"),
        (b'{"geometry":{"type":"Point"},"properties":{"device_id":"\\u0000"}}', "text with a NUL"),
        (b'{"geometry":{"type":"Point","coordinates":[%s1]},"properties":{}}' % (b"1," * 300), "coordinates too long"),
        (b"5", None),
        (b"[]", None),
    ]
    body = b'{"device_id":"a\\"b","locations":[' + b" ,\n".join([FEATURE, *(x for x, _ in bad), FEATURE]) + b"]}"
    first, last, *rejects = decode(body)
    assert (first, last) == (POSITION, POSITION)
    for reject, (part, reason) in zip(rejects, bad):
        assert reject.part == b'{"device_id":"a\\"b","locations":[' + part + b"]}"
        assert not reject.whole and reason in (None, reject.reason)
        assert reject_reason(reject.part) == reject.reason


def test_overland_without_locations_is_invalid():
    assert decode(b'{"locations":[]}') == []
    assert reject_reason(b'{"locations":5}') == "locations is not an array"
    assert reject_reason(b'{"locations":{"a":[]}}') == "locations is not an array"


# --- Traccar


def test_traccar_client_to_8_sends_a_query_string_with_an_empty_body():
    item = (
        b"id=123456&timestamp=1766600000&lat=48.13743&lon=11.57549&speed=10.0&bearing=90.0&altitude=519.0&accuracy=4.5"
        b"&batt=80.0"
    )
    wanted = Gps(
        time=1766600000 * SECOND,
        device="123456",
        lat=48.13743,
        lon=11.57549,
        altitude=519.0,
        speed=18520 / 3600,
        accuracy=4.5,
        bearing=90.0,
        battery=80.0,
    )
    assert decode(item) == [wanted]
    assert decode(kept(b"", "/traccar?" + item.decode())) == [wanted]
    assert decode(item.replace(b"id=", b"deviceid=").replace(b"bearing=", b"heading=")) == [wanted]
    assert decode(item.replace(b"lat=48.13743&lon=11.57549", b"location=48.13743,11.57549")) == [wanted]
    assert decode(item + b"&location=1,2") == [wanted]


@pytest.mark.parametrize("name", ["id", "deviceid"])
def test_a_form_with_a_device_is_plain_even_with_an_id(name):
    form = b"device=bike&lat=48.1&lon=11.6&speed=10&%s=7"
    assert decode(form % name.encode()) == [Gps(device="bike", lat=48.1, lon=11.6, speed=10.0)]  # metres per second
    # an empty field counts as not sent
    (traccar,) = decode(form.replace(b"bike", b"") % name.encode() + b"&timestamp=1766600000")
    assert (traccar.device, traccar.speed) == ("7", 18520 / 3600)


def test_a_form_with_nothing_of_traccar_but_an_id_is_plain():
    form = b"id=7&lat=48.1&lon=11.6&speed=10&time=1766600000"
    (plain,) = decode(form)
    assert (plain.device, plain.speed) == ("7", 10.0)  # metres per second
    for mark in b"batt=80", b"hdop=1", b"timestamp=1766600000", b"valid=true":
        assert decode(form + b"&" + mark)[0].speed == 18520 / 3600  # knots


@pytest.mark.parametrize(
    "written",
    ["1766600000", "1766600000000", "2025-12-24T18:13:20Z", "2025-12-24T18:13:20.000%2B0000", "2025-12-24+18:13:20",
     "2025-12-24%2018:13:20", "2025-12-24T19:13:20+01:00"],
)  # fmt: skip
def test_osmand_times(written):
    (gps,) = decode(f"id=1&lat=1&lon=2&timestamp={written}".encode())
    assert gps.time == 1766600000 * SECOND


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (b"id=1&lat=1", "missing: longitude"),
        (b"id=1&lat=&lon=2", "missing: latitude"),
        (b"id=1&location=5", "missing: longitude"),
        (b"id=1&location=a,5", "latitude is not a number: 'a'"),
        (b"id=1&lat=100&lon=2", "latitude out of range: 100.0"),
        (b"id=%00&lat=1&lon=2", "text with a NUL"),
    ],
)
def test_an_invalid_traccar_form_has_its_reason(item, reason):
    assert reject_reason(item) == reason


TRACCAR9 = (
    b'{"location":{"timestamp":"2025-12-24T18:13:20.123Z","coords":{"latitude":48.13743,"longitude":11.57549,"accuracy":4.5,'
    b'"speed":12.5,"heading":90,"altitude":519},"is_moving":true,"odometer":1234.5,"event":"motionchange",'
    b'"battery":{"level":0.8,"is_charging":false},"activity":{"type":"still"},"extras":{}},"device_id":"48241179"}'
)


def test_traccar_client_9_sends_json():
    wanted = Gps(
        time=1766600000123 * 10**6,
        device="48241179",
        lat=48.13743,
        lon=11.57549,
        altitude=519.0,
        speed=12.5,
        accuracy=4.5,
        bearing=90.0,
        battery=80.0,
    )
    assert decode(TRACCAR9) == [wanted]
    assert decode(TRACCAR9.replace(b'"48241179"', b"48241179")) == [wanted]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b'"coords"', b'"chords"', "missing: location.coords"),
        (b"48.13743", b"98", "latitude out of range: 98.0"),
        (b'"longitude":11.57549,', b"", "missing: longitude"),
    ],
)
def test_invalid_traccar_json_has_its_reason(old, new, reason):
    assert reject_reason(TRACCAR9.replace(old, new)) == reason


@pytest.mark.parametrize(("lat", "lon"), [(-90, -180), (90, 180)])
def test_the_poles_and_the_date_line_are_positions(lat, lon):
    for body in b'{"device":"a","lat":%d,"lon":%d}' % (lat, lon), b"id=a&lat=%d&lon=%d" % (lat, lon):
        (gps,) = decode(body)
        assert (gps.lat, gps.lon) == (lat, lon)


def test_traccars_json_below_zero_is_unknown():
    body = TRACCAR9.replace(b"0.8,", b"-1,").replace(b"12.5", b"-1").replace(b"90", b"-1")
    (gps,) = decode(body)
    assert (gps.speed, gps.bearing, gps.battery) == (None, None, None)
    (gps,) = decode(TRACCAR9.replace(b'"battery":{"level":0.8,"is_charging":false},', b""))
    assert gps.battery is None


# --- all together


def test_one_body_may_mix_formats():
    plain = b'{"device":"a1","lat":1,"lon":2}'
    parts = [plain, OWNTRACKS, TRACCAR9, b'{"locations":[' + FEATURE.replace(b"\n", b"") + b"]}"]
    devices = ["a1", "jane/phone", "48241179", "phone"]
    assert [x.device for x in decode(b"[" + b",".join(parts) + b"]")] == devices
    assert [x.device for x in decode(b"\n".join([*parts, b"id=7&lat=1&lon=2"]))] == [*devices, "7"]


# --- names


@check_each_row(
    ("sent", "target", "device"),
    [
        (b"", "/gps?device=a&lat=1&lon=2", "a"),
        (b'{"lat":1,"lon":2}', "/gps?device=a", "a"),
        (b'{"lat":1,"lon":2,"device":"b"}', "/gps?device=a", "b"),
        (b'{"lat":1,"lon":2,"device":["b"]}', "/gps?device=a", "a"),
        (b"lat=1&lon=2", "/gps?device=a", "a"),
        (b"lat=1&lon=2", "/gps", "gps"),
        (b"", "/gpslogger?lat=1&longitude=2", "gpslogger"),
        (b'{"_type":"location","lat":1,"lon":2}', "/owntracks?device=a", "a"),
        (b'{"type":"update_location","data":{"gps":[1,2]}}', "/homeassistant", "homeassistant"),
        (b'{"location":{"coords":{"latitude":1,"longitude":2}}}', "/traccar", "traccar"),
        (b'{"locations":[{"geometry":{"type":"Point","coordinates":[2,1]},"properties":{}}]}', "/overland", "overland"),
    ],
)
def test_a_device_without_a_name_has_that_of_the_url_or_of_the_path(sent, target, device):
    assert decode(kept(sent, target)) == [Gps(device=device, lat=1.0, lon=2.0)]


def test_positions_have_the_names_that_phones_use():
    wanted = Gps(time=1766600000 * SECOND, device="a", lat=1.0, lon=2.0, altitude=3.0, speed=4.0, accuracy=5.0,
                 bearing=6.0, battery=7.0)  # fmt: skip
    for names in (
        "tst device lat lon alt vel acc bear batt",
        "timestamp device_id latitude lng altitude speed accuracy heading battery",
        "ts tid latitude longitude elevation velocity horizontal_accuracy course bat",
    ):
        values = dict(zip(names.split(), [1766600000, "a", 1, 2, 3, 4, 5, 6, 7]))
        assert decode(msgspec.json.encode(values)) == [wanted]
        assert decode("&".join(f"{name}={value}" for name, value in values.items()).encode()) == [wanted]
    coords = {"latitude": 1, "longitude": 2, "altitude": 3, "speed": 4, "accuracy": 5, "heading": 6}
    browser = {"coords": coords, "timestamp": 1766600000, "device": "a", "battery": 7}
    assert decode(msgspec.json.encode(browser)) == [wanted]


def test_a_trip_of_overland_is_no_position():
    trip = FEATURE.replace(b'"pauses"', b'"type":"trip","pauses"')
    assert decode(b'{"locations":[' + trip + b"," + FEATURE + b"]}") == [POSITION]
    assert decode(b'{"locations":[' + trip + b"]}") == []
