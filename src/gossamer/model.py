"""The values that pass between the rooms: frozen, plain, and ready for msgpack or JSON."""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

import msgspec

Status = Literal["done", "failed", "retry", "skipped"]
JobState = Literal["running", "paused", "stopping", "finished", "missing"]
Headers = tuple[tuple[str, str], ...]
SITEMAP = ":sitemap"
"""The label of requests for sitemaps, which go to no spider."""
SITEMAP_BYTES = 50 * 1024 * 1024
"""How long a sitemap may be, on the wire and decoded, whatever the limit of a page."""
ROBOTS = ":robots"
"""The label of requests for a robots.txt, which only the engine makes."""
ROBOTS_BYTES = 2 * 1024 * 1024
"""How long a robots.txt may be, likewise."""
REDIRECTS = frozenset((301, 302, 303, 307, 308))
"""Answers that lead elsewhere, if they say where."""
SECRET = re.compile(r"\$\{secret:([A-Za-z_][A-Za-z0-9_]*)\}")
"""How a request names a secret, which takes its place only on the wire."""


class Secret(str):
    """The name of a secret, for a field of a form, a value of JSON or a part of a header."""

    __slots__ = ()


def secret(name: str) -> Secret:
    """Stands for a variable of the environment, one that the setting `secrets` lists; only the name is ever stored."""
    if not SECRET.fullmatch(f"${{secret:{name}}}"):
        raise ValueError(f"{name!r} is not the name of a variable")
    return Secret(f"${{secret:{name}}}")


