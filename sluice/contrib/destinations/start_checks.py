"""What a start needs to know of INGEST_ROWS: the folders that it makes, and whether workers need the network."""

from __future__ import annotations

from sluice.settings import Settings


def local_places(s: Settings) -> list[tuple[str, str]]:
    """A setting and a file in each folder that is on this machine."""
    urls = {url for url in s.rows.values() if url and url.startswith("parquet:")}
    return [("INGEST_ROWS", f"{url.removeprefix('parquet://')}/rows") for url in sorted(urls)]


def needs_network(s: Settings) -> bool:
    """Whether workers do: what is posted on is so by a program of its own."""
    return any(url and not url.startswith(("parquet:", "http", "store+")) for url in s.rows.values())
