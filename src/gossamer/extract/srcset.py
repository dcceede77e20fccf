"""The images that a `srcset` attribute names."""

from __future__ import annotations

import re

from gossamer.extract.links import SPACES

_FLOAT = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def parse_srcset(value: str) -> list[str]:
    """The URLs of the image candidates in a srcset attribute, by the HTML standard."""
    found, position = [], 0
    while (start := _skip(value, position, SPACES + ",")) < len(value):
        end = start
        while end < len(value) and value[end] not in SPACES:
            end += 1
        url = value[start:end]
        if url.endswith(","):
            descriptors: list[str] = []
            position = end
        else:
            descriptors, position = _descriptors(value, end)
        if _valid_descriptors(descriptors):
            found.append(url.rstrip(","))
    return found


def _skip(value: str, position: int, letters: str) -> int:
    while position < len(value) and value[position] in letters:
        position += 1
    return position


def _descriptors(value: str, position: int) -> tuple[list[str], int]:
    """The descriptors of one candidate, and where the next one starts; brackets hide commas and spaces."""
    found, current, inside = [], "", False
    while position < len(value):
        letter = value[position]
        position += 1
        if inside:
            inside = letter != ")"
        elif letter == "(":
            inside = True
        elif letter == ",":
            break
        elif letter in SPACES:
            if current:
                found.append(current)
            current = ""
            continue
        current += letter
    return ([*found, current] if current else found), position


def _valid_descriptors(descriptors: list[str]) -> bool:
    """Whether a candidate has at most one density, or a width with at most one height."""
    kinds: dict[str, int] = {}
    for descriptor in descriptors:
        kind, number = descriptor[-1], descriptor[:-1]
        whole = number.isascii() and number.isdigit()
        if kind in "wh" and not (whole and int(number[:18]) > 0):
            return False
        if kind == "x" and not (_FLOAT.fullmatch(number) and (not number.startswith("-") or float(number) == 0)):
            return False
        kinds[kind] = kinds.get(kind, 0) + 1
    if not set(kinds) <= {"w", "h", "x"} or any(count > 1 for count in kinds.values()):
        return False
    return not ("x" in kinds and len(kinds) > 1) and ("h" not in kinds or "w" in kinds)
