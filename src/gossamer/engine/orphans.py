"""Processes that end with the one that started them, and when that says so."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from functools import partial

# Windows has no such signal, and no crawls; what only reads may be loaded there.
LEAVE: signal.Signals = getattr(signal, "SIGUSR1", signal.SIGTERM)
"""Has a process that runs a spider interrupt the page in hand."""


def hold_signals() -> None:
    """The `preexec_fn` of a process that calls `leave_signals_to_parent`: until then they wait."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))


def leave_signals_to_parent() -> None:
    """Let SIGINT and SIGTERM pass, which a terminal or a process manager sends to all processes."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # Not SIG_IGN, which processes that the spider starts would inherit.
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))


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
