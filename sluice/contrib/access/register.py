"""Who may do what: API keys and their names, passwords, TLS, signatures, CORS, proxies, and limits of a client."""

from __future__ import annotations

import ipaddress
import re
from typing import Any, Callable

from sluice import parsers
from sluice.parsers import AUTO, EVERYBODY, either_parser, integer_parser, words_parser
from sluice.registry import Contribution, Setting


def parse_origins(text: str) -> tuple[str, ...]:
    """Paths, and origins as browsers send them (RFC 6454)."""
    expected = "paths such as /votes and optionally origins such as https://a.example"
    valid = re.compile(r"/[\w/.~-]*|https?://[a-z0-9_.-]+(:[0-9]{1,5})?", re.ASCII).fullmatch
    given = words_parser(valid, expected)(text)
    if given and not any(word.startswith("/") for word in given):
        raise ValueError(expected)
    return given


def parse_proxies(text: str) -> tuple[str, ...]:
    """Addresses and networks, but not all of them: then every client could name any address as its own."""
    given = parsers.clients_parser("private")(text)
    if any(ipaddress.ip_network(word).prefixlen == 0 for word in given):
        raise ValueError("the addresses of proxies, not of everybody")
    return given


def check_tls_pair(values: dict[str, Any]) -> None:
    """Raises: SettingError for a key without its certificate."""
    from sluice.settings import SettingError  # which imports the registers

    if values["tls_key"] and not values["tls_certificate"]:
        raise SettingError("INGEST_TLS_KEY needs INGEST_TLS_CERTIFICATE.")
    values["tls_key"] = values["tls_key"] or values["tls_certificate"]
    if values["allow"] == AUTO and (values["api_keys"] or values["passwords"]):
        values["allow"] = EVERYBODY


def limit_parser(high: int) -> Callable[[str], int]:
    """A parser of a limit of a client; `auto` is -1."""
    return either_parser("auto", lambda: -1, integer_parser(0, high))


CONTRIBUTION = Contribution(
    page="protocol/operator.md#access-control",
    settings={
        "api_keys": Setting(parsers.parse_file, "", "file of API keys, which every client needs then"),
        "passwords": Setting(parsers.parse_file, "", "file of names and hashed passwords, for basic authentication"),
        "tls_certificate": Setting(parsers.parse_file, "", "file of the certificate for HTTPS"),
        "tls_key": Setting(parsers.parse_file, "", "file of its private key, if it is not in the certificate's"),
        "client_rate": Setting(limit_parser(1_000_000), "auto", "requests per second of one client"),
        "client_connections": Setting(limit_parser(65535), "auto", "concurrent requests of one client"),
        "proxies": Setting(parse_proxies, "", "proxies whose X-Forwarded-For says where a client is"),
        "cors": Setting(parse_origins, "", "paths that pages of other sites may use"),
    },
    settle="sluice.contrib.access.register:check_tls_pair",
    senders="sluice.contrib.access.key_usage:KeyUsage",
    figures={"senders": "sluice.contrib.access.key_usage:KeyUsageFigures"},
    gateway="sluice.contrib.access.signature:check_signed_routes",
    exports={"signed": "sluice.contrib.access.signed_stream:signed_stream"},
    nginx="sluice.contrib.access.nginx:access_files",
    secrets="sluice.contrib.access.nginx:check_secrets",
    check="sluice.contrib.access.nginx:check_access",
    announce="sluice.contrib.access.nginx:announce",
)
