"""The values that pass between the packages: frozen, plain, and ready for msgpack or JSON."""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

import msgspec

Status = Literal["done", "failed", "retry", "skipped"]
JobState = Literal["running", "paused", "stopping", "finished", "missing"]
Headers = tuple[tuple[str, str], ...]
SITEMAP = ":sitemap"
"""The label of requests for sitemaps, which no spider sees."""
SITEMAP_BYTES = 50 * 1024 * 1024
"""Max bytes of a sitemap, on the wire and decoded, whatever the limit of a page."""
ROBOTS = ":robots"
"""The label of requests for a robots.txt, which only the engine makes."""
ROBOTS_BYTES = 2 * 1024 * 1024
"""Max bytes of a robots.txt, on the wire and decoded."""
REDIRECTS = frozenset((301, 302, 303, 307, 308))
"""Statuses that redirect, if there is a Location header."""
SECRET = re.compile(r"\$\{secret:([A-Za-z_][A-Za-z0-9_]*)\}")
"""Placeholder for a secret in a request, which is replaced only when the request is sent."""


class Secret(str):
    """The name of a secret, for a form field, a JSON value, or a part of a header."""

    __slots__ = ()


def secret(name: str) -> Secret:
    """Return a placeholder for an environment variable listed in the setting `secrets`; only the name is ever
    stored."""
    if not SECRET.fullmatch(f"${{secret:{name}}}"):
        raise ValueError(f"{name!r} is not the name of a variable")
    return Secret(f"${{secret:{name}}}")


