"""Features of a host of the simulated web: site kinds, robots.txt rules, traps, and special URLs."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import lru_cache
from html import escape
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import parse_qs, parse_qsl

import msgspec

from gossamer.errors import ConfigError
from gossamer.lab.simweb.words import ADJECTIVES, NOUNS, draw, paragraphs

if TYPE_CHECKING:
    from gossamer.lab.simweb.site import WebPlan


LINKS = {
    "spellings": "links to the same target in every form",
    "bases": "relative links under <base href>",
    "redirects": "301, 302, 303, 307, 308, redirect chains, meta refresh",
    "loops": "redirect loops, and a chain that is too long",
    "outside": "links and redirects to hosts that are not part of the web",
    "nofollow": "rel=nofollow, meta robots, and X-Robots-Tag nofollow",
    "hidden": "URLs in comments, scripts, and resources: not links",
}
FAULTS = {
    "errors": "400, 401, 403, 404, 410, and 451 besides normal pages",
    "flaky": "500, or 503 and 429 with Retry-After, once",
    "resets": "connections that are reset, closed, or cut off, once",
    "failing": "pages that always return 500 or reset",
    "slow": "long-tailed response times",
    "hangs": "a page that never responds",
}
TRAPS = {
    "calendar": "an infinite calendar, forwards and backwards",
    "sessions": "a new session id in the links of every response",
    "deep": "a relative link that gets deeper with each step",
    "soft404": "200 for any path, with links to ten new ones",
    "facets": "every permutation of a few query parameters",
}
BODIES = {
    "charsets": "eight encodings, by header, meta, or byte order mark",
    "gzip": "gzip bodies",
    "br": "Brotli bodies",
    "zstd": "Zstandard bodies",
    "chunked": "chunked bodies, without Content-Length",
}
ROBOTS = {
    "robots-none": "404: everything is allowed",
    "robots-403": "403: everything is allowed",
    "robots-empty": "an empty file: everything is allowed",
    "robots-html": "an HTML page: everything is allowed",
    "robots-allow": "everything is allowed, explicitly",
    "robots-delay": "a Crawl-delay",
    "robots-part": "/private/ is disallowed, except for a longer Allow",
    "robots-wildcards": "patterns with * and $",
    "robots-agents": "a group for our agent, and one that disallows everything",
    "robots-messy": "byte order mark, unusual line ends, case, and spaces",
    "robots-redirect": "three redirects before the rules",
    "robots-huge": "600 KB, with the relevant rule at 480 KB",
    "robots-sitemap": "Sitemap lines, and pages that are only in the sitemap",
    "robots-all": "everything is disallowed",
    "robots-500": "500: nothing is allowed",
    "robots-429": "429: nothing is allowed",
    "robots-hang": "no response: nothing is allowed",
    "robots-reset": "connection reset: nothing is allowed",
}
PLACES = {
    "news": "/news/: dated headlines on three pages, and articles",
    "shop": "/goods/: products with price and stock, on three pages",
    "blog": "/blog/: posts between a menu and a footer",
    "notices": "/notices/: after a visit one changes, one goes, one is new",
    "members": "/members/: requires a login (user me, password willow)",
}
GROUPS = {"links": LINKS, "faults": FAULTS, "traps": TRAPS, "bodies": BODIES, "robots": ROBOTS, "places": PLACES}
FEATURES = LINKS | FAULTS | TRAPS | BODIES | ROBOTS
"""The kinds in the group `all`: everything that can break a crawler. Places, which are for examples, are not in it."""


def expand(names: Iterable[str]) -> tuple[str, ...]:
    """Replace groups by their kinds: `traps` by each trap, `all` by all kinds and a plain site."""
    kinds: list[str] = []
    for name in names:
        if name == "all":
            kinds.extend(("plain", *FEATURES))
        elif name in GROUPS:
            kinds.extend(GROUPS[name])
        else:
            features_of(name)
            kinds.append(name)
    if not kinds:
        raise ConfigError("the simulated web needs at least one kind of site", hint="use --kinds plain")
    return tuple(kinds)


@lru_cache(maxsize=1024)
def features_of(kind: str) -> frozenset[str]:
    """The features of a kind, joined by `+`; `plain` has none."""
    features = frozenset(kind.split("+")) - {"plain"}
    for feature in features:
        if feature not in FEATURES and feature not in PLACES:
            close = get_close_matches(feature, ("plain", "all", *GROUPS, *FEATURES, *PLACES), n=1)
            raise ConfigError(
                f"no kind of site is called {feature!r}",
                hint=f"did you mean {close[0]}?"
                if close
                else f"there are plain, all, {', '.join((*GROUPS, *FEATURES, *PLACES))}",
            )
    if len(features & ROBOTS.keys()) > 1:
        raise ConfigError(f"{kind}: a site has one robots.txt, so only one robots-... kind")
    if len(features & {"gzip", "br", "zstd"}) > 1:
        raise ConfigError(f"{kind}: a body has one coding: gzip, br or zstd")
    return features


Fate = Literal[
    "page", "redirect", "missing", "flaky", "failing", "loop", "optional", "robots", "nofollow", "scope", "unlinked"
]
"""Expected result for a URL in a complete crawl that obeys robots.txt and nofollow and stays on the seeds' sites.

