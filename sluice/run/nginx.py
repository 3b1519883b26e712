"""nginx's configuration of one cell, as texts by name: those of nginx/, and what the settings make of nginx/includes/.

nginx/sluice.conf is never changed, but for the paths of what it includes. `includes` writes the core's files whole.
A contribution adds files to a kind, which is a folder of includes/, by the names KIND/NAME.conf:

http        what stands beside the server: maps, zones, upstreams
server      what stands in the server: checks, locations
route       in each location that passes posts to the gateway, after the check of other sites' pages
preflight   in each location of a route or a view, before all checks
open        in each location that needs no credentials
headers     in each location that adds header fields of its own
problem     in the location of nginx's own errors
detail      in the map of a status to the text of its error
malformed   in the map of $https to the text of a 400
view        in the map of $request_uri to what is read there with GET
believed    in the map of X-Forwarded-For to whether the address that it reports is not believed
origin      in the map of "ORIGIN TARGET" to the Origin of a page that may send there

It changes the core's files by words, which have no slash in their name: `listen` has the parameters of the ports,
`sender` the value of the field Sluice-Sender, `log` more fields of a line about a rejected request; `credentials` says
that nobody sends or reads without one; and `at PATH` has lines for the location of this route.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from sluice import registry
from sluice.http.request import CREDENTIALS, PASSED
from sluice.http.routes import Route, pattern, varies
from sluice.places import ROOT
from sluice.routes import ROUTES, load_routes
from sluice.settings import SettingError, Settings

INCLUDES = "includes"  # below nginx/, and below $INGEST_HOME/etc
INCLUDE = re.compile(r"^( *)include includes/(?:([a-z]+)/\*|([a-z]+))\.conf;\n", re.MULTILINE)
# in each location where a page of a stranger could read what only this machine may read
HOST_CHECK = 'if ($sluice_host = "") { return 421; }'
# in each location that only some addresses may read: those of clients of a proxy on this machine are not its own
PROXY_CHECK = "if ($sluice_forwarded) { return 403; }"
# In each location that takes a GET: an answer of HTTP/0.9 has no status, so its sender cannot know what became of it
VERSION_CHECK = 'if ($server_protocol = "") { return 505; }'
KEEPALIVE_REQUESTS = 1_000_000  # of a client
STREAMS = 1000  # of a connection with HTTP/2, nginx's default
PROBES = "/healthz", "/readyz"
GATEWAY = "# max_fails=0: never take a socket out of rotation, as the same gateway listens on all of them\n"
HOSTS = """\
"~^({names}|[0-9.]+|\\[[0-9a-f:.]+\\]) " known;  # INGEST_HOSTS
"""
LISTEN = """\
# reuseport: one accept queue per nginx process; the kernel distributes the clients. backlog: limited by
# net.core.somaxconn
listen {port}{options};
{ipv6}listen [::]:{port}{options};
keepalive_requests {requests};  # of a client
"""
ACCESS = """\
# Who may send: this machine and private networks, unless INGEST_ALLOW says otherwise
{networks}
deny all;
"""
HOST = """\
# In a location that only some may read. Where a credential is needed, a page of a stranger has none
"""
LOG = """\
# The line about a request that nginx rejects
log_format sluice_rejected escape=json
    '{{"status":$status,"path":"$sluice_path","from":"$remote_addr","foreign":"$sluice_foreign"'
    ',"forwarded":"$sluice_forwarded"'
{more}    '}}';
"""
SLASHES = """\
# A slash at the end of a path changes nothing. Other requests to these paths never look here: their locations have a =
location ~ "^({paths})/$" {{
    rewrite ^(.+)/$ $1 last;
}}
"""


def quoted_path(path: object) -> str:
    """A path in a configuration. Raises: SettingError if nginx, Redis or supervisord would read it as another one."""
    if re.search(r'["$%\\\n\udc80-\udcff]|,(?!nohostname$)', str(path)):
        raise SettingError(
            f'nginx and Redis cannot use the path {str(path)!r}: it has one of " $ % \\ , or is not UTF-8.'
        )
    return f'"{path}"'


def allow_lines(networks: Collection[str]) -> str:
    return " ".join(f"allow {network};" for network in networks)


def contributed(s: Settings) -> dict[str, str]:
    """What contributions add, by KIND/NAME.conf or by a word; of one word, the texts one after the other."""
    texts: dict[str, str] = {}
    for added in registry.load_hooks("nginx"):
        for name, text in added(s).items():
            texts[name] = texts.get(name, "") + text
    return texts


def includes(s: Settings, has_ipv6: bool = True, added: Mapping[str, str] | None = None) -> dict[str, str]:
    """The core's files in includes/, by name. added: see `contributed`."""
    added = added or {}
    options = f"{added.get('listen', '')} backlog=65535 reuseport"
    servers = (f"server {quoted_path(f'unix:{path}')} max_fails=0;\n" for path in s.gateway_sockets)
    return {
        "gateway.conf": GATEWAY + "".join(servers),
        "hosts.conf": HOSTS.format(names="|".join(map(re.escape, ("localhost", *s.hosts)))),
        "listen.conf": LISTEN.format(
            port=s.port, options=options, ipv6="" if has_ipv6 else "# without IPv6: ",
            requests=STREAMS if "http2" in options else KEEPALIVE_REQUESTS,
        ),
        "access.conf": ACCESS.format(networks=allow_lines(s.allow)),
        "host.conf": HOST + f"{HOST_CHECK}\n" * ("credentials" not in added) + f"{PROXY_CHECK}\n",
        "log.conf": LOG.format(more=f"    '{added['log']}'\n" if "log" in added else ""),
        "fields.conf": "".join(passed_fields(added.get("sender", '""'))),
        "routes.conf": route_locations(s, added),
    }  # fmt: skip


