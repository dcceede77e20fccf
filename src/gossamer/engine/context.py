"""What all visits of one engine share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from gossamer.clock import Clock
from gossamer.download.base import Remembers
from gossamer.engine.breaker import Breaker
from gossamer.engine.commit import Committer
from gossamer.engine.crowds import AddressLimits
from gossamer.engine.gate import LoadGate, Rulebook
from gossamer.engine.handle import Handler
from gossamer.engine.region import Places
from gossamer.engine.revisit import RecrawlPlanner
from gossamer.engine.sitemaps import Sitemaps
from gossamer.engine.slots import Slots
from gossamer.engine.turns import Turns
from gossamer.middleware import Fetch
from gossamer.middleware.cookies import CookieJar
from gossamer.settings import Settings
from gossamer.sink import keeps_pages
from gossamer.sink.trail import RequestLog


@dataclass(slots=True)
class Context:
    """The engine's parts, as a visit sees them."""

    settings: Settings
    clock: Clock
    fetch: Fetch
    handler: Handler
    committer: Committer
    rules: Rulebook
    slots: Slots
    stopping: asyncio.Event
    went_to_sleep: Callable[[], None]
    places: Places | None = None
    """Given where sites find their region by themselves."""
    trail: RequestLog | None = None
    """Given where the requests that are sent are written down."""
    jar: CookieJar | None = None
    """Given where cookies are kept: they are part of what is known of a site."""
    remembers: Remembers | None = None
    """Given where the downloader learns about sites."""
    crowds: AddressLimits | None = None
    """Given where the downloader knows the addresses of hosts."""
    loads: LoadGate | None = None
    """Given where pages are shown in a browser, and robots.txt is obeyed."""
    paused: bool = False
    """Visits end after the request in hand, as for a stop, but the engine stays."""
    revisits: RecrawlPlanner = field(init=False)
    breaker: Breaker = field(init=False)
    sitemaps: Sitemaps = field(init=False)
    turns: Turns = field(default_factory=Turns)

    keeps_pages: bool = False
    """Whether a sink wants bodies and links, which others have no use for."""

    def __post_init__(self) -> None:
        self.keeps_pages = keeps_pages(self.settings.sink)
        self.revisits = RecrawlPlanner(self.settings, self.clock)
        self.breaker = Breaker(self.clock)
        self.sitemaps = Sitemaps(self.settings, self.handler.linker, self.clock)
