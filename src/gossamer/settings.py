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
# Clocks, stores, and the HTTP client overflow on larger numbers, and on infinity.
_MOST_SECONDS, _MOST = 10.0**10, 2**63 - 1


def worded(text: str, values: Mapping[str, Any], kinds: Mapping[str, str]) -> str:
    """Reword a validation error of msgspec for users: the name, its value, and the expected type or range."""
    if unknown := re.fullmatch(r"Object contains unknown field `(.*?)`( - at `.*`)?", text, re.DOTALL):
        return f"unknown setting {unknown[1]}"
    match = re.fullmatch(r"(.*) - at `\$\.(([a-z_]+).*)`", text, re.DOTALL)
    if match is None:
        return text
    expected, path, name = match.groups()
    if expected.startswith("Invalid enum value"):
        choices = re.findall(r"'(\w+)'", kinds[name].partition("Literal[")[2].partition("]")[0])
        wanted = f"one of {', '.join(choices)}"
    else:
        expected = re.sub(r"(\d)\.0\b", r"\1", expected.removeprefix("Expected ").partition(", got ")[0])
        wanted = re.sub(r"`([a-z]+)( \| null)?`", lambda kind: _KINDS.get(kind[1], kind[1]), expected)
    value = values.get(name)
    # A value that should be a list or a table may contain a password.
    is_shown = path == name and isinstance(value, str | int | float) and not wanted.startswith(("a list", "a table"))
    return f"{path} is {value!r:.80}, but must be {wanted}" if is_shown else f"{path} must be {wanted}"


def too_large(value: Any, name: str = "") -> str:
    """Message for the first number in `value` that is too large; empty if there is none."""
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
"""Command options that environment variables may set and that are not settings of a job."""
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

NotNegative = Annotated[float, Meta(ge=0)]
Whole = Annotated[int, Meta(ge=1)]
Depth = Annotated[int, Meta(ge=0)]
TlsVersion = Literal["1.0", "1.1", "1.2", "1.3"]


class SiteSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Settings of one site, from `[sites."x.org"]`; None means the job's setting."""

    delay: NotNegative | None = None
    """Seconds between two requests to this site. A longer Crawl-delay in its robots.txt takes precedence."""
    lanes: Whole | None = None
    """Concurrent fetches from this site; overrides `per_site`."""
    budget: Whole | None = None
    """Max pages from this site; overrides `site_budget`."""
    headers: dict[str, str] = {}
    """Headers to send to this site only, in addition to `headers`."""
    proxy: str = ""
    """Proxy for this site; `direct` uses none, empty uses the job's `proxy`."""
    auth: str = ""
    """`user:password` for HTTP basic authentication, sent with the first request. Over plain http it is sent only to a
    site that is named with its port."""
    client_cert: str = ""
    """PEM file with the client certificate and key for this site only."""
    tls_min: TlsVersion | Literal[""] = ""
    """Minimum TLS version for this site; overrides the job's `tls_min`."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All settings of a job. Each description is the help text of the option and a row in the reference."""

    spider: Annotated[str, Meta(description="Spider to run: FILE.py or FILE.py:Class.")] = ""
    spider_args: Annotated[
        dict[str, str],
        Meta(description="Arguments of the spider's constructor: NAME=VALUE; ${NAME} is an environment variable."),
    ] = {}
    extract: Annotated[
        dict[str, str],
        Meta(description="Fields to extract from each page: NAME='css::text' or NAME='css::attr(href)'."),
    ] = {}
    item_types: Annotated[
        tuple[str, ...], Meta(description="Item types, FILE.py:Class; items that fit none are rejected.")
    ] = ()
    links: Annotated[str, Meta(description="CSS selector; follow only links inside matching elements.")] = ""
    text: Annotated[bool, Meta(description="Store the text of each page in pages.jsonl.")] = False
    markdown: Annotated[bool, Meta(description="Store the main content of each page as Markdown in pages.jsonl.")] = (
        False
    )
    dedupe: Annotated[
        bool,
        Meta(description="Store one page of each set of near-duplicates of a site; others have no items or body."),
    ] = False
    sink: Annotated[
        tuple[str, ...],
        Meta(description="Output: jsonl, csv, sqlite, warc, parquet, mysql://..., s3://...; may be repeated."),
    ] = ("jsonl",)
    results_id: Annotated[
        str, Meta(description="Id in the file results.id of a fleet's results folder; set when the job is created.")
    ] = ""
    archive_bytes: Annotated[
        int, Meta(ge=1, description="Bytes per WARC file before the sink warc starts a new one.")
    ] = 1_000_000_000
    trail: Annotated[
        bool, Meta(description="Log every request that is sent, for `gossamer why` and `gossamer audit`.")
    ] = True
    trail_bytes: Annotated[
        int, Meta(ge=1_000_000, description="Max bytes of a job's request log; older lines are deleted.")
    ] = 1_000_000_000

    max_pages: Annotated[Whole | None, Meta(description="Stop after this many stored pages.")] = None
    max_depth: Annotated[Depth | None, Meta(description="Max link depth from the seeds.")] = None
    max_seconds: Annotated[NotNegative | None, Meta(description="Stop after this many seconds.")] = None
    scope: Annotated[
        Literal["site", "domain", "any"],
        Meta(description="Links to follow: same site, same registered domain, or any."),
    ] = "site"
    allow: Annotated[
        tuple[str, ...], Meta(description="Follow only URLs that match one of these regular expressions.")
    ] = ()
    deny: Annotated[
        tuple[str, ...], Meta(description="Never follow URLs that match one of these regular expressions.")
    ] = ()
    strategy: Annotated[
        Literal["bfs", "dfs", "best", "random"],
        Meta(description="Crawl order within a site: breadth-first, depth-first, best-first (by priority), or random."),
    ] = "bfs"
    sitemaps: Annotated[
        bool, Meta(description="Read the sitemaps of each site and crawl the pages that they list.")
    ] = False
    max_sitemaps: Annotated[int, Meta(ge=1, description="Max sitemap files per site.")] = 10_000
    nofollow: Annotated[bool, Meta(description="Obey rel=nofollow and meta robots nofollow.")] = True
    clean_query: Annotated[bool, Meta(description="Sort query parameters and remove tracking parameters.")] = False
    site_by: Annotated[
        Literal["host", "domain"], Meta(description="Unit of politeness: each host, or each registered domain.")
    ] = "host"

    delay: Annotated[float, Meta(ge=0, description="Seconds between two requests to a site.")] = 1.0
    adaptive_delay: Annotated[bool, Meta(description="Increase the delay of sites that respond slowly.")] = False
    per_site: Annotated[int, Meta(ge=1, description="Concurrent fetches per site.")] = 1
    per_address: Annotated[
        Whole | None, Meta(description="Concurrent fetches per IP address and worker, for all host names together.")
    ] = None
    concurrency: Annotated[int, Meta(ge=1, description="Max concurrent fetches per worker.")] = 64
    workers: Annotated[int, Meta(ge=1, description="Worker processes on this machine.")] = 1
    parse_processes: Annotated[
        int, Meta(ge=0, description="Processes per worker that run the spider; 0 runs it in the worker.")
    ] = 0
    downloader: Annotated[
        Literal["async", "http2", "threads", "browser", "auto"],
        Meta(description="How to fetch pages; http2: HTTP/2 where offered; auto: a browser only where needed."),
    ] = "async"
    sites: Annotated[
        dict[str, SiteSettings], Meta(description="Settings for one site: delay, lanes, budget, headers.")
    ] = {}
    site_budget: Annotated[Whole | None, Meta(description="Max pages per site.")] = None
    prefix_budget: Annotated[Whole | None, Meta(description="Max pages per path prefix of a site.")] = None
    site_share: Annotated[
        float, Meta(gt=0, le=1, description="Max share of recent fetches for one site while other sites are ready.")
    ] = 0.1
    share_window: Annotated[
        int, Meta(ge=10, description="Number of recent fetches over which a site's share is computed.")
    ] = 1000
    regions: Annotated[
        dict[str, tuple[str, ...]],
        Meta(description="Sites of each region of a fleet: .de, www.x.org, *.x.org, or * for the rest."),
    ] = {}
    region_by: Annotated[
        Literal["rules", "auto"],
        Meta(description="rules: sites stay in the region that `regions` names; auto: they move to the fastest one."),
    ] = "rules"

    robots: Annotated[bool, Meta(description="Obey robots.txt.")] = True
    user_agent: Annotated[str, Meta(description="User-Agent header; include your contact.")] = (
        f"Gossamer/{VERSION} (+https://gossamer.example/bot; set --user-agent to add your contact)"
    )
    headers: Annotated[dict[str, str], Meta(description="Headers to send with every request.")] = {}
    secrets: Annotated[
        tuple[str, ...], Meta(description="Environment variables that requests may send as secrets.")
    ] = ()
    cookies: Annotated[bool, Meta(description="Store cookies and send them back.")] = False
    cookie_jar: Annotated[
        Literal["job", "host"],
        Meta(description="job: one cookie jar, as in a browser; host: a separate jar per host."),
    ] = "job"
    proxy: Annotated[
        tuple[str, ...],
        Meta(description="Proxies: http, https, or socks5://[user:password@]host:port, or @FILE with a list."),
    ] = ()
    proxy_rotation: Annotated[
        Literal["site", "request"],
        Meta(description="site: each site keeps its proxy while that works; request: each request uses the next one."),
    ] = "site"
    sessions: Annotated[
        int,
        Meta(ge=0, description="Sessions per site, each with its own cookies, proxy, and headers; 0 disables them."),
    ] = 0
    session_uses: Annotated[
        Whole | None, Meta(description="Requests after which a session is replaced by a new one.")
    ] = None
    header_sets: Annotated[
        tuple[dict[str, str], ...], Meta(description="Sets of headers; each session uses one of them.")
    ] = ()
    cache: Annotated[str, Meta(description="Folder for a cache of responses; for development only.")] = ""
    allow_private: Annotated[
        bool, Meta(description="Allow private, loopback, and other addresses that are not globally routable.")
    ] = False
    resolve: Annotated[
        tuple[str, ...], Meta(description="PATTERN=ADDR: resolve matching host names to this address; may be repeated.")
    ] = ()
    nameservers: Annotated[
        tuple[str, ...], Meta(description="DNS servers, ADDR or ADDR:PORT, instead of those of the system.")
    ] = ()
    ca_file: Annotated[str, Meta(description="PEM file with additional certificate authorities to trust.")] = ""
    client_cert: Annotated[
        str, Meta(description="PEM file with a client certificate and its key, sent to every site that requests one.")
    ] = ""
    bad_tls: Annotated[
        Literal["refuse", "record"],
        Meta(description="Pages behind an invalid certificate: refuse them, or store them with the reason."),
    ] = "refuse"
    tls_min: Annotated[
        TlsVersion, Meta(description="Minimum TLS version; 1.0 and 1.1 also allow weak keys and ciphers.")
    ] = "1.2"
    partial: Annotated[
        Literal["keep", "refuse"],
        Meta(description="Truncated, oversized, or malformed responses: store and mark them, or count them as failed."),
    ] = "keep"

    connect_seconds: Annotated[float, Meta(gt=0, description="Seconds to connect, including TLS.")] = 10.0
    fetch_seconds: Annotated[float, Meta(gt=0, description="Seconds for a whole fetch.")] = 60.0
    max_body_bytes: Annotated[int, Meta(ge=1, description="Max bytes of a response body before decoding.")] = 10 * MIB
    max_decoded_bytes: Annotated[int, Meta(ge=1, description="Max bytes of a response body after decoding.")] = 20 * MIB
    max_file_bytes: Annotated[
        int, Meta(ge=1, description="Max bytes of a body, before and after decoding, for requests labeled `file`.")
    ] = 100 * MIB
    parse_seconds: Annotated[
        float, Meta(gt=0, description="CPU seconds to parse a page; a page that takes longer is too-costly.")
    ] = 5.0
    parse_seconds_per_mb: Annotated[
        float, Meta(ge=0, description="Additional CPU seconds to parse a page, per MB of its body.")
    ] = 1.0
    handler_seconds: Annotated[
        float, Meta(gt=0, description="Seconds that the spider's handler may take per page, waiting included.")
    ] = 10.0
    handler_items: Annotated[
        int, Meta(ge=1, description="Max items and requests that the spider's handler may yield per page.")
    ] = 100_000
    max_links: Annotated[int, Meta(ge=1, description="Max links per page.")] = 20_000
    max_url_length: Annotated[
        int, Meta(ge=16, description="Max characters of a URL; longer ones are not followed.")
    ] = 2048
    max_segments: Annotated[
        int, Meta(ge=1, description="Max path segments of a URL; longer paths are not followed.")
    ] = 20
    max_repeats: Annotated[
        int, Meta(ge=1, description="Max occurrences of the same path segment; URLs with more are not followed.")
    ] = 3
    years_ahead: Annotated[
        int, Meta(ge=0, description="Max years ahead of a date in a URL; guards against endless calendars.")
    ] = 2
    years_back: Annotated[int, Meta(ge=0, description="Max years back of a date in a URL.")] = 100
    alike_pages: Annotated[
        int, Meta(ge=0, description="Near-duplicates in a row after which a path prefix is skipped (asleep); 0: never.")
    ] = 20
    sleep_seconds: Annotated[
        float, Meta(gt=0, description="Seconds for which a path prefix full of near-duplicates is skipped.")
    ] = 30 * 86_400.0

    browser_path: Annotated[str, Meta(description="Chromium executable; empty uses the installed one.")] = ""
    browser_tabs: Annotated[int, Meta(ge=1, description="Concurrent pages in a worker's browser.")] = 4
    browser_wait: Annotated[
        str,
        Meta(
            min_length=1,
            description="When a page is ready: load, dom, idle (no requests pending), or a CSS selector that matches.",
        ),
    ] = "idle"
    browser_wait_seconds: Annotated[
        float, Meta(gt=0, description="Max seconds to wait for browser_wait; the page is then used as it is.")
    ] = 10.0
    browser_scroll: Annotated[int, Meta(ge=0, description="Max screens to scroll down.")] = 0
    browser_loads: Annotated[
        tuple[Literal["image", "font", "media", "frame"], ...],
        Meta(description="Resources to load in addition to scripts, style sheets, and data; may be repeated."),
    ] = ()
    browser_requests: Annotated[int, Meta(ge=0, description="Max requests per page for the resources it loads.")] = 100
    browser_pages: Annotated[int, Meta(ge=1, description="Pages after which the browser is restarted.")] = 500
    browser_memory_bytes: Annotated[
        int, Meta(ge=1, description="Bytes of memory above which the browser is restarted; at twice that it is killed.")
    ] = 1024 * MIB
    screenshots: Annotated[str, Meta(description="Folder for screenshots of the pages that the browser renders.")] = ""

    lease_seconds: Annotated[
        float, Meta(gt=0, description="Seconds without contact after which a worker's leases expire.")
    ] = 60.0
    forget_seconds: Annotated[
        float,
        Meta(ge=5, description="Seconds of acknowledged work that a frontier server may lose when it fails."),
    ] = 10.0
    batch: Annotated[int, Meta(ge=1, description="Requests per lease of a site.")] = 32
    drain_seconds: Annotated[
        float, Meta(ge=0, description="Seconds to finish current fetches on stop, and as many to store them.")
    ] = 10.0
    commit_seconds: Annotated[float, Meta(ge=0, description="Seconds of results that are committed together.")] = 0.1
    tries: Annotated[int, Meta(ge=1, description="Attempts to fetch a page before it counts as failed.")] = 3
    backoff_seconds: Annotated[
        float, Meta(gt=0, description="Seconds of back-off of a site after an error; doubles with each further one.")
    ] = 60.0
    backoff_max_seconds: Annotated[float, Meta(gt=0, description="Max seconds of back-off of a site.")] = 86_400.0
    forgive_seconds: Annotated[
        float, Meta(gt=0, description="Seconds without an error after which a site's error count is reset.")
    ] = 1800.0
    site_failures: Annotated[int, Meta(ge=1, description="Consecutive errors after which a site is closed.")] = 6
    robots_seconds: Annotated[float, Meta(gt=0, description="Seconds for which a robots.txt is cached.")] = 86_400.0
    max_deliveries: Annotated[int, Meta(ge=2, description="Lost leases after which a page is parked.")] = 5

    recrawl: Annotated[
        str,
        Meta(
            pattern=r"^(|table|adaptive|budget=(?!0+(\.0+)?/)\d+(\.\d+)?/[smhd])$",
            description="Crawl continuously and revisit pages: table, adaptive, or budget=N/d.",
        ),
    ] = ""
    revisit_seconds: Annotated[float, Meta(gt=0, description="Seconds until the next visit after a success.")] = (
        WEEK_SECONDS
    )
    sitemap_seconds: Annotated[
        float, Meta(gt=0, description="Seconds after which a continuous crawl reads a sitemap again.")
    ] = 86_400.0
    revisit_failures: Annotated[
        tuple[Annotated[float, Meta(gt=0)], ...],
        Meta(
            min_length=1,
            description="Seconds until the next visit after the first consecutive failure, the second, ...",
        ),
    ] = (2 * WEEK_SECONDS, 4 * WEEK_SECONDS, 8 * WEEK_SECONDS)
    revisit_min_seconds: Annotated[float, Meta(gt=0, description="Min seconds between two visits of a page.")] = 3600.0
    revisit_max_seconds: Annotated[float, Meta(gt=0, description="Max seconds between two visits of a page.")] = (
        365 * 86_400.0
    )
    gone_visits: Annotated[
        int, Meta(ge=1, description="Consecutive visits with 404 or 410 after which a page is dropped.")
    ] = 5

    def for_site(self, site: str) -> SiteSettings:
        """The settings of one site; those that it does not override come from the job."""
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
    """Settings from plain values; ConfigError for an unknown name, a wrong type, or a number out of range."""
    try:
        settings = msgspec.convert(dict(values), Settings, strict=False)
        if large := too_large(msgspec.to_builtins(settings)):
            raise ConfigError(f"{source}: {large}")
        # Command-line bytes that are not UTF-8 arrive as lone surrogates, which cannot be stored.
        msgspec.msgpack.encode(settings)
    except msgspec.ValidationError as error:
        if "matching regex" in str(error):
            words = f"{source}: invalid value {values.get('recrawl')!r:.80} for recrawl"
            raise ConfigError(words, hint="use table, adaptive, or budget=5000/d (or /h, /m, /s)") from None
        message = worded(str(error), values, {name: str(item.type) for name, item in FIELDS.items()})
        raise ConfigError(f"{source}: {message}", hint=_nearest(values)) from None
    except UnicodeEncodeError as error:
        raise ConfigError(f"{source}: {error.object!r:.80} is not UTF-8") from None
    return settings


