"""What the service tells of a job: its past, its faults, its sites and workers, and the pages that it stored."""

from __future__ import annotations

from typing import Any, Literal

from gossamer.jobs.scaling import Advice
from gossamer.model import RegionView, ShardView
from gossamer.service.shapes import Shape

Standing = Literal["fetching", "waits", "idle", "held", "failing", "closed"]
"""What a site does: it is being fetched, has something queued, has nothing, is left alone, fails, or was given up."""


class Series(Shape, frozen=True, kw_only=True):
    """Columns of numbers, the oldest first; null where nothing is known."""

    pages: list[float | None]
    bytes: list[float | None]
    ok: list[float | None]
    redirects: list[float | None]
    client_errors: list[float | None]
    server_errors: list[float | None]
    faults: list[float | None]
    """Requests that had no answer."""
    skipped: list[float | None]
    """Requests that a rule kept back."""
    latency: list[float | None]
    """Mean seconds to an answer."""
    queued: list[float | None]
    known: list[float | None]
    stored: list[float | None]
    failed: list[float | None]
    active_sites: list[float | None]
    workers: list[float | None]


class History(Shape, frozen=True, kw_only=True):
    """The past of a job. Counts are per step: divide by it for a rate; from `queued` on they are as at its end."""

    job: str
    step: int
    """Seconds."""
    start: float
    """Epoch seconds at which the first step begins."""
    series: Series


class Example(Shape, frozen=True, kw_only=True):
    """A URL that met a fault; parameters that look like secrets are masked."""

    url: str
    site: str
    at: float
    page: str
    """Where a link to it was found, if that is known."""


class Fault(Shape, frozen=True, kw_only=True):
    """One kind of failure."""

    kind: str
    """As in docs/reference/errors.md, or `http-404` and so on."""
    count: int
    share: float
    """Of all requests."""
    first_at: float
    last_at: float
    examples: list[Example]
    sites: dict[str, int]
    """Those with most of them; of very many sites the counts are a lower bound."""
    advice: str


class Faults(Shape, frozen=True, kw_only=True):
    """What went wrong, the most frequent first."""

    job: str
    since: float | None
    """Epoch seconds of the oldest request that was counted; None if there was none."""
    requests: int
    faults: list[Fault]


class Gap(Shape, frozen=True, kw_only=True):
    """One bar of the histogram: rests of at least `least` seconds, up to the next bar."""

    least: float
    count: int


class Politeness(Shape, frozen=True, kw_only=True):
    """The rests between an answer and the next request to the same site."""

    job: str
    since: float | None
    gaps: list[Gap]
    shortest: float | None
    counted: int
    too_short: int
    """Rests that were shorter than the delay of their time, on sites with one lane."""
    examples: list[Example]
    """Of these."""


class Visit(Shape, frozen=True, kw_only=True):
    """A request that was just sent; parameters that look like secrets are masked."""

    url: str
    at: float
    status: int
    latency: float
    bytes: int
    error: str
    worker: str


class Visits(Shape, frozen=True, kw_only=True):
    """The latest requests, the newest first."""

    visits: list[Visit]


class SiteRow(Shape, frozen=True, kw_only=True):
    """A site: what the frontier has of it, and what its last requests were like."""

    site: str
    queued: int | None
    """None where the frontier was not asked about this one."""
    leased: int | None
    stored: int | None
    delay: float | None
    hold: float
    """Seconds during which it is left alone."""
    closed: str
    """Why it was given up; empty if it was not."""
    region: str
    requests: int
    """Since the service looks."""
    errors: int
    requests_per_second: float
    latency: float | None
    """Mean seconds to an answer."""
    bytes: int
    last_at: float | None


class Sites(Shape, frozen=True, kw_only=True):
    """Some sites of a job."""

    job: str
    total: int | None
    """All sites that the job knows."""
    looked_at: int
    """Those that were sorted: the ones with the most queued, and those that were asked lately."""
    sites: list[SiteRow]
    next: str | None