page      fetched once, 200            redirect  fetched once, 3xx          missing   fetched once, a final 4xx
flaky     fails once, 200 when fetched again                                failing   fetched, fails whenever it is
loop      fetched, its redirects end nowhere                                optional  may be fetched or not
robots, nofollow, scope, unlinked: never fetched, for that reason
"""
FORBIDDEN: frozenset[Fate] = frozenset({"robots", "nofollow", "scope", "unlinked"})
Fault = Literal["", "reset", "close", "cut", "hang"]
HTML = "text/html; charset=utf-8"


class SimAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A response to one request. `fault` closes the connection instead of the response, or (`cut`) during it."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    content_type: str = HTML
    body: bytes = b""
    coding: str = ""
    """The Content-Encoding for clients that accept it; this body is not encoded yet."""
    chunked: bool = False
    wait_seconds: float = 0.0
    fault: Fault = ""
    times: int = 0
    """If not 0, the number of first requests for a URL that get this response; `visit` selects later ones."""


class Leaf(NamedTuple):
    """A URL outside the tree of pages: a path or an absolute URL, its fate, and how the page links to it."""

    target: str
    fate: Fate
    form: str = "a"
    """a, nofollow, comment, script, template, textarea, image, style; empty if the page does not contain it."""


def note(title: str, links: tuple[str, ...] = ("/",), *, head: str = "") -> bytes:
    """A small page with some links."""
    listed = "\n".join(f'<li><a href="{escape(link)}">{escape(link)}</a></li>' for link in links)
    name = escape(title)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>{head}</head>\n'
        f"<body><h1>{name}</h1>\n<ul>\n{listed}\n</ul></body></html>\n"
    ).encode()


def moved(status: int, location: str) -> SimAnswer:
    """A redirect."""
    return SimAnswer(status=status, headers=(("Location", location),), body=note("Moved", (location,)))


def refused(status: int, text: str) -> SimAnswer:
    """An error with a short text."""
    return SimAnswer(status=status, content_type="text/plain; charset=utf-8", body=f"{text}\n".encode())


PLAIN = "text/plain; charset=utf-8"
ORPHANS = 5
_PRIVATE = "Disallow: /private/\nAllow: /private/open-\n"
_SHUT = frozenset({"robots-all", "robots-500", "robots-429", "robots-hang", "robots-reset"})
_PARTLY = frozenset({"robots-part", "robots-agents", "robots-messy", "robots-redirect", "robots-huge"})
_LEAF = re.compile(
    r"/(private/(secret|open)-\d+|files/doc-\d+\.pdf(\.html)?|lists/\d+\?(sort=up|page=1)|moved/private-\d+|orphans/\d+)"
)


def kind_of(features: frozenset[str]) -> str:
    """The robots kind of a site; without one, everything is allowed."""
    return next((feature for feature in features if feature in ROBOTS), "robots-allow")


def forbids(kind: str, target: str) -> bool:
    """Whether the rules of this kind disallow a path with query for the crawler's agent."""
    if kind in _SHUT:
        return True
    if kind in _PARTLY:
        return target.startswith("/private/") and not target.startswith("/private/open-")
    return kind == "robots-wildcards" and (target.endswith(".pdf") or "?sort=" in target)


