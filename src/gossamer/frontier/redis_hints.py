"""Hints of change in Redis: visits that wait for their time are looked through by a client, and brought forward."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from gossamer.errors import FrontierError
from gossamer.frontier import recrawl
from gossamer.frontier.entries import as_text, as_texts, revisit_of, state_of, with_state
from gossamer.frontier.redis_fold import BLOCK_MARK, block_id, fold, unfold
from gossamer.frontier.redis_wire import text
from gossamer.model import Request
from gossamer.settings import Settings

log = logging.getLogger("gossamer.frontier")
Call = Callable[..., Awaitable[Any]]


async def hasten(call: Call, requests: Sequence[Request], settings: Settings, secret: bytes) -> None:
    """Bring visits of pages forward that are said to have changed; it never fails, since all come at their time too."""
    hints: dict[str, dict[int, float]] = {}
    for request in requests if settings.recrawl else ():
        if (hint := recrawl.hint_of(request)) is not None:
            hints.setdefault(request.site, {})[request.key] = hint
    try:
        for site, wanted in hints.items():
            await _Site(call, site, settings, secret, wanted).hasten()
    except FrontierError as error:
        log.debug("visits are not brought forward: %s", error)


class _Site:
    """One site, of which some pages are said to have changed."""

    def __init__(self, call: Call, site: str, settings: Settings, secret: bytes, hints: Mapping[int, float]) -> None:
        self._call, self._site, self._settings, self._secret, self._hints = call, site, settings, secret, hints
        self._now = 0.0

    async def hasten(self) -> None:
        """Look through all that waits. What has changed in the meantime is left as it is."""
        now, slots, entries = await self._call("waiting", site=self._site)
        self._now = float(now)
        await self._move([move for entry, due in entries if (move := self._of_element("", 0, entry, float(due)))])
        for name, due in slots:
            rank = text(name)
            elements = await self._call("slot", site=self._site, rank=rank)
            found = (self._of_element(rank, at, element, float(due)) for at, element in enumerate(elements))
            moves = [move for move in found if move is not None]
            # The last first, so that the places of the others stay what they are.
            await self._move(moves[::-1])

    async def _move(self, moves: list[dict[str, Any]]) -> None:
        if moves:
            await self._call("hasten", site=self._site, moves=moves)

    def _of_element(self, rank: str, at: int, element: bytes, due: float) -> dict[str, Any] | None:
        """What is to be taken out of an element, an entry or a block of them; None for nothing."""
        try:
            inside = unfold(element, self._site, self._secret)
        except ValueError:
            # It is parked when its turn comes.
            return None
        stays, goes, waits = [], [], []
        for entry in inside:
            hint = self._hints.get(int.from_bytes(entry[:8], "big"))
            # In a slot all wait for their next visit.
            wait = None if hint is None or not (rank or revisit_of(entry)) else self._wait(entry, hint)
            if wait is None or hint is None or self._now + wait >= due:
                stays.append(entry)
            else:
                goes.append(with_state(entry, {**(state_of(entry) or {}), "hint": hint}))
                waits.append(str(wait))
        if not goes:
            return None
        is_block = element.startswith(BLOCK_MARK)
        left = fold(stays, self._site, self._secret) if is_block and stays else b""
        return {
            "rank": rank,
            "at": at,
            "old": as_text(block_id(element) if is_block else element),
            "new": as_text(left),
            "entries": msgspec.Raw(as_texts(goes)),
            "waits": waits,
        }

    def _wait(self, entry: bytes, hint: float) -> float | None:
        try:
            visited = recrawl.read(state_of(entry))
        except ValueError:
            return None
        # What was brought forward already stays where it is.
        return None if visited.hint else recrawl.hastened(visited, hint, self._settings, now=self._now)
