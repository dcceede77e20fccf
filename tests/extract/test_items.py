from __future__ import annotations

import dataclasses
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.errors import ExtractError
from gossamer.extract.items import checked_request, to_json_values
from gossamer.extract.selectors import Selection
from gossamer.model import Request

WHEN = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)


@dataclasses.dataclass
class Book:
    title: str
    published: datetime
    tags: set[str]


@attrs.define
class Author:
    name: str
    books: list[Book]


class Shop(pydantic.BaseModel):
    name: str
    opened: date


class Price(msgspec.Struct):
    amount: Decimal
    currency: str = "EUR"


def test_every_kind_of_item_becomes_a_mapping() -> None:
    book = Book("T", WHEN, {"x"})
    assert to_json_values({"a": 1, "b": [None, 2.5]}) == {"a": 1, "b": [None, 2.5]}
    assert to_json_values(book) == {"title": "T", "published": "2024-05-06T07:08:09Z", "tags": ["x"]}
    assert to_json_values(Author("N", [book])) == {"name": "N", "books": [to_json_values(book)]}
    assert to_json_values(Shop(name="S", opened=date(2024, 1, 2))) == {"name": "S", "opened": "2024-01-02"}
    assert to_json_values(Price(Decimal("9.50"))) == {"amount": "9.50", "currency": "EUR"}
    assert (
        to_json_values({"shop": Shop(name="S", opened=date(2024, 1, 2)), "price": Price(Decimal(1))})["shop"]["name"]
        == "S"
    )


@pytest.mark.parametrize("item", [1, "text", ["list"], object(), Book, None, b"x"])
def test_non_items_are_refused_by_type(item: Any) -> None:
    with pytest.raises(ExtractError, match=type(item).__name__):
        to_json_values(item)


@pytest.mark.parametrize("value", [object(), lambda: 1, "\ud800", [[object()]], {"deep": {1, object()}}])
def test_values_outside_json_are_refused_by_field(value: Any) -> None:
    with pytest.raises(ExtractError, match="field 'bad'"):
        to_json_values({"good": 1, "bad": value})


def test_selection_in_an_item_has_its_own_error() -> None:
    with pytest.raises(ExtractError, match=r"\.get\(\)"):
        to_json_values({"title": Selection(["x"])})


def test_recursive_item_is_refused() -> None:
    item: dict[str, Any] = {}
    item["self"] = item
    with pytest.raises(ExtractError):
        to_json_values(item)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_json_values_come_back_as_they_are(item: dict[str, Any]) -> None:
    assert msgspec.json.decode(msgspec.json.encode(to_json_values(item))) == item


def test_request_is_normalized() -> None:
    made = checked_request(
        Request("HTTP://Example.com:80/a/../b#c", meta={"when": WHEN, "tags": {"a"}}, priority=-3, body=b"\xff")
    )
    assert made == Request(
        "http://example.com/b", meta={"when": "2024-05-06T07:08:09Z", "tags": ["a"]}, priority=-3, body=b"\xff"
    )


@pytest.mark.parametrize("url", ["", "/relative", "ftp://x/", "http://u:p@x/", None, 5])
def test_a_request_without_a_url_to_follow_is_refused(url: Any) -> None:
    with pytest.raises(ExtractError, match="is not a URL to follow"):
        checked_request(Request(url))


@pytest.mark.parametrize(
    "values",
    [
        {"meta": {"a": object()}},
        {"meta": [1]},
        {"meta": {"a": "\ud800"}},
        {"label": 5},
        {"headers": {"a": 5}},
        {"body": "text"},
        {"priority": 10**10},
        {"priority": 0.5},
        {"method": None},
    ],
)
def test_request_with_unstorable_values_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ExtractError, match="request for http://x/"):
        checked_request(Request("http://x/", **values))