def robots_leaves(kind: str, page: int, *, sitemaps: bool) -> list[Leaf]:
    """Links to allowed and disallowed paths on pages of a site with this kind of robots.txt."""
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
    """The responses of the links in `leaves`; disallowed ones respond too, so that the log shows violations."""
    if not _LEAF.fullmatch(target):
        return None
    if target.startswith("/moved/"):
        return moved(302, f"/private/secret-{target.rpartition('-')[2]}")
    return SimAnswer(body=note(f"Behind {target}"))


def robots_answer(plan: WebPlan, site: int, target: str, kind: str) -> SimAnswer | None:
    """The site's robots.txt, its redirect targets, and its sitemaps; None for every other path."""
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


ENTRIES = {
    "calendar": "/calendar/2024/1",
    "sessions": "/shop/0?sid=0",
    "deep": "/deep/",
    "soft404": "/soft/0",
    "facets": "/facets",
}
_PREFIXES = {"calendar": "/calendar/", "sessions": "/shop/", "deep": "/deep/", "soft404": "/soft/", "facets": "/facets"}
_FACETS = {"colour": "red green blue", "size": "s m l xl", "order": "up down", "view": "grid list", "page": "1 2 3 4 5"}


def entries(features: frozenset[str]) -> list[str]:
    """The entry paths of a site's traps."""
    return [ENTRIES[name] for name in TRAPS if name in features]


def holds(features: frozenset[str], target: str) -> bool:
    """Whether a path of a site with these features is inside one of its traps."""
    return any(target.startswith(_PREFIXES[name]) for name in TRAPS if name in features)


def trap_answer(seed: int, site: int, target: str, features: frozenset[str]) -> SimAnswer | None:
    """A page inside a trap, None outside. A soft-404 site accepts every unknown path, so call this last."""
    path = target.partition("?")[0]
    if "calendar" in features and (found := re.fullmatch(r"/calendar/(-?\d{1,9})/(\d{1,2})", path)):
        month = int(found[1]) * 12 + int(found[2]) - 1
        near = tuple(f"/calendar/{(month + step) // 12}/{(month + step) % 12 + 1}" for step in (-12, -1, 1, 12))
        return SimAnswer(body=note(f"Calendar {found[1]}-{found[2]}", near))
    if "sessions" in features and path.startswith("/shop/"):
        session = f"{draw(seed, site, target):016x}"
        return SimAnswer(body=note("Shop", tuple(f"/shop/{number}?sid={session}" for number in range(4))))
    if "deep" in features and path.startswith("/deep/"):
        return SimAnswer(body=note("Deeper", ("down/", "down/further/", "../deep/down/")))
    if "facets" in features and path == "/facets":
        return SimAnswer(body=note("Filter", _facets(target)))
    if "soft404" in features:
        return SimAnswer(
            body=note("Not found", tuple(f"/soft/{draw(seed, site, target, number):x}" for number in range(10)))
        )
    return None


def _facets(target: str) -> tuple[str, ...]:
    chosen = dict(parse_qsl(target.partition("?")[2]))
    links: list[str] = []
    for name, values in _FACETS.items():
        for value in values.split():
            pairs = [(key, old) for key, old in chosen.items() if key in _FACETS and key != name] + [(name, value)]
            orders = itertools.islice(itertools.permutations(pairs), 2)
            links.extend("/facets?" + "&".join(f"{key}={picked}" for key, picked in order) for order in orders)
    return tuple(links)


