"""A minimal reference crawler against every kind of site."""

from __future__ import annotations

import gzip
import http.client
import re
from collections import Counter
from urllib.parse import unquote

import brotli
import pytest
import turbohtml

from gossamer import urls
from gossamer.compression import zstd
from gossamer.lab.simweb import features, log
from gossamer.lab.simweb.process import SimWeb
from gossamer.lab.simweb.site import CHARSETS

SHUT = [("disallow", "/")]
DECODERS = {"gzip": gzip.decompress, "br": brotli.decompress, "zstd": zstd.decompress}


class Reader:
    """Crawls as the plan expects: one request at a time, obeying robots.txt and nofollow, only on the seeds' sites."""

    def __init__(self, web: SimWeb) -> None:
        self.web = web
        self.rules: dict[str, list[tuple[str, str]]] = {}
        self.titles: dict[str, str] = {}
        self.items: dict[str, list[dict[str, str | None]]] = {}

    def fetch(self, url: str) -> tuple[int, dict[str, str], bytes]:
        authority = urls.host_port(url)
        host = "127.0.0.1" if self.web.plan.names else urls.host(authority)
        connection = http.client.HTTPConnection(host, self.web.plan.port, timeout=0.5 if self._hangs(url) else 30)
        headers = {"Host": authority, "User-Agent": "Gossamer/1", "Accept-Encoding": "gzip, br, zstd"}
        try:
            connection.request("GET", urls.path_query(url), headers=headers)
            answer = connection.getresponse()
            body = answer.read()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, found, DECODERS.get(found.get("content-encoding", ""), bytes)(body)
        except (OSError, http.client.HTTPException):
            return 0, {}, b""
        finally:
            connection.close()

    def _hangs(self, url: str) -> bool:
        """Whether the page never responds; only then is there a timeout, however slow the machine is."""
        site = self.web.plan.site_of(urls.host(urls.host_port(url)))
        is_rules = urls.path_query(url) == "/robots.txt"
        return "/hangs/" in url or (is_rules and site is not None and "robots-hang" in self.web.plan.features(site))

    def robots(self, origin: str) -> list[tuple[str, str]]:
        url = f"{origin}/robots.txt"
        for _ in range(6):
            status, headers, body = self.fetch(url)
            if status // 100 != 3:
                break
            url = urls.join(url, headers["location"]) or url
        if status in (0, 429) or status >= 500:
            return SHUT
        return parsed(body.decode("utf-8-sig", "replace")) if status == 200 else []

    def allowed(self, url: str) -> bool:
        origin = urls.origin(url)
        if origin not in self.rules:
            self.rules[origin] = self.robots(origin)
        best = (0, True)
        for word, pattern in self.rules[origin]:
            if pattern and matches(pattern, urls.path_query(url)):
                best = max(best, (len(pattern), word == "allow"))
        return best[1]

    def crawl(self, seeds: list[str]) -> None:
        sites = {urls.host_port(seed) for seed in seeds}
        queue, seen = [(seed, 0) for seed in seeds], set(seeds)
        while queue:
            url, hops = queue.pop()
            if not self.allowed(url) or self.web.plan.is_trap(url):
                continue
            for _ in range(3):
                status, headers, body = self.fetch(url)
                if status not in (0, 429) and status < 500:
                    break
            found: list[tuple[str | None, int]] = []
            if status // 100 == 3 and hops < 10:
                found = [(urls.join(url, headers["location"]), hops + 1)]
            elif status == 200:
                found = [(link, 0) for link in self.links(url, headers, body)]
            for link, far in found:
                if link and link not in seen and urls.host_port(link) in sites:
                    seen.add(link)
                    queue.append((link, far))

    def links(self, url: str, headers: dict[str, str], body: bytes) -> list[str | None]:
        tree = turbohtml.parse(decoded(headers, body))
        title = tree.select_one("title")
        self.titles[url] = title.text if title else ""
        self.items[url] = [
            {word: found.text for word in ("name", "price") if (found := item.select_one(f".{word}"))}
            for item in tree.select("div.item")
        ]
        meta = {(node.attr("name") or "").lower(): node.attr("content") or "" for node in tree.select("meta")}
        if "nofollow" in headers.get("x-robots-tag", "") + meta.get("robots", ""):
            return []
        base = tree.select_one("base[href]")
        root = urls.join(url, base.attr("href") or "") if base else url
        hrefs = [
            node.attr("href")
            for node in tree.select(":is(a, area, link[rel=canonical])[href]:not(template *)")
            if "nofollow" not in (node.attr("rel") or "")
        ]
        for node in tree.select("meta[http-equiv]"):
            if (node.attr("http-equiv") or "").lower() == "refresh":
                hrefs.append((node.attr("content") or "").split("URL=")[1])
        return [urls.join(root or url, href or "") for href in hrefs]


