"""All settings of a crawl as one frozen value: names, defaults, sources, and messages for wrong values."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gossamer.errors import ConfigError

_KINDS = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "array": "a list",
    "object": "a table", "null": "nothing",
}  # fmt: skip
# Infinity and whatever comes near it is more than clocks, stores and the HTTP client can count with.
_MOST_SECONDS, _MOST = 10.0**10, 2**63 - 1


def worded(text: str, values: Mapping[str, Any], kinds: Mapping[str, str]) -> str:
    """What msgspec said of values that do not fit `kinds`, as people say it: the name, its value, what it must be."""
    if unknown := re.fullmatch(r"Object contains unknown field `(.*?)`( - at `.*`)?", text, re.DOTALL):
        return f"there is no setting {unknown[1]}"
    match = re.fullmatch(r"(.*) - at `\$\.(([a-z_]+).*)`", text, re.DOTALL)
    if match is None:
        return text
    said, path, name = match.groups()
    if said.startswith("Invalid enum value"):
        choices = re.findall(r"'(\w+)'", kinds[name].partition("Literal[")[2].partition("]")[0])
        wanted = f"one of {', '.join(choices)}"
    else:
        said = re.sub(r"(\d)\.0\b", r"\1", said.removeprefix("Expected ").partition(", got ")[0])
        wanted = re.sub(r"`([a-z]+)( \| null)?`", lambda kind: _KINDS.get(kind[1], kind[1]), said)
    value = values.get(name)
    # What should be a list or a table may have a password in it.
    is_shown = path == name and isinstance(value, str | int | float) and not wanted.startswith(("a list", "a table"))
    return f"{path} is {value!r:.80}, but must be {wanted}" if is_shown else f"{path} must be {wanted}"


def too_large(value: Any, name: str = "") -> str:
    """Which number in plain values is too large to count with, in words; empty if none is."""
    if isinstance(value, Mapping):
        parts = ((item, f"{name}.{key}" if name else str(key)) for key, item in value.items())
    elif isinstance(value, list | tuple):
        parts = ((item, name) for item in value)
    else:
        most = _MOST_SECONDS if isinstance(value, float) else _MOST
        is_large = isinstance(value, int | float) and value > most
        return f"{name} is {value:g}, but must be at most {most:,.0f}" if is_large else ""
    return next((found for item, path in parts if (found := too_large(item, path))), "")


VERSION = "0.1.0"
MIB = 1024 * 1024
WEEK_SECONDS = 7 * 86_400.0

_OF_COMMANDS = frozenset(
    ["frontier", "region", "shards", "read_token", "write_token", "log_format", "log_file", "log_level", "own_results"]
)
"""Options of commands that the environment may set: where a job is, which part of it a worker takes, tokens, logs."""
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

NotNegative = Annotated[float, Meta(ge=0)]
Whole = Annotated[int, Meta(ge=1)]
Depth = Annotated[int, Meta(ge=0)]
TlsVersion = Literal["1.0", "1.1", "1.2", "1.3"]


class SiteSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What `[sites."x.org"]` may say; None means as for every site."""

    delay: NotNegative | None = None
    """Seconds between two requests to this site; a longer Crawl-delay of its own still counts."""
    lanes: Whole | None = None
    """Fetches at once from this site, in place of `per_site`."""
    budget: Whole | None = None
    """At most this many pages from this site, in place of `site_budget`."""
    headers: dict[str, str] = {}
    """Headers to send to this site only, on top of `headers`."""
    proxy: str = ""
    """The proxy for this site, or `direct` for none; empty: as for every site."""
    auth: str = ""
    """`user:password` for this site, sent at once; over plain http only to a site that is named with its port."""
    client_cert: str = ""
    """PEM file with the certificate and key for this site only."""
    tls_min: TlsVersion | Literal[""] = ""
    """The oldest TLS to speak with this site, in place of the job's `tls_min`."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All of a job's settings. The description of each is its help text and its line in the reference."""

    spider: Annotated[str, Meta(description="Spider to run: FILE.py or FILE.py:Class.")] = ""
    extract: Annotated[
        dict[str, str], Meta(description="Fields to take from each page, NAME='css::text' or NAME='css::attr(href)'.")
    ] = {}
    item_types: Annotated[
        tuple[str, ...], Meta(description="Types that items must fit, FILE.py:Class; others are kept aside.")
    ] = ()
    links: Annotated[str, Meta(description="Follow only the links inside this CSS region.")] = ""
    text: Annotated[bool, Meta(description="Keep the text of each page in pages.jsonl.")] = False
    markdown: Annotated[bool, Meta(description="Keep the main part of each page as Markdown in pages.jsonl.")] = False
    dedupe: Annotated[
        bool,
        Meta(description="Keep one of a site's near-duplicate pages; others have a line, but no items or body."),
    ] = False
    sink: Annotated[
        tuple[str, ...],
        Meta(description="Where pages go: jsonl, csv, sqlite, warc, parquet, mysql://..., s3://...; may be repeated."),
    ] = ("jsonl",)
    results_id: Annotated[
        str, Meta(description="Id in results.id of the folder that a fleet's workers write to; set when a job is made.")
    ] = ""
    archive_bytes: Annotated[int, Meta(ge=1, description="Size at which the sink warc begins the next file.")] = (
        1_000_000_000
    )
    trail: Annotated[
        bool, Meta(description="Keep a line for every request that is sent, for `gossamer why` and `gossamer audit`.")
    ] = True
    trail_bytes: Annotated[
        int, Meta(ge=1_000_000, description="Size of a folder's trail above which its oldest lines are dropped.")
    ] = 1_000_000_000

    max_pages: Annotated[Whole | None, Meta(description="Stop after this many stored pages.")] = None
    max_depth: Annotated[Depth | None, Meta(description="Follow links at most this deep from the seeds.")] = None
    max_seconds: Annotated[NotNegative | None, Meta(description="Stop after this time.")] = None
    scope: Annotated[
        Literal["site", "domain", "any"],
        Meta(description="Which links to follow: same site, same registered domain, any."),
    ] = "site"
    allow: Annotated[
        tuple[str, ...], Meta(description="Follow only URLs that match one of these regular expressions.")
    ] = ()
    deny: Annotated[
        tuple[str, ...], Meta(description="Never follow URLs that match one of these regular expressions.")
    ] = ()
    strategy: Annotated[
        Literal["bfs", "dfs", "best", "random"],
        Meta(description="Order within a site: shallow, deep, by priority, random."),
    ] = "bfs"
    sitemaps: Annotated[
        bool, Meta(description="Read the sitemaps of each site, and crawl the pages that they list.")
    ] = False
    max_sitemaps: Annotated[int, Meta(ge=1, description="Sitemap files read of one site, at most.")] = 10_000
    nofollow: Annotated[bool, Meta(description="Obey rel=nofollow and meta robots nofollow.")] = True
    clean_query: Annotated[bool, Meta(description="Sort query parameters and drop those that only track.")] = False
    site_by: Annotated[
        Literal["host", "domain"], Meta(description="What one site is: a host, or a registered domain.")
    ] = "host"

    delay: Annotated[float, Meta(ge=0, description="Seconds between two requests to a site.")] = 1.0
    adaptive_delay: Annotated[bool, Meta(description="Raise the delay of a site that answers slowly.")] = False
    per_site: Annotated[int, Meta(ge=1, description="Lanes of a site: fetches at once from one site.")] = 1
    per_address: Annotated[
        Whole | None, Meta(description="Fetches at once from one address in a worker, whatever its names.")
    ] = None
    concurrency: Annotated[int, Meta(ge=1, description="Fetches at once in a worker, at most.")] = 64
    workers: Annotated[int, Meta(ge=1, description="Worker processes on this machine.")] = 1
    parse_processes: Annotated[
        int, Meta(ge=0, description="Processes that run the spider's handlers; 0: in the worker.")
    ] = 0
    downloader: Annotated[
        Literal["async", "http2", "threads", "browser", "auto"],
        Meta(
            description="How pages are fetched; http2: HTTP/2 where it is offered; auto: by browser only where needed."
        ),
    ] = "async"
    sites: Annotated[
        dict[str, SiteSettings], Meta(description="Settings for one site: delay, lanes, budget, headers.")
    ] = {}
    site_budget: Annotated[Whole | None, Meta(description="At most this many pages from one site.")] = None
    prefix_budget: Annotated[
        Whole | None, Meta(description="At most this many pages from one path prefix of a site.")
    ] = None
    site_share: Annotated[
        float, Meta(gt=0, le=1, description="Largest share of the fetches for one site while other sites are ready.")
    ] = 0.1
    share_window: Annotated[int, Meta(ge=10, description="So many fetches back is the share of a site looked at.")] = (
        1000
    )
    regions: Annotated[
        dict[str, tuple[str, ...]],
        Meta(description="Which sites belong to a region of a fleet: .de, www.x.org, *.x.org, or * for the rest."),
    ] = {}
    region_by: Annotated[
        Literal["rules", "auto"],
        Meta(
            description="Sites stay in the region that `regions` names, or move to where connecting to them is fastest."
        ),
    ] = "rules"

    robots: Annotated[bool, Meta(description="Obey robots.txt.")] = True
    user_agent: Annotated[str, Meta(description="The User-Agent header; put a way to reach you into it.")] = (
        f"Gossamer/{VERSION} (+https://gossamer.example/bot; set --user-agent to add your contact)"
    )
    headers: Annotated[dict[str, str], Meta(description="Headers to send with every request.")] = {}
    secrets: Annotated[
        tuple[str, ...], Meta(description="Variables of the environment that requests may carry as secrets.")
    ] = ()
    cookies: Annotated[bool, Meta(description="Keep cookies, with what is known of each site.")] = False
    cookie_jar: Annotated[
        Literal["job", "host"],
        Meta(description="One jar for the whole job, as in a browser, or one for each host, which shares nothing."),
    ] = "job"
    proxy: Annotated[
        tuple[str, ...],
        Meta(description="Forward proxies: http, https or socks5://[user:password@]host:port, or @FILE with a list."),
    ] = ()
    proxy_rotation: Annotated[
        Literal["site", "request"],
        Meta(description="A site stays with one proxy while that is well, or each request takes the next."),
    ] = "site"
    sessions: Annotated[
        int,
        Meta(ge=0, description="Sessions per site, each with cookies, proxy and headers of its own; 0: none."),
    ] = 0
    session_uses: Annotated[
        Whole | None, Meta(description="Requests after which a session makes place for a new one.")
    ] = None
    header_sets: Annotated[
        tuple[dict[str, str], ...], Meta(description="Sets of headers; each session has one of them.")
    ] = ()
    cache: Annotated[str, Meta(description="Folder that keeps answers and gives them again: for development only.")] = (
        ""
    )
    allow_private: Annotated[bool, Meta(description="Allow addresses that are not globally routable.")] = False
    resolve: Annotated[
        tuple[str, ...], Meta(description="PATTERN=ADDR: names that match go to this address; may be repeated.")
    ] = ()
    nameservers: Annotated[
        tuple[str, ...], Meta(description="Name servers to ask, ADDR or ADDR:PORT, in place of the machine's own.")
    ] = ()
    ca_file: Annotated[str, Meta(description="PEM file with further certificate authorities to trust.")] = ""
    client_cert: Annotated[
        str, Meta(description="PEM file with a certificate and its key, shown to every site that asks for one.")
    ] = ""
    bad_tls: Annotated[
        Literal["refuse", "record"],
        Meta(description="Pages behind a bad certificate: refused, or recorded with a note of what is wrong with it."),
    ] = "refuse"
    tls_min: Annotated[
        TlsVersion, Meta(description="Oldest TLS to speak; 1.0 and 1.1 also take weak keys and ciphers.")
    ] = "1.2"
    partial: Annotated[
        Literal["keep", "refuse"],
        Meta(description="Answers that are cut off, over a limit or malformed: kept and marked, or failures."),
    ] = "keep"

    connect_seconds: Annotated[float, Meta(gt=0, description="Time to connect, TLS included.")] = 10.0
    fetch_seconds: Annotated[float, Meta(gt=0, description="Time for a whole fetch.")] = 60.0
    max_body_bytes: Annotated[int, Meta(ge=1, description="Largest body as it comes over the wire.")] = 10 * MIB
    max_decoded_bytes: Annotated[int, Meta(ge=1, description="Largest body after decoding.")] = 20 * MIB
    max_file_bytes: Annotated[
        int, Meta(ge=1, description="Largest body, before and after decoding, of a request with the label `file`.")
    ] = 100 * MIB
    parse_seconds: Annotated[
        float, Meta(gt=0, description="CPU seconds to parse a page, before it counts as too costly.")
    ] = 5.0
    parse_seconds_per_mb: Annotated[
        float, Meta(ge=0, description="CPU seconds that a page may take on top of that for each MB of its body.")
    ] = 1.0
    handler_seconds: Annotated[
        float, Meta(gt=0, description="Seconds that the spider's handler may take for a page, waiting included.")
    ] = 10.0
    handler_items: Annotated[
        int, Meta(ge=1, description="Items and requests that the spider's handler may yield for a page.")
    ] = 100_000
    max_links: Annotated[int, Meta(ge=1, description="Links taken from one page.")] = 20_000
    max_url_length: Annotated[int, Meta(ge=16, description="Longer URLs are not followed.")] = 2048
    max_segments: Annotated[int, Meta(ge=1, description="URLs with more path segments are not followed.")] = 20
    max_repeats: Annotated[
        int, Meta(ge=1, description="URLs that repeat a path segment more often are not followed.")
    ] = 3
    years_ahead: Annotated[
        int, Meta(ge=0, description="URLs with a date more years ahead are not followed: calendars have no end.")
    ] = 2
    years_back: Annotated[int, Meta(ge=0, description="URLs with a date more years back are not followed.")] = 100
    alike_pages: Annotated[
        int, Meta(ge=0, description="Near-duplicates in a row that put a path prefix to sleep; 0: none do.")
    ] = 20
    sleep_seconds: Annotated[float, Meta(gt=0, description="How long a path prefix sleeps.")] = 30 * 86_400.0

    browser_path: Annotated[str, Meta(description="The Chromium to start; empty: the one that is installed.")] = ""
    browser_tabs: Annotated[int, Meta(ge=1, description="Pages at once in a worker's browser.")] = 4
    browser_wait: Annotated[
        str,
        Meta(
            min_length=1,
            description="When a page is ready: load, dom, idle (nothing more is loading), or a CSS selector to match.",
        ),
    ] = "idle"
    browser_wait_seconds: Annotated[
        float, Meta(gt=0, description="How long to wait for that; then the page is taken as it is.")
    ] = 10.0
    browser_scroll: Annotated[int, Meta(ge=0, description="Scroll down by so many screens, as far as there are.")] = 0
    browser_loads: Annotated[
        tuple[Literal["image", "font", "media", "frame"], ...],
        Meta(description="What pages may load beside scripts, style sheets and data; may be repeated."),
    ] = ()
    browser_requests: Annotated[int, Meta(ge=0, description="Requests of one page for what it loads.")] = 100
    browser_pages: Annotated[int, Meta(ge=1, description="Pages after which the browser is replaced.")] = 500
    browser_memory_bytes: Annotated[
        int, Meta(ge=1, description="Memory above which the browser is replaced; at twice that it is killed.")
    ] = 1024 * MIB
    screenshots: Annotated[str, Meta(description="Folder for a picture of each page that the browser shows.")] = ""

    lease_seconds: Annotated[
        float, Meta(gt=0, description="How long a worker may be silent before its sites go to others.")
    ] = 60.0
    forget_seconds: Annotated[
        float,
        Meta(ge=5, description="Seconds of acknowledged work that a server of the frontier may lose when it fails."),
    ] = 10.0
    batch: Annotated[int, Meta(ge=1, description="Requests in one lease of a site.")] = 32
    drain_seconds: Annotated[
        float, Meta(ge=0, description="Time that fetches under way get when a crawl is stopped; storing gets as much.")
    ] = 10.0
    commit_seconds: Annotated[float, Meta(ge=0, description="Results of this time are stored together.")] = 0.1
    tries: Annotated[int, Meta(ge=1, description="Tries for a page before it counts as failed.")] = 3
    backoff_seconds: Annotated[
        float, Meta(gt=0, description="First wait of a site after a fault; it doubles with each further one.")
    ] = 60.0
    backoff_max_seconds: Annotated[float, Meta(gt=0, description="Longest wait after a fault.")] = 86_400.0
    forgive_seconds: Annotated[
        float, Meta(gt=0, description="Quiet time after which earlier faults of a site are forgiven.")
    ] = 1800.0
    site_failures: Annotated[int, Meta(ge=1, description="Faults in a row after which a site is given up.")] = 6
    robots_seconds: Annotated[float, Meta(gt=0, description="How long a robots.txt is good for.")] = 86_400.0
    max_deliveries: Annotated[int, Meta(ge=2, description="Lost leases after which a page is parked as poison.")] = 5

    recrawl: Annotated[
        str,
        Meta(
            pattern=r"^(|table|adaptive|budget=(?!0+(\.0+)?/)\d+(\.\d+)?/[smhd])$",
            description="Crawl for ever, and visit pages again: table, adaptive, or budget=N/d.",
        ),
    ] = ""
    revisit_seconds: Annotated[float, Meta(gt=0, description="Time to the next visit after a success.")] = WEEK_SECONDS
    sitemap_seconds: Annotated[
        float, Meta(gt=0, description="Time after which a continuous crawl reads a sitemap again.")
    ] = 86_400.0
    revisit_failures: Annotated[
        tuple[Annotated[float, Meta(gt=0)], ...],
        Meta(min_length=1, description="Times to the next visit after the first failure in a row, the second, ..."),
    ] = (2 * WEEK_SECONDS, 4 * WEEK_SECONDS, 8 * WEEK_SECONDS)
    revisit_min_seconds: Annotated[float, Meta(gt=0, description="Shortest time between two visits of a page.")] = (
        3600.0
    )
    revisit_max_seconds: Annotated[float, Meta(gt=0, description="Longest time between two visits of a page.")] = (
        365 * 86_400.0
    )
    gone_visits: Annotated[
        int, Meta(ge=1, description="Visits in a row that find a page gone (404, 410) before it is dropped.")
    ] = 5

    def for_site(self, site: str) -> SiteSettings:
        """The settings of one site, with what is not set there taken from the job."""
        own = self.sites.get(site)
        return SiteSettings(
            delay=self.delay if own is None or own.delay is None else own.delay,
            lanes=self.per_site if own is None or own.lanes is None else own.lanes,
            budget=self.site_budget if own is None or own.budget is None else own.budget,
            headers=own.headers if own is not None else {},
            proxy=own.proxy if own is not None else "",
            auth=own.auth if own is not None else "",
            client_cert=own.client_cert if own is not None else "",
            tls_min=own.tls_min if own is not None else "",
        )


