from __future__ import annotations

import pytest

from gossamer.extract import formatting
from gossamer.extract.page import Page
from gossamer.model import Request, Response

URL = "http://a.example/"


def page(body: bytes, content_type: str = "text/html; charset=utf-8") -> Page:
    return Page(Response(url=URL, status=200, headers=(("content-type", content_type),), body=body), Request(url=URL))


OPEN = b"".join(b"<b x=%d>" % number for number in range(2000))
PLACES = b"<p>x" * 4000
HIDDEN = {
    "plain": OPEN + PLACES,
    "bare": b"<b><i><u><s><em><tt><big><code><font><small><strike><strong>" * 3 + b"<p>x" * 400_000,
    "ends in comments": OPEN.replace(b">", b"><!--</b>-->") + PLACES,
    "ends in attributes": OPEN.replace(b">", b"><i a='</b>'></i>") + PLACES,
    "ends in scripts": OPEN.replace(b">", b"><script></b></script>") + PLACES,
    "ends behind tables": OPEN.replace(b">", b"><table></b></table>") + PLACES,
    "ends in cells that are none": OPEN.replace(b">", b"><td></b></td>") + PLACES,
    "starts in cells that are none": b"".join(b"<td><b x=%d></td>" % n for n in range(2000)) + PLACES,
    "starts in styles of pictures": b"".join(b"<svg><style><b x=%d></style>" % n for n in range(2000)) + PLACES,
    "ends in cdata": OPEN.replace(b">", b"><svg><![CDATA[></b>]]></svg>") + PLACES,
    "ends in selects": OPEN.replace(b">", b"><select></b></select>") + PLACES,
    "in capitals": OPEN.replace(b"<b ", b"<FONT\n") + PLACES,
}


@pytest.mark.parametrize("name", HIDDEN)
def test_unclosed_formatting_does_not_multiply(name: str) -> None:
    one = page(HIDDEN[name] + b"<a href=/end>end</a>")
    assert len(one.css("*")) < 900_000
    assert one.links() == ["http://a.example/end"]
    assert one.css("p::text").get() == "x" or one.css("p").xpath("string()").get() == "x"
    assert one.cut["formatting"]


@pytest.mark.parametrize("content_type", ["text/html; charset=utf-16le", "application/xhtml+xml"])
def test_formatting_in_other_forms_of_a_page_does_not_multiply(content_type: str) -> None:
    text = (OPEN + PLACES).decode()
    body = text.encode("utf-16le") if "16" in content_type else text.encode()
    one = page(body, content_type)
    assert len(one.css("*")) < 900_000
    assert one.cut["formatting"]


@pytest.mark.parametrize(
    "body",
    [
        b"<table>" + b"<tr><td><b class=a>x</b><td><font size=1><i>y</i></font>" * 30_000 + b"</table>",
        b"<p><b class=a>one <i class=b>two</i></b> <font color=red><em x=y>three</em></font>\n" * 30_000,
        b"<b x=1>" * 300 + b"<p>x" * 10_000,
    ],
)
def test_formatting_of_normal_pages_is_kept(body: bytes) -> None:
    assert formatting.is_suspicious(body)
    one = page(body)
    assert len(one.css("b, i, font, em")) >= 300
    assert not one.cut


def test_formatting_for_readers_without_frames_does_not_multiply() -> None:
    one = page(b"<frameset><noframes>" + OPEN + PLACES + b"<a href=/in>x</a><noframes><a href=/no></noframes>")
    assert one.links() == ["http://a.example/in"]


def test_dropped_tags_do_not_join_their_surroundings() -> None:
    hidden = b"".join(b"<<i>b y=%d>" % number for number in range(2000))
    one = page(b"<p>" + OPEN + hidden + PLACES)
    assert len(one.css("*")) < 5000
    assert one.cut["formatting"]


ROOTS = {
    "html": b"".join(b"<html a%d=1>" % number for number in range(30_000)),
    "body, in capitals": b"<p>" + b"".join(b"<BoDy\ta%d>" % number for number in range(30_000)),
    "few with many each": b"<p>"
    + b"".join(b"<html " + b"a%d " * 400 % (*range(40 * n, 40 * n + 400),) + b">" for n in range(500)),
    "tags between which another one is left out": b"".join(
        b"<html a%d><<body x>html b%d>" % (number, number) for number in range(30_000)
    ),
    "in styles of pictures": b"".join(b"<svg><style><body a%d></style></svg>" % number for number in range(30_000)),
    "ends in attributes": b"".join(b"<html a='>' b%d='>'>" % number for number in range(30_000)),
    "for readers without frames": b"<noframes>"
    + b"".join(b"<body a%d=1>" % number for number in range(30_000))
    + b"</noframes>",
}


@pytest.mark.parametrize("name", ROOTS)
def test_attributes_of_repeated_roots_do_not_multiply(name: str) -> None:
    """Without the guard most of them take ten gigabytes."""
    one = page(ROOTS[name] + b"<a href=/end>end</a>")
    assert one.links() == ["http://a.example/end"]
    assert sum(len(found.attrib) for found in one.css("html, body")) < 20_000
    assert bool(one.cut) == (name != "for readers without frames")


def test_repeated_roots_of_normal_pages_are_kept() -> None:
    parts = b"<html lang=en><body class=part><p>x" * 40
    one = page(b"<html lang=en><body>" + parts + b"<p>y" * 60_000)
    assert one.css("html").attrib == {"lang": "en"}
    assert one.css("body").attrib == {"class": "part"}
    assert not one.cut