def matches(pattern: str, target: str) -> bool:
    if "*" not in pattern and not pattern.endswith("$"):
        return target.startswith(pattern)
    regex = re.escape(pattern.removesuffix("$")).replace(r"\*", ".*") + ("$" if pattern.endswith("$") else "")
    return re.match(regex, target) is not None


def parsed(text: str) -> list[tuple[str, str]]:
    groups: dict[str, list[tuple[str, str]]] = {}
    agents: list[str] = []
    in_rules = False
    for line in re.split(r"[\r\n]+", text):
        word, colon, value = line.partition("#")[0].partition(":")
        word, value = word.strip().lower(), unquote(value.strip())
        if word == "user-agent" and colon:
            agents = [value.lower()] if in_rules else [*agents, value.lower()]
            in_rules = False
            groups.setdefault(value.lower(), [])
        elif word in ("allow", "disallow") and colon:
            in_rules = True
            for agent in agents:
                groups[agent].append((word, value))
    return groups.get("gossamer", groups.get("*", []))


def decoded(headers: dict[str, str], body: bytes) -> str:
    if body.startswith(b"\xff\xfe"):
        return body[2:].decode("utf-16-le")
    if body.startswith(b"\xef\xbb\xbf"):
        return body[3:].decode()
    output = re.search(r"charset=([\w-]+)", headers.get("content-type", "")) or re.search(
        r"charset=([\w-]+)", body[:200].decode("latin-1")
    )
    return body.decode(output[1] if output else "utf-8")


@pytest.mark.parametrize("names", [False, True])
def test_a_reference_crawler_fetches_exactly_what_the_plan_says(names: bool) -> None:
    with SimWeb(
        sites=len(features.FEATURES) + 1,
        pages_per_site=13,
        kinds=("all",),
        page_bytes=3000,
        links_per_page=8,
        names=names,
    ) as web:
        reader = Reader(web)
        reader.crawl(web.seeds)
        verdict = web.judge()
        assert verdict == log.CrawlVerdict(frozenset(), {}, {}, {})
        counts = log.fetched(web.log())
        assert {url for url in counts if not web.plan.is_trap(url)} >= web.reachable()
        assert not log.disallowed(web.log(), web.plan.forbidden())
        assert set(log.max_overlap(web.log()).values()) == {1}
        for site in range(web.plan.sites):
            for page in range(13):
                url = web.url(site, web.plan.path(site, page))
                if url in reader.titles:
                    assert reader.titles[url] == web.plan.title(site, page)
                    assert reader.items[url] == web.plan.items(site, page)
        assert len(reader.titles) > 400


def test_greedy_crawler_fails_the_checks() -> None:
    with SimWeb(
        sites=4, pages_per_site=7, kinds=("robots-part", "nofollow", "outside", "hidden"), page_bytes=3000
    ) as web:
        reader = Reader(web)
        forbidden = web.plan.forbidden()
        assert set(forbidden.values()) == {"robots", "nofollow", "scope", "unlinked"}
        for url in forbidden:
            assert reader.fetch(url)[0] == 200
        verdict = web.judge()
        assert verdict.forbidden == dict.fromkeys(forbidden, 1)
        assert verdict.missed == web.reachable()


