"""`from support.zstd import zstd`: of the standard library since CPython 3.14, before that of a package."""

import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["zstd"]
