"""A Redis on another machine as the spool: redis://…, and with TLS rediss://…; or the one that Redis Sentinels name:
redis+sentinel://…/NAME, and with TLS rediss+sentinel://…/NAME.
"""

from __future__ import annotations

from sluice.contrib.urls import HOST, LOGIN
from sluice.registry import Contribution, Spool

TLS_QUERY = r"(?:ssl_(?:ca_certs|certfile|keyfile)=/[^&#\s]+&?)+"


FORM = "USER:PASSWORD@HOST:PORT"
FORMS = f"+sentinel://{FORM},HOST:PORT,HOST:PORT/NAME"
ONE = rf"://(?:{LOGIN})?{HOST}"
SEVERAL = rf"\+sentinel{ONE}(?:,{HOST})*/[\w.-]+"
TLS = rf"(?:\?{TLS_QUERY})?"
HOSTS = "sluice.contrib.sentinel.connections:connect_host"
MASTERS = "sluice.contrib.sentinel.sentinels:connect_master"


def spool_of(pattern: str, form: str, connect: str) -> Spool:
    return Spool("sluice.spool", pattern=pattern, form=form, connect=connect)


CONTRIBUTION = Contribution(
    page="protocol/spool.md#replicas",
    spools={
        "redis": spool_of(f"redis{ONE}", f"redis://{FORM}", HOSTS),
        "rediss": spool_of(f"rediss{ONE}{TLS}", f"rediss://{FORM}?ssl_ca_certs=/PATH", HOSTS),
        "redis+sentinel": spool_of(f"redis{SEVERAL}", f"redis{FORMS}", MASTERS),
        "rediss+sentinel": spool_of(f"rediss{SEVERAL}{TLS}", f"rediss{FORMS}", MASTERS),
    },
)
