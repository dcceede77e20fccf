from __future__ import annotations

import random

from gossamer.engine.links import RecentKeys


def test_a_key_that_was_never_added_is_unknown() -> None:
    chance = random.Random(1)
    recent = RecentKeys(1000)
    entered: set[int] = set()
    for _ in range(300):
        keys = [chance.getrandbits(63) for _ in range(50)]
        recent.update(keys)
        entered.update(keys)
        strangers = {chance.getrandbits(63) for _ in range(50)}
        assert recent.unknown(strangers) == strangers
    assert recent.unknown(keys[-1:]) == set()
    assert recent.unknown((0,)) == {0}


def test_the_last_keys_are_known_and_few_are_lost_before_it_is_half_full() -> None:
    chance = random.Random(1)
    recent = RecentKeys(200_000)
    keys = [chance.getrandbits(63) for _ in range(100_000)]
    for first in range(0, len(keys), 50):
        recent.update(keys[first : first + 50])
        assert not recent.unknown(keys[first + 49 : first + 50])
    lost = recent.unknown(keys)
    assert len(lost) < 2_000
    assert len(lost.intersection(keys[:2_000])) < 1_000, "those from before it grew are there too"


def test_a_cleared_table_knows_no_keys() -> None:
    recent = RecentKeys()
    keys = list(range(1, 50_000))
    recent.update(keys)
    recent.clear()
    assert recent.unknown(keys) == set(keys)


def test_many_keys_added_at_once_grow_the_table() -> None:
    chance = random.Random(1)
    recent = RecentKeys(200_000)
    keys = [chance.getrandbits(63) for _ in range(20_000)]
    recent.update(keys)
    assert len(recent.unknown(keys)) < 200
