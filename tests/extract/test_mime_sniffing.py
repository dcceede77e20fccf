from __future__ import annotations

import zipfile
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.extract.mime import computed_type, is_html, is_text
from gossamer.extract.page import Page
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
    "mp4": b"\0\0\0\x18ftypmp42" + b"\0" * 12,
    "gzip": b"\x1f\x8b\x08\0",
    "nulls": b"\0" * 5000,
    "nulls and markup": b"<a href=/x>" + b"\0" * 800 + b"<p>",
    "noise": bytes(range(32)) * 40,
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("content_type", ["text/html", "text/html; charset=utf-8", ""])
def test_non_html_is_not_parsed_despite_its_type(kind: str, content_type: str) -> None:
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
        (b"<html><p>", "*/*", True),
        (b"<html><p>", "gibberish", True),
        # A type that is said counts, as in a browser: source code is served as text/plain.
        (b"<html><p>", "application/octet-stream", False),
        (b"<!-- x --><p>", "text/plain", False),
        (b"plain words", "", False),
        (b"<bold>words", "", False),
        (b'<?xml version="1.0"?><html xmlns="x">', "application/xml", True),
        (b'<?xml version="1.0"?><html xmlns="x">', "", True),
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
    assert is_html(body, computed_type(body, [content_type] if content_type else [])) is expected


@pytest.mark.parametrize(
    ("body", "content_types", "expected"),
    [
        (b"<html>", ["text/html", "text/plain"], "text/plain"),
        (b"<html>", ["text/html;charset=gbk", "*/*"], "text/html"),
        (b"words", [], "text/plain"),
        (b"\0\1", [], "application/octet-stream"),
        (b"\0\1", ["text/plain"], "application/octet-stream"),
        (b"\0\1", ["text/plain; charset=UTF-8"], "application/octet-stream"),
        (b"\xfe\xff\0a", ["text/plain"], "text/plain"),
        (b"\0\1", ["text/plain;charset=utf-8"], "text/plain"),
        (b"%PDF-1.4", [], "application/pdf"),
        (FOREIGN["mp4"], [], "video/mp4"),
        (FOREIGN["webp"], [], "image/webp"),
        (FOREIGN["zip"], [], "application/zip"),
        (b"{}", ["application/ld+json"], "application/ld+json"),
    ],
)
def test_computed_type_follows_the_standard(body: bytes, content_types: list[str], expected: str) -> None:
    assert computed_type(body, content_types) == expected


def test_nosniff_does_not_sniff_markup() -> None:
    assert computed_type(b"<html>", nosniff=True) == "text/plain"
    assert computed_type(b"\0", ["text/plain"], nosniff=True) == "text/plain"
    headers = (("x-content-type-options", "NoSniff"),)
    page = Page(Response(url="http://a/", status=200, headers=headers, body=b"<html><a href=/x>"), Request("http://a/"))
    assert (page.mime_type, page.is_html, page.is_text, page.links()) == ("text/plain", False, True, [])


def test_text_is_distinguished_from_binary() -> None:
    texts = ("text/html", "application/json", "application/rss+xml", "text/javascript")
    assert all(map(is_text, texts))
    assert not any(map(is_text, ("image/png", "application/octet-stream", "")))


@given(st.binary(max_size=2000), st.lists(st.text(max_size=30), max_size=3))
def test_any_body_can_be_sniffed(body: bytes, content_types: list[str]) -> None:
    assert is_html(body, computed_type(body, content_types)) in {True, False}


@pytest.mark.parametrize(
    ("body", "supplied", "computed"),
    [
        (b"\x89PNG\r\n\x1a\n", "image/gif", "image/png"),
        (b"<svg>", "image/svg+xml", "image/svg+xml"),
        (b"plain", "image/gif", "image/gif"),
        (b"RIFF1234WAVE", "video/mp4", "audio/wave"),
        (b"GIF89a", "video/mp4", "video/mp4"),
        (b"\x1aE\xdf\xa3\x9fB\x82\x84webm", "", "video/webm"),
        (b"\x1aE\xdf\xa3\x9fB\x82\x88matroska", "", "application/octet-stream"),
        (b"\0\0\0\x18ftypisom\0\0\2\0isommp41", "", "video/mp4"),
        (b"\0\0\0\x17ftypmp42\0\0\2\0isommp41", "", "application/octet-stream"),
        (b"<?xml version='1.0'?><rss>", "text/html", "text/html"),
        (b"<feed xmlns='x'>", "text/html; charset=utf-8", "text/html"),
    ],
)
def test_type_groups_follow_the_standard(body: bytes, supplied: str, computed: str) -> None:
    assert computed_type(body, [supplied] if supplied else []) == computed
    if supplied:
        assert computed_type(body, [supplied], nosniff=True) == supplied.partition(";")[0]


def test_nosniff_finds_no_scriptable_types() -> None:
    for body in (b"<html>", b"<?xml ?>", b"%PDF-1.4"):
        assert computed_type(body, [], nosniff=True) == "text/plain"
    assert computed_type(b"%!PS-Adobe-3.0", [], nosniff=True) == "application/postscript"
