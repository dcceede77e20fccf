"""Stored pages: searched, looked up, with their versions and bodies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.responses import Response, StreamingResponse

from gossamer.errors import ConfigError
from gossamer.model import PageRow
from gossamer.service.jobs import keeps_bodies
from gossamer.service.routing import ApiRequest, Endpoint, Refused
from gossamer.service.schemas import AskBody, AskPages, AskUrl, Page, PageList, Versions
from gossamer.service.state import ServiceState, cursor_of, one_url, position_of
from gossamer.settings import Settings
from gossamer.storage.query import Cursor, GoOn, Search, versions_of
from gossamer.storage.reader import StoredJob

_SEARCH_SECONDS = 20.0
"""How long a store that has no order is read through, for one search."""
_TYPE = "application/octet-stream"
_FENCED = {
    # Whatever the page is, a browser that shows it shows it as nothing that could run.
    "content-disposition": 'attachment; filename="body"',
    "content-security-policy": "sandbox; default-src 'none'",
    "x-content-type-options": "nosniff",
}


class PagesView:
    """Handlers of stored pages."""

    def __init__(self, service: ServiceState) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        """The lines of the table."""
        fixed: dict[str, Any] = {"method": "GET", "tag": "pages", "part": "pages", "refusals": (409,)}
        return [
            Endpoint(path="/api/jobs/{job}/pages", handler=self.search, query=AskPages, answer=PageList,
                     summary="Stored pages that match, the newest first.", **fixed),
            Endpoint(path="/api/jobs/{job}/page", handler=self.look_up, query=AskBody, answer=Page,
                     summary="A page, as it was stored last, or nearest to a time.", **fixed),
            Endpoint(path="/api/jobs/{job}/versions", handler=self.versions, query=AskUrl, answer=Versions,
                     summary="Every stored visit of a page, the newest first.", **fixed),
            Endpoint(path="/api/jobs/{job}/body", handler=self.body, query=AskBody, media=_TYPE,
                     summary="The body of a page, as it was decoded; `x-stored-type` is what the server called it.",
                     **fixed),
        ]  # fmt: skip

    async def _stored(self, job: str) -> tuple[StoredJob, Settings]:
        reached = await self._service.directory.reach(job)
        return reached.stored(), reached.settings

    async def search(self, asked: ApiRequest[AskPages, None]) -> PageList:
        job, query = asked.path["job"], asked.query
        stored, settings = await self._stored(job)
        terms = Search(
            site=query.site.lower() if query.site is not None else None,
            site_by=settings.site_by,
            status=query.status,
            since=query.since,
            until=query.until,
            prefix=query.prefix,
        )
        until = self._service.clock.monotonic() + _SEARCH_SECONDS
        try:
            found, after = await self._service.reading.read(
                lambda: _search(stored, terms, query, go_on=lambda: self._service.clock.monotonic() < until)
            )
        except ConfigError as error:
            raise Refused(409, str(error), hint=error.hint) from None
        pages = [_page(row, settings) for row in found]
        return PageList(job=job, pages=pages, next=None if after is None else cursor_of(after))

    async def _versions(self, job: str, url: str) -> Versions:
        stored, settings = await self._stored(job)
        url = one_url(url)
        try:
            found = await self._service.reading.read(lambda: _versions(stored, url))
        except ConfigError as error:
            raise Refused(409, str(error), hint=error.hint) from None
        return Versions(job=job, url=url, versions=[_page(row, settings) for row in found])

    async def versions(self, asked: ApiRequest[AskUrl, None]) -> Versions:
        return await self._versions(asked.path["job"], asked.query.url)

    async def look_up(self, asked: ApiRequest[AskBody, None]) -> Page:
        found = await self._versions(asked.path["job"], asked.query.url)
        if not found.versions:
            raise Refused(404, "this page was not stored", hint="`why` tells what became of a URL")
        at = asked.query.at
        return found.versions[0] if at is None else min(found.versions, key=lambda one: abs(one.fetched_at - at))

    async def body(self, asked: ApiRequest[AskBody, None]) -> Response:
        stored, settings = await self._stored(asked.path["job"])
        if not keeps_bodies(settings):
            raise Refused(409, "no sink of this job keeps whole pages", hint="crawl with --sink warc beside jsonl")
        url, at = one_url(asked.query.url), asked.query.at
        kind, pieces = await self._service.reading.read(lambda: _body(stored, url, at))
        return StreamingResponse(pieces, 200, {**_FENCED, "x-stored-type": kind}, _TYPE)


def _page(row: PageRow, settings: Settings) -> Page:
    plain = {name: getattr(row, name) for name in Page.__struct_fields__ if name not in ("has_body", "cut")}
    # Of a near-duplicate only the line is kept.
    return Page(has_body=bool(row.status) and not row.copy_of and keeps_bodies(settings), cut=row.cut or "", **plain)


def _search(stored: StoredJob, terms: Search, query: AskPages, *, go_on: GoOn) -> tuple[list[PageRow], Cursor | None]:
    reader = stored.first("rows")
    if reader is None and stored.awaits("rows"):
        return [], None
    reader = reader or stored.need("rows")
    after = position_of(query.cursor, reader.cursor, None) if query.cursor is not None else None
    return reader.search(terms, after=after, limit=query.limit, go_on=go_on)


def _versions(stored: StoredJob, url: str) -> list[PageRow]:
    # A tree of bodies has no rows to be listed, but answers for a URL.
    reader = stored.first("rows") or stored.first("bodies")
    if reader is None and stored.awaits("rows"):
        return []
    return versions_of((reader or stored.need("rows")).rows(Search(url=url)))


def _body(job: StoredJob, url: str, at: float | None) -> tuple[str, Iterator[bytes]]:
    from gossamer.storage.reader import open_stored

    stored = open_stored(job)
    try:
        version = stored.find(url, at)
        if version is None:
            raise Refused(404, "the body of this page was not stored")
        pieces = stored.stream(version)
        first = next(pieces, b"")
    except BaseException:
        stored.close()
        raise

    def rest() -> Iterator[bytes]:
        try:
            yield first
            yield from pieces
        finally:
            stored.close()

    kind = version.type.encode("ascii", "replace").decode()
    return "".join(sign for sign in kind if sign.isprintable())[:200], rest()