def test_one_seed_asks_for_its_own_site_only() -> None:
    with SimWeb(sites=5, pages_per_site=9, page_bytes=3000, links_per_page=30) as web:
        Reader(web).crawl(web.seeds[2:3])
        assert web.judge(sites=[2]) == log.CrawlVerdict(frozenset(), {}, {}, {})
        assert len(web.judge().missed) == 4 * 9


def test_sites_of_a_plain_web_lead_to_one_another() -> None:
    with SimWeb(sites=9, pages_per_site=3, page_bytes=3000, links_per_page=10) as web:
        reader = Reader(web)
        found, queue = set(), [web.seeds[0]]
        while queue:
            url = queue.pop()
            if url and url not in found:
                found.add(url)
                queue.extend(link for link in reader.links(url, *reader.fetch(url)[1:]) if link)
        assert found == web.reachable()


@pytest.mark.parametrize("kind", list(features.TRAPS))
def test_traps_have_no_end_and_are_known_as_traps(kind: str) -> None:
    with SimWeb(sites=1, pages_per_site=3, kinds=(kind,), page_bytes=2000) as web:
        reader = Reader(web)
        first = [
            link
            for link in reader.links(web.seeds[0], *reader.fetch(web.seeds[0])[1:])
            if link and web.plan.is_trap(link)
        ]
        seen, layer = set(first), first
        assert len(first) == 1
        for _ in range(60):
            url = layer[-1]
            layer = [link for link in reader.links(url, *reader.fetch(url)[1:]) if link and link not in seen]
            seen.update(layer)
            assert layer
            assert all(map(web.plan.is_trap, layer))


def test_sitemaps_list_every_page_and_the_orphans() -> None:
    with SimWeb(sites=1, pages_per_site=6, kinds=("robots-sitemap",), page_bytes=2000) as web:
        reader = Reader(web)
        lines = reader.fetch(web.url(0, "/robots.txt"))[2].decode().splitlines()
        index = next(line for line in lines if line.startswith("Sitemap:")).partition(" ")[2]
        parts = re.findall(r"<loc>(.*?)</loc>", reader.fetch(index)[2].decode())
        listed = {loc for part in parts for loc in re.findall(r"<loc>(.*?)</loc>", reader.fetch(part)[2].decode())}
        orphans = web.reachable(sitemaps=True) - web.reachable()
        assert listed == orphans | {web.url(0, web.plan.path(0, page)) for page in range(6)}
        assert len(orphans) == 5


def test_bodies_are_coded_only_for_clients_that_accept_it() -> None:
    with SimWeb(sites=1, pages_per_site=1, kinds=("gzip",), page_bytes=20_000) as web:
        connection = http.client.HTTPConnection(web.plan.host(0), web.plan.port, timeout=5)
        sizes = Counter[str]()
        for accepted in ("gzip", "identity", "gzip"):
            connection.request("GET", "/", headers={"Accept-Encoding": accepted})
            answer = connection.getresponse()
            assert (answer.getheader("Content-Encoding") == "gzip") == (accepted == "gzip")
            sizes[accepted] = len(answer.read())
        assert sizes["identity"] == 20_000 > 2 * sizes["gzip"]
        connection.close()


def test_a_crawler_that_ignores_base_misses_pages() -> None:
    class Astray(Reader):
        def links(self, url: str, headers: dict[str, str], body: bytes) -> list[str | None]:
            return super().links(url, headers, re.sub(rb"<base [^>]*>", b"", body))

    with SimWeb(sites=1, pages_per_site=30, kinds=("bases",), page_bytes=2000, links_per_page=2) as web:
        Astray(web).crawl(web.seeds)
        assert web.judge().missed
        assert web.judge().unknown


def test_eight_charsets_are_served() -> None:
    assert len({charset for charset, _, _ in CHARSETS}) == 8