class Request(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One URL to fetch. A spider gives `url` and what it likes; the engine fills in `key`, `site` and `depth`."""

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
    """What the last visit left behind (etag, digest, interval, failures); at most 1 KB."""
    via: str = ""
    """The session that it is sent in, while it is fetched: a session has one proxy."""

    @property
    def given(self) -> dict[str, Any] | None:
        """The meta as the spider gave it: names that begin with a colon are the engine's own."""
        if not self.meta or not any(name.startswith(":") for name in self.meta):
            return self.meta
        return {name: value for name, value in self.meta.items() if not name.startswith(":")} or None


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """What a server answered; `body` is decoded by its Content-Encoding, and whole unless there is a `cut`."""

    url: str
    status: int
    headers: Headers = ()
    """Names in lower case, in the order they came."""
    head: bytes = b""
    """The status line and the header lines as they came; empty where the client does not know."""
    body: bytes = b""
    cut: str = ""
    """What is missing of it, by reason, as in `PageRow.cut`; empty where it is whole."""
    http_version: str = ""
    address: str = ""
    """The address that answered; empty behind a proxy."""
    via: str = ""
    """The proxy that it came by, without its credentials."""
    tls_fault: str = ""
    """What is wrong with the server's certificate; such an answer is only there with `bad_tls = "record"`."""
    fetched_at: float = 0.0
    """Epoch seconds when the request was sent."""
    elapsed: float = 0.0
    """Seconds from the request to the last byte."""
    latency: float = 0.0
    """Seconds from the request to the headers."""
    headers_at: float = 0.0
    """The clock's monotonic reading when the headers came: the site's delay counts from here."""
    wire_bytes: int = 0
    from_cache: bool = False
    sent: Headers = ()
    """The headers that were sent, but for those that the client adds itself (Host, Content-Length)."""

    def header(self, name: str, default: str = "") -> str:
        """The first header of that name, given in lower case."""
        for key, value in self.headers:
            if key == name:
                return value
        return default


class PageRow(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One line of pages.jsonl: a URL that was fetched, and how that went."""

    url: str
    """The URL, as it was asked for."""
    status: int = 0
    """The HTTP status, 0 where there was no answer."""
    depth: int = 0
    """Links from the nearest seed."""
    title: str = ""
    """The text of `<title>`."""
    fetched_at: float = 0.0
    """Epoch seconds."""
    elapsed: float = 0.0
    """Seconds from the request to the last byte."""
    bytes: int = 0
    """Length of the body after decoding."""
    digest: str = ""
    """SHA-1 of the body, in hexadecimal: equal bodies have equal digests."""
    links: int = 0
    """How many links the page has."""
    error: str = ""
    """Why there is no good page; empty if there is one, and where the status says it all."""
    referrer: str = ""
    """The page on which this URL was found; empty for a seed."""
    location: str = ""
    """Where a redirect points to."""
    tls_fault: str | msgspec.UnsetType = msgspec.UNSET
    """What is wrong with the server's certificate: anybody may have written the page; only with `bad_tls`."""
    robots: str | msgspec.UnsetType = msgspec.UNSET
    """What the page asks of robots, as in `noindex, nofollow`; only where it asks for something."""
    text: str | msgspec.UnsetType = msgspec.UNSET
    """The text that a reader sees; only with the setting `text`."""
    markdown: str | msgspec.UnsetType = msgspec.UNSET
    """The main part of the page as Markdown; only with the setting `markdown`."""
    simhash: str | msgspec.UnsetType = msgspec.UNSET
    """SimHash of the main text, 64 bits in hexadecimal; only with the setting `dedupe`."""
    copy_of: str | msgspec.UnsetType = msgspec.UNSET
    """The `simhash` of the page that this one is a near-duplicate of, and that was kept in its place."""
    cut: str | msgspec.UnsetType = msgspec.UNSET
    """What was dropped of the page, by reason, as in `disconnect:? max_links:7000`; only where something was."""


class Exchange(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A request and the head of its answer; the body of the answer is in the record."""

    method: str = "GET"
    sent: Headers = ()
    """Headers of the request, as far as we set them."""
    posted: bytes = b""
    """Body of the request."""
    version: str = ""
    """The protocol that was spoken, as in HTTP/1.1 or HTTP/2.0."""
    address: str = ""
    """Of the server; empty behind a proxy."""
    headers: Headers = ()
    """Of the answer, with the body's Content-Encoding and length before decoding; names in lower case."""
    head: bytes = b""
    """The status line and the header lines of the answer as they came; empty where the client does not know."""
    wire_bytes: int = 0
    """Length of the body before decoding."""


class Rejected(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An item that does not fit, kept aside: a line of items-rejected.jsonl."""

    url: str
    """The page that it is from."""
    type: str = ""
    """The type that it was held against."""
    field: str = ""
    """The first field that is wrong; a path where it lies deeper, empty where it is the whole."""
    error: str = ""
    """What is wrong with it."""
    item: dict[str, Any] = {}
    """The item itself."""


class Record(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What the sinks store for one fetched URL."""

    key: int
    token: int
    page: PageRow
    items: tuple[dict[str, Any], ...] = ()
    types: tuple[str, ...] = ()
    """Of each item the type that it fits, by its name; empty where the spider declares none."""
    rejected: tuple[Rejected, ...] = ()
    """Items that do not fit the types that the spider declares."""
    dropped: int = 0
    """Items for which a pipeline gave None."""
    body: bytes = b""
    """Only where a sink keeps pages whole."""
    found: tuple[str, ...] | None = None
    """The links of the page, followed or not; only where a sink keeps pages whole."""
    exchange: Exchange | None = None
    """Only where a sink keeps pages whole, and there was an answer."""
    label: str = ""
    """Of the request; like its meta, only where a sink keeps pages whole, so that a spider can be run over them."""
    meta: dict[str, Any] | None = None


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A lane of a site, ours for `ttl` seconds from the moment the call was sent, with a batch of due requests."""

    site: str
    lane: int
    token: int
    requests: tuple[Request, ...]
    ttl: float
    delay: float
    """Seconds between two requests of this lane."""
    lanes: int = 1
    robots: dict[str, bytes] = {}
    """Origin -> what we know of its robots.txt, for our agent only."""
    memo: dict[str, Any] = {}
    suspect: bool = False


class Outcome(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What became of one leased request. `again_in` on a retry is the wait, on done the time to the next visit."""

    site: str
    lane: int
    token: int
    key: int
    status: Status
    code: int = 0
    """The HTTP status, 0 where there was no answer."""
    again_in: float | None = None
    links: tuple[Request, ...] = ()
    state: dict[str, Any] | None = None
    reason: str = ""


class SiteNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker learned about a site; only what is given changes."""

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
    """The reason why the site's queued requests are given up as failed."""


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `lease`; `wait` is the time until something can be due, None when only news can change it."""

    leases: tuple[Lease, ...] = ()
    wait: float | None = None
    job: JobState = "running"
    news: int = 0
    """To be given to `idle`, so that nothing that happens in between is slept through."""
    run: int = 0
    """The life of the store that answered: another number once it may have forgotten what it had acknowledged."""
    outbox: int = 0
    """Parcels of links that wait until another server has them for good."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """How many outcomes counted, came with a stale token, or had been settled before."""

    accepted: int = 0
    stale: int = 0
    repeated: int = 0
    run: int = 0
    """The life of the store that took them, as in `Grant.run`."""
    outbox: int = 0
    """As in `Grant.outbox`."""


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """One view of the frontier."""

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
    """Done, and due again some day; they do not keep a job from being finished, unless it is a continuous one."""
    freshness: float | None = None
    """The predicted share of copies that are up to date at any moment; None where that is not known."""
    known: int = 0
    sites: int = 0
    ready_sites: int = 0
    held_sites: int = 0
    outbox: int = 0
    """Parcels of links that wait until another server has them for good: see `frontier/outbox.py`."""
    active_sites: int = 0
    """Sites that a worker has leased."""
    job: JobState = "running"
    finished: bool = False
    changes: int = 0
    """Grows with everything that may bring work: what is finished twice with the same number is finished."""


class Finding(NamedTuple):
    """What a check-up found of one thing; `mend` says what to do where it is not good."""

    subject: str
    state: Literal["good", "weak", "bad"]
    says: str
    mend: str = ""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker of a fleet tells about itself, every few seconds."""

    worker: str
    region: str = ""
    shards: str = ""
    """The part of the sites that it takes, as in 0-63/256; empty for all."""
    version: str = ""
    host: str = ""
    pid: int = 0
    up_seconds: float = 0.0
    pages: int = 0
    """Outcomes that were accepted since it began."""
    rate: float = 0.0
    """Pages a second since its last pulse."""
    active: int = 0
    """Sites that it holds."""
    stale: int = 0
    memory_bytes: int = 0
    idle: bool = False
    """Whether it has had nothing to fetch since its last pulse."""
    fetching: int = 0
    """Sites that it fetches from at this moment; the others wait for their delay."""
    limit: int = 0
    """Fetches at once that its machine can take now; at most the setting `concurrency`."""
    load: float = 0.0
    """The share of one processor that it has used since its last pulse."""
    refused: dict[str, int] = {}
    """Links that it did not follow since it began, by the rule that kept them out."""
    left: bool = False
    """Whether it has ended in good order."""
    silent: float = 0.0
    """Seconds since this pulse, by the store's clock; said by the store."""


class RegionView(msgspec.Struct, frozen=True, kw_only=True):
    """The lanes of one region in which something waits or is leased."""

    ready: int = 0
    """Could be leased now."""
    later: int = 0
    """Wait for their delay, a hold or a time that was set; those that are leased too."""
    soon: int = 0
    """Of these, those that can be leased within a minute, and those that are leased, whose turn comes after that."""
    due_in: float | None = None
    """Seconds until the first of these can be leased."""


class ShardView(msgspec.Struct, frozen=True, kw_only=True):
    """One shard of a fleet's frontier."""

    shard: int
    server: str
    """Its address, without a password."""
    counts: Counts
    regions: dict[str, RegionView] = {}
