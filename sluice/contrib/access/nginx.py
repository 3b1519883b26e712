"""What nginx has for access control; see `sluice.run.nginx`.

A request must pass all checks that are on, before the body is read, in this order: limits, address, password, key. So
guesses count towards the limits, and an address that may not send learns nothing about a key.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterator, Mapping

from sluice import registry
from sluice.contrib.access import keys
from sluice.contrib.access.signature import PublicKey, load_signed
from sluice.contrib.secret_file import read_secret
from sluice.http.routes import Route, pattern, varies
from sluice.parsers import PRIVATE
from sluice.run.nginx import quoted_path
from sluice.settings import SettingError, Settings

STRANGERS = 64  # concurrent requests of a client of the internet, with INGEST_CLIENT_CONNECTIONS=auto
GUESSES = 100  # requests per second of a client, with INGEST_PASSWORDS and INGEST_CLIENT_RATE=auto
HSTS = "add_header Strict-Transport-Security max-age=31536000"

# The client's API key, from X-API-Key, from Authorization, as clients of InfluxDB, Splunk and Elasticsearch send it,
# from DD-API-KEY, as Datadog's do, from X-Amz-Firehose-Access-Key, or from the query, as InfluxDB 1's and devices do;
# and the name of its owner ("": the key is unknown). A longer key than 46 characters does not fit into a bucket of
# nginx's hash.
# Of basic authentication nginx cannot decode the password, so the file of keys has the end of the encoded text, too,
# behind a colon, which no key has: 40 characters are 28 or more of the key
KEYS = """\
map $http_x_api_key $sluice_key {{
    default $http_x_api_key;
    "" $sluice_other_key;
}}
map $http_authorization $sluice_other_key {{
    default $http_dd_api_key$http_x_amz_firehose_access_key;
    "" $sluice_field_key;
    "~^(?i:Bearer|Token|Splunk|ApiKey) +(?<sluice_token>[^ ]+)$" $sluice_token;
    "~^(?i:Basic) +[^ ]*?(?<sluice_basic>[^ ]{{40}})$" :$sluice_basic;
}}
map "$http_dd_api_key$http_x_amz_firehose_access_key" $sluice_field_key {{
    default $http_dd_api_key$http_x_amz_firehose_access_key;
    "" $sluice_query_key;
}}
map $arg_api_key $sluice_query_key {{
    default $arg_api_key;
    "" $arg_p;
}}
map $sluice_key $sluice_client {{
    default "";
    include {keys};
}}
# Names of keys, what each may post to, and its rate
include {senders};
map $status $sluice_challenge {{
    default "";
    401 'Bearer realm="Sluice"';
}}
"""
# A post without a valid key is not refused in its own location, because `if` comes before limits, addresses and
# passwords; here auth_request refuses it after them. Posts with a valid key need no subrequest
KEY_CHECK = "auth_request off; if ($sluice_forbidden) { rewrite ^ /_sluice_keyless last; }\n"
KEY_LOCATIONS = """\
auth_request /_sluice_key;
location = /_sluice_keyless {{
    internal;
    client_max_body_size 0;
}}
location = /_sluice_key {{
    internal;
    if ($sluice_client = "") {{ return 401; }}
    if ($sluice_forbidden) {{ return 403; }}
    return 204;
}}
# The rates of names
include {quotas};
"""
# The client as the limits count it: an IPv4 address, or the network /64 of an IPv6 address (the first 8 of 16 bytes),
# because one host usually has a whole /64 and may use another address for each request
NETWORK = """\
map $binary_remote_addr $sluice_network {
    default $binary_remote_addr;
    "~(?s)^(?<sluice_prefix>.{8}).{8}\\z" $sluice_prefix;
}
"""
# Clients outside of this machine and of private networks, where a balancer or a proxy may speak for many
STRANGER = f"""\
geo $sluice_near {{
    default 0;
    {" 1; ".join(PRIVATE)} 1;
}}
map $sluice_near $sluice_stranger {{
    default "";
    0 $sluice_network;
}}
"""
TLS = """\
ssl_certificate {certificate};
ssl_certificate_key {key};
ssl_protocols TLSv1.2 TLSv1.3;  # nginx's default includes 1.0 and 1.1
ssl_ciphers ECDHE+AESGCM:ECDHE+CHACHA20;  # for TLS 1.2: forward secrecy, authenticated encryption
ssl_session_cache shared:sluice_tls:10m;  # about 40,000 sessions that resume without a full handshake
ssl_session_timeout 1h;
ssl_session_tickets off;  # nginx 1.22 encrypts them with one key until it restarts
"""
MALFORMED = '"" "This port takes only HTTPS; the request had no effect.";\n'
CORS = """\
map $request_method $sluice_preflight {
    default "";
    OPTIONS $sluice_permitted;
}
map "$sluice_view $sluice_origin" $sluice_permitted {
    default "";
    "~^view ." GET;
    "~^ ." POST;
}
map $sluice_preflight $sluice_preflight_headers {
    default "*, Authorization";  # * means all fields except Authorization
    "" "";
}
map $sluice_preflight $sluice_preflight_seconds {
    default 7200;  # two hours: browsers limit it to that or less
    "" "";
}
"""
CORS_HEADERS = """\
add_header Access-Control-Allow-Origin $sluice_origin always;
add_header Access-Control-Expose-Headers Retry-After always;
add_header Vary Origin always;
"""
PREFLIGHT_HEADERS = """\
add_header Access-Control-Allow-Methods $sluice_preflight;
add_header Access-Control-Allow-Headers $sluice_preflight_headers;
add_header Access-Control-Max-Age $sluice_preflight_seconds;
"""
# The address of a client behind proxies: the last one in X-Forwarded-For that is not a proxy's. What stands before it
# may be forged
REAL_ADDRESS = """\
{proxies}
real_ip_header X-Forwarded-For;
real_ip_recursive on;
"""
# A client of a proxy on this machine is on this machine if the proxy says so, and no address that it names is elsewhere
NOT_HERE = """\
geo $realip_remote_addr $sluice_not_here {{
    default forwarded;
{here}}}
"""
HERE = '"~^(127\\.[0-9.]+|::1)( *, *(127\\.[0-9.]+|::1))*$" $sluice_not_here;\n'
LOOPBACK = tuple(map(ipaddress.ip_network, ("127.0.0.0/8", "::1/128")))
GIVEN = """\
# Whether a request has a credential at all
map "$http_authorization$http_x_api_key$http_dd_api_key$http_x_amz_firehose_access_key$arg_api_key" $sluice_given {
    default given;
    "" "";
}
"""


def access_files(s: Settings) -> dict[str, str]:
    """The files and words for nginx."""
    etc = s.home / "etc"
    zones, limits = client_limits(s)
    http, server, headers = GIVEN + zones, limits, ""
    made = {
        "detail/access.conf": '401 "The API key or the password is missing or wrong; the request had no effect.";\n',
        "log": ',"given":"$sluice_given","connections":"$limit_conn_status"',
    }
    if s.proxies:
        http += NOT_HERE.format(here="".join(f'    {network} "";\n' for network in local(s.proxies)))
        server += REAL_ADDRESS.format(proxies=" ".join(f"set_real_ip_from {network};" for network in s.proxies))
        made["believed/access.conf"] = HERE
    if s.passwords:
        server += f"auth_basic Sluice;\nauth_basic_user_file {quoted_path(s.passwords)};\n"
    if s.api_keys:
        http += KEYS.format(keys=quoted_path(etc / keys.KEYS), senders=quoted_path(etc / keys.SENDERS))
        server += KEY_LOCATIONS.format(quotas=quoted_path(etc / keys.QUOTAS))
        made |= {"route/keys.conf": KEY_CHECK, "open/access.conf": "auth_request off;\n", "sender": "$sluice_sender"}
        made["log"] += ',"name":"$sluice_sender","forbidden":"$sluice_forbidden"'
        made["problem/access.conf"] = "add_header WWW-Authenticate $sluice_challenge always;\n"
    if s.tls_certificate:
        server += TLS.format(certificate=quoted_path(s.tls_certificate), key=quoted_path(s.tls_key))
        made |= {"listen": " ssl http2", "malformed/access.conf": MALFORMED}
        made["log"] += ',"https":"$https"'
        if s.port == 443:  # it binds the whole host
            headers += f"{HSTS} always;\n"
            made["headers/access.conf"] = f"{HSTS};\n"
    if s.api_keys or s.passwords:
        made["credentials"] = "needed"
    if s.cors:
        http += CORS
        headers += CORS_HEADERS
        server += PREFLIGHT_HEADERS
        made |= {
            "preflight/access.conf": "if ($sluice_preflight) { return 204; }\n",
            "origin/access.conf": allowed_origins(s),
        }
    made["problem/access.conf"] = made.get("problem/access.conf", "") + headers
    return made | {"http/access.conf": http, "server/access.conf": server + headers}


def client_limits(s: Settings) -> tuple[str, str]:
    """The lines beside the server and in it for the limits of a client."""
    # a guess of a password costs nginx milliseconds
    rate = s.client_rate if s.client_rate >= 0 else GUESSES * bool(s.passwords)
    # INGEST_ALLOW=private has no clients that `auto` would count
    strangers = s.client_connections < 0 and s.allow != PRIVATE
    most = STRANGERS if strangers else s.client_connections
    zones, lines = NETWORK, ""
    if rate > 0:
        zones += f"limit_req_zone $sluice_network zone=sluice_rate:10m rate={rate}r/s;\n"
        lines += f"limit_req zone=sluice_rate burst={2 * rate} nodelay;\n"
    if most > 0:
        zones += STRANGER if strangers else ""
        zones += (
            f"limit_conn_zone ${'sluice_stranger' if strangers else 'sluice_network'} zone=sluice_connections:10m;\n"
        )
        lines += f"limit_conn sluice_connections {most};  # requests in progress; with HTTP/2, each of them\n"
    return zones, lines + "limit_req_status 429;\nlimit_conn_status 429;\n"  # the default is 503


def local(networks: Collection[str]) -> Iterator[str]:
    """What of some networks is this machine."""
    for network in map(ipaddress.ip_network, networks):
        for loopback in LOOPBACK:
            if network.version == loopback.version and network.overlaps(loopback):
                yield str(max(network, loopback, key=lambda each: each.prefixlen))


def allowed_origins(s: Settings) -> str:
    """Which origins may use which targets."""
    names = "|".join(re.escape(word) for word in s.cors if not word.startswith("/")) or "[^ ]+"
    paths = "|".join(re.escape(word) for word in s.cors if word.startswith("/"))
    return f'"~^({names}) /*({paths})/*(\\?|$)" $http_origin;\n'


def check_secrets(s: Settings) -> dict[str, str]:
    """Check the modes and contents of the files of secrets; return those that nginx reads. Raises: SettingError."""
    if s.passwords and not re.search(
        r"^[^:#\s][^:\n]*:[^\s:]+", read_secret("INGEST_PASSWORDS", s.passwords), re.MULTILINE
    ):
        raise SettingError(f"INGEST_PASSWORDS={str(s.passwords)!r} has no NAME:HASH; htpasswd writes them.")
    if s.tls_key:
        name = "INGEST_TLS_KEY" if s.tls_key != s.tls_certificate else "INGEST_TLS_CERTIFICATE"
        if "PRIVATE KEY-----" not in read_secret(name, s.tls_key):
            raise SettingError(f"{name}={str(s.tls_key)!r} has no private key: INGEST_TLS_KEY names its file.")
    return keys.key_files(s)


def check_access(s: Settings, known: Mapping[str, Route], streams: Mapping[str, object]) -> None:
    """Check what INGEST_ROUTES and INGEST_CORS name. Raises: SettingError."""
    for path, (_, found) in load_signed(known).items():
        if s.runtime == "pypy" and any(isinstance(key, PublicKey) for key in found):
            raise SettingError(
                f"INGEST_RUNTIME=pypy cannot check the public key of {path}: use cpython, or let the worker check "
                "(signed in the module of INGEST_RECORDS)."
            )
    paths = {*known, *(path for reads in registry.load_hooks("reads") for path in reads(s))}
    varying = re.compile("|".join(map(pattern, filter(varies, paths))) or "(?!)")
    for path in s.cors:
        if path.startswith("/") and path not in paths and not varying.fullmatch(path):
            raise SettingError(f"INGEST_CORS: there is no path {path} to post to or to read.")


def announce(s: Settings, words: dict[str, str]) -> None:
    """What a client must show, on the first screen."""
    if s.tls_certificate:
        words["scheme"] = "https"
        words["curl"] += " -k"  # the certificate is hardly for localhost
    needs = []
    if s.api_keys:
        words["curl"] += " -H 'X-API-Key: KEY'"
        needs.append("an API key")
    if s.passwords:
        words["curl"] += " -u NAME:PASSWORD"
        needs.append("a password")
    words["need"] += ", with " * bool(needs) + " and ".join(needs)
