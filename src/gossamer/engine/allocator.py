"""Memory allocator settings of a process, so that memory used for large pages returns to the system.

The command line imports this module before the HTTP client, whose allocator reads its settings once, when it is loaded.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
CLIENT_ALLOCATOR = {"MIMALLOC_ALLOW_THP": "0", "MIMALLOC_PURGE_DELAY": "0"}
LARGE_BYTES = 256 * 1024
KEPT_BYTES = 8 * 1024 * 1024
"""Freed small blocks that the process keeps: about what one commit of pages with bodies frees at once.

Returning that memory and requesting it again would cost a tenth of a millisecond a page."""
ARENAS = 4
LARGE_PAGE_BYTES = 1 * 1024 * 1024
"""Size in bytes from which a page is worth trimming the heap after it."""


def give_back_freed_memory() -> None:
    """Configure glibc and mimalloc for this process to return freed memory to the system.

    glibc maps large blocks individually, and unmaps them when they are freed. By default it raises its threshold, keeps
    larger blocks, and keeps a heap for each of the threads that decode bodies. The HTTP client uses mimalloc, which by
    default allocates huge pages and delays returning them. mimalloc reads the environment when it is loaded, so call
    this before the client is imported. Variables that the user has set stay. The settings hold for the whole process,
    so a program that imports Gossamer as a library should not call this."""
    for name, value in CLIENT_ALLOCATOR.items():
        os.environ.setdefault(name, value)
    if (library := _glibc()) is not None:
        library.mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
        library.mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        library.mallopt(_ARENA_MAX, ARENAS)


def trim_after(page_bytes: int) -> None:
    """Trim the heap if a page of this size was large; takes about a millisecond."""
    if page_bytes >= LARGE_PAGE_BYTES and (library := _glibc()) is not None:
        library.malloc_trim(0)


@lru_cache(maxsize=1)
def _glibc() -> Any:
    """Return the C library if it is glibc, else None."""
    if sys.platform != "linux":
        return None
    import ctypes

    library = ctypes.CDLL(None)
    return library if hasattr(library, "malloc_trim") and hasattr(library, "mallopt") else None
