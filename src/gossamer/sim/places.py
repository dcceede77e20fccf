"""Places: the news, shop, blog, notices and members' pages that examples are about, each under a path of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from gossamer.sim.answer import Leaf, SimAnswer, moved
from gossamer.sim.words import ADJECTIVES, NOUNS, draw, paragraphs

if TYPE_CHECKING:
    from gossamer.sim.site import WebPlan

USER, PASSWORD = "me", "willow"
PRIVATE = ("/members/", "/logout")
"""Where answers depend on who asks."""
_LISTS, _ON_A_LIST, _POSTS, _LETTERS = 3, 5, 5, 3
_FORM = (
    '<form method="post" action="/login"><input type="hidden" name="token" value="{token}"><input name="user">'
    '<input type="password" name="password"><button>Log in</button></form>'
)


def place_leaves(features: frozenset[str]) -> list[Leaf]:
    """What a place adds to the first page of its site: one link, and behind it pages that link to one another."""
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
    """A page of a place that everybody may see, None elsewhere."""
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
    """A page that depends on who asks, None where it does not."""
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
    """What a form gets that is sent to a place, None where none is taken."""
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
    told = json.dumps({"@context": "https://schema.org", "@type": "Product", "name": name, "offers": offer})
    stock = f"{left} in stock" if left else "Sold out"
    return SimAnswer(
        body=_page(
            name,
            f'<script type="application/ld+json">{told}</script><p class="price">€ {price}</p>'
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
    """A board that is another one from the second visit on: 2 has a new text, 3 is gone, 4 is there."""
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
