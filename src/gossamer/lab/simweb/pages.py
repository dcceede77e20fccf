"""Renders pages of the simulated web, with links in many forms."""

from __future__ import annotations

import ipaddress
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from html import escape
from urllib.parse import unquote

from gossamer import urls
from gossamer.lab.simweb.features import (
    HTML,
    SimAnswer,
    kind_of,
    leaf_answer,
    moved,
    note,
    page_leaves,
    place_answer,
    refused,
    robots_answer,
    trap_answer,
    written,
)
from gossamer.lab.simweb.site import CHARSETS, WebPlan
from gossamer.lab.simweb.words import PARAGRAPH_BYTES, paragraphs, stream


def relative(base: str, url: str) -> str:
    """`url` as a path relative to the directory of `base`; both normal URLs of one origin."""
    here = urls.path_query(base).partition("?")[0].split("/")[1:-1]
    path, mark, query = urls.path_query(url).partition("?")
    there = path.split("/")[1:]
    shared = 0
    while shared < min(len(here), len(there) - 1) and here[shared] == there[shared]:
        shared += 1
    steps = "../" * (len(here) - shared) + "/".join(there[shared:])
    # A first segment with a colon would be parsed as a scheme, an empty reference as the page itself.
    return (steps if steps and ":" not in steps.split("/")[0] else f"./{steps}") + mark + query


def anchors(base: str, url: str, text: str) -> list[str]:
    """HTML links that a browser at `base` resolves to `url`, one for each way to write it."""
    scheme = url.partition(":")[0]
    path = urls.path_query(url)
    authority = urls.host_port(url)
    near = relative(base, url)
    bare, mark, query = path.partition("?")
    references = [
        path,
        near,
        near if near.startswith(".") else f"./{near}",
        url,
        f"//{authority}{path}",
        f"{scheme.upper()}://{authority.upper()}{path}",
        f"{scheme}://{_padded_port(url)}{path}",
        f"{scheme}://{_other_host(authority)}{path}",
        f"{scheme}:{path}",
        f"{scheme}:////{authority}{path}",
        f"{path}#top",
        f"{url}#",
        f"/nowhere/..{path}",
        f"/./a/b/%2E%2e/%2e./.{path}",
        f"{bare.replace('/', chr(92))}{mark}{query}",
        f" \n\t{path}\r\n ",
        f"{path[:3]}\n{path[3:5]}\t{path[5:]}",
        unquote(bare) + mark + query,
    ]
    written = [f'<a href="{_attribute(reference)}">{text}</a>' for reference in references]
    return [
        *written,
        f'<a href="{"".join(f"&#{ord(mark)};" for mark in path)}">{text}</a>',
        f'<a href="{"".join(f"&#x{ord(mark):X};" for mark in path)}">{text}</a>',
        f"<A class=link HREF='{_attribute(path)}'>{text}</A>",
        f"<a title='>' href = {_attribute(url)} >{text}</a>",
        f'<map><area shape="default" alt="{text}" href="{_attribute(near)}"></map>',
    ]


def junk(page: int) -> str:
    """Values of href that are not links to pages."""
    return (
        '<a href="">here</a> <a href="#">top</a> <a>no href</a> <a href="javascript:void(0)">script</a> '
        '<a href="mailto:editor@paper.invalid">mail</a> <a href="tel:+4912345">call</a> '
        f'<a href="data:text/html,hello">data</a> <a href="ftp://files.invalid/{page}">files</a> '
        '<a href="http://[::1">broken</a> <a href="http://a b/">space</a> '
        '<a href="https://">nothing</a> <a href="http://1.2.3.4.5.6/">address</a>'
    )


def _attribute(reference: str) -> str:
    return escape(reference, quote=True)


def _padded_port(url: str) -> str:
    authority = urls.host_port(url)
    host = urls.host(authority)
    if host == authority:
        return f"{host}:{443 if url.startswith('https:') else 80}"
    return f"{host}:00{authority.rpartition(':')[2]}"


