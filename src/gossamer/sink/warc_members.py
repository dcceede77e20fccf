"""From the record of a visit to the gzip members that a WARC file is made of."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from gossamer.compression import gzip
from gossamer.cut import drops_text, parse_cut
from gossamer.model import Record
from gossamer.sink import warc_index
from gossamer.sink import warc_records as records_of
from gossamer.sink.warc_records import Original, WarcResponse

_REMEMBERED = 32_768


class WarcVisit(NamedTuple):
    """A visit as a file gets it; one that brought no answer has the member of its metadata only."""

    key: int
    token: int
    members: list[bytes]
    """A gzip member for each record, that of the answer first."""
    answer: WarcResponse | None
    """What an index says of the answer, without its bytes."""
    surt: str


class Press:
    """Makes visits of records, and knows the bodies of late: one that comes again is referred to."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Original] = OrderedDict()

    def visit(self, record: Record) -> WarcVisit:
        """Take this one for written: if it comes to nothing, go on with another press."""
        answer, parts, surt = None, [], ""
        exchange = record.exchange
        if exchange is not None:
            digest = records_of.payload_digest(record.body, known=record.page.digest)
            if record.page.status == 304:
                digest = records_of.digest_of_hex(record.page.digest)
            # Of a body that was cut, the rest may differ: it is neither stored by reference nor referred to.
            is_part = drops_text(parse_cut(record.page.cut or ""))
            is_known = bool(digest) and not is_part and (record.body or record.page.status == 304)
            original = self._known.get(digest) if is_known else None
            answer = records_of.response(record, exchange, original, digest)
            parts = [answer.data, records_of.request(exchange, answer)]
            answer, surt = answer._replace(data=b""), warc_index.surt(answer.url)
            if original is not None:
                self._known.move_to_end(digest)
            elif not answer.is_revisit and record.body and not is_part:
                self._known[digest] = Original(answer.url, answer.date, answer.record_id)
                if len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)
        parts.append(records_of.metadata(record, answer))
        return WarcVisit(record.key, record.token, [member_of(part) for part in parts], answer, surt)


def member_of(record: bytes) -> bytes:
    """A WARC record as a gzip member of its own."""
    return gzip(record)
