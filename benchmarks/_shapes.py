"""Crawl shapes for the comparison, with Gossamer's targets for each."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from _linked_web import LinkedWeb
from gossamer.lab.simweb.process import SimWeb
from gossamer.lab.simweb.site import WebPlan


class Shape(NamedTuple):
    """A web, and how it is crawled."""

    name: str
    kind: str
    plan: WebPlan
    is_durable: bool = False
    is_whole: bool = True
    web: type[SimWeb] | type[LinkedWeb] = SimWeb
    """The server's side."""

    @property
    def pages(self) -> int:
        return self.plan.sites * self.plan.pages_per_site

    @property
    def about(self) -> str:
        return (
            f"{self.pages:,} pages of {(self.plan.page_bytes or 0) // 1000} KB on {self.plan.sites:,} hosts{self.kind}"
        )

    def scaled(self, part: float) -> Shape:
        """The same shape with fewer pages, or fewer hosts if each has one page."""
        name = "sites" if self.plan.pages_per_site == 1 else "pages_per_site"
        count = max(1, round(getattr(self.plan, name) * part))
        return self._replace(plan=msgspec.structs.replace(self.plan, **{name: count}), is_whole=part >= 1)


def _plan(sites: int, pages: int, page_bytes: int = 40_000, **fields: object) -> WebPlan:
    shape = {"sites": sites, "pages_per_site": pages, "page_bytes": page_bytes, "links_per_page": 100}
    return msgspec.convert({**shape, **fields}, WebPlan)


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("40kb", "", _plan(40, 100)),
        Shape("links", ", 79 distinct links each", _plan(40, 100, links_per_page=79), web=LinkedWeb),
        Shape("one", ", one host", _plan(1, 2000)),
        Shape("broad", ", one page each", _plan(2000, 1)),
        Shape("240kb", "", _plan(40, 25, 240_000)),
        Shape("tls", ", one page each, TLS", _plan(900, 1, tls=True)),
        Shape("durable", ", durable queue and archive", _plan(40, 50), is_durable=True),
    )
}
AIMS = {
    ("40kb", "scrapy"): 12.0,
    ("40kb", "scrapy, own seen set"): 4.0,
    ("40kb", "scrapy-redis, 1 worker"): 15.0,
    ("40kb", "scrapy-redis, 2 workers"): 15.0,
    ("40kb", "requests + bs4, 16 threads"): 15.0,
    ("40kb", "requests + bs4, 16 processes"): 15.0,
    ("40kb", "crawlee"): 7.0,
    ("40kb", "aiohttp + selectolax script"): 1.0,
    ("40kb", "spider (Node package)"): 1.0,
    ("links", "aiohttp + selectolax script"): 1.0,
    ("links", "spider (Rust), a Website a host"): 1.0,
    ("links", 'spider (Rust), "*"'): 1.0,
    ("tls", "scrapy"): 3.0,
    ("tls", "crawlee"): 3.0,
}
"""Minimum ratio of each crawler's CPU per page to Gossamer's."""
LEVEL = {"aiohttp + selectolax script": 0.9}
"""Crawlers that Gossamer should match within 10 %."""
