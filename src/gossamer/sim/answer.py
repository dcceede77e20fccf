"""Answers: the plain values that say what a site of the simulated web gives, and what a crawler should do with it."""

from __future__ import annotations

from html import escape
from typing import Literal, NamedTuple

import msgspec

Fate = Literal[
    "page", "redirect", "missing", "flaky", "failing", "loop", "optional", "robots", "nofollow", "scope", "unlinked"
]
"""What must become of a URL in a whole crawl that obeys robots.txt and nofollow and stays on the seeds' sites.

page      fetched once, 200            redirect  fetched once, 3xx          missing   fetched once, a final 4xx
flaky     fails once, 200 when fetched again                                failing   fetched, fails whenever it is
loop      fetched, its redirects end nowhere                                optional  may be fetched or not
robots, nofollow, scope, unlinked: never fetched, for that reason
"""
FORBIDDEN: frozenset[Fate] = frozenset({"robots", "nofollow", "scope", "unlinked"})
Fault = Literal["", "reset", "close", "cut", "hang"]
HTML = "text/html; charset=utf-8"


class SimAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a host answers to one request. `fault` breaks the connection instead of, or (`cut`) amid, the answer."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    content_type: str = HTML
    body: bytes = b""
    coding: str = ""
    """The Content-Encoding for clients that accept it; the body here is not encoded yet."""
    chunked: bool = False
    wait_seconds: float = 0.0
    fault: Fault = ""
    times: int = 0
    """If not 0, only the first so many requests of a URL get this answer: what comes then is asked with `visit`."""


class Leaf(NamedTuple):
    """A URL beside the tree of pages: a path of the site or a whole URL, its fate, and how the page writes it."""

    target: str
    fate: Fate
    form: str = "a"
    """a, nofollow, comment, script, template, textarea, image, style; empty if the page does not write it at all."""


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
    """An error with a few words."""
    return SimAnswer(status=status, content_type="text/plain; charset=utf-8", body=f"{text}\n".encode())
