"""Compression: gzip by isal and zstd by the standard library, with fallbacks where they are missing.

isal takes less time than zlib's level 6: 17 us instead of 54 us for a commit of 14 KB, 0.27 ms instead of 3.5 ms for
213 KB of lines, 2 % larger; it decompresses these in 139 us instead of 442 us. The two zstd libraries, zstandard and
backports.zstd, take the same time, so the only fallback is the one that newer Pythons have built in."""

from __future__ import annotations

import sys
import zlib
from typing import Any

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

try:
    from isal import isal_zlib as deflate
except ImportError:
    # There are no wheels of it for this machine.
    deflate = zlib  # type: ignore[misc]

__all__ = ["GZIP_ERRORS", "ZSTD_LEVEL", "deflate", "gunzip", "gzip", "zstd", "zstd_frame"]

# Of isal's levels, 2 gives nearly the size of zlib's 6; zlib's own 1 is the fallback.
_GZIP_LEVEL = 2 if deflate is not zlib else 1
ZSTD_LEVEL = 3
GZIP_ERRORS: Any = (zlib.error, deflate.error)
_ZSTD_OPTIONS: Any = {
    zstd.CompressionParameter.compression_level: ZSTD_LEVEL,
    zstd.CompressionParameter.checksum_flag: 1,
}


def gzip(data: bytes | bytearray) -> bytes:
    """Compress the data as one gzip member."""
    return deflate.compress(data, _GZIP_LEVEL, wbits=31)


def gunzip() -> Any:
    """Return a decompressor of one gzip member."""
    return deflate.decompressobj(31)


def zstd_frame(data: bytes | bytearray) -> bytes:
    """Compress the data as one zstd frame with its size and a checksum."""
    return zstd.compress(data, options=_ZSTD_OPTIONS)