USER, PASSWORD = "me", "willow"
PRIVATE = ("/members/", "/logout")
"""Paths whose response depends on the client."""
_LISTS, _ON_A_LIST, _POSTS, _LETTERS = 3, 5, 5, 3
_FORM = (
    '<form method="post" action="/login"><input type="hidden" name="token" value="{token}"><input name="user">'
    '<input type="password" name="password"><button>Log in</button></form>'
)


def place_leaves(features: frozenset[str]) -> list[Leaf]:
    """The link that a place adds to the first page of its site; the pages behind it link to one another."""
    found: list[Leaf] = []
    if "news" in features:
        found += [Leaf(_list("news", number), "page", "a" if number == 1 else "") for number in range(1, _LISTS + 1)]
        found += [Leaf(f"/news/{number}", "page", "") for number in range(_LISTS * _ON_A_LIST)]
    if "shop" in features:
        found += [Leaf(_list("goods", number), "page", "a" if number == 1 else "") for number in range(1, _LISTS + 1)]
        found += [Leaf(f"/goods/{number}", "page", "") for number in range(_LISTS * _ON_A_LIST)]
    if "blog" in features:
        found += [Leaf("/blog/", "page"), *(Leaf(f"/blog/{number}", "page", "") for number in range(_POSTS))]
    if "notices" in features:
        found += [Leaf("/notices/", "page"), *(Leaf(f"/notices/{number}", "page", "") for number in range(1, 4))]
    if "members" in features:
        found += [Leaf("/members/", "redirect"), Leaf("/login", "page", "")]
        found += [Leaf(f"/members/{number}", "unlinked", "") for number in range(_LETTERS)]
    return found


def place_answer(plan: WebPlan, site: int, target: str, *, visit: int = 0) -> SimAnswer | None:
    """A public page of a place, None elsewhere."""
    features = plan.features(site)
    folder, _, rest = target.removeprefix("/").partition("/")
    if target == "/login" and "members" in features:
        return SimAnswer(body=_page("Log in", _FORM.format(token=_token(plan, site, "form"))))
    draws: dict[str, tuple[str, Callable[[], SimAnswer | None]]] = {
        "news": ("news", lambda: _news(plan, site, rest)),
        "goods": ("shop", lambda: _goods(plan, site, rest)),
        "blog": ("blog", lambda: _blog(plan, site, rest)),
        "notices": ("notices", lambda: _notices(rest, visit)),
    }
    kind, drawn = draws.get(folder, ("", lambda: None))
    return drawn() if kind in features else None


def answer_member(plan: WebPlan, site: int, target: str, cookie: str) -> SimAnswer | None:
    """A page that depends on the client, None for other pages."""
    if "members" not in plan.features(site) or not target.startswith(PRIVATE):
        return None
    if f"session={_token(plan, site, 'session')}" not in cookie.replace(" ", "").split(";"):
        return moved(302, "/login")
    if target == "/logout":
        gone = ("Set-Cookie", "session=; Max-Age=0; Path=/")
        return SimAnswer(status=303, headers=(("Location", "/login"), gone))
    way_out = '<nav><a href="/logout">Log out</a></nav>'
    if target == "/members/":
        links = "".join(f'<li><a href="/members/{n}">Letter {n}</a></li>' for n in range(_LETTERS))
        return SimAnswer(body=_page("Members", f"{way_out}<ul>{links}</ul>"))
    number = target.removeprefix("/members/")
    if not number.isdecimal() or int(number) >= _LETTERS:
        return None
    title = f"Letter about the {_thing(plan, site, 'letter', int(number))}"
    return SimAnswer(body=_page(title, way_out + _prose(plan, site, "letter", int(number))))


