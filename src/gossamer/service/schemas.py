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

Name = Annotated[
    str, Meta(pattern=JOB_NAME, max_length=100, description="Letters, digits, dots, dashes, and underscores.")
]
Url = Annotated[str, Meta(min_length=1, max_length=2048)]
Urls = Annotated[list[Url], Meta(min_length=1, max_length=MOST_URLS)]
Glob = Annotated[
    str,
    Meta(
        min_length=1, max_length=500, description="A URL pattern in which * matches any text; not a regular expression."
    ),
]
Globs = Annotated[list[Glob], Meta(max_length=100)]
Pages = Annotated[int, Meta(ge=1, le=BIG)]
Seconds = Annotated[float, Meta(ge=0, le=31_536_000)]
Delay = Annotated[float, Meta(ge=0, le=86_400)]
Site = Annotated[
    str, Meta(min_length=1, max_length=300, description="A host, with its port unless that is the default.")
]
Role = Literal["read", "write"]


class ResponseModel(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the response models."""


class RequestModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the request models; unknown fields are rejected."""


class Problem(ResponseModel, frozen=True, kw_only=True):
    """An error."""

    error: str
    """The error code: `bad-request`, `unauthorized`, `forbidden`, `not-found`, `conflict`, and so on."""
    message: str
    hint: str = ""
    """How to fix it."""


class About(ResponseModel, frozen=True, kw_only=True):
    """The service: version, role of the client, spiders, and limits."""

    version: str
    only: Literal["", "tasks", "pages"]
    """The part of the API that this process serves; empty for all."""
    place: Literal["embedded", "fleet"]
    role: Role
    """The role of this client."""
    spiders: list[str]
    """Names of the spiders that a submission can use."""
    least_delay: float
    """Minimum delay of a submitted job, in seconds."""
    may_start: bool
    """Whether this client can submit jobs."""


class Login(RequestModel, frozen=True, kw_only=True):
    """A token to exchange for a session cookie."""

    token: Annotated[str, Meta(min_length=1, max_length=500)]


class Session(ResponseModel, frozen=True, kw_only=True):
    """The role of the session cookie in this response."""

    role: Role


class JobSettings(ResponseModel, frozen=True, kw_only=True):
    """The main settings of a job; none of them can contain a secret."""

    spider: str
    """Name of the spider; empty for none, `(other)` for one that this service does not offer."""
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
    """Formats of the sinks, without their locations."""


class Job(ResponseModel, frozen=True, kw_only=True):
    """A job, as of its last poll."""

    name: str
    state: State
    place: Literal["embedded", "fleet"]
    counts: Counts | None
    """None while unknown."""
    pages_per_second: float
    bytes_per_second: float
    workers: int
    cut: dict[str, int]
    """Truncated pages since the service started, by the limit that truncated them."""
    sampled_at: float | None
    """Epoch seconds of the last poll; None if there was none."""
    problem: str
    """Why the last run failed, or why the service cannot poll the job; empty if there is no problem."""


class JobDetail(Job, frozen=True, kw_only=True):
    """A job with its settings and warnings."""

    settings: JobSettings | None
    warnings: list[str]
    has_bodies: bool
    """Whether a sink stores page bodies."""


class Jobs(ResponseModel, frozen=True, kw_only=True):
    """One page of jobs, sorted by name."""

    jobs: list[Job]
    next: str | None
    """Cursor of the next page; None on the last page."""


class Submission(RequestModel, frozen=True, kw_only=True):
    """A new job. The operator of the service sets all other settings."""

    job: Name
    urls: Urls
    spider: Annotated[str, Meta(max_length=100, description="Name of a spider that the service offers.")] = ""
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


class Limits(RequestModel, frozen=True, kw_only=True):
    """Limits to change. Omitted ones stay as they are; null removes a limit."""

    max_pages: Pages | UnsetType | None = UNSET
    max_seconds: Seconds | UnsetType | None = UNSET
    delay: Delay | UnsetType = UNSET
    site_delays: Annotated[dict[Site, Delay], Meta(max_length=1000)] | UnsetType = UNSET


class Limited(ResponseModel, frozen=True, kw_only=True):
    """The limits after the change."""

    max_pages: int | None
    max_seconds: float | None
    delay: float
    in_force: Literal["now", "next run"]


class MoreUrls(RequestModel, frozen=True, kw_only=True):
    """URLs to add to a job."""

    urls: Urls


class Added(ResponseModel, frozen=True, kw_only=True):
    """The result of adding URLs."""

    added: int
    known: int
    """URLs that the job already knew."""
    refused: list[str]
    """Texts that are not URLs that can be crawled."""


SiteState = Literal["fetching", "waits", "idle", "held", "failing", "closed"]
"""State of a site: being fetched, queued, without work, on hold, failing, or closed."""


class Series(ResponseModel, frozen=True, kw_only=True):
    """Columns of numbers, oldest first; null where the value is unknown."""

    pages: list[float | None]
    bytes: list[float | None]
    ok: list[float | None]
    redirects: list[float | None]
    client_errors: list[float | None]
    server_errors: list[float | None]
    faults: list[float | None]
    """Requests without a response."""
    skipped: list[float | None]
    """Requests that a rule prevented."""
    latency: list[float | None]
    """Mean response time in seconds."""
    queued: list[float | None]
    known: list[float | None]
    stored: list[float | None]
    failed: list[float | None]
    active_sites: list[float | None]
    workers: list[float | None]


class History(ResponseModel, frozen=True, kw_only=True):
    """Time series of a job. Counts are per step (divide by `step` for a rate); from `queued` on, values at its end."""

    job: str
    step: int
    """Length of a step in seconds."""
    start: float
    """Epoch seconds of the start of the first step."""
    series: Series


class Example(ResponseModel, frozen=True, kw_only=True):
    """A URL with an error; parameters that look like secrets are masked."""

    url: str
    site: str
    at: float
    page: str
    """A page that links to it, if known."""


class Fault(ResponseModel, frozen=True, kw_only=True):
    """One kind of error."""

    kind: str
    """A word from docs/reference/errors.md, or `http-404` and so on."""
    count: int
    share: float
    """Share of all requests."""
    first_at: float
    last_at: float
    examples: list[Example]
    sites: dict[str, int]
    """Sites with the most errors; with very many sites the counts are a lower bound."""
    advice: str


class Faults(ResponseModel, frozen=True, kw_only=True):
    """Errors by kind, most frequent first."""

    job: str
    since: float | None
    """Epoch seconds of the oldest counted request; None if there is none."""
    requests: int
    faults: list[Fault]


class Gap(ResponseModel, frozen=True, kw_only=True):
    """One bar of the histogram: intervals of at least `least` seconds, up to the next bar."""

    least: float
    count: int


class Politeness(ResponseModel, frozen=True, kw_only=True):
    """Intervals between a response and the next request to the same site."""

    job: str
    since: float | None
    gaps: list[Gap]
    shortest: float | None
    counted: int
    too_short: int
    """Intervals shorter than the delay at that time, on sites with one lane."""
    examples: list[Example]
    """Examples of too short intervals."""


class Visit(ResponseModel, frozen=True, kw_only=True):
    """A recent request; parameters that look like secrets are masked."""

    url: str
    at: float
    status: int
    latency: float
    bytes: int
    error: str
    worker: str


class Visits(ResponseModel, frozen=True, kw_only=True):
    """The latest requests, newest first."""

    visits: list[Visit]


class SiteRow(ResponseModel, frozen=True, kw_only=True):
    """A site: its state in the frontier, and statistics of its requests."""

    site: str
    queued: int | None
    """None if the frontier was not queried for this site."""
    leased: int | None
    stored: int | None
    delay: float | None
    hold: float
    """Seconds until the site's hold ends; 0 if it is not on hold."""
    closed: str
    """Why the site is closed; empty if it is not."""
    region: str
    requests: int
    """Since the service started to watch the job."""
    errors: int
    requests_per_second: float
    latency: float | None
    """Mean response time in seconds."""
    bytes: int
    last_at: float | None


class Sites(ResponseModel, frozen=True, kw_only=True):
    """One page of the sites of a job."""

    job: str
    total: int | None
    """Number of sites of the job."""
    looked_at: int
    """Number of sites that were sorted: those with the longest queues and those with recent requests."""
    sites: list[SiteRow]
    next: str | None


class Square(ResponseModel, frozen=True, kw_only=True):
    """A site on the map of sites."""

    site: str
    state: SiteState
    queued: int
    stored: int
    requests: int
    errors: int
    hold: float
    closed: str


class Rest(ResponseModel, frozen=True, kw_only=True):
    """Totals of the sites that are not listed individually."""

    sites: int
    queued: int
    stored: int
    requests: int


class MapRegion(ResponseModel, frozen=True, kw_only=True):
    """The sites of one region: the largest individually, and the totals of the rest."""

    region: str
    """Empty for sites without a region."""
    sites: list[Square]
    rest: Rest


class SiteMap(ResponseModel, frozen=True, kw_only=True):
    """The sites of a job by region, for drawing a map."""

    job: str
    by: Literal["queued", "stored", "requests"]
    total: int | None
    """Number of sites of the job."""
    regions: list[MapRegion]
    unseen: int
    """Sites that are not included: those with the shortest queues and no recent requests."""


class SiteDetail(ResponseModel, frozen=True, kw_only=True):
    """Details of a site."""

    job: str
    row: SiteRow
    lanes: int | None
    budget: int | None
    ready_in: float | None
    """Seconds until the next request is possible, if one is due."""
    share_left: int | None
    """Requests left in the site's quota."""
    workers: list[str]
    """Workers that lease a lane of the site."""
    robots: list[RobotsView]
    memo: dict[str, Any]
    reasons: list[str]
    """Sentences that explain what the site waits for."""
    recent: list[Visit]


class RobotsView(ResponseModel, frozen=True, kw_only=True):
    """A robots.txt as last fetched."""

    origin: str
    kind: str
    fetched_at: float | None
    crawl_delay: float | None
    rules: int


class Worker(ResponseModel, frozen=True, kw_only=True):
    """A worker, as of its last heartbeat."""

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
    """Sites that the worker leases."""
    fetching: int
    limit: int
    """Maximum number of concurrent fetches; 0 if unknown."""
    idle: bool
    load: float
    """CPU usage as a share of one core."""
    memory_bytes: int
    stale: int
    silent: float
    """Seconds since its last heartbeat."""


class Workers(ResponseModel, frozen=True, kw_only=True):
    """The workers of a job: those without a recent heartbeat first, then by rate, descending."""

    job: str
    workers: list[Worker]


class Shards(ResponseModel, frozen=True, kw_only=True):
    """The shards of a job's frontier."""

    job: str
    shards: list[ShardView]


class Region(RegionView, frozen=True, kw_only=True):
    """A region: its lanes, workers, and rate."""

    region: str
    workers: int
    rate: float


class Regions(ResponseModel, frozen=True, kw_only=True):
    """The regions of a job; every worker leases sites of the unnamed one."""

    job: str
    regions: list[Region]


class Scale(Advice, frozen=True, kw_only=True):
    """How many workers to run for a job, and why."""

    job: str


class Page(ResponseModel, frozen=True, kw_only=True):
    """The record of a stored page."""

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
    """What was truncated, by limit, as in `disconnect:? max_links:7000`; empty for a complete page."""
    has_body: bool
    """Whether the `body` endpoint can return the page's body."""


class PageList(ResponseModel, frozen=True, kw_only=True):
    """One page of the stored pages that match."""

    job: str
    pages: list[Page]
    next: str | None
    """Cursor of the next page; None when the search is complete. A short or empty page can still have a next one."""


class Versions(ResponseModel, frozen=True, kw_only=True):
    """Every stored version of a page, newest first."""

    job: str
    url: str
    versions: list[Page]


Cursor = Annotated[str, Meta(min_length=1, max_length=400, pattern=r"^[A-Za-z0-9_-]+$")]
Limit = Annotated[int, Meta(ge=1, le=1000)]
Moment = Annotated[float, Meta(ge=0, le=1e11, description="Epoch seconds.")]
MOMENTS = ("at", "since", "until")
"""Names of the query parameters that are a `Moment`."""


class NoParameters(RequestModel, frozen=True, kw_only=True):
    """No query parameters."""


class JobsQuery(RequestModel, frozen=True, kw_only=True):
    """Query parameters of the list of jobs."""

    state: Literal["starting", "running", "paused", "stopping", "finished", "resting", "failed"] | None = None
    limit: Limit = 100
    cursor: Cursor | None = None


class HistoryQuery(RequestModel, frozen=True, kw_only=True):
    """Resolution and length of the history: steps of 1 s cover 10 minutes, of 10 s an hour, of 60 s a day."""

    step: Literal[1, 10, 60] = 10
    steps: Annotated[int, Meta(ge=1, le=1440, description="Maximum number of steps.")] = 360


class SitesQuery(RequestModel, frozen=True, kw_only=True):
    """Query parameters of the list of sites."""

    sort: Literal["queued", "requests", "rate", "latency", "errors", "delay", "hold", "bytes", "site"] = "queued"
    order: Literal["desc", "asc"] = "desc"
    find: Annotated[str, Meta(max_length=300, description="Only sites whose name contains this text.")] = ""
    held: Annotated[bool, Meta(description="Only sites that are on hold or closed.")] = False
    limit: Limit = 50
    cursor: Cursor | None = None


class MapQuery(RequestModel, frozen=True, kw_only=True):
    """Query parameters of the map: which count determines the size of a site."""

    by: Literal["queued", "stored", "requests"] = "queued"


class SiteQuery(RequestModel, frozen=True, kw_only=True):
    """Query parameters of a site."""

    site: Site


class UrlQuery(RequestModel, frozen=True, kw_only=True):
    """Query parameters of a URL."""

    url: Url


class WhyQuery(RequestModel, frozen=True, kw_only=True):
    """A URL, and optionally a page that links to it."""

    url: Url
    page: Annotated[str, Meta(max_length=2048)] = ""


class AuditQuery(RequestModel, frozen=True, kw_only=True):
    """A site and a time range; the newest `limit` requests are listed individually."""

    site: Site
    since: Moment = 0.0
    until: Moment = 1e11
    limit: Limit = 200


class ScaleQuery(RequestModel, frozen=True, kw_only=True):
    """Minimum and maximum of the recommended number of workers."""

    min: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    max: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None


class RunningJobScaleQuery(ScaleQuery, frozen=True, kw_only=True):
    """The job can be omitted if only one is running."""

    job: Annotated[str, Meta(pattern=JOB_NAME, max_length=100)] | None = None


class PagesQuery(RequestModel, frozen=True, kw_only=True):
    """Conditions on stored pages; a page must match all of them."""

    site: Site | None = None
    status: Annotated[int, Meta(ge=0, le=999, description="The HTTP status; 0: no response.")] | None = None
    since: Moment | None = None
    until: Moment | None = None
    prefix: Annotated[str, Meta(max_length=2048, description="Prefix of the URL.")] = ""
    limit: Limit = 100
    cursor: Cursor | None = None


class BodyQuery(UrlQuery, frozen=True, kw_only=True):
    """A URL, and which version: the newest, or the one nearest to `at`."""

    at: Moment | None = None


class EventsQuery(RequestModel, frozen=True, kw_only=True):
    """Only events of this job; without one, of all jobs."""

    job: Annotated[str, Meta(pattern=JOB_NAME, max_length=100)] | None = None