def build(values: Mapping[str, Any], *, source: str = "settings") -> Settings:
    """Settings from plain values; an unknown name, a wrong type or a number without sense is a ConfigError."""
    try:
        settings = msgspec.convert(dict(values), Settings, strict=False)
        if large := too_large(msgspec.to_builtins(settings)):
            raise ConfigError(f"{source}: {large}")
        # Bytes of the command line that are no text come as halves of characters, which no file can hold.
        msgspec.msgpack.encode(settings)
    except msgspec.ValidationError as error:
        if "matching regex" in str(error):
            words = f"{source}: recrawl is {values.get('recrawl')!r:.80}, which it cannot be"
            raise ConfigError(words, hint="write table, adaptive, or budget=5000/d (or /h, /m, /s)") from None
        said = worded(str(error), values, {name: str(item.type) for name, item in FIELDS.items()})
        raise ConfigError(f"{source}: {said}", hint=_nearest(values)) from None
    except UnicodeEncodeError as error:
        raise ConfigError(f"{source}: {error.object!r:.80} is not UTF-8") from None
    return settings


def dump(settings: Settings) -> dict[str, Any]:
    """Settings as plain values, only what differs from the defaults."""
    plain: dict[str, Any] = msgspec.to_builtins(settings)
    default: dict[str, Any] = msgspec.to_builtins(Settings())
    return {name: value for name, value in plain.items() if value != default[name]}


