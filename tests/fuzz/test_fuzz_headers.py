"""Fuzzing of headers: Retry-After, Set-Cookie, Content-Type, Content-Encoding, Link, Refresh, dates."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import format_datetime

import brotli
import pytest
from fuzz_texts import octets, pumped, takes_linear_work, texts
from hypothesis import given
from hypothesis import strategies as st

from gossamer.clock import SystemClock
from gossamer.compression import zstd
from gossamer.download.decoding import decode, encodings
from gossamer.errors import FetchError, TooLarge
from gossamer.extract.dates import http_time, w3c_time
from gossamer.extract.encoding import NAMES, detect, encode
from gossamer.extract.encoding import decode as decode_text
from gossamer.extract.links import parse_link, parse_refresh, parse_srcset
from gossamer.extract.mime import computed_type, is_html
from gossamer.frontier import policy
from gossamer.middleware.cookies import MAX_COOKIES, CookieJar
from gossamer.model import Response
from gossamer.urls import registered_domain

WEEK = 7 * 86_400.0
DATES = ("Mon", ", ", "15", " Nov ", "2026", " 10:", "00:", "00", " GMT", " +0000", "-9999", "Sunday, ", "99", ":", "-")
COOKIES = (
    *("a", "=", "b", ";", " ", "Domain=", ".com", "a.example.com", ".co.uk", "example.com", "Path=", "/", "Secure"),
    *(
        "HttpOnly",
        "Max-Age=",
        "-",
        "--1",
        "Expires=",
        "__Host-",
        "__Secure-",
        ",",
        "\\",
        '"',
        "[::1]",
        "127.0.0.1",
        *DATES,
    ),
)
LINKS = ("<", ">", ";", " ", "rel=", "next", '"', "'", ",", "/page/2", "rel", "=", "*", "\t", "http://a.example/")
TYPES = (
    "text/html",
    ";",
    " ",
    "charset",
    "=",
    '"',
    "utf-8",
    "utf-16",
    "x-user-defined",
    "gbk",
    ",",
    "application/",
    "xml",
)
REFRESH = ("0", "1", ".", ";", ",", " ", "url", "=", "'", '"', "/next", "\t", "URL")
SRCSET = ("a.png", " ", ",", "1x", "2.5x", "100w", "(", ")", "-", "e", "h", "\n", "1e", ".")
HOSTS = st.sampled_from(
    ["a.example.com", "example.com", "b.example.com", "x.co.uk", "127.0.0.1", "[::1]", "example.org"]
)


@given(texts(*DATES), st.floats(0, 4e9))
def test_retry_after_is_a_time_of_at_most_a_week_or_nothing(value: str, now: float) -> None:
    wait = policy.retry_after(value, now=now)
    assert wait is None or 0 <= wait <= WEEK


@given(st.datetimes(datetime(1990, 1, 1), datetime(2200, 1, 1)))
def test_dates_are_read_as_they_were_written(when: datetime) -> None:
    when = when.replace(tzinfo=UTC, microsecond=0)
    assert http_time(format_datetime(when, usegmt=True)) == when.timestamp()
    assert w3c_time(when.isoformat()) == when.timestamp()
    wait = policy.retry_after(format_datetime(when, usegmt=True), now=when.timestamp() - 60)
    assert wait == 60


@given(texts(*DATES, "T", "Z", "+01:00", "."))
def test_no_date_is_more_than_a_date_or_nothing(value: str) -> None:
    for found in (w3c_time(value), http_time(value)):
        assert found is None or -1e6 < found < 3e11


def answer(host: str, *values: str) -> Response:
    return Response(url=f"http://{host}/a/b", status=200, headers=tuple(("set-cookie", value) for value in values))


@given(st.lists(st.tuples(HOSTS, st.lists(texts(*COOKIES), max_size=5)), max_size=4))
def test_cookies_go_back_to_their_own_domain_only_and_in_one_line(given_out: list[tuple[str, list[str]]]) -> None:
    jar = CookieJar(SystemClock())
    for host, values in given_out:
        jar.store(answer(host, *values))
    setters = {registered_domain(host) for host, values in given_out if values}
    for host in ("a.example.com", "example.com", "x.co.uk", "other.co.uk", "127.0.0.1", "example.org"):
        header = jar.header(f"http://{host}/a/b")
        assert header == "" or registered_domain(host) in setters
        assert not set(header) & set("\r\n\0")
        plain = jar.dump(host)
        copy = CookieJar(SystemClock())
        copy.load(host, json.loads(json.dumps(plain)))
        if plain[1] and sum(len(str(row)) for row in plain[1]) < 4000:
            assert sorted(copy.header(f"http://{host}/a/b").split("; ")) == sorted(header.split("; "))


@given(texts(*COOKIES, most=8), st.integers(60, 200))
def test_a_jar_stays_small(value: str, count: int) -> None:
    jar = CookieJar(SystemClock())
    jar.store(answer("a.example.com", *(f"c{number}={value}" for number in range(count))))
    assert len(jar.dump("a.example.com")[1]) <= MAX_COOKIES


@given(st.lists(texts(*LINKS), max_size=4))
def test_a_link_header_has_a_next_page_or_none(headers: list[str]) -> None:
    assert all(isinstance(target, str) for header in headers for target, _ in parse_link(header))


@given(octets(b"<meta ", b"charset=", b"gbk", b">", b"<?xml", b"encoding=", b"'", b'"', b"<!--", b"-->"), texts(*TYPES))
def test_a_body_is_read_in_an_encoding_that_exists(body: bytes, content_type: str) -> None:
    name = detect(body, content_type)
    assert name in set(NAMES.values())
    text = decode_text(body, name)
    assert len(text) <= 2 * len(body) + 1
    assert text.encode("utf-16", "surrogatepass") or not body
    assert is_html(body, computed_type(body, [content_type])) in (True, False)


# Letters that are written as others are, in encodings that lack them.
_FOLDED = "\xa5\u203e\u2212\ufeff" + "".join(map(chr, range(0xFF61, 0xFFA0)))
_LETTERS = st.characters(codec="utf-8", exclude_categories=["Co"], exclude_characters=_FOLDED)


def _refuse(letter: str) -> bytes:
    raise LookupError(letter)


@given(st.text(_LETTERS, max_size=50), st.sampled_from(sorted(set(NAMES.values()) - {"replacement"})))
def test_character_encodings_round_trip(text: str, name: str) -> None:
    try:
        body = encode(text, name, _refuse)
    except LookupError:
        return
    if name.startswith("utf-16"):
        return
    # Bytes that begin like a byte order mark are one.
    if not body.startswith((b"\xef\xbb\xbf", b"\xfe\xff", b"\xff\xfe")):
        assert detect(body, f"text/html; charset={name}") == name
    assert decode_text(body, name) == text


@given(texts(*REFRESH))
def test_a_refresh_is_seconds_and_a_target_or_nothing(content: str) -> None:
    found = parse_refresh(content)
    assert found is None or (0 <= found[0] <= 10**9 and (found[1] is None or found[1] in content))


@given(texts(*SRCSET))
def test_srcset_candidates_are_substrings(value: str) -> None:
    for url in parse_srcset(value):
        assert url in value
        assert url
        assert not set(url) & set("\t\n\f\r ")


CODERS = {"gzip": gzip.compress, "deflate": zlib.compress, "br": brotli.compress, "zstd": zstd.compress}


@given(st.binary(max_size=2000), st.lists(st.sampled_from(sorted(CODERS)), max_size=4))
def test_content_encodings_round_trip(body: bytes, codings: list[str]) -> None:
    sent = body
    for name in codings:
        sent = CODERS[name](sent)
    assert decode(sent, encodings([", ".join(codings)]), 4000) == (body if sent else b"")


@given(
    st.binary(max_size=2000),
    st.sampled_from(sorted(CODERS)),
    st.integers(0, 2000),
    st.binary(max_size=20),
    texts("gzip", ",", "br"),
)
def test_broken_encodings_raise_typed_errors_within_the_limit(
    body: bytes, name: str, cut: int, junk: bytes, said: str
) -> None:
    whole = CODERS[name](body)
    for sent in (junk, whole[:cut], whole[:cut] + junk + whole[cut:], whole + junk):
        try:
            assert len(decode(sent, (name, *encodings([said])), 1000)) <= 1000
        except FetchError:
            pass
    if len(body) > 100:
        with pytest.raises(TooLarge):
            decode(whole, (name,), 100)


@pytest.mark.parametrize(
    ("parse", "pieces"),
    [
        (lambda text: policy.retry_after(text, now=0), DATES),
        (http_time, DATES),
        (w3c_time, DATES),
        (lambda text: CookieJar(SystemClock()).store(answer("a.example.com", text)), COOKIES),
        (parse_link, LINKS),
        (
            lambda text: detect(text.encode("utf-8", "replace"), text),
            (*TYPES, "<meta ", ">", "<!--", "<a ", "http-equiv"),
        ),
        (parse_refresh, REFRESH),
        (parse_srcset, SRCSET),
    ],
    ids=["retry-after", "http-date", "w3c-date", "set-cookie", "link", "encoding", "refresh", "srcset"],
)
def test_h35_headers_take_linear_work(parse: Callable[[str], object], pieces: tuple[str, ...]) -> None:
    @given(pumped(pieces))
    def check(text: Callable[[int], str]) -> None:
        takes_linear_work(parse, text)

    check()
