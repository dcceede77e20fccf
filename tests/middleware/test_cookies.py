from __future__ import annotations

import asyncio

import msgspec
import pytest

from gossamer.clock import ManualClock
from gossamer.middleware import compose
from gossamer.middleware.cookies import (
    MAX_AGE_SECONDS,
    MAX_BYTES,
    MAX_COOKIES,
    MAX_DUMP_BYTES,
    CookieJar,
    cookie_date,
    cookies,
    parse,
)
from gossamer.model import Request, Response


def jar_after(url: str, *values: str, clock: ManualClock | None = None) -> CookieJar:
    jar = CookieJar(clock or ManualClock())
    jar.store(Response(url=url, status=200, headers=tuple(("set-cookie", value) for value in values)))
    return jar


@pytest.mark.parametrize(
    ("value", "url", "sent"),
    [
        ("a=1", "http://x.example.com/", "a=1"),
        ("a=1", "http://x.example.com/deep/er?q", "a=1"),
        ("a=1", "http://x.example.com:8080/", "a=1"),
        ("a=1", "http://y.example.com/", ""),
        ("a=1", "http://example.com/", ""),
        ("a=1; Domain=example.com", "http://y.example.com/", "a=1"),
        ("a=1; domain=.EXAMPLE.com", "http://example.com/", "a=1"),
        ("a=1; Domain=x.example.com", "http://sub.x.example.com/", "a=1"),
        ("a=1; Domain=x.example.com", "http://example.com/", ""),
        ("a=1; Domain=y.example.com", "http://y.example.com/", ""),
        ("a=1; Domain=com", "http://other.com/", ""),
        ("a=1; Domain=.com", "http://x.example.com/", ""),
        ("a=1; Domain=other.com", "http://other.com/", ""),
        ("a=1; Path=/app", "http://x.example.com/app", "a=1"),
        ("a=1; Path=/app", "http://x.example.com/app/b", "a=1"),
        ("a=1; Path=/app", "http://x.example.com/apple", ""),
        ("a=1; Path=app", "http://x.example.com/other", "a=1"),
        ("a = 1 ;HttpOnly", "http://x.example.com/", "a=1"),
        ('a="b c"', "http://x.example.com/", 'a="b c"'),
        ("a=b=c", "http://x.example.com/", "a=b=c"),
        ("novalue", "http://x.example.com/", "novalue"),
        ("=x", "http://x.example.com/", "x"),
        ("", "http://x.example.com/", ""),
        ("a=1\x00b", "http://x.example.com/", ""),
        ("a=1\r\nEvil: 1", "http://x.example.com/", ""),
        ("a=1; Secure", "https://x.example.com/", ""),
        ("__Secure-a=1", "http://x.example.com/", ""),
        ("__Host-a=1; Path=/; Secure", "https://x.example.com/", ""),
    ],
)
def test_cookie_scope_follows_the_standard(value: str, url: str, sent: str) -> None:
    assert jar_after("http://x.example.com/", value).header(url) == sent


@pytest.mark.parametrize(
    ("value", "url", "sent"),
    [
        ("a=1; Secure", "https://x.co.uk/", "a=1"),
        ("a=1; Secure", "http://x.co.uk/", ""),
        ("a=1", "http://x.co.uk/", "a=1"),
        ("a=1; Domain=co.uk", "https://y.co.uk/", ""),
        ("a=1; Domain=co.uk", "https://x.co.uk/", ""),
        ("__Host-a=1; Path=/; Secure", "https://x.co.uk/", "__Host-a=1"),
        ("__Host-a=1; Path=/; Secure; Domain=x.co.uk", "https://x.co.uk/", ""),
        ("__Secure-a=1; Secure", "https://x.co.uk/", "__Secure-a=1"),
    ],
)
def test_secure_cookies_and_public_suffixes(value: str, url: str, sent: str) -> None:
    """H14: none for a public suffix, nor for another host."""
    assert jar_after("https://x.co.uk/", value).header(url) == sent


