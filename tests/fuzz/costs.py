"""The cost fuzzer: texts of a few tokens, repeated and nested, that must cost each parser no more than linear time.

A case is a row of parts: a token once, some tokens again and again, or tags around one another. Its size is doubled; a
parser whose CPU time grows by more than that, or passes a second per MB, is a finding, and is printed with the smallest
case that still shows it. Each parser runs in a process of its own, which the kernel kills if a case does not end.

python tests/fuzz/costs.py [--seconds N] [--seed N] [PARSER...]"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import signal
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from test_fuzz_files import ROBOTS, XML
from test_fuzz_headers import COOKIES, DATES, LINKS, TYPES
from test_fuzz_pages import FORMS, HTML, URLS, page

from gossamer import urls
from gossamer.clock import SystemClock
from gossamer.download.decoding import decode
from gossamer.engine import robots_txt
from gossamer.engine.scope import Scope
from gossamer.errors import ExtractError, FetchError
from gossamer.extract import sitemap
from gossamer.extract.dates import http_time, w3c_time
from gossamer.extract.encoding import decode as decode_text
from gossamer.extract.encoding import detect
from gossamer.extract.links import LinkCache, parse_link, parse_refresh, parse_srcset
from gossamer.extract.mime import computed_type
from gossamer.extract.text import main_text
from gossamer.frontier import policy
from gossamer.middleware.cookies import CookieJar
from gossamer.model import Response
from gossamer.settings import build

FIRST_BYTES = 4_000
LAST_BYTES = 128_000
SECONDS_PER_MB = 1.0
SELECTOR_SECONDS_PER_MB = 4.0
"""A selector of several steps looks at each element several times."""
NOTICED_SECONDS = 0.04
"""Shorter times cannot be distinguished from noise."""
LEAST_SECONDS = 0.1
"""Max CPU time of any text."""
KILL_SECONDS = 10
"""CPU time after which a case counts as hanging."""
GROWTH = 3.0
"""If doubling the text multiplies the time by more than this factor, the case is measured again."""
CONFIRMED_GROWTH = 64.0
"""Max factor of the time for 16 times the text: quadratic work takes 256 times as long."""
Parse = Callable[[str], Any]

TAGS = [
    "a",
    "b",
    "i",
    "u",
    "em",
    "p",
    "div",
    "span",
    "ul",
    "li",
    "dl",
    "dt",
    "dd",
    "table",
    "caption",
    "colgroup",
    "col",
    "tbody",
    "tr",
    "td",
    "th",
    "form",
    "select",
    "option",
    "optgroup",
    "button",
    "h1",
    "pre",
    "blockquote",
    "ruby",
    "rb",
    "rt",
    "rp",
    "rtc",
    "svg",
    "g",
    "math",
    "mi",
    "mtext",
    "foreignObject",
    "desc",
    "title",
    "annotation-xml",
    "template",
    "frameset",
    "noscript",
    "object",
    "applet",
    "marquee",
    "nobr",
    "font",
    "center",
    "address",
    "article",
    "details",
    "summary",
    "dialog",
    "menu",
    "input",
    "br",
    "hr",
    "img",
    "textarea",
]
MARKUP = (
    *HTML,
    *(f"<{tag}>" for tag in TAGS),
    *(f"</{tag}>" for tag in TAGS),
    *("<a href=/1>", "<img srcset='", "<br/>", "<![CDATA[", "]]>", "<!doctype html>", "&amp;", "&#", "&notit;", "&"),
    *("<svg><a xlink:href=/2>", "<p class='a b c'>", "<div id=x>", "<svg><br>", "<math><mi>", "<script>//", "\0"),
)
SCRIPTS = (
    "<script type=application/ld+json>", "</script>", "{", "}", "[", "]", '"', ":", ",", " ", "\t", ";", "\n", "//",
    "/*", "*/", "<!--", "-->", "\\", '"@type":', '"@graph":', "1", "null",
)  # fmt: skip
DATA = (
    "<div itemscope>", "<div itemscope itemtype=http://schema.org/Thing>", "<div itemprop=a>", "<p itemprop='a b c'>x",
    "<div itemscope itemref='a b' id=a>", "</div>", "<meta property=og:title content=x>", "<meta itemprop=b content=c>",
    "<div itemprop=c itemscope>", "<link itemprop=url href=/x>", "<time itemprop=d datetime=2026-01-01>", "x",
)  # fmt: skip
SRCSETS = ("a", " ", ",", "(", ")", "1x", "100w", "data:,", "\t", "http://a.example/", "2.", "e", "-")
OCTETS = (
    "\x80",
    "é",
    "日本",
    "ж",
    "\x1b$B",
    "\x1b(B",
    "~{",
    "~}",
    "+",
    "-",
    "\0",
    "a",
    " ",
    "<meta charset=",
    "gbk",
    ">",
)
STEPS = (
    "a",
    "div",
    "p",
    "*",
    "[href]",
    ".a",
    "#x",
    "li",
    "td",
    "b",
    ":first-child",
    "svg",
    ":not(.a)",
)
JOINS = (" ", " > ", " + ", " ~ ", ", ")
AXES = ("//", "/", "//a", "//*", "//div", "[1]")
"""Without those that turbohtml 1.15 answers in quadratic time, as it does `:nth-child`: parents, siblings and ancestors
of all elements, and `last()`. The budget of the handler bounds what a spider asks for with these."""
QUERIES = (
    "a",
    "::text",
    "[",
    "]",
    ">",
    " ",
    ":not(",
    ")",
    "//",
    "@href",
    "'",
    '"',
    "*",
    ",",
    ":is(",
    "(",
    "+",
    "\\",
    "|",
)


class Part(NamedTuple):
    """A piece of a case; repeated, and with an `end` as often, behind all that comes after it within the part."""

    start: str
    end: str = ""
    times: float = 1.0
    """How often, in parts of the case's number; 0: once."""


