from __future__ import annotations

import random

from gossamer.engine.recent import Recent


def test_what_never_entered_is_never_known() -> None:
    chance = random.Random(1)
    recent = Recent(1000)
    entered: set[int] = set()
    for _ in range(300):
        keys = [chance.getrandbits(63) for _ in range(50)]
        recent.update(keys)
        entered.update(keys)
        assert recent.hot <= entered
        assert not any(key in recent for key in (chance.getrandbits(63) for _ in range(50)))
    assert sum(key in recent for key in entered) <= 1000
    assert 0 not in recent


def test_the_last_keys_are_known_and_few_are_lost_before_it_is_half_full() -> None:
    chance = random.Random(1)
    recent = Recent(200_000)
    keys = [chance.getrandbits(63) for _ in range(100_000)]
    for first in range(0, len(keys), 50):
        recent.update(keys[first : first + 50])
        assert keys[first + 49] in recent
    assert sum(key in recent for key in keys) > 85_000


def test_cleared_it_knows_nothing() -> None:
    recent = Recent()
    keys = list(range(1, 50_000))
    recent.update(keys)
    recent.clear()
    assert not recent.hot
    assert not any(key in recent for key in keys)