class Request(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One URL to fetch. A spider sets `url` and any other field; the engine fills in `key`, `site`, and `depth`."""

    url: str
    key: int = 0
    site: str = ""
    priority: int = 0
    depth: int = 0
    hops: int = 0
    tries: int = 0
    referrer: str = ""
    label: str = ""
    meta: dict[str, Any] | None = None
    method: str = "GET"
    headers: dict[str, str] | None = None
    body: bytes = b""
    state: dict[str, Any] | None = None
    """The state that the last visit stored (etag, digest, interval, failures); at most 1 KB."""
    via: str = ""
    """The session that it is sent in, while it is fetched: a session has one proxy."""

    @property
    def given(self) -> dict[str, Any] | None:
        """Return the meta as the spider set it: names that begin with a colon are the engine's."""
        if not self.meta or not any(name.startswith(":") for name in self.meta):
            return self.meta
        return {name: value for name, value in self.meta.items() if not name.startswith(":")} or None


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a server; `body` is decoded by its Content-Encoding, and complete unless there is a `cut`."""

    url: str
    status: int
    headers: Headers = ()
    """Names in lower case, in the order received."""
    head: bytes = b""
    """The status line and the header lines as received; empty where the client does not have them."""
    body: bytes = b""
    cut: str = ""
    """What is missing, by reason, as in `PageRow.cut`; empty if nothing is."""
    http_version: str = ""
    address: str = ""
    """The IP address that answered; empty behind a proxy."""
    via: str = ""
    """The proxy that was used, without its credentials."""
    tls_fault: str = ""
    """What is wrong with the server's certificate; set only with `bad_tls = "record"`."""
    fetched_at: float = 0.0
    """Epoch seconds when the request was sent."""
    elapsed: float = 0.0
    """Seconds from the request to the last byte."""
    latency: float = 0.0
    """Seconds from the request to the headers."""
    headers_at: float = 0.0
    """The clock's monotonic reading when the headers came; the site's delay counts from here."""
    wire_bytes: int = 0
    from_cache: bool = False
    sent: Headers = ()
    """The headers that were sent, except those that the client adds itself (Host, Content-Length)."""

    def header(self, name: str, default: str = "") -> str:
        """Return the first header of that name, given in lower case."""
        for key, value in self.headers:
            if key == name:
                return value
        return default


class PageRow(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One line of pages.jsonl: a fetched URL and its result."""

    url: str
    """The requested URL."""
    status: int = 0
    """The HTTP status, 0 if there was no answer."""
    depth: int = 0
    """Number of links from the nearest seed."""
    title: str = ""
    """The text of `<title>`."""
    fetched_at: float = 0.0
    """Epoch seconds."""
    elapsed: float = 0.0
    """Seconds from the request to the last byte."""
    bytes: int = 0
    """Length of the body after decoding."""
    digest: str = ""
    """SHA-1 of the body in hexadecimal."""
    links: int = 0
    """Number of links on the page."""
    error: str = ""
    """Why there is no usable page; empty if there is one, or if the status is the whole reason."""
    referrer: str = ""
    """The page on which this URL was found; empty for a seed."""
    location: str = ""
    """Where a redirect points to."""
    tls_fault: str | msgspec.UnsetType = msgspec.UNSET
    """What is wrong with the server's certificate: the page is not authentic. Only with `bad_tls`."""
    robots: str | msgspec.UnsetType = msgspec.UNSET
    """The page's robots meta directives, as in `noindex, nofollow`; only if it has some."""
    text: str | msgspec.UnsetType = msgspec.UNSET
    """The visible text; only with the setting `text`."""
    markdown: str | msgspec.UnsetType = msgspec.UNSET
    """The main content as Markdown; only with the setting `markdown`."""
    simhash: str | msgspec.UnsetType = msgspec.UNSET
    """SimHash of the main text, 64 bits in hexadecimal; only with the setting `dedupe`."""
    copy_of: str | msgspec.UnsetType = msgspec.UNSET
    """The `simhash` of the stored page of which this one is a near-duplicate."""
    cut: str | msgspec.UnsetType = msgspec.UNSET
    """What was dropped of the page, by reason, as in `disconnect:? max_links:7000`; only if something was."""


class Exchange(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A request and the head of its answer; the body of the answer is in the record."""

    method: str = "GET"
    sent: Headers = ()
    """Headers of the request, as far as Gossamer sets them."""
    posted: bytes = b""
    """Body of the request."""
    version: str = ""
    """The protocol version, as in HTTP/1.1 or HTTP/2.0."""
    address: str = ""
    """The server's IP address; empty behind a proxy."""
    headers: Headers = ()
    """Headers of the answer, with the body's Content-Encoding and length before decoding; names in lower case."""
    head: bytes = b""
    """The status line and the header lines of the answer as received; empty where the client does not have them."""
    wire_bytes: int = 0
    """Length of the body before decoding."""


class Rejected(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An invalid item, as a line of items-rejected.jsonl."""

    url: str
    """The page of the item."""
    type: str = ""
    """The type that it was validated against."""
    field: str = ""
    """The first invalid field; a path if it is nested, empty if the item as a whole is invalid."""
    error: str = ""
    """The validation error."""
    item: dict[str, Any] = {}
    """The item itself."""


class Record(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What the sinks store for one fetched URL."""

    key: int
    token: int
    page: PageRow
    items: tuple[dict[str, Any], ...] = ()
    types: tuple[str, ...] = ()
    """The name of each item's type; empty if the spider declares no types."""
    rejected: tuple[Rejected, ...] = ()
    """Items that do not match the types that the spider declares."""
    dropped: int = 0
    """Items for which a pipeline returned None."""
    body: bytes = b""
    """The body; only if a sink stores whole pages."""
    found: tuple[str, ...] | None = None
    """The links of the page, followed or not; only if a sink stores whole pages."""
    exchange: Exchange | None = None
    """The exchange; only if a sink stores whole pages, and there was an answer."""
    label: str = ""
    """The request's label.

    Like its meta, only if a sink stores whole pages, so that a spider can be replayed over them."""
    meta: dict[str, Any] | None = None


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A leased lane of a site, for `ttl` seconds from the moment the call was sent, with a batch of due requests."""

    site: str
    lane: int
    token: int
    requests: tuple[Request, ...]
    ttl: float
    delay: float
    """Seconds between two requests of this lane."""
    lanes: int = 1
    robots: dict[str, bytes] = {}
    """Origin -> packed robots.txt state, for our user agent only."""
    memo: dict[str, Any] = {}
    suspect: bool = False


class Outcome(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The outcome of one leased request.

    `again_in` is the wait of a retry, or the time to the next visit of a done page."""

    site: str
    lane: int
    token: int
    key: int
    status: Status
    code: int = 0
    """The HTTP status, 0 if there was no answer."""
    again_in: float | None = None
    links: tuple[Request, ...] = ()
    state: dict[str, Any] | None = None
    reason: str = ""


class SiteNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Changes to a site's state; fields that are not set stay as they are."""

    site: str
    lane: int
    token: int
    hold: float | None = None
    """Seconds during which nobody fetches from the site."""
    delay: float | None = None
    robots: dict[str, bytes] | None = None
    memo: dict[str, Any] | None = None
    """Merged into the site's memo, key by key."""
    region: str | None = None
    close: str | None = None
    """The reason for closing the site; its queued requests fail with this reason."""


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `lease`; `wait` is the time until something can be due, None if only news can change that."""

    leases: tuple[Lease, ...] = ()
    wait: float | None = None
    job: JobState = "running"
    news: int = 0
    """Passed to `idle`, so that no news in between is missed."""
    run: int = 0
    """The life of the store that answered: another number once it may have lost acknowledged data."""
    outbox: int = 0
    """Parcels of links that wait until another server has stored them durably."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """How many outcomes counted, had a stale token, or were committed before."""

    accepted: int = 0
    stale: int = 0
    repeated: int = 0
    run: int = 0
    """The life of the store that answered, as in `Grant.run`."""
    outbox: int = 0
    """The parcels that wait, as in `Grant.outbox`."""


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a frontier at one moment."""

    queued: int = 0
    delayed: int = 0
    leased: int = 0
    done: int = 0
    failed: int = 0
    skipped: int = 0
    parked: int = 0
    stale: int = 0
    stored: int = 0
    """Lines in pages.jsonl: what max_pages counts."""
    revisits: int = 0
    """Pages that are done and due again later; only in a continuous job they keep it from being finished."""
    freshness: float | None = None
    """The predicted share of copies that are up to date at any moment; None where that is not known."""
    known: int = 0
    sites: int = 0
    ready_sites: int = 0
    held_sites: int = 0
    outbox: int = 0
    """Parcels of links that wait until another server has stored them durably: see `frontier/outbox.py`."""
    active_sites: int = 0
    """Sites that a worker has leased."""
    job: JobState = "running"
    finished: bool = False
    changes: int = 0
    """Grows with every change that may bring work.

    Two reads that find a job finished with the same number confirm it."""


class FailedPage(msgspec.Struct, frozen=True):
    """A URL that could not be fetched or parsed."""

    url: str
    """The requested URL."""
    kind: str
    """The kind of failure, such as `timeout`, `http-404`, or `robots`: see [errors](errors.md)."""
    reason: str
    """The error message."""
    status: int = 0
    """The HTTP status; 0 without a response."""


class Finding(NamedTuple):
    """One finding of a check; `mend` is the suggested fix if the finding is not good."""

    subject: str
    state: Literal["good", "weak", "bad"]
    says: str
    mend: str = ""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The heartbeat of a fleet worker, sent every few seconds."""

    worker: str
    region: str = ""
    shards: str = ""
    """The part of the shards that it leases from, as in 0-63/256; empty for all."""
    version: str = ""
    host: str = ""
    pid: int = 0
    up_seconds: float = 0.0
    pages: int = 0
    """Outcomes that were accepted since it started."""
    rate: float = 0.0
    """Pages per second since its last heartbeat."""
    active: int = 0
    """Sites that it has leased."""
    stale: int = 0
    memory_bytes: int = 0
    idle: bool = False
    """Whether it has had nothing to fetch since its last heartbeat."""
    fetching: int = 0
    """Sites that it is fetching from now; the others wait for their delay."""
    limit: int = 0
    """Max concurrent fetches that its machine can handle now; at most the setting `concurrency`."""
    load: float = 0.0
    """The share of one CPU that it has used since its last heartbeat."""
    refused: dict[str, int] = {}
    """Links that it did not follow since it started, by reason."""
    left: bool = False
    """Whether it has ended normally."""
    silent: float = 0.0
    """Seconds since this heartbeat, by the store's clock; set by the store."""


class RegionView(msgspec.Struct, frozen=True, kw_only=True):
    """Lanes of one region with waiting or leased requests."""

    ready: int = 0
    """Lanes that can be leased now."""
    later: int = 0
    """Lanes that wait for their delay, a hold, or a scheduled time, and leased lanes."""
    soon: int = 0
    """Of these, lanes that can be leased within a minute, and leased lanes with another turn after that."""
    due_in: float | None = None
    """Seconds until the first of these can be leased."""


class ShardView(msgspec.Struct, frozen=True, kw_only=True):
    """One shard of a fleet's frontier."""

    shard: int
    server: str
    """The server's address, without a password."""
    counts: Counts
    regions: dict[str, RegionView] = {}
