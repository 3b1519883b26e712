"""Makes the list item of a WSGI request, for the gateway: its body, or the whole HTTP message."""

from __future__ import annotations

from typing import Any

from sluice.http.replies import CUT_OFF, EMPTY, NO_LENGTH, Rejected, too_large


def read(environ: dict[str, Any], keep_head: bool, max_body: int) -> bytes:
    """The item for the list: the body, or the query string if the body is empty; with keep_head the whole message.

    max_body: bytes. Raises: Rejected.
    """
    length = environ.get("CONTENT_LENGTH") or "0"
    if "HTTP_TRANSFER_ENCODING" in environ or not length.isdecimal():
        if not environ.get("wsgi.input_terminated") or "CONTENT_LENGTH" in environ:
            raise Rejected(NO_LENGTH)
        body: bytes = environ["wsgi.input"].read(max_body + 1)
        if len(body) > max_body:
            raise Rejected(too_large(max_body))
    else:
        try:
            size = int(length)
        except ValueError:  # thousands of digits
            raise Rejected(too_large(max_body)) from None
        if size > max_body:
            raise Rejected(too_large(max_body))
        body = environ["wsgi.input"].read(size)
        if len(body) != size:
            raise Rejected(CUT_OFF)
    if not body:
        query: str = environ.get("QUERY_STRING", "")
        if not query:
            raise Rejected(EMPTY)
        if not keep_head:
            return query.encode("latin-1")
    return head(environ) + body if keep_head else body


def head(environ: dict[str, Any]) -> bytes:
    """The head: as received if the server has it (`fastlane.head`), else rebuilt with the same target and fields."""
    received: bytes | None = environ.get("fastlane.head")
    if received is not None:
        return received
    target = environ.get("RAW_URI")
    if target is None:
        query = environ.get("QUERY_STRING")
        target = environ["PATH_INFO"] + ("?" + query if query else "")
    lines = [f"POST {target} HTTP/1.1"]
    for name in "CONTENT_TYPE", "CONTENT_LENGTH":
        if environ.get(name):
            lines.append(f"{name.replace('_', '-').title()}: {environ[name]}")
    for name, value in environ.items():
        if name.startswith("HTTP_") and name != "HTTP_TRANSFER_ENCODING":
            lines.append(f"{name[5:].replace('_', '-').title()}: {value}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