def dump(settings: Settings) -> dict[str, Any]:
    """Settings as plain values; only those that differ from the defaults."""
    plain: dict[str, Any] = msgspec.to_builtins(settings)
    default: dict[str, Any] = msgspec.to_builtins(Settings())
    return {name: value for name, value in plain.items() if value != default[name]}


def from_file(folder: Path) -> dict[str, Any]:
    """Settings from a folder's `gossamer.toml`, or from `[tool.gossamer]` in its pyproject.toml."""
    own, project = folder / "gossamer.toml", folder / "pyproject.toml"
    path, keys = (own, ()) if own.is_file() else (project, ("tool", "gossamer"))
    if not path.is_file():
        return {}
    try:
        found: Any = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}", hint="fix the TOML syntax; a setting looks like: delay = 2.0") from None
    for key in keys:
        found = found.get(key, {})
        if not isinstance(found, dict):
            raise ConfigError(f"{path}: {key} must be a table", hint="put the settings under [tool.gossamer]")
    for name in found:
        if name not in FIELDS:
            raise ConfigError(f"{path}: unknown setting {name}", hint=_nearest({name: ""}))
    return dict(found)


def from_environment(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Settings from GOSSAMER_* environment variables; lists are separated by commas."""
    values: dict[str, Any] = {}
    for variable, text in environment.items():
        if not variable.startswith("GOSSAMER_"):
            continue
        name = variable.removeprefix("GOSSAMER_").lower()
        if name in _OF_COMMANDS:
            continue
        if name not in FIELDS:
            raise ConfigError(f"{variable}: unknown setting {name}", hint=_nearest({name: text}))
        kind = str(FIELDS[name].type)
        values[name] = text.split(",") if "tuple[" in kind else text
    return values


def expand(text: str, *, source: str, environment: Mapping[str, str] = os.environ) -> str:
    """Replace each `${NAME}` with that environment variable; ConfigError if it is not set.

    Values are expanded where they are used, so stored and displayed settings contain the name and not the secret."""

    def value(match: re.Match[str]) -> str:
        found = environment.get(match[1])
        if found is None:
            raise ConfigError(f"{source}: environment variable {match[1]} is not set", hint=f"export {match[1]}=...")
        return found

    return _VARIABLE.sub(value, text)


FIELDS = {item.name: item for item in msgspec.structs.fields(Settings)}


def _nearest(values: Mapping[str, Any]) -> str:
    from difflib import get_close_matches

    for name in values:
        if name not in FIELDS:
            close = get_close_matches(name, FIELDS, n=1)
            return f"did you mean {close[0]}?" if close else "docs/reference/settings.md lists all settings"
    return ""


def introduces_itself(settings: Settings) -> bool:
    """Whether the user agent is not the default one, and so names a contact."""
    return settings.user_agent != Settings().user_agent