class Square(Shape, frozen=True, kw_only=True):
    """A site on the map."""

    site: str
    state: Standing
    queued: int
    stored: int
    requests: int
    errors: int
    hold: float
    closed: str


class Rest(Shape, frozen=True, kw_only=True):
    """Sites that are not drawn one by one, added up."""

    sites: int
    queued: int
    stored: int
    requests: int


class MapRegion(Shape, frozen=True, kw_only=True):
    """The sites of one region: the largest of them, and the rest in one."""

    region: str
    """Empty for the sites of no region."""
    sites: list[Square]
    rest: Rest


class SiteMap(Shape, frozen=True, kw_only=True):
    """The sites of a job by region, for a picture of them."""

    job: str
    by: Literal["queued", "stored", "requests"]
    total: int | None
    """All sites that the job knows."""
    regions: list[MapRegion]
    unseen: int
    """Sites that were not looked at: those with the shortest queues, which nobody has asked lately."""


class SiteDetail(Shape, frozen=True, kw_only=True):
    """All that is known of a site."""

    job: str
    row: SiteRow
    lanes: int | None
    budget: int | None
    ready_in: float | None
    """Seconds until it can be asked again, if something is due."""
    share_left: int | None
    """What is left to it of its quota."""
    workers: list[str]
    """Those that have a lane of it."""
    robots: list[RobotsView]
    memo: dict[str, Any]
    reasons: list[str]
    """In words: what it waits for, and why."""
    recent: list[Visit]


class RobotsView(Shape, frozen=True, kw_only=True):
    """What is known of one robots.txt."""

    origin: str
    kind: str
    fetched_at: float | None
    crawl_delay: float | None
    rules: int


class Worker(Shape, frozen=True, kw_only=True):
    """A worker, as it last told of itself."""

    worker: str
    live: bool
    left: bool
    region: str
    shards: str
    version: str
    host: str
    pid: int
    up_seconds: float
    pages: int
    rate: float
    active: int
    """Sites that it holds."""
    fetching: int
    limit: int
    """Fetches at once that it allows itself; 0 where that is not told."""
    idle: bool
    load: float
    """The share of one processor that it uses."""
    memory_bytes: int
    stale: int
    silent: float
    """Seconds since its last pulse."""


class Workers(Shape, frozen=True, kw_only=True):
    """The workers of a job: the silent ones first, then those that do most."""

    job: str
    workers: list[Worker]


class Shards(Shape, frozen=True, kw_only=True):
    """The shards of a job's frontier."""

    job: str
    shards: list[ShardView]


class Region(RegionView, frozen=True, kw_only=True):
    """A region: its lanes, and who works on them."""

    region: str
    workers: int
    rate: float


class Regions(Shape, frozen=True, kw_only=True):
    """The regions of a job; the one without a name is every worker's."""

    job: str
    regions: list[Region]


class Scale(Advice, frozen=True, kw_only=True):
    """How many workers to run for a job, and why."""

    job: str


class Page(Shape, frozen=True, kw_only=True):
    """A stored page, as its row says."""

    url: str
    status: int
    depth: int
    title: str
    fetched_at: float
    elapsed: float
    bytes: int
    digest: str
    links: int
    error: str
    referrer: str
    location: str
    cut: str
    """What was dropped of it, by limit, as in `disconnect:? max_links:7000`; empty for a whole page."""
    has_body: bool
    """Whether `body` can be asked for."""


class PageList(Shape, frozen=True, kw_only=True):
    """Some pages that match, in the order in which they were stored."""

    job: str
    pages: list[Page]
    next: str | None
    """None when all were looked at. A page of the list may be short, or empty, and still have a next one."""


class Versions(Shape, frozen=True, kw_only=True):
    """Every stored visit of a page, the newest first."""

    job: str
    url: str
    versions: list[Page]
