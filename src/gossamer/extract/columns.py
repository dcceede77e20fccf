"""The columns of a type of items: its fields under the names that are written, each with a word for its kind."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import types
import uuid
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin, get_type_hints

import msgspec

_KINDS: Mapping[Any, str] = {
    str: "str",
    uuid.UUID: "str",
    bytes: "str",
    datetime.time: "str",
    bool: "bool",
    int: "int",
    float: "float",
    decimal.Decimal: "decimal",
    datetime.datetime: "time",
    datetime.date: "date",
}


def columns_of(kind: type) -> dict[str, str]:
    """Field -> `str`, `int`, `float`, `bool`, `decimal`, `time`, `date`, or `json` for whatever else it holds."""
    return {name: _word(annotation) for name, annotation in _column_fields(kind)}


def _column_fields(kind: type) -> Iterable[tuple[str, Any]]:
    if hasattr(kind, "model_fields"):
        for name, field in kind.model_fields.items():
            yield field.serialization_alias or field.alias or name, field.annotation
        return
    if issubclass(kind, msgspec.Struct):
        for each in msgspec.structs.fields(kind):
            yield each.encode_name, each.type
        return
    try:
        hints = get_type_hints(kind)
    except NameError:
        # A name that only a type checker sees.
        hints = {}
    names = (
        [field.name for field in dataclasses.fields(kind)]
        if dataclasses.is_dataclass(kind)
        else [attribute.name for attribute in getattr(kind, "__attrs_attrs__", ())]
    )
    yield from ((name, hints.get(name, Any)) for name in names)


def _word(annotation: Any) -> str:
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _word(inside[0])
    if isinstance(annotation, NewType):
        return _word(annotation.__supertype__)
    if origin in (Union, types.UnionType):
        return _one(_word(each) for each in inside if each not in (type(None), msgspec.UnsetType))
    if origin is Literal:
        return _one(_KINDS.get(type(value), "json") for value in inside if value is not None)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _one(_KINDS.get(type(member.value), "json") for member in annotation)
    return _KINDS.get(annotation, "json")


def _one(words: Iterable[str]) -> str:
    found = set(words)
    return found.pop() if len(found) == 1 else "json"