def _other_host(authority: str) -> str:
    """The same host as a plain number, or with a percent-encoded letter."""
    host = urls.host(authority)
    port = authority[len(host) :]
    if urls.is_address(host):
        return f"{int(ipaddress.ip_address(host))}{port}"
    return f"%{ord(host[0]):02x}{host[1:]}{port}"


_SHARES = (0.0, 0.10, 0.25, 0.50, 0.75, 0.90, 1.0)
_PAGE_BYTES = (2_000, 6_000, 14_000, 35_000, 78_000, 152_000, 400_000)
_SAME_SITE_LINKS = (3, 7, 19, 43, 89, 174, 400)
_OTHER_SITE_LINKS = (0, 1, 3, 6, 13, 25, 60)
_CODINGS = ("gzip", "br", "zstd")
_LINES_KEPT = 200_000


class PageRenderer:
    """Renders every response of a web. State between calls is only a cache."""

    def __init__(self, plan: WebPlan) -> None:
        self.plan = plan
        self._features = [plan.features(site) for site in range(len(plan.kinds))]
        self._prose = paragraphs(plan.seed)
        self._lines: dict[int, _Lines] = {}
        self._roads = _Lines(self._road)
        self._lines_made = 0

    def answer(self, site: int, target: str, *, visit: int = 0) -> SimAnswer:
        """The response of a site to GET of a path with query; `visit` is the number of earlier requests."""
        plan = self.plan
        features = self._features[site % len(self._features)]
        if site >= plan.sites:
            return SimAnswer(body=note("Outside the web", (plan.url(0),)))
        page = plan.page_of(site, target)
        if not features and page is not None:
            return SimAnswer(
                body=self._plain(site, page),
                wait_seconds=plan.wait_seconds(site, target) if plan.latency_seconds else 0,
            )
        found = (
            robots_answer(plan, site, target, kind_of(features))
            or (self._page(site, page, visit) if page is not None else self._hop(site, target))
            or leaf_answer(plan, site, target)
            or place_answer(plan, site, target, visit=visit)
            or trap_answer(plan.seed, site, target, features)
            or refused(404, "There is no such page.")
        )
        wait_seconds = plan.wait_seconds(site, target)
        if not wait_seconds:
            return found
        return SimAnswer(
            **{name: getattr(found, name) for name in found.__struct_fields__} | {"wait_seconds": wait_seconds}
        )

    def _page(self, site: int, page: int, visit: int) -> SimAnswer:
        fault = "" if visit else self.plan.fault_of(site, page)
        retry_after = (("Retry-After", str(self.plan.retry_after_seconds)),)
        match fault:
            case "500" | "503" | "429":
                headers = retry_after if fault != "500" else ()
                return SimAnswer(status=int(fault), headers=headers, body=note(f"Error {fault}"), times=1)
            case "reset" | "close":
                return SimAnswer(fault="reset" if fault == "reset" else "close", times=1)
        features = self._features[site % len(self._features)]
        content_type, body = self._rich(site, page, features)
        return SimAnswer(
            content_type=content_type,
            body=body,
            coding=next((coding for coding in _CODINGS if coding in features), ""),
            chunked="chunked" in features,
            fault="cut" if fault == "cut" else "",
            times=1 if fault else 0,
        )

    def _hop(self, site: int, target: str) -> SimAnswer | None:
        """A redirect, or refresh, on the way to a page."""
        number = target.rpartition("/")[2].rpartition("-")[2]
        if not number.isdecimal() or len(number) > 12:
            return None
        steps = self.plan.steps(site, int(number))
        if target not in steps[:-1]:
            return None
        onward = steps[steps.index(target) + 1]
        match target.split("/")[1]:
            case "go":
                # Location is alternately a path, an absolute URL, and relative to the page.
                url = self.plan.url(site, onward)
                forms = (onward, url, relative(self.plan.url(site, target), url))
                return moved(int(target.split("/")[2].partition("-")[0]), forms[int(number) % 3])
            case "chain":
                return moved(302, onward)
            case _:
                return SimAnswer(
                    body=note("One moment", (), head=f'<meta http-equiv="Refresh" content="0; URL={escape(onward)}">')
                )

    def _plain(self, site: int, page: int) -> bytes:
        numbers, size, same, others = self._measures(site, page)
        kept, pages = self._lines_of(site), self._span(page)
        lines = [kept[child] for child in self.plan.children(page)]
        lines += [kept[number % pages] for number in numbers[: same - len(lines)]]
        lines += self._cross(site, page, numbers[same : same + others])
        title = escape(self.plan.title(site, page))
        head = (
            f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>\n'
            f"<body><h1>{title}</h1>\n{self._items(site, page)}<ul>\n"
        )
        return self._filled([head.encode(), *lines, b"</ul>\n"], size, numbers)

    def _rich(self, site: int, page: int, features: frozenset[str]) -> tuple[str, bytes]:
        plan = self.plan
        numbers, size, same, others = self._measures(site, page)
        url = plan.url(site, plan.path(site, page))
        base, bases = self._base(site, page, url) if "bases" in features else (url, "")
        title = escape(plan.title(site, page))
        charset, declared_by, _ = CHARSETS[page % len(CHARSETS)] if "charsets" in features else ("utf-8", "header", "")
        targets = [(child, plan.steps(site, child)[0]) for child in plan.children(page)]
        for number in numbers[: same - len(targets)]:
            other = number % self._span(page)
            targets.append((other, plan.path(site, other)))
        links = []
        for turn, (other, target) in enumerate(targets):
            text = escape(plan.title(site, other))
            if "spellings" in features:
                forms = anchors(base, plan.url(site, target), text)
                links.append(forms[(page * 7 + turn) % len(forms)])
            else:
                href = relative(base, plan.url(site, target)) if "bases" in features else target
                links.append(f'<a href="{escape(href)}">{text}</a>')
        links += [written(leaf) for leaf in page_leaves(plan, site, page)]
        if "spellings" in features:
            links += [*anchors(base, url, "this page"), junk(page)]
        html = (
            f'<!DOCTYPE html>\n<html lang="en"><head>{f"<meta charset={charset}>" if declared_by == "meta" else ""}'
            f'<title>{title}</title>{bases}<link rel="canonical" href="{escape(url)}"></head>\n'
            f"<body><h1>{title}</h1>\n{self._items(site, page)}" + "\n".join(f"<div>{link}</div>" for link in links)
        )
        cross = b"".join(self._cross(site, page, numbers[same : same + others])).decode()
        body = self._filled([html.encode(), b"<ul>\n", cross.encode(), b"</ul>\n"], size, numbers)
        if charset == "utf-8":
            return HTML, body
        mark = "\ufeff" if charset == "utf-16-le" else ""
        return (
            f"text/html; charset={charset}" if declared_by == "header" else "text/html",
            (mark + body.decode()).encode(charset, "xmlcharrefreplace"),
        )

    def _base(self, site: int, page: int, url: str) -> tuple[str, str]:
        """The page's base URL and the elements that set it; of two, the first counts.

        It is the folder of another page, so that links relative to the base fail if a crawler ignores it."""
        if page % 3 == 0:
            return url, ""
        other = self.plan.path(site, (self.plan.children(page) or [page // 2])[0])
        folder = other[: other.rindex("/") + 1]
        href = folder if page % 3 == 1 else self.plan.url(site, f"{folder}index.html?old")
        return urls.join(url, href) or url, f'<base target="_top"><base href="{href}"><base href="/wrong/turn/">'

    def _measures(self, site: int, page: int) -> tuple[memoryview, int, int, int]:
        """Random numbers for a page, its size in bytes, and its numbers of links to its own and to other sites."""
        plan = self.plan
        first = stream(plan.seed, site, page, "size", count=2)
        share = first[0] / 2**32
        size = plan.page_bytes or _between(share, _PAGE_BYTES)
        if plan.links_per_page is None:
            same, others = _between(share, _SAME_SITE_LINKS), _between(first[1] / 2**32, _OTHER_SITE_LINKS)
        else:
            others = plan.links_per_page // 10
            same = plan.links_per_page - others
        same = max(same, len(plan.children(page)))
        others = others if plan.sites > 1 else 0
        return stream(plan.seed, site, page, count=same + others + size // PARAGRAPH_BYTES), size, same, others

    def _span(self, page: int) -> int:
        """Number of pages that a page can link to."""
        return self.plan.pages_per_site or 4 * page + 8

    def _lines_of(self, site: int) -> _Lines:
        """The list entries with links between pages of a site."""
        if self._lines_made > _LINES_KEPT:
            self._lines.clear()
            self._roads.clear()
            self._lines_made = 0
        lines = self._lines.get(site)
        if lines is None:
            lines = self._lines[site] = _Lines(partial(self._line, site))
        return lines

    def _line(self, site: int, page: int) -> bytes:
        self._lines_made += 1
        href, title = escape(self.plan.path(site, page)), escape(self.plan.title(site, page).partition(" · ")[0])
        return f'<li><a href="{href}">{title}</a></li>\n'.encode()

    def _cross(self, site: int, page: int, numbers: memoryview) -> list[bytes]:
        """Links to other sites, three of four to their first page; first pages link to those of sites 2n+1 and 2n+2."""
        sites, pages, kept = self.plan.sites, self.plan.pages_per_site or 8, self._roads
        must = [other for other in (2 * site + 1, 2 * site + 2) if page == 0 and other < sites]
        lines = [kept[other] for other in must]
        for number in numbers[len(must) :]:
            other = (site + 1 + number % (sites - 1)) % sites
            lines.append(kept[other if number >> 30 else other + sites * (number % pages)])
        return lines

    def _road(self, place: int) -> bytes:
        """A list entry with a link from another site; `place` is site + sites x page."""
        self._lines_made += 1
        page, site = divmod(place, self.plan.sites)
        href, title = escape(self.plan.url(site, self.plan.path(site, page))), escape(self.plan.title(site, 0))
        return f'<li><a href="{href}">{title}</a></li>\n'.encode("ascii", "xmlcharrefreplace")

    def _items(self, site: int, page: int) -> str:
        return "".join(
            f'<div class="item"><span class="name">{item["name"]}</span> '
            f'<span class="price">{item["price"]}</span></div>\n'
            for item in self.plan.items(site, page)
        )

    def _filled(self, parts: list[bytes], size: int, numbers: memoryview) -> bytes:
        """The parts padded with prose to exactly `size` bytes; longer only if the parts are."""
        end = b"</body></html>\n"
        room = size - sum(map(len, parts)) - len(end)
        prose = self._prose
        count, rest = divmod(max(room, 0), PARAGRAPH_BYTES)
        parts += [prose[number & 1023] for number in numbers[len(numbers) - count :]] if count else []
        if rest:
            # A comment takes seven bytes; smaller gaps are filled with line breaks.
            parts.append(b"<!--" + b"." * (rest - 7) + b"-->" if rest >= 7 else b"\n" * rest)
        parts.append(end)
        return b"".join(parts)


class _Lines(dict[int, bytes]):
    """Lines by number, created on first access."""

    def __init__(self, make: Callable[[int], bytes]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, number: int) -> bytes:
        line = self[number] = self._make(number)
        return line


def _between(share: float, points: tuple[int, ...]) -> int:
    """The quantile of a distribution that is given by its quantiles at `_SHARES`."""
    place = min(bisect_right(_SHARES, share), len(_SHARES) - 1)
    low, high = _SHARES[place - 1], _SHARES[place]
    return int(points[place - 1] + (points[place] - points[place - 1]) * (share - low) / (high - low))