def posted(plan: WebPlan, site: int, target: str, body: bytes) -> SimAnswer | None:
    """The response to a form submission, None where no form is accepted."""
    if target != "/login" or "members" not in plan.features(site):
        return None
    sent = {name: values[0] for name, values in parse_qs(body.decode("latin-1")).items()}
    if sent == {"token": _token(plan, site, "form"), "user": USER, "password": PASSWORD}:
        cookie = f"session={_token(plan, site, 'session')}; Path=/; HttpOnly"
        return SimAnswer(status=303, headers=(("Location", "/members/"), ("Set-Cookie", cookie)))
    again = _FORM.format(token=_token(plan, site, "form"))
    return SimAnswer(status=403, body=_page("Log in", f'<p class="error">Wrong user or password.</p>{again}'))


def _news(plan: WebPlan, site: int, rest: str) -> SimAnswer | None:
    page = _list_number("news", rest)
    if page:
        teasers = "".join(
            f'<article><h2><a href="/news/{n}">{_headline(plan, site, n)}</a></h2>'
            f'<time datetime="{_day(n)}">{_day(n)}</time><p class="teaser">From our own reporter.</p></article>'
            for n in _numbers(page)
        )
        return SimAnswer(body=_page("News", f"{teasers}{_next('news', page)}"))
    if not rest.isdecimal() or int(rest) >= _LISTS * _ON_A_LIST:
        return None
    number = int(rest)
    by = f'<p class="byline">By a reporter, <time datetime="{_day(number)}">{_day(number)}</time></p>'
    return SimAnswer(body=_page(_headline(plan, site, number), by + _prose(plan, site, "news", number)))


def _goods(plan: WebPlan, site: int, rest: str) -> SimAnswer | None:
    page = _list_number("goods", rest)
    if page:
        cards = "".join(
            f'<div class="card"><a href="/goods/{n}">{_thing(plan, site, "goods", n).capitalize()}</a></div>'
            for n in _numbers(page)
        )
        return SimAnswer(body=_page("Goods", f"{cards}{_next('goods', page)}"))
    if not rest.isdecimal() or int(rest) >= _LISTS * _ON_A_LIST:
        return None
    number = int(rest)
    name = _thing(plan, site, "goods", number).capitalize()
    price, left = f"{draw(plan.seed, site, 'price', number) % 9000 / 100 + 1:.2f}", number % 4
    offer = {"@type": "Offer", "price": price, "priceCurrency": "EUR"}
    product = json.dumps({"@context": "https://schema.org", "@type": "Product", "name": name, "offers": offer})
    stock = f"{left} in stock" if left else "Sold out"
    return SimAnswer(
        body=_page(
            name,
            f'<script type="application/ld+json">{product}</script><p class="price">€ {price}</p>'
            f'<p class="stock">{stock}</p>{_prose(plan, site, "goods", number)}<a href="/goods/">All goods</a>',
        )
    )


def _blog(plan: WebPlan, site: int, rest: str) -> SimAnswer | None:
    menu = '<nav><a href="/blog/">All posts</a></nav>'
    if not rest:
        posts = "".join(f'<li><a href="/blog/{n}">{_headline(plan, site, n)}</a></li>' for n in range(_POSTS))
        return SimAnswer(body=_page("Blog", f"{menu}<ul>{posts}</ul>"))
    if not rest.isdecimal() or int(rest) >= _POSTS:
        return None
    number = int(rest)
    title, thing = _headline(plan, site, number), _thing(plan, site, "blog", number)
    text = _prose(plan, site, "blog", number)
    return SimAnswer(
        body=(
            f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f'<meta name="author" content="A. Writer"><meta property="article:published_time" content="{_day(number)}">'
            f"</head><body>{menu}<main><article><h1>{title}</h1>{text}<h2>What you need</h2>"
            f"<ul><li>one {thing}</li><li>an afternoon</li></ul>{text}</article></main>"
            f"<footer>All rights reserved. Subscribe to our letter.</footer></body></html>\n"
        ).encode()
    )


