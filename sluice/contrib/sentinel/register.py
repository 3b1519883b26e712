"""A spool whose Redis Sentinels name: redis+sentinel://…/NAME, and with TLS rediss+sentinel://…/NAME."""

from __future__ import annotations

from sluice.parsers import HOST, LOGIN, TLS_QUERY
from sluice.registry import Contribution, Spool

CONNECT = "sluice.contrib.sentinel.sentinels:following"
FORM = "redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT,HOST:PORT/NAME"
ADDRESS = rf"redis%s\+sentinel://(?:{LOGIN})?{HOST}(?:,{HOST})*/[\w.-]+"

CONTRIBUTION = Contribution(
    page="protocol/spool.md#replicas",
    spools={
        "redis+sentinel": Spool("sluice.spool", pattern=ADDRESS % "", form=FORM, connect=CONNECT),
        "rediss+sentinel": Spool(
            "sluice.spool", pattern=rf"{ADDRESS % 's'}(?:\?{TLS_QUERY})?", form=FORM.replace("redis", "rediss", 1),
            connect=CONNECT,
        ),
    }
)  # fmt: skip
