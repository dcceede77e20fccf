from __future__ import annotations

import random
import re
import string
import subprocess
import sys
from pathlib import Path

import pytest
import scores_urls
from hypothesis import example, given
from hypothesis import strategies as st

from gossamer import urls
from gossamer.extract import links

SECRET = b"sixteen bytes, a"


def test_all_cases_pass_but_documented_ones(shared: Path) -> None:
    assert shared.is_dir()
    totals = {}
    for score in scores_urls.scores():
        assert "not explained" not in score.deviations.values(), score.suite
        totals[score.suite] = (score.passed, score.total)
    assert totals == {
        "url-wpt": (892, 892),
        "url-wpt-crawlable": (892, 892),
        "url-wpt-names": (2777, 2777),
        "url-wpt-percent": (16, 16),
        "url-w3lib-canonical": (42, 79),
        "url-w3lib-safe": (260, 271),
    }


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("HTTP://Example.COM:80/a/../b?q#frag", "http://example.com/b?q"),
        ("https://example.com", "https://example.com/"),
        ("https://example.com:8443/", "https://example.com:8443/"),
        ("http://0x7f.1/", "http://127.0.0.1/"),
        ("http://[0:0::1]/", "http://[::1]/"),
        ("http://bücher.example/ü?ü", "http://xn--bcher-kva.example/%C3%BC?%C3%BC"),
        (" \thttp://exa\nmple.com/\r ", "http://example.com/"),
        ("http://example.com/?#", "http://example.com/?"),
    ],
)
def test_the_normal_form_is_the_standards(url: str, expected: str) -> None:
    assert urls.normal(url) == expected
    assert urls.normal(expected) == expected


@pytest.mark.parametrize(
    "url",
    [
        *("", "/path", "example.com", "//example.com/", "http://", "http://exa mple.com/", "http://a:99999/"),
        *("ftp://example.com/", "file:///etc/passwd", "javascript:alert(1)", "data:text/html,x", "mailto:a@b.example"),
        *("http://user@example.com/", "http://user:pw@example.com/", "http://@@example.com/"),
        # Half a character: no file and no wire can hold it.
        "http://\udfff.example/",
    ],
)
def test_uncrawlable_urls_have_no_normal_form(url: str) -> None:
    assert urls.normal(url) is None
    assert urls.join("http://example.com/\ud800", url) is None


def test_a_path_may_hold_an_at_sign() -> None:
    assert urls.normal("http://example.com/@name?a@b") == "http://example.com/@name?a@b"


@given(st.text(max_size=40))
@example("/a?b#c")
@example("//user@host/")
@example("\x00")
def test_joining_gives_a_normal_url_or_none(reference: str) -> None:
    found = urls.join("http://example.com/folder/page", reference)
    if found is not None:
        assert found.startswith(("http://", "https://"))
        assert "#" not in found
        assert urls.normal(found) == found
        assert links.normal(found) == found
        assert urls.origin(found) + urls.path_query(found) == found


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    url = "http://example.com/ü?a=1"
    code = f"from gossamer.urls import fingerprint; print(fingerprint({SECRET!r}, {url!r}))"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        )
        assert int(done.stdout) == urls.fingerprint(SECRET, url)
    # As the frontiers that exist have it: another value would let them fetch everything again.
    assert urls.fingerprint(SECRET, "http://example.com/") == 5017131597925373885


def test_a_fingerprint_depends_on_the_jobs_secret() -> None:
    every = [f"http://example.com/{number}" for number in range(2000)]
    ours = {urls.fingerprint(SECRET, url) for url in every}
    others = {urls.fingerprint(b"another secret.!", url) for url in every}
    assert set(urls.keys_of(SECRET, every)) == ours
    assert len(ours) == len(others) == 2000
    assert not ours & others
    assert all(0 <= key < 2**63 for key in ours | others)


@pytest.mark.parametrize(
    ("url", "same"),
    [
        ("http://a.example/caf%c3%a9", "http://a.example/caf%C3%A9"),
        ("http://a.example/%7Eu?q=%7eb", "http://a.example/~u?q=~b"),
        ("http://a.example/%41%62%39%2D%2e%5f", "http://a.example/Ab9-._"),
        ("http://a.example/a%2fb?x=%3d%26", "http://a.example/a%2Fb?x=%3D%26"),
        ("http://a.example/%2541%25%34%31%zz%4", "http://a.example/%2541%2541%zz%4"),
    ],
)
def test_escapes_that_mean_the_same_have_one_key(url: str, same: str) -> None:
    assert urls.equivalent(url) == same
    assert urls.key_of(SECRET, url) == urls.key_of(SECRET, same) == urls.fingerprint(SECRET, same)
    assert urls.keys_of(SECRET, [url, same]) == [urls.key_of(SECRET, same)] * 2
    assert urls.key_of(SECRET, url, "POST", b"%7e") == urls.key_of(SECRET, same, "POST", b"%7e")


