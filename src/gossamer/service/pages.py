"""Endpoints of stored pages: search, versions, and bodies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.responses import Response, StreamingResponse

from gossamer.errors import ConfigError
from gossamer.model import PageRow
from gossamer.service.routing import ApiError, ApiRequest, Endpoint
from gossamer.service.schemas import BodyQuery, Page, PageList, PagesQuery, UrlQuery, Versions
from gossamer.service.state import ServiceState, decode_cursor, encode_cursor, parse_url
from gossamer.settings import Settings
from gossamer.storage.query import Cursor, GoOn, Search, versions_of
from gossamer.storage.reader import StoredJob
from gossamer.storage.registry import reads_bodies

_SEARCH_SECONDS = 20.0
"""Time limit of one search."""
_TYPE = "application/octet-stream"
_SANDBOX_HEADERS = {
    # Keep a browser from running anything in a stored page.
    "content-disposition": 'attachment; filename="body"',
    "content-security-policy": "sandbox; default-src 'none'",
    "x-content-type-options": "nosniff",
}


class PageEndpoints:
    """Handlers of the endpoints about stored pages."""

    def __init__(self, service: ServiceState) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        """The endpoints of this group."""
        fixed: dict[str, Any] = {"method": "GET", "tag": "pages", "part": "pages", "refusals": (409,)}
        return [
            Endpoint(path="/api/jobs/{job}/pages", handler=self.search, query=PagesQuery, answer=PageList,
                     summary="Search stored pages, newest first.", **fixed),
            Endpoint(path="/api/jobs/{job}/page", handler=self.look_up, query=BodyQuery, answer=Page,
                     summary="Get a page: its latest version, or the one nearest to a time.", **fixed),
            Endpoint(path="/api/jobs/{job}/versions", handler=self.versions, query=UrlQuery, answer=Versions,
                     summary="List all stored versions of a page, newest first.", **fixed),
            Endpoint(path="/api/jobs/{job}/body", handler=self.body, query=BodyQuery, media=_TYPE,
                     summary="Download the decoded body of a page; the `x-stored-type` header has the original type.",
                     **fixed),
        ]  # fmt: skip

    async def _stored(self, job: str) -> tuple[StoredJob, Settings]:
        handle = await self._service.directory.open(job)
        return handle.stored(), handle.settings

    async def search(self, request: ApiRequest[PagesQuery, None]) -> PageList:
        job, query = request.path["job"], request.query
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
            raise ApiError(409, str(error), hint=error.hint) from None
        pages = [_page(row, settings) for row in found]
        return PageList(job=job, pages=pages, next=None if after is None else encode_cursor(after))

    async def _versions(self, job: str, url: str) -> Versions:
        stored, settings = await self._stored(job)
        url = parse_url(url)
        try:
            found = await self._service.reading.read(lambda: _versions(stored, url))
        except ConfigError as error:
            raise ApiError(409, str(error), hint=error.hint) from None
        return Versions(job=job, url=url, versions=[_page(row, settings) for row in found])

    async def versions(self, request: ApiRequest[UrlQuery, None]) -> Versions:
        return await self._versions(request.path["job"], request.query.url)

    async def look_up(self, request: ApiRequest[BodyQuery, None]) -> Page:
        found = await self._versions(request.path["job"], request.query.url)
        if not found.versions:
            raise ApiError(
                404, "this page is not stored", hint="GET /api/jobs/NAME/why?url=URL shows what happened to a URL"
            )
        at = request.query.at
        return found.versions[0] if at is None else min(found.versions, key=lambda one: abs(one.fetched_at - at))

    async def body(self, request: ApiRequest[BodyQuery, None]) -> Response:
        stored, settings = await self._stored(request.path["job"])
        if not reads_bodies(settings.sink):
            raise ApiError(409, "no sink of this job stores page bodies", hint="crawl with --sink jsonl --sink warc")
        url, at = parse_url(request.query.url), request.query.at
        kind, chunks = await self._service.reading.read(lambda: _body(stored, url, at))
        return StreamingResponse(chunks, 200, {**_SANDBOX_HEADERS, "x-stored-type": kind}, _TYPE)


def _page(row: PageRow, settings: Settings) -> Page:
    plain = {name: getattr(row, name) for name in Page.__struct_fields__ if name not in ("has_body", "cut")}
    # A near-duplicate is stored without its body.
    return Page(
        has_body=bool(row.status) and not row.copy_of and reads_bodies(settings.sink), cut=row.cut or "", **plain
    )


def _search(stored: StoredJob, terms: Search, query: PagesQuery, *, go_on: GoOn) -> tuple[list[PageRow], Cursor | None]:
    reader = stored.first("rows")
    if reader is None and stored.expects("rows"):
        return [], None
    reader = reader or stored.need("rows")
    after = decode_cursor(query.cursor, reader.cursor, None) if query.cursor is not None else None
    return reader.search(terms, after=after, limit=query.limit, go_on=go_on)


def _versions(stored: StoredJob, url: str) -> list[PageRow]:
    # A tree of bodies cannot list rows, but can look up a URL.
    reader = stored.first("rows") or stored.first("bodies")
    if reader is None and stored.expects("rows"):
        return []
    return versions_of((reader or stored.need("rows")).rows(Search(url=url)))


def _body(job: StoredJob, url: str, at: float | None) -> tuple[str, Iterator[bytes]]:
    from gossamer.storage.reader import open_stored

    stored = open_stored(job)
    try:
        version = stored.find(url, at)
        if version is None:
            raise ApiError(404, "the body of this page is not stored")
        chunks = stored.stream(version)
        first = next(chunks, b"")
    except BaseException:
        stored.close()
        raise

    def rest() -> Iterator[bytes]:
        try:
            yield first
            yield from chunks
        finally:
            stored.close()

    kind = version.type.encode("ascii", "replace").decode()
    return "".join(sign for sign in kind if sign.isprintable())[:200], rest()
