"""What nginx has for Prometheus remote write; see `sluice.run.nginx`."""

from __future__ import annotations

from sluice.settings import Settings

# Whether a request to /api/v1/write is Prometheus remote write 1.0 or 2.0. Old senders, and some libraries, name
# another type or none, and some no encoding: a type that belongs to texts needs one
REMOTE_WRITE = r"""map "$request_method $content_type $http_content_encoding" $sluice_remote_write {
    default "";
    "~^(?!POST )" other;  # the gateway answers 405
    "~*^POST application/(x-protobuf|protobuf|vnd\.google\.protobuf) *(; *(proto=\"?(prometheus\.WriteRequest|io\.prometheus\.write\.v2\.Request)\"?|(?!proto=)[^ ;]+) *)* (snappy|zstd|gzip|deflate)?$" write;
    "~*^POST (application/octet-stream)? (snappy|zstd|gzip|deflate)?$" write;
    "~*^POST (text/plain|application/x-www-form-urlencoded)(;.*)? (snappy|zstd)$" write;
}
map $status $sluice_accept {
    default "";
    415 "snappy, zstd, gzip, deflate";
}
"""
DETAIL = (
    '415 "This path accepts only Prometheus remote write 1.0 or 2.0, compressed with snappy or zstd; the request had no '
    'effect.";\n'
)


def format_files(s: Settings) -> dict[str, str]:
    """The files and lines for nginx."""
    return {
        "http/formats.conf": REMOTE_WRITE,
        "detail/formats.conf": DETAIL,
        "problem/formats.conf": "add_header Accept-Encoding $sluice_accept always;\n",
        # before the body is read, because a sender must learn that its format is not supported
        "at /api/v1/write": 'if ($sluice_remote_write = "") { return 415; }\n',
    }
