"""Robots directives of pages, H47."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.extract.metadata import read
from gossamer.extract.page import Page
from gossamer.model import Request, Response

NOW = 1_800_000_000.0


def asked(*headers: str, **metas: str) -> tuple[str, ...]:
    return read(headers, list(metas.items()), agent="gossamer", now=NOW).words


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        (["noindex"], {"noindex"}),
        (["NOINDEX , NoFollow"], {"noindex", "nofollow"}),
        (["none"], {"noindex", "nofollow"}),
        (["all", "index, follow", ""], set()),
        (["noarchive", "nofollow"], {"noarchive", "nofollow"}),
        (["otherbot: noindex, nofollow"], set()),
        (["otherbot: noindex, Gossamer: nofollow"], {"nofollow"}),
        (["gossamer: none, otherbot: noarchive"], {"noindex", "nofollow"}),
        (["nofollow, otherbot: noindex"], {"nofollow"}),
        (["*: nofollow"], {"nofollow"}),
        (["otherbot: gossamer: noindex"], {"noindex"}),
        (["gossamer: otherbot: noindex, nofollow"], set()),
        (["gossamer: max-snippet: 5"], {"max-snippet:5"}),
        (["max-snippet: 20, nofollow"], {"max-snippet:20", "nofollow"}),
        (["max-image-preview:large"], {"max-image-preview:large"}),
        (["noindex nofollow"], {"noindex", "nofollow"}),
        (["noindex; nofollow"], {"noindex", "nofollow"}),
        (["nofollowing"], {"nofollowing"}),
    ],
)
def test_x_robots_tag_applies_to_all_or_one_agent(headers: list[str], words: set[str]) -> None:
    """H47."""
    assert set(asked(*headers)) == words


@pytest.mark.parametrize(
    "date",
    [
        "25 Jun 2010 15:00:00 PST",
        "Friday, 25-Jun-10 23:00:00 GMT",
        "Fri, 25 Jun 2010 23:00:00 GMT",
        "2010-06-25T23:00:00Z",
        "2010-06-26T01:00:00+02:00",
    ],
)
def test_unavailable_after_means_noindex_in_every_date_format(date: str) -> None:
    """H47."""
    words = asked(f"nofollow, unavailable_after: {date}, noarchive")
    assert set(words) == {"nofollow", "noarchive", "noindex", "unavailable_after:2010-06-25T23:00:00Z"}
    assert asked(robots=f"unavailable_after: {date}")[-1] == "noindex"


def test_unavailable_after_in_the_future_has_no_effect() -> None:
    """H47."""
    found = read(["unavailable_after: 2099-01-01"], [], agent="", now=NOW)
    assert not found.noindex
    assert found.unavailable_after == 4_070_908_800.0
    assert asked("unavailable_after: some day") == ()


def test_metas_for_all_and_for_this_agent_combine() -> None:
    """H47."""
    assert set(asked(robots="noindex", gossamer="nofollow")) == {"noindex", "nofollow"}
    assert asked(googlebot="none", viewport="noindex") == ()


def test_page_has_its_robots_directives() -> None:
    """H47."""
    html = b'<meta name="MyBot" content="nofollow"><meta name=robots content=noarchive><a href=/x>'
    headers = (("content-type", "text/html"), ("x-robots-tag", "noindex"), ("x-robots-tag", "otherbot: nosnippet"))
    response = Response(url="http://a.test/", status=200, headers=headers, body=html)
    ours = Page(response, Request("http://a.test/"), robot="mybot")
    assert str(ours.robots) == "noindex, nofollow, noarchive"
    assert "NoArchive" in ours.robots
    assert (ours.links(), ours.links(nofollow=False)) == ([], ["http://a.test/x"])
    other = Page(response, Request("http://a.test/"), nofollow=False)
    assert (str(other.robots), other.links()) == ("noindex, noarchive", ["http://a.test/x"])
    file = Page(
        Response(url="http://a.test/f", status=200, headers=(("x-robots-tag", "noindex"),), body=b"%PDF-"), Request("x")
    )
    assert file.robots.noindex


@given(st.text(alphabet="noindex: ,;unavailable_after0123TZ-*", max_size=60))
def test_any_directive_can_be_parsed(text: str) -> None:
    found = read([text], [("robots", text)], agent="gossamer", now=NOW)
    assert len(set(found.words)) == len(found.words)
