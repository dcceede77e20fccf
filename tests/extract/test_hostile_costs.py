"""What hostile pages and files cost: how CPU grows with the size, and memory against the limit."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from gossamer.engine import robots_txt
from gossamer.extract import sitemap
from gossamer.extract.links import MAX_LINKS, parse_refresh, parse_srcset
from gossamer.extract.mime import is_html
from gossamer.extract.page import Page
from gossamer.model import Request, Response

URL = "http://a.example/"
MB = 1_000_000


def read(body: bytes) -> None:
    """All that a crawl makes of a page."""
    headers = (("content-type", "text/html; charset=utf-8"),)
    page = Page(Response(url=URL, status=200, headers=headers, body=body), Request(url=URL))
    assert len(page.title) <= 4096
    assert len(page.links()) <= MAX_LINKS
    assert isinstance(page.text, str)


def ask(body: bytes) -> None:
    matcher = robots_txt.Matcher(robots_txt.parse(b"User-agent: *\n" + body, "gossamer"))
    for number in range(20):
        matcher.allowed(f"/{'a' * 1000}/{number}")


COSTS: dict[str, tuple[Callable[[int], bytes], Callable[[bytes], object], int]] = {
    "H31 nested tags": (lambda n: b"<div>" * n, read, 50_000),
    "H31 attributes": (lambda n: b"<p " + b" ".join(b"a%d" % k for k in range(n)) + b">", read, 200_000),
    "H31 attributes that hide the end": (
        lambda n: b"<p " + b" ".join(b"a%d='>'" % k for k in range(n)) + b">",
        read,
        12_000,
    ),
    "H31 one line": (lambda n: b"<p>" + b"x" * n, read, 25 * MB),
    "H31 unclosed comment": (lambda n: b"<p>x<!--" + b"-x" * (n // 2), read, 5 * MB),
    "H31 unclosed script": (lambda n: b"<p>x<script>" + b"</scrip" * (n // 7), read, 5 * MB),
    "H32 links": (lambda n: b"".join(b"<a href=/%d>x</a>" % k for k in range(n)), read, 500_000),
    "H32 a long base": (lambda n: b"<base href='/%b/'>" % (b"x" * n) + b"<a href=a>" * 500, read, 200_000),
    "H32 srcset": (lambda n: b"a.png 1x," * n, lambda body: parse_srcset(body.decode()), 10_000),
    "H35 refresh": (lambda n: b"1" * n + b"x", lambda body: parse_refresh(body.decode()), 500_000),
    "H35 less-than": (lambda n: b"<" * n, read, 2 * MB),
    "H35 quotes": (lambda n: b"<p>url(" + b'"' * n, read, 2 * MB),
    "H29 zeros as HTML": (lambda n: b"\0" * n, lambda body: is_html(body, "text/html"), 25 * MB),
    "H36 entities": (
        lambda n: b"<!DOCTYPE x [" + b'<!ENTITY a "b">' * n + b"]><urlset>" + b"<url><loc>&a;</loc></url>" * n,
        lambda body: sitemap.parse(body, URL),
        10_000,
    ),
    "H37 entries": (
        lambda n: b"<urlset>" + b"".join(b"<url><loc>http://a.example/%d</loc></url>" % k for k in range(n)),
        lambda body: sitemap.parse(body, URL),
        25_000,
    ),
    "H45 rules": (lambda n: b"".join(b"Disallow: /*%d*x\n" % k for k in range(n)), ask, 10_000),
    "H45 stars": (lambda n: b"Disallow: /" + b"*a" * n + b"b\n", ask, 10_000),
}


@pytest.mark.parametrize("name", COSTS)
def test_h31_h32_h35_cpu_time_of_a_hostile_page_is_linear_in_its_size(name: str) -> None:
    """1,000,000 links, 100,000 nested tags and lines of 50 MB.

    Sixteen times the size costs 16 times the CPU where the cost is linear and 256 times where it is quadratic. The
    bound lies between, and what ends within two seconds passes: neither depends on how busy the machine is.
    """
    make, parse, size = COSTS[name]
    small, large = cpu(parse, make(size // 8)), cpu(parse, make(2 * size))
    assert large < max(2.0, 64 * small), f"{small:.3f} s of CPU for {size // 8}, {large:.3f} s for 16 times as much"


def cpu(parse: Callable[[bytes], object], body: bytes) -> float:
    began = time.process_time()
    parse(body)
    return time.process_time() - began


LIMIT = 20 * 1024 * 1024
WEIGHTS = {
    "attributes": "b'<p ' + b' '.join(b'a%d' % k for k in range(30)) + b'>'",
    "comments": "b'x<!---->'",
    "links": "b'<a href=/x>x</a>'",
    "a title": "b'ab '",
    "nested tags": "b'<div>'",
    "less-than": "b'<'",
}
WEIGH = """
from gossamer.engine.parsing import SpiderRunner, make_spider
from gossamer.model import Request, Response
from gossamer.settings import build
import asyncio

def kib(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))

unit, extractor = %s, SpiderRunner(make_spider(build({})), build({}))
body = b"<title>" * (unit == b"ab ") + unit * (%d // len(unit))
headers = (("content-type", "text/html; charset=utf-8"),)
answer = Response(url="http://a.example/", status=200, headers=headers, body=body)
small = Response(url="http://a.example/", status=200, headers=headers, body=b"x")
asyncio.run(extractor.extract(Request(url="http://a.example/"), small))
before = kib("VmRSS")
assert not asyncio.run(extractor.extract(Request(url="http://a.example/"), answer)).error
print(1024 * (kib("VmHWM") - before))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for the memory of a process")
@pytest.mark.parametrize("name", WEIGHTS)
def test_h31_memory_of_a_hostile_page_is_linear_in_its_size(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WEIGH % (WEIGHTS[name], LIMIT)], capture_output=True, text=True, check=True
    )
    # A tree of nothing but the shortest tags, or of parse errors; pages of text take 15 to 25 times their size.
    assert int(done.stdout) < 60 * LIMIT


def test_h32_long_base_does_not_multiply() -> None:
    body = b"<base href='http://a.example/%b/'>" % (b"x" * 500_000) + b"".join(
        b"<a href=%d>" % n for n in range(20_000)
    )
    headers = (("content-type", "text/html; charset=utf-8"),)
    page = Page(Response(url=URL, status=200, headers=headers, body=body), Request(url=URL))
    assert sum(map(len, page.links())) < 12 * MB
    assert page.cut
