"""Processes that end with the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from functools import partial


def die_with(parent: int) -> None:
    """Have the kernel end this process with its parent: an orphan would go on fetching beside its successor."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        # It may have died before the kernel was told. In a container the parent may well be process 1.
        if os.getppid() != parent:
            os._exit(1)


def dies_with_us() -> Callable[[], None]:
    """The `preexec_fn` of a process that ends with this one."""
    return partial(die_with, os.getpid())
