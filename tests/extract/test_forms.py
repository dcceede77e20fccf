"""Forms are sent as a browser sends them, and secrets are named, not written."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl

import pytest

from gossamer.errors import ExtractError
from gossamer.extract.page import Page
from gossamer.model import Request, Response, secret

LOGIN = """
<form id="search" action="/find"><input name="q" value="tea"><button>Go</button></form>
<form id="login" action="../in?x=1" method="post">
  <input type="hidden" name="token" value="a&amp;b ${secret:KEY}">
  <input name="user"><input type="password" name="word">
  <input type="checkbox" name="stay" checked><input type="checkbox" name="spam" value="yes">
  <input type="radio" name="side" value="l"><input type="radio" name="side" value="r" checked>
  <select name="land"><option value="de">D</option><option selected>F r</option></select>
  <select name="many" multiple><option selected>1</option><option>2</option><option selected value="3">x</select>
  <select name="first"><option disabled>no</option><option>yes</option></select>
  <textarea name="note">
one
two</textarea>
  <input name="off" value="1" disabled><fieldset disabled><input name="off2" value="1"></fieldset>
  <input type="file" name="up"><input type="reset" name="r" value="r"><button type="button" name="b">b</button>
  <input type="submit" name="go" value="in"><button name="go" value="other" id="second" formaction="/else">x</button>
</form>
<input name="late" value="2" form="login"><input name="stray" value="3">
"""
SENT = [
    ("token", "a&b ${secret:KEY}"),
    ("user", ""),
    ("word", ""),
    ("stay", "on"),
    ("side", "r"),
    ("land", "F r"),
    ("many", "1"),
    ("many", "3"),
    ("first", "yes"),
    ("note", "one\r\ntwo"),
    ("go", "in"),
    ("late", "2"),
]


def page(html: str, content_type: str = "text/html; charset=utf-8") -> Page:
    url = "http://a.test/deep/page"
    body = html.encode(content_type.partition("charset=")[2])
    return Page(Response(url=url, status=200, headers=(("content-type", content_type),), body=body), Request(url))


def fields(request: Request) -> list[tuple[str, str]]:
    return parse_qsl(request.body.decode(), keep_blank_values=True)


def test_form_submits_like_a_browser() -> None:
    request = page(LOGIN).form()
    assert (request.method, request.url, request.referrer) == (
        "POST",
        "http://a.test/in?x=1",
        "http://a.test/deep/page",
    )
    assert request.headers == {"content-type": "application/x-www-form-urlencoded"}
    assert fields(request) == SENT


def test_given_values_replace_the_forms_own() -> None:
    given: dict[str, Any] = {"user": "Zoë", "stay": None, "many": ["2"], "side": "l", "new": "n"}
    found = fields(page(LOGIN).form("#login input", given))
    assert [pair for pair in found if pair[0] in given] == [("user", "Zoë"), ("side", "l"), ("many", "2"), ("new", "n")]


def test_submit_button_can_be_chosen_or_omitted() -> None:
    other = page(LOGIN).form("#login", click="second")
    assert other.url == "http://a.test/else"
    assert [pair for pair in fields(other) if pair[0] == "go"] == [("go", "other")]
    assert not [pair for pair in fields(page(LOGIN).form("#login", click="")) if pair[0] == "go"]


def test_form_without_a_method_uses_get() -> None:
    request = page(LOGIN).form("#search", {"q": "green tea"})
    assert (request.method, request.url, request.body) == ("GET", "http://a.test/find?q=green+tea", b"")
    with pytest.raises(ExtractError, match="secret"):
        page(LOGIN).form("#search", {"q": secret("KEY")})


def test_form_uses_the_pages_encoding() -> None:
    html = '<form method=post><input name="café" value="ü€中"></form>'
    assert page(html.replace("€中", ""), "text/html; charset=iso-8859-1").form().body == b"caf%E9=%FC"
    assert page(html).form().body == b"caf%C3%A9=%C3%BC%E2%82%AC%E4%B8%AD"
    given = page("<form method=post>", "text/html; charset=iso-8859-1").form("", {"a": "中"})
    assert given.body == b"a=%26%2320013%3B"
    given = page("<form method=post>", "text/html; charset=gbk").form("", {"a": "한"})
    assert given.body == b"a=%26%2354620%3B"


def test_nothing_is_sent_in_utf_16() -> None:
    assert page("<form method=post accept-charset=utf-16>").form("", {"a": "é"}).body == b"a=%C3%A9"


def test_multipart_form_data() -> None:
    form = '<form method=post enctype="multipart/form-data"><input name=\'a"b\' value="1"><input name="c"></form>'
    request = page(form).form("", {"c": secret("KEY")})
    kind = (request.headers or {})["content-type"]
    mark = b"--" + kind.partition("boundary=")[2].encode()
    one = b'\r\nContent-Disposition: form-data; name="a%22b"\r\n\r\n1\r\n'
    two = b'\r\nContent-Disposition: form-data; name="c"\r\n\r\n${secret:KEY}\r\n'
    assert request.body == mark + one + mark + two + mark + b"--\r\n"
    assert page(form).form("", {"c": secret("KEY")}) == request
    with pytest.raises(ExtractError, match="secret"):
        page(form.replace('"1"', '"${secret:KEY}"')).form()


def test_page_content_cannot_name_a_secret() -> None:
    """H66: a page that knows how secrets are named gets the name back, and not the secret."""
    request = page(LOGIN).form("#login", {"word": secret("KEY")})
    assert request.body.count(b"${secret:KEY}") == 1
    assert b"word=${secret:KEY}" in request.body
    theirs = "${secret:KEY}"
    posted = page("").follow("/api", json={"a": theirs, theirs: [theirs, 1.5, None], "mine": secret("KEY")})
    assert posted.body.count(b"${secret:KEY}") == 1
    assert json.loads(posted.body) == {"a": theirs, theirs: [theirs, 1.5, None], "mine": theirs}
    assert (posted.method, (posted.headers or {})["content-type"]) == ("POST", "application/json")
    assert (
        page("").follow("/api", json={"a": secret("KEY")}).body
        == page("").follow("/api", json={"a": secret("KEY")}).body
    )


@pytest.mark.parametrize("query", ["", "#none", "p"])
def test_missing_form_is_an_error(query: str) -> None:
    with pytest.raises(ExtractError, match="form"):
        page("<p>nothing</p>").form(query)
