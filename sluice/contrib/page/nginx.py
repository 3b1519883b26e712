"""What nginx has for the status page and the metrics; see `sluice.run.nginx`."""

from __future__ import annotations

from pathlib import Path

from sluice.contrib.page.notifier import rejected_socket
from sluice.parsers import EVERYBODY
from sluice.run.nginx import HOST_CHECK, PROXY_CHECK, allow_lines, quoted_path
from sluice.settings import Settings

FILES = Path(__file__).with_name("status")

UPSTREAM = """\
upstream sluice_metrics {{
    server {socket};
}}
# Of the files at /status: the figures are private, the page is not
map $uri $sluice_cache {{
    default no-cache;
    "~\\.json$" no-store;
}}
"""
# Dead letters may be private, so only this machine and INGEST_STATUS_ALLOW have access
LOCATIONS = """\
location = /status/metrics {{
    {allows}
    deny all;
    include includes/open/*.conf;
    {check}
    proxy_pass http://sluice_metrics;
}}
location = /status {{
    rewrite ^ /status/ last;
}}
# The links of the page are relative to /status, for a proxy that serves it below a prefix; at /status/ they lead here
location /status/status/ {{
    rewrite ^/status(/.*) $1 last;
}}
location /status/ {{
    {allows}
    deny all;
    include includes/open/*.conf;
    {check}
    alias {files};
    index index.html;
    types {{
        text/html html;
        text/css css;
        text/javascript js;
        image/svg+xml svg;
        application/json json;
    }}
    charset utf-8;
    charset_types text/css text/javascript application/json;
    gzip on;
    gzip_types text/css text/javascript application/json;
    # Whatever a dead letter contains, the page loads nothing from other origins and sends nothing to them
    add_header Content-Security-Policy "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    add_header X-Content-Type-Options nosniff;
    add_header Referrer-Policy no-referrer;
    add_header Cache-Control $sluice_cache;
    add_header Sluice-Time $msec;  # the page uses the server's clock
    include includes/headers/*.conf;

    # what sluice.contrib.page.page writes
    location = /status/status.json {{
        {check}
        alias {status};
    }}
    location = /status/errors.json {{
        {check}
        alias {errors};
    }}
    location = /status/rows.json {{
        {check}
        alias {rows};
    }}
}}
"""


def page_files(s: Settings) -> dict[str, str]:
    """The files for nginx."""
    run = s.home / "run"
    check = "" if s.status_allow == EVERYBODY else f"{HOST_CHECK} {PROXY_CHECK}"
    names = {name: quoted_path(run / f"{name}.json") for name in ("status", "errors", "rows")}
    told = quoted_path(f"syslog:server=unix:{rejected_socket(s.home)},nohostname")
    return {
        "http/page.conf": UPSTREAM.format(socket=quoted_path(f"unix:{run}/metrics.sock")),
        "server/page.conf": LOCATIONS.format(
            allows=allow_lines(s.status_allow), check=check, files=quoted_path(f"{FILES}/"), **names
        ),
        "view/page.conf": '"~^/status" page;\n',
        # what nginx rejects is told to the program `page`, which counts and keeps it
        "problem/page.conf": f"access_log {told} sluice_rejected;\n",
    }
