"""Memory allocation of a process: what large pages needed goes back to the system when they are gone.

The command line imports this before the HTTP client, whose allocator reads its settings once, when it is loaded."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
CLIENT_ALLOCATOR = {"MIMALLOC_ALLOW_THP": "0", "MIMALLOC_PURGE_DELAY": "0"}
LARGE_BYTES = 256 * 1024
KEPT_BYTES = 8 * 1024 * 1024
"""What of small blocks is kept for the next ones: about what a commit of pages that are kept whole frees at once. To
give that back and take it again costs a tenth of a millisecond a page."""
ARENAS = 4
LARGE_PAGE_BYTES = 1 * 1024 * 1024
"""Pages from this size on are worth it to trim after them."""


def give_back_freed_memory() -> None:
    """Have the C library map large blocks one by one, which it returns at once; for the whole process, so not for
    those that only import us. Left to itself it maps ever larger blocks only, and keeps the others for later; and with
    many threads, which decode bodies, it keeps so many heaps.

    The HTTP client has an allocator of its own, mimalloc. As it comes it takes memory in huge pages, which go back only
    whole, and keeps what was freed until somebody asks for more. It reads the environment when it is loaded, so this
    must come before the client is imported; the user's own wish stands."""
    for name, value in CLIENT_ALLOCATOR.items():
        os.environ.setdefault(name, value)
    if (library := _glibc()) is not None:
        library.mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
        library.mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        library.mallopt(_ARENA_MAX, ARENAS)


def trim_after(page_bytes: int) -> None:
    """Give back what a page of this size left behind in small pieces, if it was large: it takes about a millisecond."""
    if page_bytes >= LARGE_PAGE_BYTES and (library := _glibc()) is not None:
        library.malloc_trim(0)


@lru_cache(maxsize=1)
def _glibc() -> Any:
    """The C library, if it is the one with these functions."""
    if sys.platform != "linux":
        return None
    import ctypes

    library = ctypes.CDLL(None)
    return library if hasattr(library, "malloc_trim") and hasattr(library, "mallopt") else None
