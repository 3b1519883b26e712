"""Print what bin/provision installs for these settings beside the part `up`, one part a line.

bin/up runs this before anything is installed, so it imports only the standard library.
"""

from __future__ import annotations

from sluice import settings

SCHEMES = ("kafka", "parquet", "s3", "clickhouse")  # of INGEST_SPOOL and INGEST_ROWS: what needs a part of this name


def parts(s: settings.Settings) -> list[str]:
    """The parts, each once."""
    schemes = {url.partition(":")[0] for url in (s.spool, s.rows.rest, *s.rows.streams.values()) if url}
    return ["pypy"] * (s.runtime == "pypy") + [scheme for scheme in SCHEMES if scheme in schemes]


if __name__ == "__main__":
    print("\n".join(parts(settings.load_or_exit())))
