from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import attrs
import msgspec
import pydantic
import pytest

from gossamer.errors import ConfigError
from gossamer.extract.items import Dropped, ItemPipeline, ValidItem
from gossamer.model import Rejected

URL = "http://shop.example/1"


@dataclasses.dataclass
class Data:
    name: str
    price: float
    tags: list[str] = dataclasses.field(default_factory=list)


@attrs.define
class Attrs:
    name: str
    price: float = attrs.field(validator=attrs.validators.ge(0))
    tags: list[str] = attrs.Factory(list)


class Model(pydantic.BaseModel):
    name: str
    price: float
    tags: list[str] = []


class Struct(msgspec.Struct):
    name: str
    price: float
    tags: list[str] = []


KINDS = pytest.mark.parametrize("kind", [Data, Attrs, Model, Struct])


def take(item: Any, intake: ItemPipeline) -> Any:
    found = asyncio.run(intake.take(item, URL))
    return found.item if isinstance(found, ValidItem) else found


@KINDS
def test_items_are_converted_to_their_type(kind: type) -> None:
    """Text of a page is converted to the type's number; missing fields get their defaults."""
    wanted = {"name": "x", "price": 1.5, "tags": []}
    assert take({"name": "x", "price": "1.5"}, ItemPipeline(kind)) == wanted
    assert take(kind(name="x", price=1.5), ItemPipeline(kind)) == wanted


@KINDS
@pytest.mark.parametrize(
    ("item", "field"),
    [
        ({"name": "x", "price": "much"}, "price"),
        ({"price": 1}, "name"),
        ({"name": "x", "price": 1, "prize": 2}, "prize"),
        ({"name": "x", "price": 1, "tags": ["a", 5]}, "tags"),
        ({"name": None, "price": 1}, "name"),
    ],
)
def test_invalid_items_are_rejected_with_page_and_field(kind: type, item: dict[str, Any], field: str) -> None:
    found = take(item, ItemPipeline(kind))
    assert isinstance(found, Rejected)
    assert (found.url, found.type, found.item) == (URL, kind.__name__, item)
    assert found.field.startswith(field)
    assert found.error


def test_attrs_validators_and_invalid_instances_are_checked() -> None:
    low = take({"name": "x", "price": -1}, ItemPipeline(Attrs))
    assert isinstance(low, Rejected)
    assert low.field == "price"
    lying = take(Data(name=5, price="much"), ItemPipeline(Data))  # type: ignore[arg-type]
    assert isinstance(lying, Rejected)
    assert lying.item["price"] == "much"
    assert isinstance(take(Struct("x", 1), ItemPipeline(Data)), Rejected)
    unstorable = take({"name": "x", "price": object()}, ItemPipeline(Data))
    assert isinstance(unstorable, Rejected)
    assert "object" in unstorable.item["price"]


def test_first_matching_type_is_used() -> None:
    class Offer(msgspec.Struct):
        seller: str

    intake = ItemPipeline([Data, Offer])
    assert take({"seller": "s"}, intake) == {"seller": "s"}
    assert take(Offer("s"), intake) == {"seller": "s"}
    assert isinstance(take({"buyer": "b"}, intake), Rejected)
    with pytest.raises(ConfigError, match="not an item type"):
        ItemPipeline(int)


def test_pipelines_run_in_order_and_lose_no_item() -> None:
    def strip(item: dict[str, Any]) -> dict[str, Any]:
        return {**item, "name": item["name"].strip()}

    async def only_named(item: dict[str, Any]) -> dict[str, Any] | None:
        return item if item["name"] else None

    intake = ItemPipeline(Data, [strip, only_named])
    assert take({"name": " x ", "price": 1}, intake) == {"name": "x", "price": 1.0, "tags": []}
    assert take({"name": "  ", "price": 1}, intake) == Dropped("only_named")
    raised = take({"price": 1}, intake)
    assert isinstance(raised, Rejected)
    assert raised.error == "pipeline strip: KeyError: 'name'"
    assert raised.item == {"price": 1}
    # Without types, what a pipeline returns must still be storable.
    assert isinstance(take({"name": "x"}, ItemPipeline((), [lambda item: object()])), Rejected)
