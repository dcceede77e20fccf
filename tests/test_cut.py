from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.cut import format_cut, parse_cut

reasons = st.from_regex(r"[a-z_]{1,20}", fullmatch=True)


@given(st.dictionaries(reasons, st.none() | st.integers(0, 10**18 - 1)))
def test_truncation_record_round_trips(parts: dict[str, int | None]) -> None:
    assert parse_cut(format_cut(parts)) == parts


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({}, ""),
        ({"max_links": 7000, "disconnect": None}, "disconnect:? max_links:7000"),
        ({"headers": 0}, "headers:0"),
    ],
)
def test_truncation_text_is_sorted_and_empty_for_a_complete_page(parts: dict[str, int | None], text: str) -> None:
    assert format_cut(parts) == text


@pytest.mark.parametrize("text", ["new", "new:", "new:many", "new:-1", "new:\u0661", "new:" + "9" * 5000])
def test_unreadable_truncation_amount_is_unknown(text: str) -> None:
    assert parse_cut(text) == {"new": None}
