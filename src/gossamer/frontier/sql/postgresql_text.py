"""Values as PostgreSQL reads them, in statements and in lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def transposed(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def array(values: list[Any]) -> Any:
    """Numbers as one text, which is far cheaper for the driver than an array; other lists as they are."""
    if values and not isinstance(values[0], (int, type(None))):
        return values
    if None in values:
        return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"
    return "{" + ",".join(map(str, values)) + "}"


def literal(value: Any) -> str:
    """A value as it is written in a statement."""
    if isinstance(value, (list, tuple)):
        numbers = value and isinstance(value[0], int) and None not in value
        value = "{" + ",".join(map(str if numbers else element, value)) + "}"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return "NULL" if value is None else str(value)


def element(value: Any) -> str:
    """A value as it is written in a list."""
    if isinstance(value, bytes):
        return f'"\\\\x{value.hex()}"'
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return "NULL" if value is None else str(value)
