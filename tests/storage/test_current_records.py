from __future__ import annotations

import random
from typing import Any

import pytest

from gossamer.storage import query


@pytest.mark.parametrize("held", [2, 16_384])
def test_first_record_with_the_highest_token_is_current(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory and over files alike."""
    monkeypatch.setattr(query, "_MEMORY_ENTRIES", held)
    chance = random.Random(7)
    output = [(chance.randrange(500) << chance.choice((0, 54)), chance.randrange(1 << 63)) for _ in range(3000)]
    output += chance.choices(output, k=1000)
    words = query.CurrentRecords()
    expected: dict[Any, Any] = {}
    for number, (key, token) in enumerate(output):
        words.add(key, token)
        if key not in expected or token > output[expected[key]][1]:
            expected[key] = number
    counts = words.flags()
    assert [number for number, is_last in enumerate(counts) if is_last] == sorted(expected.values())
