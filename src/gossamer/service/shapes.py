"""What the service takes and gives: frozen values, from which OpenAPI is made and by which input is checked."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gossamer.jobs.job import State
from gossamer.model import Counts

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
