"""Outcomes in portions that a shared server need not work on for long, so that others get their turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gossamer.model import Outcome

MOST_LINKS = 10_000


def portions(outcomes: Sequence[Outcome]) -> Iterator[Sequence[Outcome]]:
    """The outcomes in parts with not many more links than that; at least one part."""
    first = links = 0
    for index, outcome in enumerate(outcomes):
        links += len(outcome.links)
        if links > MOST_LINKS:
            yield outcomes[first : index + 1]
            first, links = index + 1, 0
    if first < len(outcomes) or not outcomes:
        yield outcomes[first:]
