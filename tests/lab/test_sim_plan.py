from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from gossamer import urls
from gossamer.errors import ConfigError
from gossamer.lab.simweb import features
from gossamer.lab.simweb.pages import PageRenderer
from gossamer.lab.simweb.site import CHARSETS, WebPlan

DIGEST = """
import hashlib, msgspec, sys
from gossamer.lab.simweb.pages import PageRenderer
from gossamer.lab.simweb.site import WebPlan
plan = msgspec.json.decode(sys.argv[1], type=WebPlan)
pages, digest = PageRenderer(plan), hashlib.sha256()
for site in range(plan.sites):
    for target in ("/robots.txt", *(plan.path(site, page) for page in range(plan.pages_per_site))):
        answer = pages.answer(site, target)
        digest.update(repr((site, target, answer)).encode())
print(digest.hexdigest())
"""


def digest_of(plan: WebPlan, hash_seed: str) -> str:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", DIGEST, msgspec.json.encode(plan).decode()]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


def test_same_seed_gives_the_same_bytes_in_every_process() -> None:
    plan = WebPlan(seed=7, sites=len(features.FEATURES), pages_per_site=4, kinds=("all",), port=8000)
    assert digest_of(plan, "1") == digest_of(plan, "2")
    assert digest_of(plan, "1") != digest_of(msgspec.structs.replace(plan, seed=8), "1")


def test_page_does_not_depend_on_earlier_requests() -> None:
    plan = WebPlan(sites=3, pages_per_site=20, port=8000)
    used, fresh = PageRenderer(plan), PageRenderer(plan)
    for page in range(20):
        used.answer(1, plan.path(1, page))
    assert used.answer(2, plan.path(2, 13)) == fresh.answer(2, plan.path(2, 13))


def test_sizes_and_links_are_exact_where_they_are_fixed() -> None:
    plan = WebPlan(sites=40, pages_per_site=100, page_bytes=40_000, links_per_page=100, port=8000)
    pages = PageRenderer(plan)
    for page in range(100):
        body = pages.answer(3, plan.path(3, page)).body
        assert len(body) == 40_000
        assert body.count(b"<a href=") == 100


def test_sizes_are_spread_as_on_the_real_web() -> None:
    plan = WebPlan(sites=2000, pages_per_site=1, port=8000)
    pages = PageRenderer(plan)
    sizes = sorted(len(pages.answer(site, "/").body) for site in range(2000))
    for place, expected in ((200, 6_000), (500, 14_000), (1000, 35_000), (1500, 78_000), (1800, 152_000)):
        assert 0.85 * expected < sizes[place] < 1.15 * expected


@pytest.mark.parametrize("names", [True, False])
def test_hosts_and_sites_map_both_ways(names: bool) -> None:
    plan = WebPlan(names=names, port=8000)
    for site in (0, 1, 253, 254, 65_023, 65_024, 5_000_000):
        assert plan.site_of(plan.host(site)) == site
        assert urls.normal(plan.url(site)) == plan.url(site)
    assert [plan.site_of(host) for host in ("127.0.0.0", "127.0.0.255", "10.0.0.1", "s01.sim", "x1.sim", "")] == [
        None
    ] * 6


def test_every_url_of_a_plan_is_normal_and_answers_as_its_fate_says() -> None:
    plan = WebPlan(sites=len(features.FEATURES) + 1, pages_per_site=12, kinds=("all",), page_bytes=2000, port=8000)
    pages = PageRenderer(plan)
    families = {"page": (2,), "redirect": (3,), "loop": (3,), "missing": (4,)}
    for url, fate in plan.fates(sitemaps=True).items():
        site = plan.site_of(urls.host(urls.host_port(url)))
        assert site is not None
        assert urls.normal(url) == url
        answer = pages.answer(site, urls.path_query(url))
        assert answer.status // 100 in families.get(fate, (2, 3, 4, 5)), (url, fate, answer.status)
        assert (answer.times > 0) == (fate == "flaky") or fate == "robots", (url, fate)


def test_paths_that_no_page_has_are_not_found() -> None:
    plan = WebPlan(sites=1, pages_per_site=10, port=8000)
    pages = PageRenderer(plan)
    path = plan.path(0, 4)
    for target in (
        path + "0",
        path.replace("-4", "-5"),
        path.upper(),
        "/nothing",
        "/x-99999999999999999999",
        "",
        "/go/301-1",
    ):
        assert pages.answer(0, target).status == 404


def test_infinite_web_has_pages_at_any_depth() -> None:
    plan = WebPlan(sites=1, pages_per_site=0, links_per_page=10, page_bytes=4000, port=8000)
    pages = PageRenderer(plan)
    target = plan.path(0, 10**9)
    assert plan.path(0, 2 * 10**9 + 1).encode() in pages.answer(0, target).body
    with pytest.raises(ConfigError, match="infinite web"):
        plan.reachable()


def test_every_charset_is_declared_and_encodes_its_title() -> None:
    plan = WebPlan(sites=1, pages_per_site=len(CHARSETS), kinds=("charsets",), port=8000)
    pages = PageRenderer(plan)
    for page, (charset, output, phrase) in enumerate(CHARSETS):
        answer = pages.answer(0, plan.path(0, page))
        text = answer.body.decode(charset)
        assert f"<title>{plan.title(0, page).replace('&', '&amp;')}</title>" in text
        assert phrase in plan.title(0, page)
        assert (charset in answer.content_type) == (output == "header")
        assert (f"<meta charset={charset}>" in text) == (output == "meta")
        assert answer.body.startswith((b"\xef\xbb\xbf", b"\xff\xfe")) == (output == "bom")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kinds": ("robots-prat",)}, "robots-prat"),
        ({"kinds": ("robots-all+robots-part",)}, "one robots.txt"),
        ({"kinds": ("gzip+br",)}, "one coding"),
        ({"kinds": ()}, "at least one kind"),
    ],
)
def test_invalid_kinds_are_rejected(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        WebPlan(**fields)


def test_a_slow_site_takes_times_that_differ() -> None:
    plan = WebPlan(sites=1, kinds=("slow",), port=8000)
    waits = {plan.wait_seconds(0, plan.path(0, page)) for page in range(25)}
    assert len(waits) == 25
    assert 0 < min(waits) < 0.15 < max(waits) <= 3
    assert WebPlan(latency_seconds=0.2).wait_seconds(0, "/") == 0.2


def test_digests_of_pages_differ() -> None:
    plan = WebPlan(sites=20, pages_per_site=20, port=8000)
    pages = PageRenderer(plan)
    bodies = [pages.answer(site, plan.path(site, page)).body for site in range(20) for page in range(20)]
    assert len({hashlib.sha256(body).digest() for body in bodies}) == 400
