"""Errors of MariaDB and MySQL in our words, by their numbers."""

from __future__ import annotations

import struct

from asyncmy import errors as faults

from gossamer.errors import UNREACHED, FrontierError, JobMissing, SchemaMismatch, Unavailable
from gossamer.frontier.sql.database import CROWDED, FORBIDDEN, FULL, MISSING, UNDER_WAY, UNKNOWN

_CONFLICT = {1205, 1213, 1020, 1062, 1615, 3572}
_FORBIDS = {1044, 1142, 1143, 1227}
_READ_ONLY_CODES = {1290, 1836}
HUNG_UP = (RuntimeError, AttributeError, IndexError, struct.error)
"""What the driver raises besides its own errors where a server hangs up in the middle of a message."""
_LOST = {0, 1047, 1053, 1077, 1079, 1080, 1152, 1153, 1158, 1159, 1160, 1161, 1184, 1927, 2003, 2006, 2013, 2055, 4031}
_PASSING = {
    3, 14, 1021, 1026, 1028, 1030, 1031, 1037, 1038, 1040, 1041, 1042, 1114, 1129, 1203, 1226, 1290, 1317, 1836, 1969,
    3024,
}  # fmt: skip
# Counters that were frozen overflow.
_OUT_OF_RANGE = 1690
_UNREACHED, _CROWDED, _FULL = {2003}, {1040, 1203, 1226}, {3, 14, 1021, 1114}
_UNKNOWN, _MISSING, _FORBIDDEN = {1045, 1251, 1275, 1698, 3118}, {1049}, _FORBIDS
_HINTS = (
    (_UNREACHED, UNREACHED),
    (_CROWDED, CROWDED),
    (_FULL, FULL),
    (_UNKNOWN, UNKNOWN),
    (_MISSING, MISSING),
    (_FORBIDDEN, f"{FORBIDDEN} and CREATE VIEW"),
)


def is_conflict(error: BaseException) -> bool:
    """Whether the transaction was undone because of another one, and may be tried again at once."""
    return isinstance(error, faults.MySQLError) and _number(error) in _CONFLICT


def is_loss(error: BaseException) -> bool:
    """Whether the connection is gone."""
    if isinstance(error, faults.MySQLError):
        # An internal error is the driver's: it has lost count of the packets.
        unusable = isinstance(error, (faults.InterfaceError, faults.InternalError))
        return _number(error) in _LOST | _READ_ONLY_CODES or unusable
    return isinstance(error, (OSError, TimeoutError, EOFError)) or is_hung_up(error)


def is_hung_up(error: BaseException) -> bool:
    """Whether the driver raised what it does where the server hangs up: its own code is in the traceback."""
    trace = error.__traceback__
    while trace is not None:
        if "asyncmy" in trace.tb_frame.f_code.co_filename:
            return isinstance(error, HUNG_UP)
        trace = trace.tb_next
    return False


def is_forbidden(error: BaseException) -> bool:
    """Whether the user may not do this."""
    return isinstance(error, faults.MySQLError) and _number(error) in _FORBIDS


def explain(error: BaseException, server: str) -> FrontierError | None:
    """What a driver's error means; None if it is none of a driver."""
    if isinstance(error, (OSError, TimeoutError, EOFError)) or is_hung_up(error):
        return Unavailable(f"{server}: {error or type(error).__name__}", hint=UNREACHED)
    if not isinstance(error, faults.MySQLError):
        return None
    number, text = _number(error), str(error.args[-1] if error.args else error)[:300]
    if number == 1146:
        return JobMissing(
            "the job's tables are not in this database any more", hint="was the database emptied or restored?"
        )
    if number == 1054:
        return SchemaMismatch("the tables were made by another version of Gossamer", hint="use that version")
    if number == _OUT_OF_RANGE and "frozen" in text:
        return Unavailable(f"{server}: the shard is on its way to another database", hint=UNDER_WAY)
    hint = next((hint for numbers, hint in _HINTS if number in numbers), "")
    if number in _UNKNOWN | _MISSING | _FORBIDDEN:
        return FrontierError(f"{server} refused: {text}", hint=hint)
    if number in _PASSING or number in _LOST or number in _CONFLICT or is_loss(error):
        return Unavailable(f"{server}: {text}", hint=hint or (UNREACHED if number in _LOST else ""))
    return FrontierError(f"{server}: {text} ({number})")


def _number(error: BaseException) -> int:
    return int(error.args[0]) if error.args and isinstance(error.args[0], int) else -1