class Case(NamedTuple):
    """A text of any size."""

    parts: tuple[Part, ...]

    def text(self, size: int) -> str:
        """About so many characters of it."""
        unit = sum(len(part.start + part.end) * part.times for part in self.parts)
        count = size / max(unit, 0.001)
        pieces = []
        for part in self.parts:
            times = max(1, round(count * part.times)) if part.times else 1
            pieces.append(part.start * times + part.end * times)
        return "".join(pieces)[: 2 * size]

    def __str__(self) -> str:
        return " + ".join(
            f"{part.start!r}{f'...{part.end!r}' if part.end else ''}{f' x {part.times:g}n' if part.times else ''}"
            for part in self.parts
        )

    def smaller(self) -> Iterator[Case]:
        """Cases with something left out."""
        for number, part in enumerate(self.parts):
            rest = self.parts[:number], self.parts[number + 1 :]
            if len(self.parts) > 1:
                yield Case((*rest[0], *rest[1]))
            if part.end:
                yield Case((*rest[0], part._replace(end=""), *rest[1]))
            half = len(part.start) // 2
            if half:
                yield Case((*rest[0], part._replace(start=part.start[:half]), *rest[1]))
                yield Case((*rest[0], part._replace(start=part.start[half:]), *rest[1]))


def make(chance: random.Random, tokens: Sequence[str]) -> Case:
    """A case of a few of these tokens."""
    parts = []
    for _ in range(chance.choice((1, 1, 2, 2, 3))):
        start = "".join(chance.choices(tokens, k=chance.choice((1, 1, 1, 2, 2, 3))))
        end = "".join(chance.choices(tokens, k=chance.choice((1, 2)))) if chance.random() < 0.3 else ""
        if start.startswith("<") and start.endswith(">") and chance.random() < 0.3:
            end = f"</{start[1:].split('>')[0].split(' ')[0]}>"
        parts.append(Part(start, end, chance.choice((0, 0.2, 1.0, 1.0, 5.0))))
    if not any(part.times for part in parts):
        parts[-1] = parts[-1]._replace(times=1.0)
    return Case(tuple(part for part in parts if part.start))


def html(chance: random.Random) -> Parse:
    """Everything that a crawl takes from a page."""
    del chance
    return _read


def _read(text: str) -> None:
    one = page(text.encode("utf-8", "replace"), "text/html; charset=utf-8")
    _ = one.title, one.text, one.links(), one.robots, one.canonical, one.relations, one.next, one.alternates
    main_text(one.tree)


def css(chance: random.Random) -> Parse:
    """A selector of a few steps."""
    steps = [chance.choice(STEPS) for _ in range(chance.choice((1, 2, 3, 4, 5)))]
    query = steps[0] + "".join(chance.choice(JOINS) + step for step in steps[1:])
    return partial(_select, "css", query)


def xpath(chance: random.Random) -> Parse:
    """A path of a few steps."""
    return partial(_select, "xpath", "//*" + "".join(chance.choices(AXES, k=chance.choice((1, 2, 3)))))


def _select(kind: str, query: str, text: str) -> None:
    """Find, but do not write out: the HTML of all elements within one another is long by itself."""
    one = page(text.encode("utf-8", "replace"), "text/html; charset=utf-8")
    try:
        len(getattr(one, kind)(query))
    except ExtractError:
        pass


