"""What all visits of one engine share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gossamer.clock import Clock
from gossamer.engine.commit import Committer
from gossamer.engine.gate import Rulebook
from gossamer.engine.handle import Handler
from gossamer.middleware.base import Fetch
from gossamer.settings import Settings


@dataclass(slots=True)
class Context:
    """The engine's parts, as a visit sees them."""

    settings: Settings
    clock: Clock
    fetch: Fetch
    handler: Handler
    committer: Committer
    rules: Rulebook
    slots: asyncio.Semaphore
    stopping: asyncio.Event
    went_to_sleep: Callable[[], None]
    paused: bool = False
    """Visits end after the request in hand, as for a stop, but the engine stays."""
