"""What is stored of a visit: the line of an answer, and the record with all that its page gave."""

from __future__ import annotations

import msgspec

from gossamer.cut import format_cut, parse_cut
from gossamer.engine.extractor import Extracted
from gossamer.model import Exchange, PageRow, Record, Request, Response


def record_of(
    request: Request, row: PageRow, *, token: int, page: Extracted | None, response: Response | None
) -> Record:
    """The record of a visit; `response` is given where a sink keeps pages whole."""
    record = Record(key=request.key, token=token, page=row)
    if row.copy_of is not msgspec.UNSET:
        # Its line says that it was there; all else is that of the page that was kept.
        return record
    if page is not None:
        record = msgspec.structs.replace(
            record, items=page.items, types=page.types, rejected=page.rejected, dropped=page.dropped
        )
    if response is None:
        return record
    return msgspec.structs.replace(
        record,
        body=response.body,
        found=page.urls if page is not None else None,
        exchange=_exchange(request, response),
        label=request.label,
        meta=request.given,
    )


def _exchange(request: Request, response: Response) -> Exchange:
    return Exchange(
        method=request.method,
        sent=response.sent,
        posted=request.body,
        version=response.http_version,
        address=response.address,
        headers=response.headers,
        wire_bytes=response.wire_bytes,
    )


def answer_row(
    request: Request, response: Response, *, location: str = "", error: str = "", digest: str = ""
) -> PageRow:
    """The line of an answer that no spider sees."""
    return PageRow(
        url=request.url,
        status=response.status,
        depth=request.depth,
        fetched_at=round(response.fetched_at, 3),
        elapsed=round(response.elapsed, 4),
        bytes=len(response.body),
        digest=digest,
        error=error,
        referrer=request.referrer,
        location=location,
        tls_fault=response.tls_fault or msgspec.UNSET,
        cut=format_cut(parse_cut(response.cut)) or msgspec.UNSET,
    )
