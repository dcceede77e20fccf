"""Types of items: what a spider yields is made to fit the type that it declares, or is told what does not fit."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from gossamer.errors import ConfigError, ExtractError
from gossamer.extract.columns import columns_of
from gossamer.extract.items import plain

SCHEMA_HINT = "a type of items is a dataclass, an attrs class, a pydantic model or a msgspec Struct"
_AT = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")
_MISSING = re.compile(r"missing required field `([^`]*)`")


class Misfit(NamedTuple):
    """Why an item does not fit: the type that it was held against, the field, and what is wrong with it."""

    type: str
    field: str
    error: str


class Fitted(NamedTuple):
    """An item in plain values, and the type that it fits; empty if none is declared."""

    item: dict[str, Any]
    type: str = ""


class Schema:
    """One type. Text becomes a number or a date where the type says so; anything else that differs does not fit."""

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.name = kind.__name__
        self._is_model = hasattr(kind, "model_validate")
        self._takes_more = self._is_model and getattr(kind, "model_config", {}).get("extra") == "allow"
        self._known = _names(kind)
        if not self._is_model:
            try:
                msgspec.convert({}, kind)
            except msgspec.ValidationError:
                pass
            except TypeError as error:
                raise ConfigError(f"items of type {self.name} cannot be checked: {error}", hint=SCHEMA_HINT) from None

    def fit(self, item: Any) -> dict[str, Any] | Misfit:
        """The item as the type has it, in plain values; or why it does not fit."""
        try:
            fields = _as_written(item) if isinstance(item, self.kind) else plain(item)
        except ExtractError as error:
            return Misfit(self.name, getattr(error, "field", ""), str(error))
        unknown = None if self._takes_more else next((name for name in fields if name not in self._known), None)
        if unknown is not None:
            return Misfit(self.name, unknown, "the type has no such field")
        try:
            return self._fitted(fields)
        except msgspec.ValidationError as error:
            return self._misfit(str(error))
        except ExtractError as error:
            return Misfit(self.name, "", str(error))
        except ValueError as error:
            return self._of_model(error)

    def _fitted(self, fields: dict[str, Any]) -> dict[str, Any]:
        if self._is_model:
            return plain(self.kind.model_validate(fields).model_dump(mode="json", by_alias=True))  # type: ignore[attr-defined]
        return _as_written(msgspec.convert(fields, self.kind, strict=False))

    def _misfit(self, text: str) -> Misfit:
        at, missing = _AT.search(text), _MISSING.search(text)
        place = at[1] if at else ""
        if missing:
            place = f"{place}.{missing[1]}" if place else missing[1]
        # A validator of the type's own names the field, if anything does, in quotes.
        place = place or next((name for name in self._known if f"'{name}'" in text), "")
        return Misfit(self.name, place, _AT.sub("", text))

    def _of_model(self, error: ValueError) -> Misfit:
        errors = getattr(error, "errors", None)
        if not callable(errors):
            return Misfit(self.name, "", f"{type(error).__name__}: {error}")
        first = errors()[0]
        return Misfit(self.name, ".".join(map(str, first["loc"])), str(first["msg"]))


class Schemas:
    """All types of a spider. With several, a mapping is held against each in turn."""

    def __init__(self, kinds: type | Sequence[type]) -> None:
        declared = kinds if isinstance(kinds, Sequence) else (kinds,)
        self._schemas = [Schema(kind) for kind in declared]

    def __bool__(self) -> bool:
        return bool(self._schemas)

    def columns(self) -> dict[str, dict[str, str]]:
        """Type -> field -> its kind, see `columns_of`."""
        return {schema.name: columns_of(schema.kind) for schema in self._schemas}

    def fit(self, item: Any) -> Fitted | Misfit:
        """The item in plain values, or why it fits none of the types."""
        first = None
        for schema in self._schemas:
            is_own = isinstance(item, schema.kind)
            if not is_own and not isinstance(item, Mapping):
                continue
            found = schema.fit(item)
            if not isinstance(found, Misfit):
                return Fitted(found, schema.name)
            if is_own:
                return found
            first = first or found
        if first is None:
            return Misfit(type(item).__name__, "", f"{type(item).__name__} is not one of the spider's item types")
        return first


def _names(kind: type) -> frozenset[str]:
    if hasattr(kind, "model_validate"):
        fields: Mapping[str, Any] = getattr(kind, "model_fields", {})
        aliases = [
            alias
            for field in fields.values()
            for alias in (field.alias, field.validation_alias)
            if isinstance(alias, str)
        ]
        return frozenset((*fields, *aliases))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return frozenset(kind.__struct_encode_fields__)
    if dataclasses.is_dataclass(kind):
        return frozenset(field.name for field in dataclasses.fields(kind))
    if hasattr(kind, "__attrs_attrs__"):
        return frozenset(attribute.name for attribute in kind.__attrs_attrs__)
    raise ConfigError(f"{kind!r} is not a type of items", hint=SCHEMA_HINT)


def _as_written(item: Any) -> dict[str, Any]:
    """An instance in plain values, under the names that its type writes."""
    if hasattr(item, "model_dump"):
        return plain(item.model_dump(mode="json", by_alias=True))
    try:
        return plain(msgspec.to_builtins(item, str_keys=True))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return plain(item)
