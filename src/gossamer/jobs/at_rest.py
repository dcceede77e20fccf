"""Reads the frontier of a stopped job: from the file in its folder, or through a backend of another package.

The embedded backend's file can be read while another process opens it, so `FileAtRest` takes no lock. A store of
another package can be read only by its owner: `FrontierAtRest` becomes the owner for the duration of one query. Between
queries the lock is free, and a crawl can start. A crawl that starts during a query fails with `Held`, as with any other
owner, and so does a query while a crawl is starting."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from gossamer import urls
from gossamer.clock import Clock
from gossamer.frontier.backends import owned_backend
from gossamer.frontier.base import OwnedFrontier
from gossamer.frontier.embedded.sqlite_reader import SqliteLookup, survey
from gossamer.job_folder import ADDRESS, FRONTIER
from gossamer.jobs.job import Known
from gossamer.model import Counts
from gossamer.settings import Settings


class AtRest(Protocol):
    """Read access to a stopped job."""

    @property
    def is_old(self) -> bool:
        """Whether the job has run since this object was created."""
        ...

    async def overview(self, limit: int, settings: Settings) -> tuple[Counts, Sequence[Known]]:
        """Counts, and the sites with the most queued requests, as exactly as possible."""
        ...

    async def counts(self, settings: Settings) -> Counts: ...

    async def sites(self, limit: int, settings: Settings) -> list[Known]: ...

    async def every_site(self, cursor: str, limit: int, settings: Settings) -> tuple[Sequence[Known], str]: ...

    async def site(self, name: str) -> Known | None: ...

    async def lookup(self, url: str, key_of: urls.KeyOf = urls.fingerprint) -> Known | None: ...


class FileAtRest:
    """A job whose frontier is the file in its folder."""

    def __init__(self, folder: Path, settings: Settings, *, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._look = SqliteLookup(folder / FRONTIER, settings, clock=clock)
        self._survey = survey(folder / FRONTIER)

    @property
    def is_old(self) -> bool:
        return self._survey.is_old

    async def overview(self, limit: int, settings: Settings) -> tuple[Counts, Sequence[Known]]:
        """Open the frontier, which knows more than its file shows: delayed and parked requests, and freshness. A job in
        a read-only folder cannot be opened; its file is read instead."""
        if not os.access(self._folder, os.W_OK):
            return await self.counts(settings), await self.sites(limit, settings)
        from gossamer.frontier.embedded.sqlite import open_sqlite

        opened = open_sqlite(self._folder / FRONTIER, settings, clock=self._clock)
        try:
            return await opened.counts(), await opened.sites(limit)
        finally:
            await opened.aclose()

    async def counts(self, settings: Settings) -> Counts:
        return await asyncio.to_thread(self._survey.counts, settings)

    async def sites(self, limit: int, settings: Settings) -> list[Known]:
        return await asyncio.to_thread(self._survey.sites, limit, settings)

    async def every_site(self, cursor: str, limit: int, settings: Settings) -> tuple[Sequence[Known], str]:
        return await asyncio.to_thread(self._survey.every_site, cursor, limit, settings)

    async def site(self, name: str) -> Known | None:
        return await self._look.site(name)

    async def lookup(self, url: str, key_of: urls.KeyOf = urls.fingerprint) -> Known | None:
        return await self._look.lookup(url, key_of)


class FrontierAtRest:
    """A job on an owned backend of another package.

    Opening its frontier may take long, so counts and sites are cached until the next run: each run writes the file with
    the frontier's address when it begins and when it ends (`jobs/local_run.py`)."""

    def __init__(self, folder: Path, url: str, *, clock: Clock) -> None:
        self._url = url
        self._job = folder.name
        self._clock = clock
        self._marker = folder / ADDRESS
        self._stamp = self._written_at()
        # Two concurrent queries in one process would compete for ownership.
        self._turn = asyncio.Lock()
        self._counts: Counts | None = None
        self._sites: tuple[int, list[Known]] = (0, [])

    @property
    def is_old(self) -> bool:
        return self._written_at() != self._stamp

    async def overview(self, limit: int, settings: Settings) -> tuple[Counts, Sequence[Known]]:
        async with self._turn:
            await self._read(limit)
        return await self.counts(settings), self._sites[1][:limit]

    async def counts(self, settings: Settings) -> Counts:
        async with self._turn:
            if self._counts is None:
                await self._read(0)
            assert self._counts is not None
            return self._counts

    async def sites(self, limit: int, settings: Settings) -> list[Known]:
        async with self._turn:
            if self._sites[0] < limit:
                await self._read(limit)
            return self._sites[1][:limit]

    async def every_site(self, cursor: str, limit: int, settings: Settings) -> tuple[Sequence[Known], str]:
        async with self._turn, self._opened() as frontier:
            return await frontier.every_site(cursor, limit)

    async def site(self, name: str) -> Known | None:
        async with self._turn, self._opened() as frontier:
            return await frontier.site(name)

    async def lookup(self, url: str, key_of: urls.KeyOf = urls.fingerprint) -> Known | None:
        async with self._turn, self._opened() as frontier:
            return await frontier.lookup(url, key_of)

    async def _read(self, limit: int) -> None:
        async with self._opened() as frontier:
            self._counts = await frontier.counts()
            if limit:
                self._sites = (limit, list(await frontier.sites(limit)))

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[OwnedFrontier]:
        frontier = await owned_backend(self._url).open(self._url, self._job, clock=self._clock)
        try:
            yield frontier
        finally:
            await frontier.aclose()

    def _written_at(self) -> int:
        try:
            return self._marker.stat().st_mtime_ns
        except OSError:
            return 0