def selector(chance: random.Random) -> Parse:
    """The text of a selector itself."""
    one, kind = page(b"<p>x"), chance.choice(("css", "xpath"))

    def select(text: str) -> None:
        try:
            getattr(one, kind)(text).getall()
        except ExtractError:
            pass

    return select


def markdown(chance: random.Random) -> Parse:
    """The main part of a page."""
    del chance
    return lambda text: page(text.encode("utf-8", "replace"), "text/html; charset=utf-8").markdown


def metadata(chance: random.Random) -> Parse:
    """Structured data."""
    del chance

    def read(text: str) -> None:
        found = page(text.encode("utf-8", "replace"), "text/html; charset=utf-8").metadata
        for name in ("json_ld", "microdata", "opengraph"):
            getattr(found, name, None)

    return read


def form(chance: random.Random) -> Parse:
    """A form that is filled in."""
    del chance

    def fill(text: str) -> None:
        try:
            page(b"<form>" + text.encode("utf-8", "replace")).form()
        except ExtractError:
            pass

    return fill


def rules(chance: random.Random) -> Parse:
    """A robots.txt, and what it says of a path."""
    path = chance.choice(("/a/b/c?d=e", "/" + "a" * 2000, "/" + "ab" * 1000))

    def read(text: str) -> None:
        body = f"User-agent: *\n{text}".encode("utf-8", "replace")
        robots_txt.Matcher(robots_txt.parse(body, "gossamer")).allowed(path)

    return read


def listing(chance: random.Random) -> Parse:
    """A sitemap."""
    del chance
    return lambda text: sitemap.parse(text.encode("utf-8", "replace"), "http://a.example/sitemap.xml")


def cookie(chance: random.Random) -> Parse:
    """Set-Cookie, once or in many headers."""
    split = chance.choice(("\0", ";", ","))

    def take(text: str) -> None:
        headers = tuple(("set-cookie", one) for one in (text.split(split) if split != "\0" else [text]))
        CookieJar(SystemClock()).store(Response(url="http://a.example/", status=200, headers=headers))

    return take


def header(chance: random.Random) -> Parse:
    """Headers that have a parser."""
    now = 1_700_000_000.0
    return chance.choice(
        (
            parse_link,
            parse_refresh,
            http_time,
            w3c_time,
            lambda text: policy.retry_after(text, now=now),
            lambda text: computed_type(b"x" * 100, [text]),
        )
    )


def encoding(chance: random.Random) -> Parse:
    """Bytes of no known encoding, and of one that is declared."""
    name = chance.choice(("", "gbk", "shift_jis", "iso-2022-jp", "big5", "euc-kr", "utf-16le", "windows-1252", "utf-7"))

    def read(text: str) -> None:
        body = text.encode("utf-8", "replace")
        decode_text(body, detect(body, name))

    return read


def coding(chance: random.Random) -> Parse:
    """A compressed body, which is what the text is."""
    pack: Callable[[bytes], bytes] = chance.choice((gzip.compress, zlib.compress, bytes))
    names = chance.choice((("gzip",), ("deflate",), ("br",), ("zstd",), ("gzip", "gzip")))

    def read(text: str) -> None:
        try:
            decode(pack(text.encode("utf-8", "replace")), names, 20_000_000)
        except FetchError:
            pass

    return read


def url(chance: random.Random) -> Parse:
    """A URL, alone and as a link."""
    base = chance.choice(("http://a.example/", "http://a.example/a/b/c?d#e", "http://[::1]/"))
    scope = Scope(build({"allow": ["x"], "deny": ["y"]}))

    def read(text: str) -> None:
        found = urls.join(base, text)
        urls.normal(text)
        LinkCache().resolve(base, [text])
        if found is not None:
            urls.clean_query(found)
            urls.key_of(b"s" * 16, found)
            urls.registered_domain(urls.host_port(found))
            scope.refuse(found, base, 1)

    return read


PARSERS: dict[str, tuple[Callable[[random.Random], Parse], tuple[str, ...]]] = {
    "html": (html, MARKUP),
    "css": (css, MARKUP),
    "xpath": (xpath, MARKUP),
    "markdown": (markdown, MARKUP),
    "metadata": (metadata, (*DATA, *SCRIPTS)),
    "json-ld": (metadata, SCRIPTS),
    "form": (form, FORMS),
    "selector": (selector, (*QUERIES, *STEPS, *AXES)),
    "robots": (rules, ROBOTS),
    "sitemap": (listing, XML),
    "cookie": (cookie, COOKIES),
    "header": (header, (*LINKS, *DATES, *TYPES)),
    "srcset": (lambda chance: parse_srcset, SRCSETS),
    "encoding": (encoding, OCTETS),
    "coding": (coding, OCTETS),
    "url": (url, URLS),
}


