"""The plan of a simulated web: its hosts, their pages, and the expected result of a crawl."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterable, Iterator
from statistics import NormalDist
from typing import Annotated
from urllib.parse import quote

import msgspec
from msgspec import Meta

from gossamer import urls
from gossamer.errors import ConfigError
from gossamer.lab.simweb import features
from gossamer.lab.simweb.features import FORBIDDEN, Fate
from gossamer.lab.simweb.words import ADJECTIVES, NOUNS, SECTIONS, draw, page_words, site_title, stream

MAX_SITES = 254 * 256 * 255
CHARSETS = (
    ("utf-8", "header", "Crème brûlée"),
    ("windows-1252", "meta", "Crème brûlée"),
    ("utf-8-sig", "bom", "Żółta łódź"),
    ("windows-1251", "header", "Тихая река"),
    ("shift_jis", "meta", "静かな川"),
    ("euc-kr", "header", "고요한 강"),
    ("gb18030", "meta", "安静的河流"),
    ("utf-16-le", "bom", "Ήσυχο ποτάμι"),
)
"""Encoding, where the page declares it, and the phrase at the end of the page's title."""
_HOPS = (0, 301, 302, 307, 308, 303)
_NUMBER = re.compile(r"(?:-|\?item=)(\d{1,12})(?:&lang=en)?")

Whole = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0, le=3600)]


class WebPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a deterministic web: each page derives from the seed, its site, and its path.

    On every site, page i links to pages 2i+1 and 2i+2, so that all pages can be reached from `/`, and the first pages
    of the sites link to one another in the same way. The sites get the `kinds` in turn.
    """

    seed: int = 1
    sites: Annotated[int, Meta(ge=1, le=MAX_SITES)] = 40
    pages_per_site: Whole = 25
    """Number of pages per site; 0 for an infinite web."""
    page_bytes: Annotated[int, Meta(ge=1, le=1 << 28)] | None = None
    """Page size; None for sizes as on the real web. A page is larger only if its links do not fit."""
    links_per_page: Annotated[int, Meta(ge=0, le=100_000)] | None = None
    """Links per page, a tenth of them to other sites; None for numbers as on the real web."""
    kinds: tuple[str, ...] = ("plain",)
    latency_seconds: Seconds = 0.0
    latency_sigma: Annotated[float, Meta(ge=0, le=3)] = 0.0
    """Sigma of the log-normal latency, whose median is `latency_seconds`."""
    crawl_delay_seconds: Seconds = 2.0
    retry_after_seconds: Whole = 1
    agent: str = "gossamer"
    names: bool = False
    """Whether hosts are named s0.sim, s1.sim, ... (by the Host header) instead of addresses 127.x.y.z."""
    tls: bool = False
    port: Annotated[int, Meta(ge=0, le=65535)] = 0

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "kinds", features.expand(self.kinds))

    def host(self, site: int) -> str:
        """The host name or address of a site; numbers beyond the last are hosts outside the web."""
        if self.names:
            return f"s{site}.sim"
        return f"127.{site // 65024}.{site // 254 % 256}.{site % 254 + 1}"

    def site_of(self, host: str) -> int | None:
        """The site of a host (without port), None if it is outside the web."""
        if self.names:
            number = host.lower().removeprefix("s").removesuffix(".sim")
            return int(number) if number.isdecimal() and host.lower() == f"s{int(number)}.sim" else None
        try:
            packed = ipaddress.IPv4Address(host).packed
        except ValueError:
            return None
        site = packed[1] * 65024 + packed[2] * 254 + packed[3] - 1
        return site if self.host(site) == host else None

    def url(self, site: int, target: str = "/") -> str:
        """The URL of a path on a site."""
        default = self.port == (443 if self.tls else 80)
        return f"{'https' if self.tls else 'http'}://{self.host(site)}{'' if default else f':{self.port}'}{target}"

    def seeds(self) -> list[str]:
        """The first page of every site."""
        return [self.url(site) for site in range(self.sites)]

    def features(self, site: int) -> frozenset[str]:
        """The features of a site; a plain one has none."""
        return features.features_of(self.kinds[site % len(self.kinds)])

    def path(self, site: int, page: int) -> str:
        """The path of a page with its query, as in a normalized URL."""
        if page == 0:
            return "/"
        section, adjective, noun = page_words(self.seed, site, page)
        if page % 3 and "spellings" in self.features(site):
            return (
                f"/{section}/list?item={page}&lang=en"
                if page % 3 == 1
                else f"/{section}/{quote(f'{noun} brûlé')}-{page}"
            )
        return f"/{section}/{adjective}-{noun}-{page}"

    def page_of(self, site: int, target: str) -> int | None:
        """The number of the page at a path, None if there is no such page."""
        if target == "/":
            return 0
        found = _NUMBER.search(target)
        page = int(found[1]) if found else 0
        if page == 0 or (self.pages_per_site and page >= self.pages_per_site) or self.path(site, page) != target:
            return None
        return page

    def title(self, site: int, page: int) -> str:
        """The title of a page."""
        name = site_title(self.seed, site)
        if page:
            section, adjective, noun = page_words(self.seed, site, page)
            name = f"{SECTIONS[section].format(adjective=adjective, noun=noun)} · {name}"
        if "charsets" in self.features(site):
            # Not all of these encodings contain the middle dot.
            name = f"{name.replace(' · ', ' - ')} - {CHARSETS[page % len(CHARSETS)][2]}"
        return name

    def items(self, site: int, page: int) -> list[dict[str, str]]:
        """The items on a page, in order: one to four `div.item` with a name and a price each."""
        count, *numbers = stream(self.seed, site, page, "items", count=9)
        found = []
        for word, price in zip(numbers[: 2 + 2 * (count % 4) : 2], numbers[1::2]):
            name = f"{ADJECTIVES[word % len(ADJECTIVES)].title()} {NOUNS[(word >> 16) % len(NOUNS)]}"
            found.append({"name": name, "price": f"{price % 200 + 1}.{(price >> 16) % 100:02d}"})
        return found

    def children(self, page: int) -> list[int]:
        """The child pages of a page, which it always links to."""
        return [
            child for child in (2 * page + 1, 2 * page + 2) if not self.pages_per_site or child < self.pages_per_site
        ]

    def steps(self, site: int, page: int) -> list[str]:
        """The paths from the link to the page: more than one if redirects lead to it."""
        path = self.path(site, page)
        if page == 0 or "redirects" not in self.features(site):
            return [path]
        match page % 8:
            case 6:
                return [f"/chain/{left}-{page}" for left in (3, 2, 1)] + [path]
            case 7:
                return [f"/refresh/{page}", path]
            case way:
                return [f"/go/{_HOPS[way]}-{page}", path] if way else [path]

    def fault_of(self, site: int, page: int) -> str:
        """The fault of the first request for a page: 500, 503, 429, reset, close, cut, or empty."""
        features = self.features(site)
        if page and "flaky" in features and page % 10 in (1, 2, 3):
            return ("500", "503", "429")[page % 10 - 1]
        if page and "resets" in features and page % 10 in (4, 5, 6):
            return ("reset", "close", "cut")[page % 10 - 4]
        return ""

    def fates(self, sites: Iterable[int] | None = None, *, sitemaps: bool = False) -> dict[str, Fate]:
        """The expected result for every URL that a crawl from the first pages of these sites (default: all) can find.

        The crawl stays on its sites and obeys robots.txt and nofollow; URLs inside traps are not listed."""
        if not self.pages_per_site:
            raise ConfigError("an infinite web has no list of its pages", hint="set pages_per_site")
        found: dict[str, Fate] = {}
        for site in range(self.sites) if sites is None else sites:
            kind = features.kind_of(self.features(site))
            for target, fate in self._site_fates(site, sitemaps=sitemaps):
                if target.startswith("/"):
                    found[self.url(site, target)] = "robots" if features.forbids(kind, target) else fate
                else:
                    found[target] = fate
        return found

    def reachable(self, sites: Iterable[int] | None = None, *, sitemaps: bool = False) -> set[str]:
        """The URLs that such a crawl must fetch, robots.txt excluded."""
        fates = self.fates(sites, sitemaps=sitemaps)
        return {url for url, fate in fates.items() if fate not in FORBIDDEN and fate != "optional"}

    def forbidden(self) -> dict[str, Fate]:
        """The URLs that such a crawl must not fetch, each with the reason."""
        return {url: fate for url, fate in self.fates().items() if fate in FORBIDDEN}

    def is_trap(self, url: str) -> bool:
        """Whether a URL is inside one of the web's traps."""
        site = self.site_of(urls.host(urls.host_port(url)))
        return site is not None and site < self.sites and features.holds(self.features(site), urls.path_query(url))

    def wait_seconds(self, site: int, target: str) -> float:
        """Latency of the site for this path."""
        median, sigma = self.latency_seconds, self.latency_sigma
        if "slow" in self.features(site):
            median, sigma = max(median, 0.15), max(sigma, 0.8)
        if not median or not sigma:
            return median
        share = (draw(self.seed, site, target, "wait") + 1) / (2**64 + 2)
        return min(median * math.exp(sigma * NormalDist().inv_cdf(share)), 20 * median)

    def _site_fates(self, site: int, *, sitemaps: bool) -> Iterator[tuple[str, Fate]]:
        for page in range(self.pages_per_site):
            *hops, path = self.steps(site, page)
            for hop in hops:
                yield hop, "page" if hop.startswith("/refresh/") else "redirect"
            yield path, "flaky" if self.fault_of(site, page) else "page"
            for leaf in features.page_leaves(self, site, page, sitemaps=sitemaps):
                yield leaf.target, leaf.fate