def _notices(rest: str, visit: int) -> SimAnswer | None:
    """A notice board that changes after the first visit: 2 has a new text, 3 is gone, 4 is new."""
    listed = (1, 2, 4) if visit else (1, 2, 3)
    if not rest:
        links = "".join(f'<li><a href="/notices/{n}">Notice {n}</a></li>' for n in listed)
        return SimAnswer(body=_page("Notices", f"<ul>{links}</ul>"), times=1)
    if rest == "2":
        word = "closed" if visit else "open"
        return SimAnswer(body=_page("Notice 2", f"<p>The bridge is {word} until further notice.</p>"), times=1)
    if rest == "3" and visit:
        return SimAnswer(status=404, body=_page("Gone", "<p>This notice was taken down.</p>"))
    if rest not in ("1", "3", "4"):
        return None
    body = _page(f"Notice {rest}", f"<p>The ferry of line {rest} goes every hour.</p>")
    return SimAnswer(body=body, times=int(rest == "3"))


def _list(folder: str, number: int) -> str:
    return f"/{folder}/" if number == 1 else f"/{folder}/?page={number}"


def _list_number(folder: str, rest: str) -> int:
    return next((n for n in range(1, _LISTS + 1) if f"/{folder}/{rest}" == _list(folder, n)), 0)


def _numbers(page: int) -> range:
    return range((page - 1) * _ON_A_LIST, page * _ON_A_LIST)


def _next(folder: str, page: int) -> str:
    return f'<a rel="next" href="{_list(folder, page + 1)}">More</a>' if page < _LISTS else ""


def _thing(plan: WebPlan, site: int, *name: object) -> str:
    number = draw(plan.seed, site, *name)
    return f"{ADJECTIVES[number % len(ADJECTIVES)]} {NOUNS[(number >> 16) % len(NOUNS)]}"


def _headline(plan: WebPlan, site: int, number: int) -> str:
    verb = ("found again", "to be sold", "opens in spring", "saved by neighbours")[number % 4]
    return f"{_thing(plan, site, 'headline', number)} {verb}".capitalize()


def _day(number: int) -> str:
    return f"2026-05-{28 - number:02d}"


def _prose(plan: WebPlan, site: int, *name: object) -> str:
    return b"".join(paragraphs(draw(plan.seed, site, *name), 2)).decode()


def _token(plan: WebPlan, site: int, name: str) -> str:
    return f"{draw(plan.seed, site, name):016x}"


def _page(title: str, inner: str) -> bytes:
    name = escape(title)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title></head>\n'
        f"<body><h1>{name}</h1>{inner}</body></html>\n"
    ).encode()


_CODES = (404, 410, 403, 401, 400, 451)
_FORMS = ("comment", "script", "template", "textarea", "image", "style")
_LOOP, _FAR, _HOPS = 3, 15, 10
_NUMBERED = re.compile(r"/(\w+)/(?:(\w+)-)?(\d{1,12})")


def page_leaves(plan: WebPlan, site: int, page: int, *, sitemaps: bool = False) -> list[Leaf]:
    """The leaves of one page; only every third page has any."""
    features = plan.features(site)
    if not features or page % 3:
        return []
    found: list[Leaf] = []
    kind = kind_of(features)
    if kind in features:
        found += robots_leaves(kind, page, sitemaps=sitemaps)
    if "errors" in features:
        found.append(Leaf(f"/errors/{_CODES[page // 3 % len(_CODES)]}-{page}", "missing"))
    if "nofollow" in features:
        found += [
            Leaf(f"/nofollow/link-{page}", "nofollow", "nofollow"),
            *(Leaf(f"/quiet/{how}-{page}", "page") for how in ("meta", "header")),
            *(Leaf(f"/nofollow/{how}-{page}", "nofollow", "") for how in ("meta", "header")),
        ]
    if "hidden" in features:
        found += [Leaf(f"/hidden/{form}-{page}", "unlinked", form) for form in _FORMS]
    if "outside" in features:
        found += [
            Leaf(plan.url(plan.sites + page % 5, f"/elsewhere/{page}"), "scope"),
            Leaf(f"/away/{page}", "redirect"),
            Leaf(plan.url(plan.sites, f"/elsewhere/away-{page}"), "scope", ""),
        ]
    return found + (_first_page(features) if page == 0 else [])


