"""What is wrong with a setting, in words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_KINDS = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "array": "a list",
    "object": "a table", "null": "nothing",
}  # fmt: skip
# Infinity and whatever comes near it is more than clocks, stores and the HTTP client can count with.
_MOST_SECONDS, _MOST = 10.0**10, 2**63 - 1


def worded(text: str, values: Mapping[str, Any], kinds: Mapping[str, str]) -> str:
    """What msgspec said of values that do not fit `kinds`, as people say it: the name, its value, what it must be."""
    if unknown := re.fullmatch(r"Object contains unknown field `(.*?)`( - at `.*`)?", text, re.DOTALL):
        return f"there is no setting {unknown[1]}"
    match = re.fullmatch(r"(.*) - at `\$\.(([a-z_]+).*)`", text, re.DOTALL)
    if match is None:
        return text
    said, path, name = match.groups()
    if said.startswith("Invalid enum value"):
        choices = re.findall(r"'(\w+)'", kinds[name].partition("Literal[")[2].partition("]")[0])
        wanted = f"one of {', '.join(choices)}"
    else:
        said = re.sub(r"(\d)\.0\b", r"\1", said.removeprefix("Expected ").partition(", got ")[0])
        wanted = re.sub(r"`([a-z]+)( \| null)?`", lambda kind: _KINDS.get(kind[1], kind[1]), said)
    value = values.get(name)
    # What should be a list or a table may have a password in it.
    is_shown = path == name and isinstance(value, str | int | float) and not wanted.startswith(("a list", "a table"))
    return f"{path} is {value!r:.80}, but must be {wanted}" if is_shown else f"{path} must be {wanted}"


def too_large(value: Any, name: str = "") -> str:
    """Which number in plain values is too large to count with, in words; empty if none is."""
    if isinstance(value, Mapping):
        parts = ((item, f"{name}.{key}" if name else str(key)) for key, item in value.items())
    elif isinstance(value, list | tuple):
        parts = ((item, name) for item in value)
    else:
        most = _MOST_SECONDS if isinstance(value, float) else _MOST
        is_large = isinstance(value, int | float) and value > most
        return f"{name} is {value:g}, but must be at most {most:,.0f}" if is_large else ""
    return next((found for item, path in parts if (found := too_large(item, path))), "")
