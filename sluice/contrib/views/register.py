"""Views: read structures that follow the rows in the database, and the reader that answers from them."""

from __future__ import annotations

from sluice.parsers import clients_parser, either_parser, parse_module, size_parser
from sluice.registry import Contribution, Program, Setting

CONTRIBUTION = Contribution(
    page="protocol/database.md#views",
    settings={
        "views": Setting(either_parser("off", lambda: "off", parse_module), "", "module of views of your own, or off"),
        "views_memory": Setting(size_parser(8 << 20), "256m", "memory of the Redis that has the views"),
        "read_allow": Setting(
            clients_parser("all", "private", "none"), "127.0.0.1 ::1", "networks whose clients may read the views"
        ),
    },
    row_sources={"sqlite": "sluice.contrib.views.rows.sqlite:SqliteRows"},
    verbs={"views": "sluice.contrib.views.verb"},
    programs={
        "follower": Program("sluice.contrib.views.parts:follower_part"),
        "reader": Program("sluice.contrib.views.parts:reader_part", upgrades=True),
    },
    reads="sluice.contrib.views.declared:load_views",
    nginx="sluice.contrib.views.nginx:view_files",
    check="sluice.contrib.views.parts:check_views",
    announce="sluice.contrib.views.parts:announce",
    figures={"views": "sluice.contrib.views.figures:ViewsFigures"},
    scratch="sluice.contrib.views.declared:are_on",
)
