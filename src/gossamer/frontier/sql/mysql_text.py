"""Statements for MariaDB and MySQL as text, values and all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from gossamer.extras import unusable

try:
    from asyncmy.converters import escape_string
except ImportError as missing:
    raise unusable("mysql", "the frontier in MariaDB or MySQL", missing) from missing

PARTS = re.compile(r"\$(\d+|c\d|rows|text|where|json2|json|a|b)\b")
_encode = msgspec.json.Encoder().encode


def written(
    parts: Sequence[str],
    given: Sequence[Any],
    *,
    row: Sequence[Any] = (),
    rows: Sequence[Sequence[Any]] = (),
    where: str = "",
) -> str:
    """A statement with its values in it: every other part is the name of one."""
    found = list(parts)
    for index in range(1, len(parts), 2):
        name = parts[index]
        if name == "rows":
            head = f"({given[0]},"
            found[index] = ",".join([head + ",".join(map(literal, each)) + ")" for each in rows])
        elif name == "json":
            found[index] = quoted(_encode(rows).decode())
        elif name == "json2":
            found[index] = quoted(_encode(given[1]).decode())
        elif name == "where":
            found[index] = where
        elif name[0] == "c":
            found[index] = _by_site(rows, int(name[1:]))
        elif name in ("a", "b"):
            found[index] = str(int(row[name == "b"]))
        else:
            found[index] = literal(given[int(name) - 1])
    return "".join(found)


def literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, (list, tuple)):
        # No key is below zero.
        return f"({','.join(map(str, map(int, value))) or '-1'})"
    raise TypeError(f"{type(value).__name__} has no place in a statement")


def quoted(text: str) -> str:
    # By the driver, as it writes parameters. The session's sql_mode is ours, so a backslash escapes, as it does there.
    return f"'{escape_string(text)}'"


def _by_site(rows: Sequence[Sequence[Any]], column: int) -> str:
    """What each of these sites has in a column."""
    values = [literal(row[column]) for row in rows]
    if len(set(values)) == 1:
        return values[0]
    cases = [f"WHEN {row[0]} THEN {value}" for row, value in zip(rows, values, strict=True)]
    return f"CASE site {' '.join(cases)} END"


def stretch(where: Sequence[int], ages: Sequence[int], *, young: int) -> str:
    """The rows of the queue with these ages, and what is between them unless one of them is young."""
    site, place, standing = where
    first, last = min(ages), max(ages)
    some = f"IN {literal(ages)}" if max(abs(first), abs(last)) > young else f"BETWEEN {first} AND {last}"
    return f"(site = {site} AND place = {place} AND standing = {standing} AND age {some})"


def moment(text: str) -> tuple[Any, ...]:
    """What a moment says: each column of an answer is a packet, so it is one text."""
    state, revision, clock, skew, restarts, rest_until, longest, allowance, phase, rest, place = text.split("\n")
    most = int(allowance) if allowance else None
    times = (int(revision), int(clock), int(skew), int(restarts), int(rest_until), int(longest))
    return (state, *times, most, int(phase), place, *map(int, rest.split(",")))


def new_rows(shard: int, rows: Sequence[Sequence[Any]]) -> list[str]:
    """Rows of the queue that nothing has happened to yet, for an INSERT."""
    head = f"({shard},"
    extras = {row[7]: literal(row[7]) for row in rows}
    return [
        f"{head}{site},{place},{standing},{age},{key},{quoted(url)},{depth},{extras[extra]})"
        for site, place, standing, age, key, url, depth, extra in rows
    ]


def whole_rows(shard: int, rows: Sequence[Sequence[Any]]) -> list[str]:
    """Rows of the queue, for an INSERT."""
    head = f"({shard},"
    return [
        f"{head}{site},{place},{standing},{age},{key},{quoted(url)},{depth},{priority},{tries},{lapses},{again},"
        f"{literal(extra)})"
        for site, place, standing, age, key, url, depth, priority, tries, lapses, again, extra in rows
    ]


def beyond(key: Sequence[str], values: Sequence[Any]) -> str:
    """That a row comes after another in the order of its key, said in a way that an index can be used for."""
    name, value = key[0], literal(values[0])
    if len(key) == 1:
        return f"{name} > {value}"
    return f"({name} > {value} OR ({name} = {value} AND {beyond(key[1:], values[1:])}))"


def is_too_old(version: str) -> bool:
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        return False
    return (int(found[1]), int(found[2])) < ((10, 6) if "maria" in version.lower() else (8, 0))
