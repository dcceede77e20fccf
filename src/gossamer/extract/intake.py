"""The way of an item from the spider to the sinks: through the spider's pipelines, and against its types."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from gossamer.errors import ConfigError, ExtractError
from gossamer.extract.items import plain
from gossamer.extract.schema import Fitted, Misfit, Schemas
from gossamer.model import Rejected

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
