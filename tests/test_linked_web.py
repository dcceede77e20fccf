"""The web of the benchmark shape `links`: its pages and its server's log."""

from __future__ import annotations

import re
import sys
import urllib.request
from pathlib import Path
from urllib.parse import urldefrag, urljoin

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from _linked_web import LinkedWeb, Pages
from gossamer.lab.simweb.log import fetched
from gossamer.lab.simweb.site import WebPlan

PLAN = WebPlan(sites=20, pages_per_site=100, page_bytes=40_000, links_per_page=79, port=8080)
_HREF = re.compile(r'<a href="([^"]+)"')


def body(site: int, page: int) -> str:
    found = Pages(PLAN).answer(site, PLAN.path(site, page))
    assert found is not None
    return found.decode()


def test_a_page_has_79_distinct_links_twelve_of_them_to_other_hosts() -> None:
    own, known = PLAN.url(3, ""), {PLAN.url(site, PLAN.path(site, page)) for site in range(20) for page in range(100)}
    hrefs = _HREF.findall(body(3, 7))
    links = {urldefrag(urljoin(PLAN.url(3, PLAN.path(3, 7)), href)).url for href in hrefs}
    assert len(hrefs) == len(links) == 79
    assert links <= known
    assert sum(not link.startswith(own) for link in links) == 12
    assert {PLAN.url(3, PLAN.path(3, 15)), PLAN.url(3, PLAN.path(3, 16))} <= links


def test_a_page_depends_on_its_number_alone_and_has_its_size() -> None:
    assert body(3, 7) == body(3, 7) != body(3, 8)
    assert all(39_500 < len(body(site, 50)) < 40_500 for site in range(5))


def test_the_pages_of_a_site_hardly_share_the_text_of_a_link() -> None:
    first, second = set(_HREF.findall(body(3, 7))), set(_HREF.findall(body(3, 8)))
    assert len(first & second) < 20


def test_the_server_answers_and_logs() -> None:
    with LinkedWeb(WebPlan(sites=2, pages_per_site=10, page_bytes=4_000, links_per_page=5)) as web:
        for url in sorted(web.reachable()):
            with urllib.request.urlopen(url) as answer:
                assert answer.status == 200
        log = web.log()
        assert set(fetched(log)) == web.reachable()
        assert {entry.status for entry in log} == {200}
