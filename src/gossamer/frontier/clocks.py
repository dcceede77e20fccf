"""Whether a store's clock is in step with ours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gossamer.clock import Clock
from gossamer.model import Finding

SKEW_SECONDS = 1.0
"""Leases go by the store's clock alone; more than this only makes times in records hard to compare."""


async def skew(clock: Clock, ask: Callable[[], Awaitable[float]]) -> Finding:
    """How far the store's clock, which `ask` reads, is from this machine's."""
    before = clock.epoch()
    there = await ask()
    after = clock.epoch()
    # All that is known is that it was asked in between.
    skew = 0.0 if before <= there <= after else there - (before if there < before else after)
    if abs(skew) <= SKEW_SECONDS:
        return Finding(
            "clock", "good", f"in step with the store's ({skew:+.3f} s, asked within {after - before:.3f} s)"
        )
    where = "ahead of" if skew < 0 else "behind"
    says = f"this machine's clock is {abs(skew):,.1f} s {where} the store's"
    return Finding("clock", "weak", says, "run an NTP client on both (chrony, systemd-timesyncd)")
