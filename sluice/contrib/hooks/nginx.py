"""What nginx has for webhooks; see `sluice.run.nginx`.

A name with a signature has a location of its own, which asks for no other credential and passes the fields that have
one; a name with a size has one with that size. These depend on the file of INGEST_HOOKS, so nginx reads a file that a
reload writes anew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sluice.contrib.hooks.config import Hook, load
from sluice.contrib.hooks.fields import DROPPED
from sluice.contrib.hooks.register import FASTLY, PATH
from sluice.http.routes import Route
from sluice.parsers import AUTO
from sluice.run.nginx import INCLUDES, VERSION_CHECK, contributed, expanded, indented, pattern_of, whole_head
from sluice.settings import SettingError, Settings

FILE = "hooks.conf"  # below $INGEST_HOME/etc
# What no row keeps, the gateway need not parse: the heads of browsers and SDKs are half as long without it, and more of
# them are equal. nginx needs the others for itself
NGINX_OWN = {
    "connection", "content-length", "expect", "host", "http2-settings", "keep-alive", "proxy-connection", "te",
    "trailer", "transfer-encoding", "upgrade", "x-real-ip",
}  # fmt: skip
MORE = (
    "sec-ch-ua", "sec-ch-ua-mobile", "sec-ch-ua-platform", "sec-fetch-dest", "sec-fetch-mode", "sec-fetch-site",
    "sec-fetch-user", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto",
)  # fmt: skip
SHORTER = "".join(f'proxy_set_header {name} "";\n' for name in sorted({*DROPPED, *MORE} - NGINX_OWN))
LOCATION = """\
location {where} {{
{lines}}}
"""


def files(s: Settings) -> dict[str, str]:
    """The files and lines for nginx."""
    found = {f"at {PATH}": SHORTER}
    if s.hooks:
        found["server/hooks.conf"] = f"include {pattern_of(s.home / 'etc' / FILE)};\n"
    return found


def secrets(s: Settings) -> dict[str, str]:
    """The locations of names that the file of INGEST_HOOKS has. Raises: SettingError."""
    if not s.hooks:
        return {}
    hooks, added = load(s), contributed(s)
    text = "".join(location(hook, s, added) for hook in hooks.named.values() if hook.scheme or hook.size)
    if hooks.others.size:
        text += location(hooks.others, s, added)
    if any("fastly" in hook.challenges for hook in hooks.named.values()):
        lines = "if ($sluice_foreign) { return 403; }\ninclude includes/open/*.conf;\n" + no_passwords(s)
        lines += "include includes/fields.conf;\nproxy_set_header X-Real-IP $remote_addr;\n"
        text += LOCATION.format(where=f"= {FASTLY}", lines=indented(f"{lines}proxy_pass http://sluice_gateway;\n"))
    names = [name for name in added if name.endswith(".conf")]
    return {FILE: expanded(text, s.home / "etc" / INCLUDES, names)}


def location(hook: Hook, s: Settings, added: Mapping[str, str]) -> str:
    name = "[^/]+" if hook.name == "*" else re.escape(hook.name)
    sender = added.get("sender", '""')
    lines = f"client_max_body_size {hook.size or s.max_batch};\n"
    lines += "include includes/preflight/*.conf;\nif ($sluice_foreign) { return 403; }\n"
    if hook.scheme is None:
        lines += "include includes/route/*.conf;\n" + SHORTER + whole_head(sender)
    else:
        lines += "include includes/open/*.conf;\n" + no_passwords(s)
        if s.given.get("INGEST_ALLOW", AUTO) == AUTO:  # the signature says who may send
            lines += "allow all;\n"
        lines += 'proxy_set_header Host $host;\nproxy_set_header Connection "";\n'
        lines += 'proxy_set_header X-Real-IP $remote_addr;\nproxy_set_header Sluice-Sender "";\n'
        lines += f"{SHORTER}proxy_pass_request_headers on;\n"
    lines += f"{VERSION_CHECK}\nproxy_next_upstream off;\nproxy_pass http://sluice_gateway;\n"
    return LOCATION.format(where=f'~ "^/hooks/{name}(?:/.*)?$"', lines=indented(lines))


def no_passwords(s: Settings) -> str:
    return "auth_basic off;\n" * bool(getattr(s, "passwords", None))


def check(s: Settings, known: Mapping[str, Route], streams: Mapping[str, object]) -> None:
    """Check the file before anything starts. Raises: SettingError."""
    for hook in load(s).named.values():
        if s.runtime == "pypy" and hook.scheme and not all(isinstance(key, bytes) for key in hook.keys):
            raise SettingError(f"INGEST_RUNTIME=pypy cannot check the public key of the hook {hook.name}: use cpython.")
