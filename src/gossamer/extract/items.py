"""Items: converted to JSON values, passed through the spider's pipelines, and validated against its item types."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import inspect
import re
import types
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, NewType, Union, get_args, get_origin, get_type_hints

import msgspec

from gossamer.errors import ConfigError, ExtractError
from gossamer.extract.links import normal
from gossamer.model import Rejected, Request

HINT = "yield a dict, a dataclass, an attrs or pydantic model, or a msgspec Struct, with values that JSON can hold"
FOLLOW_HINT = "to follow a link, yield page.follow(link); to store a text, yield it in a dict"
MAX_PRIORITY = 1_000_000_000
_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(Request).decode


def to_json_values(item: Any) -> dict[str, Any]:
    """Convert an item to a mapping of JSON values; ExtractError names the type or field that cannot be stored."""
    fields = _fields(item)
    try:
        found = msgspec.to_builtins(fields, str_keys=True, enc_hook=_nested)
        # Lone surrogates, and numbers that no database can hold, are found only by encoding.
        _encode(found)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ExtractError(f"item {type(item).__name__}: {_invalid_field(fields)}{error}", hint=HINT) from error
    return dict(found)


def is_one(result: Any) -> bool:
    """Whether a handler returned one item or request instead of a list of them. Text counts as one, and is no item."""
    if isinstance(result, Mapping | Request | str) or hasattr(type(result), "model_dump"):
        return True
    return result is not None and not isinstance(result, Iterable)


def checked_request(request: Request) -> Request:
    """Return a spider's request with a normalized URL; ExtractError explains what cannot be queued."""
    url = normal(request.url) if isinstance(request.url, str) else None
    if url is None:
        raise ExtractError(
            f"{request.url!r:.200} is not a URL to follow",
            hint="only http and https are followed; page.follow(...) resolves relative URLs",
        )
    try:
        meta = None if request.meta is None else to_json_values(request.meta)
        made = msgspec.structs.replace(request, url=url, meta=meta)
        # Reject other values here: a request that cannot be stored would stop the crawl, not just this page.
        _decode_request(_encode(made))
        if abs(request.priority) > MAX_PRIORITY:
            raise ValueError(f"priority {request.priority:.0e} exceeds {MAX_PRIORITY}")
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.ValidationError, ExtractError) as error:
        raise ExtractError(
            f"request for {url}: {error}", hint="its values must have the types of the fields of Request"
        ) from error
    return made


def _fields(item: Any) -> Mapping[str, Any]:
    if isinstance(item, Mapping):
        return dict(item)
    kind = type(item)
    if isinstance(item, msgspec.Struct):
        return {name: getattr(item, name) for name in item.__struct_fields__}
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}
    if hasattr(kind, "__attrs_attrs__"):
        return {field.name: getattr(item, field.name) for field in kind.__attrs_attrs__}
    if hasattr(kind, "model_dump"):
        return dict(item.model_dump())
    is_link = isinstance(item, str)
    raise ExtractError(f"{kind.__name__} is not an item: {item!r:.80}", hint=FOLLOW_HINT if is_link else HINT)


def _nested(value: Any) -> Any:
    """Convert a value inside an item that msgspec cannot encode."""
    if hasattr(value, "getall"):
        raise TypeError("a selection is not a value: add .get() or .getall()")
    if isinstance(value, Mapping) or hasattr(type(value), "model_dump"):
        return dict(_fields(value))
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _invalid_field(fields: Mapping[str, Any]) -> str:
    """Return the name of the first field that cannot be stored."""
    for name, value in fields.items():
        try:
            _encode(msgspec.to_builtins(value, str_keys=True, enc_hook=_nested))
        except (TypeError, ValueError, OverflowError, RecursionError):
            return f"field {name!r}: "
    return ""


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
    """Map each field to `str`, `int`, `float`, `bool`, `decimal`, `time`, or `date`, and to `json` for other types."""
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
        # The name is imported for type checkers only.
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


SCHEMA_HINT = "an item type is a dataclass, an attrs class, a pydantic model, or a msgspec Struct"
_AT = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")
_MISSING = re.compile(r"missing required field `([^`]*)`")


class InvalidItem(NamedTuple):
    """Why an item is invalid: the type it was validated against, the field, and the error."""

    type: str
    field: str
    error: str


class ValidItem(NamedTuple):
    """A valid item in plain values, and its type; empty if no types are declared."""

    item: dict[str, Any]
    type: str = ""


