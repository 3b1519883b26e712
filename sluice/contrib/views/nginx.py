"""What nginx has for the views; see `sluice.run.nginx`."""

from __future__ import annotations

import re

from sluice.contrib.views.declared import load_views
from sluice.parsers import EVERYBODY
from sluice.run.nginx import allow_lines, quoted_path
from sluice.settings import Settings

UPSTREAM = """\
# sluice.contrib.views.serve.app, which answers the views; as the gateway's
upstream sluice_reader {{
    least_conn;
{servers}    keepalive 4096;
    keepalive_requests 1000000;
    keepalive_timeout 1s;
}}
"""
# The first buffer holds a feed of 100 items, so that nginx reads an answer at once and sends it at once. All of them
# are what an answer takes that its client does not read: nginx leaves the rest of it in the reader
LOCATION = """\
location = {path} {{
    {allows}
    deny all;
    {check}
    include includes/preflight/*.conf;
    proxy_buffer_size 16k;
    proxy_buffers 3 16k;
    proxy_pass http://sluice_reader;
}}
"""


def view_files(s: Settings) -> dict[str, str]:
    """The files for nginx; none without views."""
    paths = load_views(s)
    if not paths:
        return {}
    servers = "".join(f"    server {quoted_path(f'unix:{path}')} max_fails=0;\n" for path in s.reader_sockets)
    # where everybody may read, a page of a stranger gains nothing
    check = "" if s.read_allow == EVERYBODY else "include includes/host.conf;"
    locations = (LOCATION.format(path=path, allows=allow_lines(s.read_allow), check=check) for path in paths)
    return {
        "http/views.conf": UPSTREAM.format(servers=servers),
        "server/views.conf": "".join(locations),
        "view/views.conf": f'"~^({"|".join(map(re.escape, paths))})(\\?|$)" view;\n',
    }
