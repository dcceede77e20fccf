"""Request bodies, responses, and query parameters of the API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gossamer.jobs.job import State
from gossamer.jobs.scaling import Advice
from gossamer.model import Counts, RegionView, ShardView

JOB_NAME = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$"
MOST_URLS = 2000
BIG = 1_000_000_000

Name = Annotated[str, Meta(pattern=JOB_NAME, max_length=100, description="Letters, digits, dots, dashes.")]
Url = Annotated[str, Meta(min_length=1, max_length=2048)]
Urls = Annotated[list[Url], Meta(min_length=1, max_length=MOST_URLS)]
Glob = Annotated[
    str, Meta(min_length=1, max_length=500, description="A URL, with * for any text; not a regular expression.")
]
Globs = Annotated[list[Glob], Meta(max_length=100)]
Pages = Annotated[int, Meta(ge=1, le=BIG)]
Seconds = Annotated[float, Meta(ge=0, le=31_536_000)]
Delay = Annotated[float, Meta(ge=0, le=86_400)]
Site = Annotated[str, Meta(min_length=1, max_length=300, description="A host, with its port if that is unusual.")]
Role = Literal["read", "write"]


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the service says."""


class Asking(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that the service is told: a name that it does not know is refused."""


class Problem(Shape, frozen=True, kw_only=True):
    """Why something was not done."""

    error: str
    """The word for it: `bad-request`, `unauthorized`, `forbidden`, `not-found`, `conflict` and so on."""
    message: str
    hint: str = ""
    """What to do about it."""


class About(Shape, frozen=True, kw_only=True):
    """The service itself."""

    version: str
    only: Literal["", "tasks", "pages"]
    """The part that this process serves; empty for all."""
    place: Literal["embedded", "fleet"]
    role: Role
    """What this client may do."""
    spiders: list[str]
    """Names that a submission may choose from."""
    least_delay: float
    """No job that is submitted here may go faster."""
    may_start: bool
    """Whether jobs can be submitted."""


class Login(Asking, frozen=True, kw_only=True):
    """A token, for a browser that cannot send one with every request."""

    token: Annotated[str, Meta(min_length=1, max_length=500)]


class Session(Shape, frozen=True, kw_only=True):
    """What the cookie that came with this answer allows."""

    role: Role


class JobSettings(Shape, frozen=True, kw_only=True):
    """The settings of a job that people look at; none of them can hold a secret."""

    spider: str
    """Its name here; empty for none, `(other)` for one that this service does not offer."""
    scope: str
    max_pages: int | None
    max_depth: int | None
    max_seconds: float | None
    delay: float
    per_site: int
    concurrency: int
    workers: int
    strategy: str
    robots: bool
    sitemaps: bool
    recrawl: str
    downloader: str
    user_agent: str
    trail: bool
    sinks: list[str]
    """Their kinds, without their places."""


class Job(Shape, frozen=True, kw_only=True):
    """A job, as it was when last looked at."""

    name: str
    state: State
    place: Literal["embedded", "fleet"]
    counts: Counts | None
    """None while they are not known."""
    pages_per_second: float
    bytes_per_second: float
    workers: int
    cut: dict[str, int]
    """Pages of which something was dropped, since the service looks, by the limit that did it."""
    sampled_at: float | None
    """Epoch seconds; None if it was not looked at yet."""
    problem: str
    """Why the last run failed, or why the job cannot be looked at; empty if all is well."""


class JobDetail(Job, frozen=True, kw_only=True):
    """A job with its settings and what stands in its way."""

    settings: JobSettings | None
    warnings: list[str]
    has_bodies: bool
    """Whether a sink keeps whole pages."""


class Jobs(Shape, frozen=True, kw_only=True):
    """Some jobs, in the order of their names."""

    jobs: list[Job]
    next: str | None
    """The cursor of the next page; None on the last one."""


class Submission(Asking, frozen=True, kw_only=True):
    """A new job. Everything else is as the operator of the service has set it."""

    job: Name
    urls: Urls
    spider: Annotated[str, Meta(max_length=100, description="One of the names that the service offers.")] = ""
    max_pages: Pages | None = None
    max_depth: Annotated[int, Meta(ge=0, le=1000)] | None = None
    max_seconds: Seconds | None = None
    scope: Literal["site", "domain", "any"] | None = None
    allow: Globs = []
    deny: Globs = []
    strategy: Literal["bfs", "dfs", "best", "random"] | None = None
    sitemaps: bool | None = None
    text: bool | None = None
    delay: Delay | None = None
    concurrency: Annotated[int, Meta(ge=1, le=1024)] | None = None
    workers: Annotated[int, Meta(ge=1, le=64)] | None = None
    site_budget: Pages | None = None
    recrawl: Literal["", "table", "adaptive"] | None = None


class Limits(Asking, frozen=True, kw_only=True):
    """Limits to change; what is not named stays. null takes a limit away."""

    max_pages: Pages | UnsetType | None = UNSET
    max_seconds: Seconds | UnsetType | None = UNSET
    delay: Delay | UnsetType = UNSET
    site_delays: Annotated[dict[Site, Delay], Meta(max_length=1000)] | UnsetType = UNSET


class Limited(Shape, frozen=True, kw_only=True):
    """The limits as they are now."""

    max_pages: int | None
    max_seconds: float | None
    delay: float
    in_force: Literal["now", "next run"]


class MoreUrls(Asking, frozen=True, kw_only=True):
    """URLs for a job."""

    urls: Urls


class Added(Shape, frozen=True, kw_only=True):
    """What became of them."""

    added: int
    known: int
    """Those that the job had seen already."""
    refused: list[str]
    """Those that are no URLs that can be crawled."""


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


Cursor = Annotated[str, Meta(min_length=1, max_length=400, pattern=r"^[A-Za-z0-9_-]+$")]
Limit = Annotated[int, Meta(ge=1, le=1000)]
Moment = Annotated[float, Meta(ge=0, le=1e11, description="Epoch seconds.")]
MOMENTS = ("at", "since", "until")
"""The parameters that are one."""


class Nothing(Asking, frozen=True, kw_only=True):
    """No parameters."""


class AskJobs(Asking, frozen=True, kw_only=True):
    """Which jobs."""

    state: Literal["starting", "running", "paused", "stopping", "finished", "resting", "failed"] | None = None
    limit: Limit = 100
    cursor: Cursor | None = None


class AskHistory(Asking, frozen=True, kw_only=True):
    """How far back, and how fine: steps of 1 s go back 10 minutes, of 10 s an hour, of 60 s a day."""

    step: Literal[1, 10, 60] = 10
    steps: Annotated[int, Meta(ge=1, le=1440, description="At most so many.")] = 360


class AskSites(Asking, frozen=True, kw_only=True):
    """Which sites, in which order."""

    sort: Literal["queued", "requests", "rate", "latency", "errors", "delay", "hold", "bytes", "site"] = "queued"
    order: Literal["desc", "asc"] = "desc"
    find: Annotated[str, Meta(max_length=300, description="Only names that hold this text.")] = ""
    held: Annotated[bool, Meta(description="Only sites that are left alone or were given up.")] = False
    limit: Limit = 50
    cursor: Cursor | None = None


class AskMap(Asking, frozen=True, kw_only=True):
    """What makes a site large."""

    by: Literal["queued", "stored", "requests"] = "queued"


class AskSite(Asking, frozen=True, kw_only=True):
    """Which site."""

    site: Site


class AskUrl(Asking, frozen=True, kw_only=True):
    """Which URL."""

    url: Url


class AskWhy(Asking, frozen=True, kw_only=True):
    """Which URL, and on which page a link to it stands, if somebody knows of one."""

    url: Url
    page: Annotated[str, Meta(max_length=2048)] = ""


class AskAudit(Asking, frozen=True, kw_only=True):
    """Which site, from when to when; the newest requests are told one by one."""

    site: Site
    since: Moment = 0.0
    until: Moment = 1e11
    limit: Limit = 200


class AskScale(Asking, frozen=True, kw_only=True):
    """Bounds of the advice."""

    min: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    max: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None


class AskScaleOf(AskScale, frozen=True, kw_only=True):
    """The job may be left out where there is only one that runs."""

    job: Annotated[str, Meta(pattern=JOB_NAME, max_length=100)] | None = None


class AskPages(Asking, frozen=True, kw_only=True):
    """Which pages: all of these must be so."""

    site: Site | None = None
    status: Annotated[int, Meta(ge=0, le=999, description="The HTTP status; 0: no answer.")] | None = None
    since: Moment | None = None
    until: Moment | None = None
    prefix: Annotated[str, Meta(max_length=2048, description="URLs that begin so.")] = ""
    limit: Limit = 100
    cursor: Cursor | None = None


class AskBody(AskUrl, frozen=True, kw_only=True):
    """Which URL, and which visit: the newest, or the one at this time."""

    at: Moment | None = None


class AskEvents(Asking, frozen=True, kw_only=True):
    """Of which job; without one, of all."""

    job: Annotated[str, Meta(pattern=JOB_NAME, max_length=100)] | None = None