def from_file(folder: Path) -> dict[str, Any]:
    """What `gossamer.toml`, or `[tool.gossamer]` in pyproject.toml, of a folder says."""
    own, project = folder / "gossamer.toml", folder / "pyproject.toml"
    path, keys = (own, ()) if own.is_file() else (project, ("tool", "gossamer"))
    if not path.is_file():
        return {}
    try:
        found: Any = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}", hint="mend the file; settings stand there as in: delay = 2.0") from None
    for key in keys:
        found = found.get(key, {})
        if not isinstance(found, dict):
            raise ConfigError(f"{path}: {key} must be a table", hint="settings stand there under [tool.gossamer]")
    for name in found:
        if name not in FIELDS:
            raise ConfigError(f"{path}: there is no setting {name}", hint=_nearest({name: ""}))
    return dict(found)


def from_environment(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """What GOSSAMER_* variables say; a list is separated by commas."""
    values: dict[str, Any] = {}
    for variable, text in environment.items():
        if not variable.startswith("GOSSAMER_"):
            continue
        name = variable.removeprefix("GOSSAMER_").lower()
        if name in _OF_COMMANDS:
            continue
        if name not in FIELDS:
            raise ConfigError(f"{variable}: no such setting", hint=_nearest({name: text}))
        kind = str(FIELDS[name].type)
        values[name] = text.split(",") if "tuple[" in kind else text
    return values


def expand(text: str, *, source: str, environment: Mapping[str, str] = os.environ) -> str:
    """The text with each `${NAME}` replaced by that variable of the environment; ConfigError where it is not set.

    Done where a value is used, so that what is stored and shown is the name and not the secret."""

    def value(match: re.Match[str]) -> str:
        found = environment.get(match[1])
        if found is None:
            raise ConfigError(f"{source}: the environment has no {match[1]}", hint=f"export {match[1]}=...")
        return found

    return _VARIABLE.sub(value, text)


FIELDS = {item.name: item for item in msgspec.structs.fields(Settings)}


def _nearest(values: Mapping[str, Any]) -> str:
    from difflib import get_close_matches

    for name in values:
        if name not in FIELDS:
            close = get_close_matches(name, FIELDS, n=1)
            return f"did you mean {close[0]}?" if close else "see docs/reference/settings.md for the names"
    return ""


def introduces_itself(settings: Settings) -> bool:
    """Whether the user agent says whom to write to, and not just what crawls."""
    return settings.user_agent != Settings().user_agent
