from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.engine.scope import Scope
from gossamer.errors import ConfigError
from gossamer.settings import Settings

PAGE = "https://shop.example.co.uk/a/b"


def refuse(url: str, page: str = PAGE, depth: int = 1, **settings: Any) -> str | None:
    return Scope(Settings(**settings)).refuse(url, page, depth)


@pytest.mark.parametrize(
    ("scope", "url", "reason"),
    [
        ("site", "https://shop.example.co.uk/x", None),
        ("site", "http://shop.example.co.uk/x", None),
        ("site", "https://www.shop.example.co.uk/x", None),
        ("site", "https://shop.example.co.uk:8443/x", "scope"),
        ("site", "https://shop.example.co.uk.evil.example/x", "scope"),
        ("site", "https://example.co.uk/x", "scope"),
        ("domain", "https://example.co.uk/x", None),
        ("domain", "https://blog.example.co.uk/x", None),
        ("domain", "https://other.co.uk/x", "scope"),
        ("any", "https://other.example/x", None),
    ],
)
def test_scope_bounds_the_hosts_of_links(scope: str, url: str, reason: str | None) -> None:
    assert refuse(url, scope=scope) == reason


def test_www_and_bare_host_are_one_site_both_ways() -> None:
    assert refuse("http://x.example/", "http://www.x.example/") is None
    assert refuse("http://www.x.example/", "http://x.example/") is None
    assert refuse("http://127.0.0.1/x", "http://127.0.0.2/") == "scope"
    assert refuse("http://127.0.0.1/x", "http://127.0.0.2/", scope="domain") == "scope"


def test_depth_counts_from_the_seeds() -> None:
    assert refuse(PAGE, depth=2, max_depth=2) is None
    assert refuse(PAGE, depth=3, max_depth=2) == "depth"
    assert refuse(PAGE, depth=10**6) is None


def test_allow_and_deny_are_searched_in_the_whole_url() -> None:
    assert refuse(PAGE + "/item?id=1", allow=("/item", "/page")) is None
    assert refuse(PAGE + "/other", allow=("/item", "/page")) == "allow"
    assert refuse(PAGE + "/item?sort=1", allow=("/item",), deny=(r"[?&]sort=",)) == "deny"


@pytest.mark.parametrize("setting", ["allow", "deny"])
def test_a_wrong_regular_expression_is_named(setting: str) -> None:
    with pytest.raises(ConfigError, match=rf"{setting}: '\(x'"):
        Scope(Settings(**cast(dict[str, Any], {setting: ("good", "(x")})))


def test_patterns_keep_their_own_flags_and_groups() -> None:
    assert refuse(PAGE + "/ITEM", allow=("x", "(?i)/item")) is None
    assert refuse(PAGE + "/zz", allow=("(x)", r"(z)\1")) is None


def test_alternatives_do_not_leak_into_one_another() -> None:
    assert refuse(PAGE + "/zb", allow=("z1$|z2", "z3")) == "allow"
    assert refuse(PAGE + "/z2", allow=("z1$|z2", "z3")) is None


def test_long_urls_are_not_followed() -> None:
    """H41."""
    assert refuse("https://shop.example.co.uk/" + "x" * 3000) == "length"
    assert refuse("https://shop.example.co.uk/" + "x" * 3000, max_url_length=5000) is None


def test_paths_that_go_ever_deeper_are_not_followed() -> None:
    deep = "https://shop.example.co.uk/" + "/".join(str(n) for n in range(30))
    assert refuse(deep) == "segments"
    assert refuse(deep, max_segments=30) is None


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/a/a/a", None),
        ("/a/a/a/a", "repeats"),
        ("/a/b/a/b/a/b/a/b/", "repeats"),
        ("/x/y/x/z/x/w/x/v", "repeats"),
        ("/2024/01/01/news/01", None),
        ("/p?next=/a/a/a/a/a", None),
        ("////", None),
    ],
)
def test_paths_that_repeat_themselves_are_not_followed(path: str, reason: str | None) -> None:
    """H41."""
    assert refuse("https://shop.example.co.uk" + path) == reason


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/photo.JPG", "extension"),
        ("/app.js?v=3", "extension"),
        ("/a.zip", "extension"),
        ("/page.html", None),
        ("/page.php?f=x.zip", None),
        ("/v1.2/readme", None),
        ("/jpg", None),
        ("/", None),
    ],
)
def test_urls_with_file_extensions_are_not_followed(path: str, reason: str | None) -> None:
    assert refuse("https://shop.example.co.uk" + path) == reason


def test_allow_overrides_the_extensions() -> None:
    assert refuse(PAGE + ".zip") == "extension"
    assert refuse(PAGE + ".zip", allow=(r"\.zip$",)) is None


def test_a_host_that_ends_like_a_file_is_a_host() -> None:
    assert refuse("https://x.zip/", "https://x.zip/") is None


@given(st.text(alphabet="ab./?=", max_size=200))
def test_every_path_gets_an_answer(path: str) -> None:
    assert refuse("https://shop.example.co.uk/" + path) in {None, "length", "segments", "repeats", "extension"}


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12), st.integers(min_value=1, max_value=5))
def test_a_group_repeated_more_than_allowed_is_refused(group: list[str], times: int) -> None:
    url = "https://shop.example.co.uk/" + "/".join(group * times)
    if times > 3:
        assert refuse(url, max_segments=1000) == "repeats"


PARTS = st.sampled_from(["a", "b", "c.d", "x.zip", "y.html", "", "..", "a.JPG", "q?x/y/z.zip", "n" * 30, ".png", "e?f"])
HOSTS = st.sampled_from(["a.example", "www.a.example", "b.example", "s.a.example:81"])
URLS = st.lists(st.builds(lambda host, parts: f"http://{host}/{'/'.join(parts)}", HOSTS, st.lists(PARTS, max_size=8)))


@given(URLS)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        *({"scope": "any"}, {"scope": "domain"}, {"max_depth": 0}, {"deny": ("x",)}, {"allow": ("a",)}),
        *({"max_url_length": 40}, {"max_segments": 3}, {"max_repeats": 1}),
    ],
)
def test_many_links_are_judged_as_each_alone(settings: dict[str, Any], urls: list[str]) -> None:
    scope = Scope(Settings(**settings))
    for page in ("http://a.example/x", "http://www.a.example/"):
        assert scope.refusals(urls, page, 1) == [scope.refuse(url, page, 1) for url in urls]
