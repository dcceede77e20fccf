"""The next page of a list, and the addresses of APIs."""

from __future__ import annotations

import pytest

from gossamer.extract.page import Page
from gossamer.model import Request, Response


def page(html: str = "", *links: str, url: str = "http://a.test/list?page=2&q=x") -> Page:
    headers = (("content-type", "text/html"), *(("link", link) for link in links))
    return Page(Response(url=url, status=200, headers=headers, body=html.encode()), Request(url, label="list"))


@pytest.mark.parametrize(
    ("html", "link", "found"),
    [
        ("", '<https://a.test/3>; rel="next"', "https://a.test/3"),
        ("", '</1>; rel=prev, <?page=3&a=1,2>; title="a, b; c"; rel="last NEXT"', "http://a.test/list?page=3&a=1,2"),
        ("", '</9>; title="; rel=next"', None),
        ("", "</3>;rel=next", "http://a.test/3"),
        ('<link rel="next" href="/3">', "", "http://a.test/3"),
        ('<base href="/b/"><a rel="nofollow next" href="3">', "", "http://a.test/b/3"),
        ('<a class="more" href="/more">', "", "http://a.test/more"),
        ('<a rel="next" href="?page=2&amp;q=x">', "", None),
        ("<p>", "", None),
        ("", "<" * 60_000 + "</3>; rel=" + '"' * 1000, None),
        ("", "<a>" + ";a=b" * 10_000 + ' "', None),
    ],
)
def test_next_page_is_found(html: str, link: str, found: str | None) -> None:
    request = page(html, *((link,) if link else ())).next_page(".more")
    assert (request.url if request else None) == found
    assert request is None or request.label == "list"


def test_with_query_changes_only_given_parameters() -> None:
    here = page(url="http://a.test/list?page=2&q=a%20b&page=9&e=")
    assert here.with_query(page=3, size=10) == "http://a.test/list?page=3&q=a+b&e=&size=10"
    assert here.with_query(page=None, q=None, e=None) == "http://a.test/list"
    assert (
        here.follow(here.with_query(cursor="a/b=")).url == "http://a.test/list?page=2&q=a+b&page=9&e=&cursor=a%2Fb%3D"
    )