@pytest.mark.parametrize(
    ("values", "sent"),
    [
        # Of each attribute the last valid one counts.
        (("a=1; Max-Age=100; Max-Age=x",), "a=1"),
        (("a=1; Expires=Thu, 01 Jan 1970 00:00:00 GMT; Expires=never",), ""),
        (("a=1; Max-Age=-0",), ""),
        (("a=1; Max-Age=+5; Expires=Thu, 01 Jan 1970 00:00:00 GMT",), ""),
        (("a=1; Domain=other.com; Domain=x.co.uk",), "a=1"),
        (("a=1; Domain=x.co.uk; Domain=other.com",), ""),
        (("a=1; Path=/elsewhere; Path=odd",), "a=1"),
        (("a=1; Path=/" + "x" * 1024,), "a=1"),
        # What has no name could pass for a cookie that has one.
        (("=__Host-a=1",), ""),
        (("__secure-a",), ""),
        (("__HOST-a=1; Secure; Path=/; Path=/x",), ""),
        # One that came over an open line does not take the place of one from a safe line.
        (("a=1; Secure", "http a=2"), "a=1"),
        (("a=1; Secure; Path=/x", "http a=2; Path=/"), "a=2"),
        (("a=1; Secure; Domain=x.co.uk", "http a=2"), "a=1"),
        (("a=1", "http a=2"), "a=2"),
    ],
)
def test_hard_cases_of_the_standard(values: tuple[str, ...], sent: str) -> None:
    jar = CookieJar(ManualClock(1e9))
    for value in values:
        scheme = "http" if value.startswith("http ") else "https"
        answer = (("set-cookie", value.removeprefix("http ")),)
        jar.store(Response(url=f"{scheme}://x.co.uk/", status=200, headers=answer))
    assert jar.header("https://x.co.uk/") == sent


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("Thu, 01 Jan 1970 00:00:10 GMT", 10),
        ("Thursday, 01-Jan-70 00:00:10 GMT", 10),
        ("Thu Jan  1 00:00:10 1970", 10),
        # No zone counts, the order is free, and whatever else is there does not matter.
        ("Thu, 01 Jan 1970 00:00:10 +0500", 10),
        ("1970 january 1 0:0:10", 10),
        ("00:00:10|01-Jan-1970", 10),
        ("0:0:10x 1st? JANUARIUS 70", 10),
        ("01 Jan 69 00:00:10 GMT", 3124224010),
        ("32 Jan 1970 00:00:10", None),
        ("0 Jan 1970 00:00:10", None),
        ("30 Feb 1970 00:00:10", None),
        ("01 Jan 1600 00:00:10", None),
        ("01 Jan 1970 24:00:10", None),
        ("01 Jan 1970 00:00", None),
        ("001 Jan 1970 00:00:10", None),
        ("Thu, 01 Foo 1970 00:00:10 GMT", None),
        ("", None),
    ],
)
def test_cookie_dates_follow_the_lenient_algorithm(text: str, at: float | None) -> None:
    assert cookie_date(text) == at


def test_no_cookie_outlives_400_days() -> None:
    for value in ("a=1; Max-Age=99999999999999999999", "a=1; Expires=Fri, 31 Dec 9999 23:59:59 GMT"):
        found = parse(value, now=1e9)
        assert found is not None
        assert found.expires_at == 1e9 + MAX_AGE_SECONDS


def test_sites_below_a_public_suffix_share_no_cookies() -> None:
    jar = jar_after("https://one.github.io/", "a=1; Domain=github.io", "b=2")
    assert jar.header("https://two.github.io/") == ""
    assert jar.header("https://one.github.io/") == "b=2"


def test_ip_address_has_only_host_cookies() -> None:
    jar = jar_after("http://127.0.0.1:8000/", "a=1", "b=2; Domain=127.0.0.1", "c=3; Domain=0.0.1")
    assert jar.header("http://127.0.0.1:9000/") == "a=1; b=2"
    assert jar.header("http://1.127.0.0.1/") == ""
    assert jar.header("http://127.0.0.2/") == ""


def test_the_default_path_is_the_folder() -> None:
    jar = jar_after("http://a.test/x/y?z", "a=1")
    assert jar.header("http://a.test/x/other") == "a=1"
    assert jar.header("http://a.test/") == ""