class Schema:
    """One item type. Converts text to numbers and dates where the type says so; other differences are invalid."""

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
                raise ConfigError(f"cannot validate items of type {self.name}: {error}", hint=SCHEMA_HINT) from None

    def validate(self, item: Any) -> dict[str, Any] | InvalidItem:
        """Return the item as the type defines it, in plain values; or why it is invalid."""
        try:
            fields = _as_written(item) if isinstance(item, self.kind) else to_json_values(item)
        except ExtractError as error:
            return InvalidItem(self.name, getattr(error, "field", ""), str(error))
        unknown = None if self._takes_more else next((name for name in fields if name not in self._known), None)
        if unknown is not None:
            return InvalidItem(self.name, unknown, "unknown field")
        try:
            return self._validated(fields)
        except msgspec.ValidationError as error:
            return self._invalid_item(str(error))
        except ExtractError as error:
            return InvalidItem(self.name, "", str(error))
        except ValueError as error:
            return self._of_model(error)

    def _validated(self, fields: dict[str, Any]) -> dict[str, Any]:
        if self._is_model:
            return to_json_values(self.kind.model_validate(fields).model_dump(mode="json", by_alias=True))  # type: ignore[attr-defined]
        return _as_written(msgspec.convert(fields, self.kind, strict=False))

    def _invalid_item(self, text: str) -> InvalidItem:
        at, missing = _AT.search(text), _MISSING.search(text)
        place = at[1] if at else ""
        if missing:
            place = f"{place}.{missing[1]}" if place else missing[1]
        # The message of a type's own validator names the field, if at all, in quotes.
        place = place or next((name for name in self._known if f"'{name}'" in text), "")
        return InvalidItem(self.name, place, _AT.sub("", text))

    def _of_model(self, error: ValueError) -> InvalidItem:
        errors = getattr(error, "errors", None)
        if not callable(errors):
            return InvalidItem(self.name, "", f"{type(error).__name__}: {error}")
        first = errors()[0]
        return InvalidItem(self.name, ".".join(map(str, first["loc"])), str(first["msg"]))


class Schemas:
    """All item types of a spider. With several, a mapping is validated against each in turn."""

    def __init__(self, kinds: type | Sequence[type]) -> None:
        declared = kinds if isinstance(kinds, Sequence) else (kinds,)
        self._schemas = [Schema(kind) for kind in declared]

    def __bool__(self) -> bool:
        return bool(self._schemas)

    def columns(self) -> dict[str, dict[str, str]]:
        """Map each type to its fields and their kinds, see `columns_of`."""
        return {schema.name: columns_of(schema.kind) for schema in self._schemas}

    def validate(self, item: Any) -> ValidItem | InvalidItem:
        """Return the item in plain values, or why it matches none of the types."""
        first = None
        for schema in self._schemas:
            is_own = isinstance(item, schema.kind)
            if not is_own and not isinstance(item, Mapping):
                continue
            found = schema.validate(item)
            if not isinstance(found, InvalidItem):
                return ValidItem(found, schema.name)
            if is_own:
                return found
            first = first or found
        if first is None:
            return InvalidItem(type(item).__name__, "", f"{type(item).__name__} is not one of the spider's item types")
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
    raise ConfigError(f"{kind!r} is not an item type", hint=SCHEMA_HINT)


def _as_written(item: Any) -> dict[str, Any]:
    """Return an instance in plain values, under the names that its type uses for output."""
    if hasattr(item, "model_dump"):
        return to_json_values(item.model_dump(mode="json", by_alias=True))
    try:
        return to_json_values(msgspec.to_builtins(item, str_keys=True))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return to_json_values(item)


Pipeline = Callable[[Any], Any]
_LONGEST = 200


class Dropped(NamedTuple):
    """An item for which a pipeline returned None."""

    pipeline: str


class ItemPipeline:
    """Decides what happens to each item: stored, dropped by a pipeline, or rejected."""

    def __init__(self, types: type | Sequence[type] = (), pipelines: Sequence[Pipeline] = ()) -> None:
        self._schemas = Schemas(types)
        self._pipelines = tuple(pipelines)
        for pipeline in self._pipelines:
            if not callable(pipeline):
                raise ConfigError(
                    f"{pipeline!r} is not a pipeline", hint="a pipeline is a function that takes an item and returns it"
                )

    async def take(self, item: Any, url: str) -> ValidItem | Rejected | Dropped:
        """Return the item in plain values, ready to be stored.

        An item that matches no declared type, or that a pipeline raises on, is rejected. Without types and pipelines,
        an item that cannot be stored raises ExtractError."""
        if not self._pipelines and not self._schemas:
            return ValidItem(to_json_values(item))
        for pipeline in self._pipelines:
            name = getattr(pipeline, "__name__", type(pipeline).__name__)
            before = item
            try:
                item = pipeline(item)
                if inspect.isawaitable(item):
                    item = await item
            except Exception as error:  # the user's code may raise anything, and the item is rejected
                return rejected(before, url, InvalidItem("", "", f"pipeline {name}: {type(error).__name__}: {error}"))
            if item is None:
                return Dropped(name)
        if self._schemas:
            found = self._schemas.validate(item)
            return rejected(item, url, found) if isinstance(found, InvalidItem) else found
        try:
            return ValidItem(to_json_values(item))
        except ExtractError as error:
            return rejected(item, url, InvalidItem(type(item).__name__, "", str(error)))


def rejected(item: Any, url: str, why: InvalidItem) -> Rejected:
    """Return the record of a rejected item; values that cannot be stored are replaced by their repr."""
    try:
        kept = to_json_values(item)
    except ExtractError:
        kept = _shown(item)
    return Rejected(url=url, type=why.type, field=why.field, error=_storable(why.error), item=kept)


def _shown(item: Any) -> dict[str, Any]:
    try:
        fields = dict(item) if isinstance(item, dict) else {"item": item}
        return {_storable(str(name)): _value(value) for name, value in fields.items()}
    except Exception:  # the user's object may raise anything when it is inspected
        return {"item": type(item).__name__}


def _value(value: Any) -> Any:
    try:
        msgspec.json.encode(value)
        return msgspec.to_builtins(value)
    except Exception:  # as above
        return _storable(repr(value)[:_LONGEST])


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
