"""Items: what a spider yields, made storable, passed through its pipelines, and checked against its types."""

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
FOLLOW_HINT = "to follow a link, yield page.follow(link); to keep a text, yield it in a dict"
MOST_PRIORITY = 1_000_000_000
_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(Request).decode


def plain(item: Any) -> dict[str, Any]:
    """The item as a mapping of JSON values; an ExtractError names the type, or the field, that cannot be stored."""
    fields = _fields(item)
    try:
        found = msgspec.to_builtins(fields, str_keys=True, enc_hook=_nested)
        # A lone surrogate, or a number that no database can hold, only shows in the encoder.
        _encode(found)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ExtractError(f"item {type(item).__name__}: {_culprit(fields)}{error}", hint=HINT) from error
    return dict(found)


def sound(request: Request) -> Request:
    """A spider's request with its URL in normal form; an ExtractError says what of it cannot be queued."""
    url = normal(request.url) if isinstance(request.url, str) else None
    if url is None:
        raise ExtractError(
            f"{request.url!r:.200} is not a URL to follow",
            hint="only http and https are followed; page.follow(...) resolves what is relative",
        )
    try:
        meta = None if request.meta is None else plain(request.meta)
        made = msgspec.structs.replace(request, url=url, meta=meta)
        # Nothing but plain values may go on: one that cannot be stored would stop the crawl, not this page.
        _decode_request(_encode(made))
        if abs(request.priority) > MOST_PRIORITY:
            raise ValueError(f"priority {request.priority:.0e} is over {MOST_PRIORITY}")
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.ValidationError, ExtractError) as error:
        raise ExtractError(
            f"request for {url}: {error}", hint="its values must be of the types that Request names"
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
    """A value inside an item that msgspec does not know by itself."""
    if hasattr(value, "getall"):
        raise TypeError("a selection is not a value: end it with .get() or .getall()")
    if isinstance(value, Mapping) or hasattr(type(value), "model_dump"):
        return dict(_fields(value))
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _culprit(fields: Mapping[str, Any]) -> str:
    """The name of the first field that cannot be stored."""
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


Pipeline = Callable[[Any], Any]
_LONGEST = 200


class Dropped(NamedTuple):
    """An item that a pipeline gave None for."""

    pipeline: str


class ItemPipeline:
    """What becomes of each item: stored, dropped by a pipeline, or rejected; never none of these."""

    def __init__(self, types: type | Sequence[type] = (), pipelines: Sequence[Pipeline] = ()) -> None:
        self._schemas = Schemas(types)
        self._pipelines = tuple(pipelines)
        for pipeline in self._pipelines:
            if not callable(pipeline):
                raise ConfigError(
                    f"{pipeline!r} is not a pipeline", hint="a pipeline is a function that takes an item and returns it"
                )

    async def take(self, item: Any, url: str) -> Fitted | Rejected | Dropped:
        """The item in plain values, ready to be stored.

        One that does not fit a declared type, or that a pipeline raises on, is rejected. Without types and pipelines
        an item that cannot be stored is an ExtractError."""
        if not self._pipelines and not self._schemas:
            return Fitted(plain(item))
        for pipeline in self._pipelines:
            name = getattr(pipeline, "__name__", type(pipeline).__name__)
            before = item
            try:
                item = pipeline(item)
                if inspect.isawaitable(item):
                    item = await item
            except Exception as error:  # an item's fate is decided here: the user's own code may raise anything
                return rejected(before, url, Misfit("", "", f"pipeline {name}: {type(error).__name__}: {error}"))
            if item is None:
                return Dropped(name)
        if self._schemas:
            found = self._schemas.fit(item)
            return rejected(item, url, found) if isinstance(found, Misfit) else found
        try:
            return Fitted(plain(item))
        except ExtractError as error:
            return rejected(item, url, Misfit(type(item).__name__, "", str(error)))


def rejected(item: Any, url: str, why: Misfit) -> Rejected:
    """What is kept of an item that is not stored: values that no file can hold, as they look."""
    try:
        kept = plain(item)
    except ExtractError:
        kept = _shown(item)
    return Rejected(url=url, type=why.type, field=why.field, error=_storable(why.error), item=kept)


def _shown(item: Any) -> dict[str, Any]:
    try:
        fields = dict(item) if isinstance(item, dict) else {"item": item}
        return {_storable(str(name)): _value(value) for name, value in fields.items()}
    except Exception:  # whatever an object of the user's does when it is looked at
        return {"item": type(item).__name__}


def _value(value: Any) -> Any:
    try:
        msgspec.json.encode(value)
        return msgspec.to_builtins(value)
    except Exception:  # as above
        return _storable(repr(value)[:_LONGEST])


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
