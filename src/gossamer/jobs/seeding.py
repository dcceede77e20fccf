"""Starts a job on a shared frontier: queues its seeds, and imports pages from an existing folder tree."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import NamedTuple

from gossamer import urls
from gossamer.engine.lifecycle import Lifecycle
from gossamer.engine.links import Linker, RecentKeys, Score
from gossamer.engine.parsing import make_spider
from gossamer.extract.spider import Spider
from gossamer.frontier.base import Adopting, FleetFrontier
from gossamer.model import Request
from gossamer.settings import Settings
from gossamer.storage.registry import tree_folder
from gossamer.storage.tree import Tree

_LINKS = 50_000
"""Links that are processed at a time."""
_REMEMBERED = 500_000
"""Size of the cache of links that were sent."""


class Sorted(NamedTuple):
    """Requests for pages in a tree, and for pages that it only links to."""

    fetched: list[Request]
    missing: list[Request]


async def begin(fleet: FleetFrontier, settings: Settings, seeds: Sequence[str]) -> int:
    """Add the seeds of a job and set it to running; returns the number of new seeds.

    Pages in the folder tree of the job's sink are not fetched, pages that they link to are. The job is paused until the
    whole tree is imported: otherwise workers would fetch pages that it contains. If the import is killed, the next run
    repeats it."""
    spider = make_spider(settings)
    has_score = type(spider).score is not Spider.score
    async with Lifecycle(spider) if has_score else nullcontext():
        return await _begin(fleet, settings, seeds, spider.score if has_score else None)


async def _begin(fleet: FleetFrontier, settings: Settings, seeds: Sequence[str], score: Score | None) -> int:
    recent = RecentKeys(_REMEMBERED)
    linker = Linker(settings, fleet.secret, recent, score=score)
    requests = [linker.seed(url) for url in seeds]
    place = tree_folder(settings.sink)
    if place is not None and isinstance(fleet, Adopting):
        takeover = Takeover(Tree(place), linker, clean_query=settings.clean_query)
        if not await fleet.has_adopted(str(place)):
            await fleet.steer("paused")
            while (found := await asyncio.to_thread(takeover.some)) is not None:
                await fleet.adopt(found.fetched)
                await fleet.add(found.missing)
                recent.update(request.key for part in found for request in part)
            await fleet.note_adopted(str(place))
        found = await asyncio.to_thread(takeover.divide, requests)
        await fleet.adopt(found.fetched)
        requests = found.missing
    added = await fleet.add(requests)
    await fleet.steer("running")
    return added


class Takeover:
    """Imports a folder tree, some links at a time."""

    def __init__(self, tree: Tree, linker: Linker, *, clean_query: bool = False) -> None:
        self._tree = tree
        self._linker = linker
        self._clean_query = clean_query
        self._links = self._batches()

    def some(self) -> Sorted | None:
        """The next requests; None at the end. Links that were seen recently are omitted."""
        batch = next(self._links, None)
        if batch is None:
            return None
        spellings: dict[str, set[str]] = defaultdict(set)
        requests: dict[int, Request] = {}
        for host, found in batch:
            normal = []
            for spelling in found:
                if (url := self._normal(spelling)) is not None:
                    # Another program may have stored the page under the spelling in the link.
                    spellings[url].add(spelling)
                    normal.append(url)
            for request in self._linker.follow(Request(f"http://{host}/"), tuple(normal)):
                requests[request.key] = request
        return self.divide(requests.values(), spellings)

    def _batches(self) -> Iterator[list[tuple[str, tuple[str, ...]]]]:
        batch, size = [], 0
        for host, found in self._tree.links():
            batch.append((host, found))
            size += len(found)
            if size >= _LINKS:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _normal(self, spelling: str) -> str | None:
        url = urls.normal(spelling)
        return urls.clean_query(url) if url is not None and self._clean_query else url

    def divide(self, requests: Iterable[Request], spellings: Mapping[str, set[str]] | None = None) -> Sorted:
        """Divide requests into pages in the tree and others, grouped by host for `Tree.has`."""
        found = Sorted([], [])
        for request in sorted(requests, key=lambda request: urls.host_port(request.url)):
            names = {request.url} | (spellings or {}).get(request.url, set())
            (found.fetched if any(map(self._tree.has, names)) else found.missing).append(request)
        return found
