"""nginx has a location for each route, with the limits that the route names."""

from __future__ import annotations

import re
from pathlib import Path

from sluice import settings
from sluice.http.routes import pattern, varies
from sluice.routes import ROUTES
from support.folders import has
from support.nginx_front import as_one_text

GET = "/_sluice_get"
MAX_BATCH = settings.load_settings({}).max_batch


def test_nginx_has_the_locations_of_the_routes(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from sluice import OK, Route\n"
        "ROUTES = {'/own': Route('own', OK), '/a;b': Route('own', OK, batch=True)}\n"
        "ROUTES |= {'/get': Route('own', OK, get=True), '/own/{a}/b-c/*': Route('own', OK, max_body=9_999_999)}\n"
    )
    text = as_one_text(settings.load_settings({"INGEST_ROUTES": str(tmp_path / "own.py")}))
    found = dict(re.findall(r'^    location = "?(\S+?)"? \{\n(.*?)^    \}', text, re.M | re.S))
    varying = dict(re.findall(r'^    location ~ "(\S+?)" \{\n(.*?)^    \}', text, re.M | re.S))
    found |= {path: varying.pop(f"^{pattern(path)}$") for path in (*ROUTES, "/own/{a}/b-c/*") if varies(path)}
    assert not [path for path, lines in varying.items() if "proxy_pass" in lines]
    assert "client_max_body_size 9999999;" in found["/own/{a}/b-c/*"]
    # a GET goes to a location of its own, which has all that the path has, and is not sent again
    asked = {path[len(GET) :]: found.pop(path) for path in [*found] if path.startswith(GET)}
    for path, lines in asked.items():
        common = [line for line in found[path].splitlines() if GET not in line and "proxy_pass" not in line]
        assert {*common} < {*lines.splitlines()}
        assert "internal;" in lines
    of_events = "proxy_set_header ce-time $http_ce_time;"  # for routes of a user's own only
    own = {"/own", "/a;b", "/get", "/own/{a}/b-c/*"} if has("formats") else set()
    assert {path for path, lines in found.items() if of_events in lines} == own
    batches = {path for path, route in ROUTES.items() if route.batch} | {"/a;b"}
    assert {path for path, lines in found.items() if f"client_max_body_size {MAX_BATCH};" in lines} == batches
    once = {path for path, lines in found.items() if "proxy_next_upstream off;" in lines}
    gets = {path for path, route in ROUTES.items() if route.get and not varies(path) and not route.methods} | {"/get"}
    assert asked.keys() == gets
    assert once == {path for path, route in ROUTES.items() if route.methods or route.get} - gets