def _first_page(features: frozenset[str]) -> list[Leaf]:
    found = [Leaf(entry, "optional") for entry in entries(features)] + place_leaves(features)
    if "failing" in features:
        found += [Leaf("/failing/500-0", "failing"), Leaf("/failing/reset-0", "failing")]
    if "hangs" in features:
        found.append(Leaf("/hangs/0", "failing"))
    if "loops" in features:
        found += [Leaf("/loops/self-0", "loop"), Leaf("/loops/0", "loop")]
        found += [Leaf(f"/loops/{number}", "loop", "") for number in range(1, _LOOP)]
        found += [Leaf(f"/far/{left}", _far_fate(left), "a" if left == _FAR else "") for left in range(_FAR, -1, -1)]
    return found


def _far_fate(left: int) -> Fate:
    """Redirect chains end after ten hops; crawlers differ in whether they fetch the tenth target."""
    hops = _FAR - left
    return "loop" if hops < _HOPS else "optional" if hops <= _HOPS + 1 else "unlinked"


def leaf_answer(plan: WebPlan, site: int, target: str) -> SimAnswer | None:
    """The response of a leaf; None if the site has no leaf there."""
    features = plan.features(site)
    if kind_of(features) in features and (found := answer_leaf(target)):
        return found
    shape = _NUMBERED.fullmatch(target)
    if shape is None:
        return None
    family, word, number = shape[1], shape[2] or "", int(shape[3])
    if family == "errors" and "errors" in features and word.isdecimal() and int(word) in _CODES:
        return refused(int(word), f"Error {word}.")
    if family in ("nofollow", "hidden") and family in features:
        return SimAnswer(body=note(f"Nobody should read {target}"))
    if family == "quiet" and "nofollow" in features:
        meta = word == "meta"
        return SimAnswer(
            headers=() if meta else (("X-Robots-Tag", "nofollow"),),
            body=note(
                "Quiet", (f"/nofollow/{word}-{number}",), head='<meta name="robots" content="nofollow">' if meta else ""
            ),
        )
    if family == "away" and "outside" in features:
        return moved(302, plan.url(plan.sites, f"/elsewhere/away-{number}"))
    if family == "failing" and "failing" in features:
        return SimAnswer(fault="reset") if word == "reset" else refused(500, "Always out of order.")
    if family == "hangs" and "hangs" in features:
        return SimAnswer(fault="hang")
    if family == "loops" and "loops" in features:
        return moved(302, target if word == "self" else f"/loops/{(number + 1) % _LOOP}")
    if family == "far" and "loops" in features:
        return moved(301, f"/far/{number - 1}") if number else SimAnswer(body=note("Too far"))
    return None


def written(leaf: Leaf) -> str:
    """The HTML of a leaf on its page."""
    match leaf.form:
        case "a":
            return f'<a href="{leaf.target.replace("&", "&amp;")}">see also</a>'
        case "nofollow":
            return f'<a rel="external nofollow" href="{leaf.target}">sponsored</a>'
        case "comment":
            return f'<!-- <a href="{leaf.target}">old</a> -->'
        case "script":
            return f"<script>document.write('<a href=\"{leaf.target}\">script</a>')</script>"
        case "template":
            return f'<template><a href="{leaf.target}">template</a></template>'
        case "textarea":
            return f'<textarea><a href="{leaf.target}">text</a></textarea>'
        case "image":
            return f'<img alt="" src="{leaf.target}" data-href="{leaf.target}">'
        case "style":
            return f'<link rel="stylesheet" href="{leaf.target}">'
        case _:
            return ""
