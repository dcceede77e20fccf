"""Kinds of sites: what a host of the simulated web can do to a crawler, by name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache

from gossamer.errors import ConfigError

LINKS = {
    "spellings": "every spelling of a link for the same target",
    "bases": "relative links under <base href>",
    "redirects": "301, 302, 303, 307, 308, chains of them, meta refresh",
    "loops": "redirect loops, and a chain that is too long",
    "outside": "links and redirects to hosts that are not part of the web",
    "nofollow": "rel=nofollow, meta robots and X-Robots-Tag nofollow",
    "hidden": "URLs in comments, scripts and resources: not links",
}
FAULTS = {
    "errors": "400, 401, 403, 404, 410 and 451 beside good pages",
    "flaky": "500, or 503 and 429 with Retry-After, once",
    "resets": "pages whose connection is reset, closed or cut off, once",
    "failing": "pages that always answer 500 or reset",
    "slow": "a long-tailed wait before each answer",
    "hangs": "a page that never answers",
}
TRAPS = {
    "calendar": "months for ever, forwards and backwards",
    "sessions": "a new session id in the links of every answer",
    "deep": "a relative link that grows deeper with each step",
    "soft404": "200 for any path, with links to ten new ones",
    "facets": "every permutation of a few query parameters",
}
BODIES = {
    "charsets": "eight encodings, by header, meta or byte order mark",
    "gzip": "bodies in gzip",
    "br": "bodies in brotli",
    "zstd": "bodies in zstandard",
    "chunked": "bodies in chunks, without a length",
}
ROBOTS = {
    "robots-none": "404: all is allowed",
    "robots-403": "403: all is allowed",
    "robots-empty": "an empty file: all is allowed",
    "robots-html": "an HTML page: all is allowed",
    "robots-allow": "all is allowed, in words",
    "robots-delay": "a Crawl-delay",
    "robots-part": "/private/ is disallowed, but for a longer Allow",
    "robots-wildcards": "patterns with * and $",
    "robots-agents": "a group for our agent beside one that forbids all",
    "robots-messy": "byte order mark, odd line ends, case and spaces",
    "robots-redirect": "the rules are three redirects away",
    "robots-huge": "600 KB, with the rule that counts at 480 KB",
    "robots-sitemap": "Sitemap lines, and pages that only the sitemap knows",
    "robots-all": "all is disallowed",
    "robots-500": "500: nothing is allowed",
    "robots-429": "429: nothing is allowed",
    "robots-hang": "no answer: nothing is allowed",
    "robots-reset": "connection reset: nothing is allowed",
}
PLACES = {
    "news": "/news/: headlines with dates on three pages, and their articles",
    "shop": "/goods/: things with a price and a stock, on three pages",
    "blog": "/blog/: posts between a menu and a footer",
    "notices": "/notices/: one changes, one goes and one comes after the first visit",
    "members": "/members/: letters behind a log-in form (user me, password willow)",
}
GROUPS = {"links": LINKS, "faults": FAULTS, "traps": TRAPS, "bodies": BODIES, "robots": ROBOTS, "places": PLACES}
FEATURES = LINKS | FAULTS | TRAPS | BODIES | ROBOTS
"""What `all` is: everything that a crawler may stumble over. Places are for examples, and are named one by one."""


def expand(names: Iterable[str]) -> tuple[str, ...]:
    """Kinds with groups replaced by their members: `traps` is each trap, `all` is everything and a plain site."""
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
        raise ConfigError("a web needs at least one kind of site", hint="the simplest is plain")
    return tuple(kinds)


@lru_cache(maxsize=1024)
def features_of(kind: str) -> frozenset[str]:
    """The features of a kind, which joins them by `+`; `plain` has none."""
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