def passed_fields(sender: str) -> Iterator[str]:
    """The header fields that nginx passes on every path."""
    yield "proxy_pass_request_headers off;\n"
    yield 'proxy_set_header Host $host;\nproxy_set_header Connection "";\n'
    yield from (pass_field(name) for name in PASSED)
    yield f"proxy_set_header Sluice-Sender {sender};  # no client can send one\n"


def pass_field(name: str) -> str:
    variable = "content_type" if name == "Content-Type" else "http_" + name.lower().replace("-", "_")
    return f"proxy_set_header {name} ${variable};\n"


def whole_head(sender: str) -> str:
    """The lines of a location that passes all header fields but credentials, which the list would store."""
    names = "".join(f'proxy_set_header {name} "";\n' for name in CREDENTIALS)
    return (
        'proxy_set_header Host $host;\nproxy_set_header Connection "";\n'
        "proxy_set_header X-Real-IP $remote_addr;\n"
        f"{names}proxy_set_header Sluice-Sender {sender};\nproxy_pass_request_headers on;\n"
    )


def route_locations(s: Settings, added: Mapping[str, str]) -> str:
    """The locations of the routes. One with = costs the other paths nothing."""
    known = load_routes(s.routes)
    more = registry.listed("fields")
    made = [f"# A larger Content-Length gets 413 before the body is read\nclient_max_body_size {s.max_body};\n"]
    for path, route in known.items():
        most = route.max_body or s.max_batch * route.batch
        lines = f"client_max_body_size {most};\n" * bool(most)
        lines += "include includes/preflight/*.conf;\nif ($sluice_foreign) { return 403; }\n"
        lines += "include includes/route/*.conf;\n" + added.get(f"at {path}", "")
        head = head_of(route, () if path in ROUTES else more, added.get("sender", '""'))
        word = f'"{path}"' if re.search("[;']", path) else path
        where = f"= {word}" if not varies(path) else f'~ "^{pattern(path)}$"'
        # a GET, or a PUT, would be sent again when its connection breaks, and be stored twice
        once = f"proxy_next_upstream off;\n{VERSION_CHECK}\n"
        if not route.methods and route.get and word == path and not varies(path):
            asked = f"internal;\n{lines}{once}{head}proxy_pass http://sluice_gateway{path};\n"
            made.append(f"location = /_sluice_get{path} {{\n{indented(asked)}}}\n")
            lines += f"if ($request_method = GET) {{ rewrite ^ /_sluice_get{path} last; }}\n"
        elif route.get or route.methods:
            lines += once
        made.append(f"location {where} {{\n{indented(lines + head)}    proxy_pass http://sluice_gateway;\n}}\n")
    probes = (*PROBES, *registry.declared_entries("probes"))
    fixed = (path for path in (*known, *probes) if f"{path}/" not in known and not varies(path))
    slashed = "|".join(map(re.escape, fixed))
    made.append(SLASHES.format(paths=slashed))
    return "".join(made)


def head_of(route: Route, more: Collection[str], sender: str) -> str:
    """The lines of a location that say which header fields it passes; none for those of every path.

    more: fields beside those of the route.
    """
    if route.keep_head or route.signed:
        return whole_head(sender)
    names = [name for name in dict.fromkeys((*(route.fields or ()), *more)) if name not in PASSED]
    if route.fields is None and not names:
        return ""
    address = "proxy_set_header X-Real-IP $remote_addr;\n" * (route.fields is not None)  # a Unix socket has none
    return "include includes/fields.conf;\n" + address + "".join(map(pass_field, names))


def indented(text: str) -> str:
    return re.sub("^(?=.)", "    ", text, flags=re.MULTILINE)


def expanded(text: str, folder: Path, names: Collection[str]) -> str:
    """A file with the names of what it includes in place of patterns, so that nginx misses none.

    folder: where these are.
    """

    def lines(match: re.Match[str]) -> str:
        space, kind, name = match.groups()
        found = sorted(each for each in names if each.startswith(f"{kind}/")) if kind else [f"{name}.conf"]
        return "".join(f"{space}include {pattern_of(folder / each)};\n" for each in found)

    return INCLUDE.sub(lines, text)


def pattern_of(path: Path) -> str:
    """A path after `include`, which takes * ? [ for a pattern."""
    return re.sub(r"([*?\[])", r"\\\\\1", quoted_path(path))


def configuration(s: Settings, has_ipv6: bool) -> dict[str, str]:
    """sluice.conf and what it includes, by their names below $INGEST_HOME/etc."""
    added = contributed(s)
    files = includes(s, has_ipv6, added) | {name: text for name, text in added.items() if name.endswith(".conf")}
    folder = s.home / "etc" / INCLUDES
    texts = {f"{INCLUDES}/{name}": text for name, text in files.items()}
    texts["sluice.conf"] = (ROOT / "nginx/sluice.conf").read_text()
    return {name: expanded(text, folder, files) for name, text in texts.items()}
