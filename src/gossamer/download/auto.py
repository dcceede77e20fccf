"""The automatic downloader: plain HTTP by default, and the browser for sites whose pages need JavaScript."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from gossamer.clock import Clock
from gossamer.download.browser import BrowserDownloader, is_renderable
from gossamer.download.dns import NameResolver
from gossamer.errors import RenderFailed, TooLarge
from gossamer.model import Request, Response
from gossamer.settings import Settings
from gossamer.urls import host_port

MEMO = "browser"
"""Key of the decision in the site state: the choice, the reason, and the time."""
AGREEING_PAGES = 2
"""Number of agreeing pages that decide for their site."""
DECISION_SECONDS = 30 * 86_400.0
RECHECK_PAGES = 100
MAX_SITES = 50_000
MEASURED_CHARACTERS = 1 << 20
_HREF = re.compile(r"""\bhref\s{0,9}=\s{0,9}("[^"]{1,2048}"|'[^']{1,2048}'|[^\s"'>]{1,2048})""", re.IGNORECASE)
_HIDDEN = ("script", "style", "noscript", "template")

Use = Literal["http", "browser"]


class Choice(msgspec.Struct):
    """The decision for one site, and the votes that lead to it."""

    use: Use | None = None
    why: str = ""
    at: float = 0.0
    pages: int = 0
    votes: dict[str, int] = {}
    is_new: bool = False


class AutoDownloader(BrowserDownloader):
    """Fetches by HTTP and also renders the first pages of each site in the browser; two agreeing pages decide for it.

    The decision is checked again with every hundredth page and expires after thirty days. Until there is a decision,
    a rendered page is returned as rendered. Where the browser fails, the page is returned as HTTP delivered it."""

    def __init__(self, settings: Settings, clock: Clock, resolver: NameResolver | None = None) -> None:
        super().__init__(settings, clock, resolver)
        self._choices: OrderedDict[str, Choice] = OrderedDict()

    async def fetch(self, request: Request) -> Response:
        site = request.site or host_port(request.url)
        choice = self._choice(site)
        if choice.use == "browser":
            return await super().fetch(request)
        document = await self._http.fetch(request)
        if not is_renderable(request, document):
            return document
        choice.pages += 1
        if choice.use == "http" and choice.pages % RECHECK_PAGES:
            return document
        return await self._compare(choice, request, document)

    def recall(self, site: str, memo: Mapping[str, Any]) -> None:
        """Load the decision that another lease or another worker made."""
        known, choice = memo.get(MEMO), self._choice(site)
        if isinstance(known, dict) and known.get("use") in ("http", "browser"):
            at = float(known.get("at", 0.0))
            if at > choice.at and at + DECISION_SECONDS > self._clock.epoch():
                choice.use, choice.why, choice.at = known["use"], str(known.get("why", "")), at

    def learned(self, site: str) -> dict[str, Any] | None:
        """Return a decision made since the last call, else None."""
        choice = self._choices.get(site)
        if choice is None or not choice.is_new:
            return None
        choice.is_new = False
        return {MEMO: {"use": choice.use, "why": choice.why, "at": round(choice.at, 3)}}

    def _choice(self, site: str) -> Choice:
        choice = self._choices.pop(site, None)
        if choice is None or (choice.use and choice.at + DECISION_SECONDS < self._clock.epoch()):
            choice = Choice()
        self._choices[site] = choice
        if len(self._choices) > MAX_SITES:
            self._choices.popitem(last=False)
        return choice

    async def _compare(self, choice: Choice, request: Request, document: Response) -> Response:
        if b"<script" not in document.body.lower():
            self._vote(choice, "http", "no scripts")
            return document
        try:
            shown = await self.render(request, document)
        except (RenderFailed, TooLarge) as error:
            self._vote(choice, "http", f"the browser fails: {error}")
            return document
        self._vote(choice, *compare(document.body, shown.body))
        return shown

    def _vote(self, choice: Choice, use: Use, why: str) -> None:
        if choice.use == use:
            return
        if choice.use is not None:
            # One page in a hundred disagrees: compare the next pages too.
            choice.use, choice.votes = None, {}
        choice.votes = {**choice.votes, use: choice.votes.get(use, 0) + 1}
        if choice.votes[use] >= AGREEING_PAGES:
            choice.use, choice.why, choice.at = use, why, self._clock.epoch()
            choice.votes, choice.is_new = {}, True


def compare(plain: bytes, shown: bytes) -> tuple[Use, str]:
    """Return which of the two a page needs, and why: the browser if it adds at least a third more words or links."""
    words, links = measure(plain)
    more_words, all_links = measure(shown)
    gained = len(all_links - links)
    why = f"{words} words and {len(links)} links by HTTP, {more_words} and {len(all_links)} by browser"
    needs = more_words - words > max(20, words // 3) or gained > max(2, len(links) // 3)
    return ("browser" if needs else "http"), why


def measure(body: bytes) -> tuple[int, set[str]]:
    """Count visible words and collect link targets, roughly, in one pass over at most a million characters."""
    text = body[:MEASURED_CHARACTERS].decode("utf-8", "replace")
    words, links, hidden = 0, set(), ""
    for piece in text.split("<"):
        tag, _, after = piece.partition(">")
        name = tag[:9].lower()
        if hidden:
            if not name.startswith("/" + hidden):
                continue
            hidden = ""
        elif name.startswith(_HIDDEN):
            hidden = next(word for word in _HIDDEN if name.startswith(word))
            continue
        elif name.startswith("a") and not name[1:2].isalnum() and (found := _HREF.search(tag)) is not None:
            links.add(found[1].strip("\"'"))
        words += len(after.split())
    return words, links
