from __future__ import annotations

from typing import Any

import pytest
import turbohtml

from gossamer.errors import ExtractError
from gossamer.extract.page import Page
from gossamer.model import Request, Response

URL = "http://a.example/dir/page.html"


def page(html: str | bytes, *, content_type: str = "text/html; charset=utf-8", request: Request | None = None) -> Page:
    body = html if isinstance(html, bytes) else html.encode()
    headers = (("content-type", content_type), ("x-thing", "1"), ("x-thing", "2"))
    return Page(Response(url=URL, status=203, headers=headers, body=body), request or Request(url=URL))


def test_page_has_response_and_request_fields() -> None:
    request = Request(url="http://a.example/", depth=3, label="item", meta={"n": 1}, referrer="http://a.example/from")
    one = page("<p>x", request=request)
    assert (one.url, one.status, one.body) == (URL, 203, b"<p>x")
    assert (one.depth, one.label, one.meta, one.referrer) == (3, "item", {"n": 1}, "http://a.example/from")
    assert one.header("X-Thing") == "1"
    assert one.header("nope", "none") == "none"
    assert ("x-thing", "2") in one.headers
    assert page("x").meta == {}


def test_page_is_parsed_lazily_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[object] = []
    whole = turbohtml.parse

    def parse(*given: Any, **options: Any) -> turbohtml.Document:
        parsed.append(given)
        return whole(*given, **options)

    monkeypatch.setattr("gossamer.extract.page.turbohtml.parse", parse)
    one = page("<title>t</title><p>x")
    assert (one.url, one.status, one.body, one.header("x-thing"), one.html) == (
        *(URL, 203, b"<title>t</title><p>x", "1", "<title>t</title><p>x"),
    )
    assert parsed == []
    assert (one.css("p::text").get(), one.title, one.text) == ("x", "t", "x")
    assert len(parsed) == 1


def test_title_white_space_is_collapsed() -> None:
    assert page("<title>\n A  &amp;\tB </title>").title == "A & B"
    assert page("<p>none").title == ""
    assert page("<title></title><title>second</title>").title == ""


def test_svg_title_is_not_the_page_title() -> None:
    assert page("<body><svg><g><title>icon</title></g></svg><p>x").title == ""
    assert page("<body><svg><title>icon</title></svg><title>real</title>").title == "real"


def test_title_after_a_head_that_was_closed_early_is_found() -> None:
    assert page("<head><noscript><img src=x></noscript><title>late</title></head>").title == "late"


def test_byte_order_mark_does_not_push_the_title_into_the_body() -> None:
    one = page(b"\xef\xbb\xbf<title>t</title><p>x")
    assert one.title == "t"
    assert one.tree.select_one("head title") is not None
    assert one.text == "x"


def test_pages_in_other_encodings_are_decoded() -> None:
    one = page("<title>Привет</title>".encode("cp1251"), content_type="text/html; charset=windows-1251")
    assert (one.encoding, one.title, one.html) == ("windows-1251", "Привет", "<title>Привет</title>")
    assert one.xpath("//title/text()").get() == "Привет"


def test_invalid_utf_8_is_replaced() -> None:
    one = page(b"<title>a\xffb</title><a href='/\xff'>x</a>")
    assert one.title == "a\ufffdb"
    assert one.links() == ["http://a.example/%EF%BF%BD"]


def test_text_is_the_visible_text() -> None:
    html = """<head><title>no</title><style>no</style></head><body><h1>Big
    title</h1><script>no</script><p>one <b>bo</b>ld<br>two</p><template>no</template><noscript>no</noscript>
    <ul><li>a<li>b</ul><table><tr><td>c</td><td>d</td></tr></table><!-- no --><svg><text>no</text></svg>tail"""
    assert page(html).text == "Big title\none bold\ntwo\na\nb\nc d\ntail"
    assert page("<p>one\n\n\ntwo\0three").text == "one twothree"
    assert page("").text == ""


def test_invalid_json_error_has_the_url() -> None:
    assert page('{"a": [1]}', content_type="application/json").json() == {"a": [1]}
    with pytest.raises(ExtractError, match=URL):
        page("<p>", content_type="application/json").json()
    with pytest.raises(ExtractError):
        page("[" * 100_000, content_type="application/json").json()


def test_follow_makes_a_request_from_an_href_or_an_element() -> None:
    one = page('<base href="/b/"><a class=n href="next?x=1&amp;y=2">n</a>')
    request = one.follow("item", label="item", meta={"a": 1}, priority=5, headers={"accept": "x"})
    assert request.url == "http://a.example/b/item"
    assert (request.label, request.meta, request.priority, request.headers) == ("item", {"a": 1}, 5, {"accept": "x"})
    assert request.referrer == URL
    for target in (one.css("a.n"), one.css("a.n::attr(href)"), one.xpath("//a"), one.xpath("//a/@href")):
        assert one.follow(target).url == "http://a.example/b/next?x=1&y=2"
    posted = one.follow("form", method="post", body=b"x=1")
    assert (posted.method, posted.body) == ("POST", b"x=1")


@pytest.mark.parametrize("href", ["javascript:x", "mailto:a@b", "http://[bad", "http://u:p@x/"])
def test_follow_names_a_url_that_it_refuses(href: str) -> None:
    with pytest.raises(ExtractError) as error:
        page("").follow(href)
    assert repr(href) in str(error.value)
    assert URL in str(error.value)


def test_follow_refuses_a_selection_without_href() -> None:
    one = page("<p>x</p>")
    with pytest.raises(ExtractError, match="empty"):
        one.follow(one.css("a"))
    with pytest.raises(ExtractError, match="no href"):
        one.follow(one.css("p"))


def test_follow_all_accepts_selectors_or_urls_and_skips_invalid_ones() -> None:
    one = page("<a href=/1>1</a><a href=/2>2</a><a href=/1>1</a><a href=mailto:x>m</a><a>none</a>")
    expected = ["http://a.example/1", "http://a.example/2"]
    assert [request.url for request in one.follow_all("a")] == expected
    assert [request.url for request in one.follow_all(css="a::attr(href)")] == expected
    assert [request.url for request in one.follow_all(xpath="//a/@href")] == expected
    assert [request.url for request in one.follow_all(["/1", "javascript:x", "/2"], label="x")] == expected
    assert {request.label for request in one.follow_all("a", label="x")} == {"x"}


def test_follow_writes_the_query_in_the_encoding_of_the_page() -> None:
    one = page("<p>ß".encode("cp1252"), content_type="text/html; charset=windows-1252")
    assert one.follow("/x?q=ß").url == "http://a.example/x?q=%DF"


def test_lone_surrogates_are_handled() -> None:
    one = page(b"<title>\xed\xa0\x80</title><a href='/\xed\xa0\x80'>x</a>")
    assert "\ufffd" in one.title
    assert len(one.links()) == 1
    assert isinstance(one.text, str)
