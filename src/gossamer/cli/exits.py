"""Exit codes, which scripts rely on."""

from enum import IntEnum


class Exit(IntEnum):
    """What `$?` says."""

    OK = 0
    ERROR = 1
    USAGE = 2
    SOME_FAILED = 3
    INTERRUPTED = 130
