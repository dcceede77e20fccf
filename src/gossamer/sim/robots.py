"""Robots: the robots.txt of each kind of site, and the URLs that show whether it was obeyed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gossamer.sim.answer import Fate, Leaf, SimAnswer, moved, note, refused
from gossamer.sim.kinds import ROBOTS

if TYPE_CHECKING:
    from gossamer.sim.site import WebPlan

PLAIN = "text/plain; charset=utf-8"
ORPHANS = 5
_PRIVATE = "Disallow: /private/\nAllow: /private/open-\n"
_SHUT = frozenset({"robots-all", "robots-500", "robots-429", "robots-hang", "robots-reset"})
_PARTLY = frozenset({"robots-part", "robots-agents", "robots-messy", "robots-redirect", "robots-huge"})
_LEAF = re.compile(
    r"/(private/(secret|open)-\d+|files/doc-\d+\.pdf(\.html)?|lists/\d+\?(sort=up|page=1)|moved/private-\d+|orphans/\d+)"
)


def kind_of(features: frozenset[str]) -> str:
    """The robots kind of a site; one that names none allows all."""
    return next((feature for feature in features if feature in ROBOTS), "robots-allow")


def forbids(kind: str, target: str) -> bool:
    """Whether the rules of this kind forbid our agent a path with query."""
    if kind in _SHUT:
        return True
    if kind in _PARTLY:
        return target.startswith("/private/") and not target.startswith("/private/open-")
    return kind == "robots-wildcards" and (target.endswith(".pdf") or "?sort=" in target)


def robots_leaves(kind: str, page: int, *, sitemaps: bool) -> list[Leaf]:
    """The links by which pages of a site with this kind of robots.txt lead into temptation."""
    targets = [
        f"/private/secret-{page}",
        f"/private/open-{page}",
        f"/files/doc-{page}.pdf",
        f"/files/doc-{page}.pdf.html",
        f"/lists/{page}?sort=up",
        f"/lists/{page}?page=1",
    ]
    found = [Leaf(target, "robots" if forbids(kind, target) else "page") for target in targets]
    found.append(Leaf(f"/moved/private-{page}", "redirect"))
    if kind == "robots-sitemap" and page == 0:
        fate: Fate = "page" if sitemaps else "optional"
        found.extend(Leaf(f"/orphans/{number}", fate, "") for number in range(ORPHANS))
    return found


def answer_leaf(target: str) -> SimAnswer | None:
    """What stands behind the links of `leaves`: forbidden ones answer too, so that the log shows who went there."""
    if not _LEAF.fullmatch(target):
        return None
    if target.startswith("/moved/"):
        return moved(302, f"/private/secret-{target.rpartition('-')[2]}")
    return SimAnswer(body=note(f"Behind {target}"))


def robots_answer(plan: WebPlan, site: int, target: str, kind: str) -> SimAnswer | None:
    """The site's /robots.txt, where it leads, and its sitemaps; None for every other path."""
    if target == "/robots.txt":
        return _file(plan, site, kind)
    if kind == "robots-redirect":
        hops = {
            "/robots-1.txt": moved(302, "robots-2.txt"),
            "/robots-2.txt": moved(308, plan.url(site, "/robots-3.txt")),
        }
        return _rules(plan, "robots-part") if target == "/robots-3.txt" else hops.get(target)
    if kind == "robots-sitemap":
        return _sitemap(plan, site, target)
    return None


def _file(plan: WebPlan, site: int, kind: str) -> SimAnswer:
    match kind:
        case "robots-none":
            return refused(404, "There is no robots.txt here.")
        case "robots-403":
            return refused(403, "Not for you.")
        case "robots-500":
            return refused(500, "Out of order.")
        case "robots-429":
            return refused(429, "Too many.")
        case "robots-hang":
            return SimAnswer(fault="hang")
        case "robots-reset":
            return SimAnswer(fault="reset")
        case "robots-html":
            return SimAnswer(body=note("Welcome", ("/",), head="<meta name=robots content=all>"))
        case "robots-redirect":
            return moved(301, "/robots-1.txt")
        case "robots-sitemap":
            index, orphans = plan.url(site, "/sitemap-index.xml"), plan.url(site, "/sitemap-orphans.xml")
            lines = f"Sitemap: {index}\nUser-agent: *\nDisallow:\nsitemap: {orphans}\n"
            return SimAnswer(content_type=PLAIN, body=lines.encode())
        case _:
            return _rules(plan, kind)


def _rules(plan: WebPlan, kind: str) -> SimAnswer:
    texts = {
        "robots-empty": "",
        "robots-allow": "User-agent: *\nAllow: /\n",
        "robots-delay": f"User-agent: *\nCrawl-delay: {plan.crawl_delay_seconds:g}\nDisallow:\n",
        "robots-all": "User-agent: *\nDisallow: /\n",
        "robots-part": f"User-agent: *\n{_PRIVATE}",
        "robots-wildcards": (
            "User-agent: *\nDisallow: /files/*.pdf$\nDisallow: /*?sort=up\nAllow: /lists/\nAllow: /files/\n"
        ),
        "robots-agents": (
            f"User-agent: *\nDisallow: /\n\nUser-agent: OtherBot\nUser-agent: {plan.agent.title()}\n{_PRIVATE}"
            "\nUser-agent: ThirdBot\nDisallow: /\n"
        ),
        "robots-messy": (
            "\ufeff# byte order mark, CR and CRLF\r\rUSER-AGENT : *   # everyone\r\n\tdisALLOW:/private/ # keep out\r\n"
            "Allow: /private/open-\rNonsense: yes\r\nDisallow\r\nunknown line\x00with a NUL\r\n"
        ),
    }
    if kind == "robots-huge":
        filler = [f"Disallow: /filler/{number:06d}-{'x' * 40}\n" for number in range(9_000)]
        text = "User-agent: *\n" + "".join(filler[:7_200]) + _PRIVATE + "".join(filler[7_200:])
    else:
        text = texts[kind]
    return SimAnswer(content_type=PLAIN, body=text.encode())


def _sitemap(plan: WebPlan, site: int, target: str) -> SimAnswer | None:
    if target == "/sitemap-index.xml":
        entries, outer, inner = ["/sitemap-pages.xml", "/sitemap-orphans.xml"], "sitemapindex", "sitemap"
    elif target == "/sitemap-pages.xml":
        count = min(plan.pages_per_site or 50_000, 50_000)
        entries, outer, inner = [plan.path(site, page) for page in range(count)], "urlset", "url"
    elif target == "/sitemap-orphans.xml":
        entries, outer, inner = [f"/orphans/{number}" for number in range(ORPHANS)], "urlset", "url"
    else:
        return None
    listed = "".join(
        f"<{inner}><loc>{plan.url(site, entry).replace('&', '&amp;')}</loc></{inner}>\n" for entry in entries
    )
    xml = f'<?xml version="1.0" encoding="UTF-8"?>\n<{outer} xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{listed}</{outer}>\n'
    return SimAnswer(content_type="application/xml", body=xml.encode())
