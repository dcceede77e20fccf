"""The parameters of questions, as they stand in an address."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gossamer.service.shapes import JOB_NAME, Asking, Site, Url

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