def test_longer_paths_and_older_cookies_come_first() -> None:
    jar = jar_after("http://a.test/p/q", "a=1; Path=/", "b=2; Path=/p", "c=3; Path=/", "a=9; Path=/")
    assert jar.header("http://a.test/p/") == "b=2; a=9; c=3"


def test_cookies_expire() -> None:
    clock = ManualClock()
    jar = jar_after(
        "http://a.test/",
        "age=1; Max-Age=100",
        "date=1; Expires=Thu, 01-Jan-1970 00:00:00 GMT",
        "both=1; Max-Age=100; Expires=Thu, 01 Jan 1970 00:00:00 GMT",
        "odd=1; Expires=whenever; Max-Age=x",
        "late=1; Expires=Fri, 31 Dec 9999 23:59:59 GMT",
        "far=1; Max-Age=999999999999999999999999",
        clock=clock,
    )
    assert jar.header("http://a.test/") == "age=1; both=1; odd=1; late=1; far=1"
    clock.advance(100)
    assert jar.header("http://a.test/") == "odd=1; late=1; far=1"
    jar.store(Response(url="http://a.test/", status=200, headers=(("set-cookie", "odd=; Max-Age=0"),)))
    assert jar.header("http://a.test/") == "late=1; far=1"


def test_a_jar_is_bounded() -> None:
    """H14: ten thousand cookies."""
    jar = CookieJar(ManualClock())
    for start in range(0, 10_000, 100):
        values = tuple(("set-cookie", f"c{number}=1") for number in range(start, start + 100))
        jar.store(Response(url="http://a.test/", status=200, headers=values))
    assert jar.header("http://a.test/").count("=") == MAX_COOKIES
    assert "c9999=1" in jar.header("http://a.test/")
    assert jar_after("http://a.test/", "a=" + "x" * MAX_BYTES).header("http://a.test/") == ""
    assert jar_after("http://a.test/", "a=" + "ö" * (MAX_BYTES // 2)).header("http://a.test/") == "", "octets count"
    assert jar_after("http://a.test/", "aa=" + "ö" * (MAX_BYTES // 2 - 1)).header("http://a.test/")
    assert jar_after("http://a.test/x", "a=1; Path=/" + "ö" * 512).header("http://a.test/") == "a=1"
    assert jar_after("http://a.test/", "a=1; Path=/" + "x" * 1_000_000).header("http://a.test/") == ""


@pytest.mark.parametrize("value", ['a="' + "\\" * 20_000, ";" * 9000, "=" * 9000, "x" * 10**6, "a=1;" + "x=y;" * 9000])
def test_oversized_set_cookie_is_ignored(value: str) -> None:
    """H14: a megabyte, or 20,000 backslashes."""
    assert jar_after("http://a.test/", value).header("http://a.test/") == ""


def test_domains_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossamer.middleware.cookies.MAX_DOMAINS", 3)
    jar = CookieJar(ManualClock())
    for number in range(10):
        jar.store(Response(url=f"http://{number}.com/", status=200, headers=(("set-cookie", "a=1"),)))
    assert [number for number in range(10) if jar.header(f"http://{number}.com/")] == [7, 8, 9]


def test_middleware_sends_stored_cookies() -> None:
    sent: list[dict[str, str] | None] = []

    async def fetch(request: Request) -> Response:
        sent.append(request.headers)
        return Response(url=request.url, status=200, headers=(("set-cookie", "a=1"),))

    async def main() -> None:
        layered = compose([cookies(CookieJar(ManualClock()))], fetch)  # type: ignore[list-item]
        await layered(Request(url="http://a.test/"))
        await layered(Request(url="http://a.test/", headers={"x": "y"}))
        await layered(Request(url="http://a.test/", headers={"Cookie": "mine=1"}))
        await layered(Request(url="http://b.test/"))

    asyncio.run(main())
    assert sent == [None, {"x": "y", "cookie": "a=1"}, {"Cookie": "mine=1"}, None]


def test_dump_and_load_transfer_the_cookies_of_a_site() -> None:
    """One worker loads what another dumped, except for what is older than its own."""
    clock = ManualClock()
    jar = jar_after(
        "https://x.example.com/", "a=1; Max-Age=100", "b=2; Domain=example.com; Secure; Path=/p", clock=clock
    )
    plain = msgspec.json.decode(msgspec.json.encode(jar.dump("x.example.com")))
    other = CookieJar(clock)
    assert other.load("x.example.com", plain)
    assert other.header("https://x.example.com/p") == jar.header("https://x.example.com/p") == "b=2; a=1"
    assert other.header("https://y.example.com/p") == "b=2"
    assert other.header("http://y.example.com/p") == ""
    clock.advance(5)
    other.store(Response(url="https://x.example.com/", status=200, headers=(("set-cookie", "a=9"),)))
    assert not other.load("x.example.com", plain)
    assert "a=9" in other.header("https://x.example.com/p")
    assert jar.load("x.example.com", other.dump("x.example.com"))
    assert jar.header("https://x.example.com/p") == "b=2; a=9"
    clock.advance(100)
    assert "a=9" in jar.header("https://x.example.com/")
    for wrong in (None, [], [1, 2], [1, [[1]]], ["x", []]):
        assert not CookieJar(clock).load("x.example.com", wrong)


def test_dump_is_bounded() -> None:
    jar = jar_after("http://a.test/", *(f"c{number}=" + "x" * 4000 for number in range(50)))
    assert len(msgspec.json.encode(jar.dump("a.test"))) < MAX_DUMP_BYTES + 1000
    assert "c49" in str(jar.dump("a.test"))


def test_repeated_cookie_is_not_a_change() -> None:
    clock = ManualClock()
    jar = jar_after("http://a.test/", "a=1; Max-Age=1000", clock=clock)
    before = jar.revision("a.test:8080")
    clock.advance(10)
    jar.store(Response(url="http://a.test/", status=200, headers=(("set-cookie", "a=1; Max-Age=1000"),)))
    assert jar.revision("a.test") == before
    jar.store(Response(url="http://a.test/", status=200, headers=(("set-cookie", "a=2; Max-Age=1000"),)))
    assert jar.revision("a.test") > before


def test_per_host_jars_share_no_cookies() -> None:
    jar = CookieJar(ManualClock(), per_host=True)
    jar.store(Response(url="http://x.example.com/", status=200, headers=(("set-cookie", "a=1; Domain=example.com"),)))
    assert jar.header("http://x.example.com/") == "a=1"
    assert jar.header("http://y.example.com/") == jar.header("http://example.com/") == ""


def test_loaded_cookies_of_sites_on_one_domain_are_merged() -> None:
    """Two hosts of one domain, logged in by two workers, meet in a third: it has both, in either order."""
    clock = ManualClock()
    one = jar_after("https://a.example.com/", "in=a; Path=/", clock=clock)
    clock.advance(5)
    two = jar_after("https://b.example.com/", "in=b; Path=/", clock=clock)
    for order in (("a", one), ("b", two)), (("b", two), ("a", one)):
        third = CookieJar(clock)
        for name, jar in order:
            assert third.load(f"{name}.example.com", jar.dump(f"{name}.example.com"))
        assert [third.header(f"https://{name}.example.com/") for name in "ab"] == ["in=a", "in=b"]


def test_expired_cookies_reach_other_workers_despite_clock_skew() -> None:
    here, ahead = ManualClock(), ManualClock(9_000_000.0)
    first = jar_after("https://x.test/", "in=yes; Path=/", clock=ahead)
    second = CookieJar(here)
    assert second.load("x.test", first.dump("x.test"))
    assert second.header("https://x.test/") == "in=yes"
    second.store(Response(url="https://x.test/", status=200, headers=(("set-cookie", "in=; Path=/; Max-Age=0"),)))
    assert second.header("https://x.test/") == ""
    output = msgspec.json.decode(msgspec.json.encode(second.dump("x.test")))
    assert first.load("x.test", output)
    assert first.header("https://x.test/") == ""
    assert not second.load("x.test", [1.0, [["in", "old", "x.test", "/", 1, None]]])
    assert second.header("https://x.test/") == ""