@given(st.text("%2D7eE3aAcCfF/?.~x", max_size=20))
def test_a_url_without_such_escapes_keeps_its_key(text: str) -> None:
    url = f"http://a.example/{text}"
    unreserved = string.ascii_letters + string.digits + "-._~"
    odd = [e for e in re.findall("%[0-9A-Fa-f]{2}", url) if e != e.upper() or chr(int(e[1:], 16)) in unreserved]
    assert (urls.equivalent(url) == url) == (not odd)
    assert odd or urls.key_of(SECRET, url) == urls.fingerprint(SECRET, url)


def test_fingerprint_depends_on_method_and_body() -> None:
    url = "http://example.com/"
    requests = [
        ("GET", b""),
        ("POST", b""),
        ("POST", b"a"),
        ("POST", b"b"),
        ("PUT", b"a"),
        ("GET", b"a"),
        ("HEAD", b""),
    ]
    keys = [urls.fingerprint(SECRET, url, method, body) for method, body in requests]
    assert len(set(keys)) == len(requests)
    assert keys[0] == urls.fingerprint(SECRET, url)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://x/", "http://x/"),
        ("http://x/?", "http://x/"),
        ("http://x/?b=2&a=1", "http://x/?a=1&b=2"),
        ("http://x/?b=5&b=2&a", "http://x/?a&b=2&b=5"),
        ("http://x/?utm_source=n&id=7&fbclid=1", "http://x/?id=7"),
        ("http://x/?UTM_Source=n&PHPSESSID=q", "http://x/"),
        ("http://x/?utm%5Fsource=n&id=7", "http://x/?id=7"),
        ("http://x/?&&a=1&", "http://x/?a=1"),
        ("http://x/?b=&a&c==", "http://x/?a&b=&c=="),
        # A parameter stays as its page wrote it: another spelling may be another page.
        ("http://x/?q=r%e9sum%e9&p=%C3%A9", "http://x/?p=%C3%A9&q=r%e9sum%e9"),
        ("http://x/?1750,4", "http://x/?1750,4"),
        ("http://x/?q=a+b%20c&p=x;y", "http://x/?p=x;y&q=a+b%20c"),
        ("http://x/?u=http://y/?b%26a", "http://x/?u=http://y/?b%26a"),
    ],
)
def test_a_query_is_sorted_and_loses_only_what_tracks(url: str, expected: str) -> None:
    assert urls.normal(url) == url
    assert urls.clean_query(url) == expected


@given(st.lists(st.text("abgcli=%+;,d_é /?", max_size=8), max_size=6), st.randoms())
def test_a_clean_query_does_not_depend_on_the_order(parameters: list[str], chance: random.Random) -> None:
    url = urls.normal("http://example.com/p?" + "&".join(parameters))
    assert url is not None
    shuffled = url.partition("?")[2].split("&")
    chance.shuffle(shuffled)
    cleaned = urls.clean_query(url)
    assert urls.clean_query("http://example.com/p?" + "&".join(shuffled)) == cleaned
    assert urls.clean_query(cleaned) == cleaned
    assert urls.normal(cleaned) == cleaned


@pytest.mark.parametrize(
    ("authority", "expected"),
    [
        ("example.com", "example.com"),
        ("www.example.com", "example.com"),
        ("a.b.example.co.uk:8080", "example.co.uk"),
        ("co.uk", "co.uk"),
        ("com", "com"),
        ("localhost", "localhost"),
        ("localhost:8000", "localhost"),
        ("someone.github.io", "someone.github.io"),
        ("www.xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("a.www.ck", "www.ck"),
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1:8000", "127.0.0.1:8000"),
        ("[::1]", "[::1]"),
        ("[::1]:8000", "[::1]:8000"),
    ],
)
def test_the_registered_domain_is_one_label_under_a_public_suffix(authority: str, expected: str) -> None:
    assert urls.registered_domain(authority) == expected


@pytest.mark.parametrize(
    ("url", "authority", "host", "origin", "rest"),
    [
        ("http://example.com/", "example.com", "example.com", "http://example.com", "/"),
        (
            "https://example.com:8443/a/b?c=/d",
            "example.com:8443",
            "example.com",
            "https://example.com:8443",
            "/a/b?c=/d",
        ),
        ("http://[::1]/x", "[::1]", "[::1]", "http://[::1]", "/x"),
        ("http://[::1]:81/x?y//z", "[::1]:81", "[::1]", "http://[::1]:81", "/x?y//z"),
        ("http://127.0.0.1:8000//a", "127.0.0.1:8000", "127.0.0.1", "http://127.0.0.1:8000", "//a"),
    ],
)
def test_the_parts_of_a_normal_url(url: str, authority: str, host: str, origin: str, rest: str) -> None:
    assert urls.normal(url) == url
    assert urls.host_port(url) == authority
    assert urls.host(authority) == host
    assert urls.origin(url) == origin
    assert urls.path_query(url) == rest


def test_ip_addresses_are_distinguished_from_names() -> None:
    assert [urls.is_address(name) for name in ("127.0.0.1", "[::1]", "::1", "10.0.0.256", "example.com", "1")] == [
        *(True, True, True, False, False, False)
    ]
