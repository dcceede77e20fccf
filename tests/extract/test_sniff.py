from __future__ import annotations

import zipfile
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.extract.page import Page
from gossamer.extract.sniff import is_html
from gossamer.model import Request, Response


def zipped() -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("index.html", "<a href=/inside>x</a>")
    return out.getvalue()


FOREIGN = {
    "pdf": b"%PDF-1.7\n<a href=/x>",
    "zip": zipped(),
    "elf": b"\x7fELF\x02\x01\x01" + b"\0" * 50,
    "exe": b"MZ\x90\0\x03\0\0\0",
    "gif with markup": b"GIF89a\x01\0\x01\0<a href=/x>x</a>",
    "png": b"\x89PNG\r\n\x1a\n" + b"\0" * 20,
    "jpeg": b"\xff\xd8\xff\xe0\0\x10JFIF",
    "webp": b"RIFF\x24\0\0\0WEBPVP8 ",
    "mp4": b"\0\0\0\x18ftypmp42",
    "gzip": b"\x1f\x8b\x08\0",
    "nulls": b"\0" * 5000,
    "nulls and markup": b"<a href=/x>" + b"\0" * 800 + b"<p>",
    "noise": bytes(range(32)) * 40,
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("content_type", ["text/html", "text/html; charset=utf-8", ""])
def test_what_is_not_html_is_not_parsed_whatever_its_type_says(kind: str, content_type: str) -> None:
    """H29, H40."""
    headers = (("content-type", content_type),) if content_type else ()
    page = Page(Response(url="http://a/", status=200, headers=headers, body=FOREIGN[kind]), Request(url="http://a/"))
    assert not page.is_html
    assert page.links() == []
    assert (page.title, page.text, page.css("a").getall(), page.xpath("//a").getall()) == ("", "", [], [])


@pytest.mark.parametrize(
    ("body", "content_type", "expected"),
    [
        (b"plain words", "text/html", True),
        (b"", "text/html", True),
        (b"BMW and MZ are makers of motorcycles", "text/html", True),
        (b"<p>\0a stray null</p>" + b"x" * 100, "text/html", True),
        (b"  \n<!DOCTYPE HTML><p>", "", True),
        (b"<html><p>", "application/octet-stream", True),
        (b"<!-- x --><p>", "text/plain", True),
        (b"plain words", "", False),
        (b"<bold>words", "text/plain", False),
        (b'<?xml version="1.0"?><html xmlns="x">', "application/xml", True),
        (b'<?xml version="1.0"?><rss>', "application/xml", False),
        (b"<html>", "image/png", False),
        (b"<html>", "application/json", False),
        (b"<html>", "application/xhtml+xml", True),
        (b"<html>", "TEXT/HTML ;charset=x", True),
        ("<html>".encode("utf-16"), "text/html", True),
        ("<html>".encode("utf-16-le"), "text/html", True),
    ],
)
def test_type_and_first_bytes_decide(body: bytes, content_type: str, *, expected: bool) -> None:
    """H29."""
    assert is_html(body, content_type) is expected


@given(st.binary(max_size=2000), st.text(max_size=30))
def test_any_body_can_be_looked_at(body: bytes, content_type: str) -> None:
    assert is_html(body, content_type) in {True, False}
