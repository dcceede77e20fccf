"""What a job's files tell of the past: the requests that were sent to a site, and the stored rows of a page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from gossamer import urls
from gossamer.model import PageRow
from gossamer.settings import Settings
from gossamer.sink import segments
from gossamer.sink.jsonl import PAGES
from gossamer.sink.trail import Step, has_trail, steps

_UNSENT = frozenset(("dns", "nxdomain", "forbidden"))
"""Faults that came before anything could be sent to the site."""


class Sent(NamedTuple):
    """One step of the trail, and whose it was."""

    step: Step
    worker: str = ""

    @property
    def was_sent(self) -> bool:
        """Whether the site may have got it."""
        return not self.step.skipped and self.step.error not in _UNSENT


_SLACK_SECONDS, _SLACK_SHARE = 0.002, 0.001
"""Times are written down in milliseconds, and clocks are set: a thousandth is twice what they are slewed by."""


def rested(one: Step, before: Step | None) -> float | None:
    """Seconds from the headers of the answer before, from which the delay counts, to a request; None for the first one.

    By the worker's own clock where one worker had both in hand, else by the times that were written down."""
    if before is None:
        return None
    return one.rest if one.rest is not None else one.at - before.at - before.latency


def is_too_short(one: Step, rest: float) -> bool:
    """Whether a rest was shorter than the delay of its time. Several lanes keep a rate together, not a gap."""
    slack = _SLACK_SECONDS if one.rest is not None else _SLACK_SECONDS + _SLACK_SHARE * one.delay
    return one.lanes == 1 and rest + slack < one.delay


class _Line(msgspec.Struct):
    """A line of a segment, as far as it is needed here."""

    token: int
    page: PageRow


_decode_row = msgspec.json.Decoder(PageRow).decode
_decode_line = msgspec.json.Decoder(_Line).decode


def walked(folder: Path, site: str, settings: Settings) -> Iterator[Sent]:
    """The requests to a site: by the trail, or if none was kept by the stored pages. In the order of each worker."""
    by_domain = settings.site_by == "domain"
    beginnings = ("http",) if by_domain else (f"http://{site}/", f"https://{site}/")
    if has_trail(folder):
        found = (Sent(step, worker) for worker, step in steps(folder, *beginnings))
    else:
        found = (Sent(_step(row)) for row in _rows(folder, beginnings))
    for one in found:
        if not by_domain or urls.site(one.step.url, by="domain") == site:
            yield one


def stored(folder: Path, url: str) -> list[PageRow]:
    """The rows of one page, the last word last."""
    return [row for row in _rows(folder, (url,)) if row.url == url]


def _step(row: PageRow) -> Step:
    return Step(
        url=row.url,
        at=row.fetched_at,
        status=row.status,
        latency=row.elapsed,
        bytes=row.bytes,
        error="" if row.status else row.error.partition(":")[0],
        cut=row.cut or "",
    )


def _rows(folder: Path, beginnings: tuple[str, ...]) -> Iterator[PageRow]:
    """Rows of pages whose URLs begin so: of segments, which have every visit, or of pages.jsonl."""
    heads = tuple(b'{"url":' + msgspec.json.encode(beginning)[:-1] for beginning in beginnings)
    parts = sorted((folder / segments.FOLDER).glob(f"*{segments.SUFFIX}"))
    if parts:
        # Of two with the same token, which a repeated commit leaves behind, one is enough.
        found: dict[tuple[int, str], PageRow] = {}
        for path in parts:
            with path.open("rb") as file:
                for line in file:
                    if any(head in line for head in heads):
                        with suppress(msgspec.DecodeError):
                            one = _decode_line(line)
                            if one.page.url.startswith(beginnings):
                                found[one.token, one.page.url] = one.page
        yield from (found[place] for place in sorted(found))
        return
    with suppress(FileNotFoundError), (folder / PAGES).open("rb") as file:
        for line in file:
            if line.startswith(heads):
                with suppress(msgspec.DecodeError):
                    yield _decode_row(line)