def cost(parse: Parse, text: str) -> float:
    """CPU seconds to parse it; the kernel kills this process if that does not end."""
    signal.setitimer(signal.ITIMER_PROF, KILL_SECONDS)
    began = time.process_time()
    try:
        parse(text)
    except RecursionError:
        # It costs the page its result, and no time.
        pass
    spent = time.process_time() - began
    signal.setitimer(signal.ITIMER_PROF, 0)
    return spent


def excess(parse: Parse, case: Case) -> str:
    """What is wrong with the cost of a case; empty for nothing."""
    size, before = FIRST_BYTES, 0.0
    per_mb = SELECTOR_SECONDS_PER_MB if isinstance(parse, partial) else SECONDS_PER_MB
    while size <= LAST_BYTES:
        text = case.text(size)
        spent = cost(parse, text)
        limit = max(LEAST_SECONDS, per_mb * len(text) / 1e6)
        if spent > limit or (before > NOTICED_SECONDS / 2 and spent > GROWTH * before):
            # Others on the machine, and first calls, only make it longer: the least of a few counts.
            for _ in range(6):
                spent = min(spent, cost(parse, text))
                if spent <= limit or spent > 3 * limit:
                    break
            if spent > limit:
                return f"{spent:.2f} s of CPU for {len(text):,} characters"
            if spent > NOTICED_SECONDS:
                part, long = case.text(size // 4), case.text(4 * size)
                small, large = min(cost(parse, part) for _ in range(3)), cost(parse, long)
                if large > CONFIRMED_GROWTH * small:
                    small, large = min(small, cost(parse, part)), min(large, cost(parse, long))
                if large > CONFIRMED_GROWTH * small:
                    return f"{small:.4f} s of CPU for {len(part):,} characters, {large:.3f} s for {len(long):,}"
        size, before = 2 * size, spent
    return ""


def search(name: str, seed: int, seconds: float, tell: Callable[[dict[str, Any]], None]) -> None:
    """Try cases on one parser for so many seconds of CPU."""
    parser, tokens = PARSERS[name]
    number = 0
    parser(random.Random(0))("x")
    began = time.process_time()
    while time.process_time() - began < seconds:
        # Each case is that of its number, whatever came before it.
        chance = random.Random(f"{name} {seed} {number}")
        parse, case = parser(chance), make(chance, tokens)
        about = {"parser": name, "seed": seed, "number": number, "of": str(getattr(parse, "args", "") or "")}
        tell({**about, "case": str(case)})
        why = excess(parse, case)
        while why:
            tell({**about, "case": str(case), "why": why})
            for one in case.smaller():
                if less := excess(parse, one):
                    case, why = one, less
                    break
            else:
                break
        number += 1
    tell({"parser": name, "cases": number})


def run(name: str, seed: int, seconds: float) -> tuple[list[dict[str, Any]], int]:
    """The findings on one parser, the smallest case of each; and the number of cases."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(read)
            with os.fdopen(write, "w", buffering=1) as out:
                search(name, seed, seconds, lambda said: print(json.dumps(said), file=out))
        except BaseException as error:
            print(f"{name}: {error!r}")
            os._exit(1)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as lines:
        said = [json.loads(line) for line in lines]
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    last = said[-1] if said else {"parser": name}
    found = {one["number"]: one for one in said if "why" in one}
    if code == -signal.SIGPROF:
        found[last["number"]] = {**last, "why": f"did not end within {KILL_SECONDS} s of CPU"}
    elif code:
        raise RuntimeError(f"{name}: the fuzzer ended with {code} in {last}")
    return list(found.values()), int(last.get("cases", last.get("number", 0)))


def main() -> int:
    """Look for costs in the parsers that are named, or in all of them."""
    options = argparse.ArgumentParser(description="The cost fuzzer.")
    options.add_argument("parsers", nargs="*", help=f"of {', '.join(PARSERS)}")
    options.add_argument("--seconds", type=float, default=10.0, help="CPU seconds for each parser")
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    count = 0
    for name in chosen.parsers or PARSERS:
        found, cases = run(name, chosen.seed, chosen.seconds)
        print(f"{name}: {cases} cases, {len(found)} findings", flush=True)
        for one in found:
            print(f"  {one['why']}\n    {one['case']} {one['of']}  (seed {one['seed']}, case {one['number']})")
        count += len(found)
    return 1 if count else 0


if __name__ == "__main__":
    raise SystemExit(main())
