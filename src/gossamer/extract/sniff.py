"""The type of a body by the WHATWG standard: what its headers say, and its first bytes where they say nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gossamer.extract import mime

HEAD_BYTES = 1445

_UNKNOWN = frozenset({"", "unknown/unknown", "application/unknown", "*/*"})
# An old Apache said these for whatever it did not know.
_APACHE = frozenset(
    {
        "text/plain",
        "text/plain; charset=ISO-8859-1",
        "text/plain; charset=iso-8859-1",
        "text/plain; charset=UTF-8",
    }
)
_XHTML = frozenset({"application/xhtml+xml", "application/vnd.wap.xhtml+xml"})
_SNIFF_SPACES = b"\t\n\f\r "
_BINARY = bytes([*range(0x09), 0x0B, *range(0x0E, 0x1B), *range(0x1C, 0x20)])
_BOMS = (b"\xfe\xff", b"\xff\xfe", b"\xef\xbb\xbf")

_TAGS = b"<!doctype html|<html|<head|<script|<iframe|<h1|<div|<font|<table|<a|<style|<title|<b|<body|<br|<p"
_HTML_STARTS = (*(tag + end for tag in _TAGS.split(b"|") for end in (b" ", b">")), b"<!--")
_LONGEST_START = max(map(len, _HTML_STARTS))
_PATTERNS = (
    *((b"%!PS-Adobe-", "application/postscript"), (b"BM", "image/bmp")),
    *((b"\0\0\1\0", "image/x-icon"), (b"\0\0\2\0", "image/x-icon")),
    *((b"GIF87a", "image/gif"), (b"GIF89a", "image/gif"), (b"\x89PNG\r\n\x1a\n", "image/png")),
    *((b"\xff\xd8\xff", "image/jpeg"), (b"ID3", "audio/mpeg"), (b"OggS\0", "application/ogg")),
    *((b"MThd\0\0\0\6", "audio/midi"), (b"\x1f\x8b\x08", "application/x-gzip")),
    *((b"PK\3\4", "application/zip"), (b"Rar!\x1a\x07", "application/x-rar-compressed")),
)
# The type of the document inside, with its length in one to eight bytes.
_WEBM = re.compile(rb"\x42\x82(?:[\x80-\xff]|[\x40-\x7f].|[\x20-\x3f]..|[\x10-\x1f]...)\0*webm", re.DOTALL)
_FORMS = {b"WEBPVP": "image/webp", b"AVI ": "video/avi", b"WAVE": "audio/wave"}

# The first bytes of what is not a page though its type says so.
_FOREIGN = (
    *(b"%PDF-", b"%!PS", b"SQLite format 3\0", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", b"ITSF"),
    *(b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07"),
    *(b"\x28\xb5\x2f\xfd", b"!<arch>\n", b"\x7fELF", b"MZ", b"\0asm", b"\xca\xfe\xba\xbe", b"\xcf\xfa\xed\xfe"),
    *(b"GIF87a", b"GIF89a", b"\x89PNG\r\n", b"\xff\xd8\xff", b"BM", b"II*\0", b"MM\0*", b"\0\0\1\0"),
    *(b"OggS", b"fLaC", b"ID3", b"\xff\xfb", b"\x1aE\xdf\xa3", b"FLV\1", b"CWS", b"FWS", b"wOFF", b"wOF2"),
)
_LETTERS_ONLY = (b"BM", b"MZ", b"ID3", b"CWS", b"FWS", b"BZh", b"ITSF")


def computed_type(body: bytes, content_types: Sequence[str] = (), *, nosniff: bool = False) -> str:
    """The essence of the type that a browser would take the body for; reads at most its first 1445 bytes.

    A type that is said counts, but for none at all, for the `text/plain` of old servers, which may hide a file, and for
    the kinds of images, sounds and films, which are told apart by their bytes.
    With `nosniff` a body without a type is not looked at for markup or scripts, as in PDF, either."""
    supplied = mime.of_headers(content_types)
    head = body[:HEAD_BYTES]
    if supplied is None or supplied.essence in _UNKNOWN:
        return _unknown(head, scriptable=not nosniff)
    essence = supplied.essence
    if nosniff:
        return essence
    if len(content_types) == 1 and content_types[0] in _APACHE:
        return "text/plain" if head.startswith(_BOMS) or not _controls(head) else "application/octet-stream"
    if essence.endswith("+xml"):
        return essence
    kinds = ("image/",) if essence.startswith("image/") else ("audio/", "video/", "application/ogg")
    if essence.startswith(kinds):
        found = _by_pattern(head)
        return found if found.startswith(kinds) else essence
    return essence


def is_html(body: bytes, essence: str) -> bool:
    """Whether to parse a body of this computed type as HTML: not if it is plainly something else."""
    if essence == "text/html" or essence in _XHTML:
        return not _foreign(body[:HEAD_BYTES])
    if essence not in ("text/xml", "application/xml"):
        return False
    # XHTML is XML whose elements say so themselves.
    head = body[:HEAD_BYTES].lower()
    return b"<html" in head and not _foreign(head)


def is_xml(essence: str) -> bool:
    """Whether a body of this type is XML: a feed, a picture in SVG, or any other."""
    return essence in ("text/xml", "application/xml") or essence.endswith("+xml")


def is_text(essence: str) -> bool:
    """Whether a body of this type is text: its bytes mean letters in some encoding."""
    found = mime.parse(essence)
    return essence.startswith("text/") or (found is not None and bool(found.groups & {"XML", "JSON", "JavaScript"}))


def _unknown(head: bytes, *, scriptable: bool) -> str:
    """The standard's rules for a body whose type nobody said."""
    if scriptable:
        start = head.lstrip(_SNIFF_SPACES)
        if start[:_LONGEST_START].lower().startswith(_HTML_STARTS):
            return "text/html"
        if start.startswith(b"<?xml"):
            return "text/xml"
        if head.startswith(b"%PDF-"):
            return "application/pdf"
    if head.startswith(_BOMS):
        return "text/plain"
    return _by_pattern(head) or ("application/octet-stream" if _controls(head) else "text/plain")


def _by_pattern(head: bytes) -> str:
    """The type of an image, a sound, a film or an archive, by its first bytes; empty if it is none."""
    for pattern, essence in _PATTERNS:
        if head.startswith(pattern):
            return essence
    if head[:4] == b"FORM":
        return "audio/aiff" if head[8:12] == b"AIFF" else ""
    if head[:4] == b"RIFF":
        return next((essence for mark, essence in _FORMS.items() if head[8:14].startswith(mark)), "")
    if head.startswith(b"\x1aE\xdf\xa3"):
        return "video/webm" if _WEBM.search(head[4:64]) else ""
    size = int.from_bytes(head[:4], "big")
    if head[4:8] == b"ftyp" and size <= len(head) and size % 4 == 0:
        return "video/mp4" if any(head[at : at + 3] == b"mp4" for at in (8, *range(16, size, 4))) else ""
    return ""


def _foreign(head: bytes) -> bool:
    if head.startswith((b"\xfe\xff", b"\xff\xfe", b"<\0", b"\0<")):
        return False
    if head.startswith(_FOREIGN):
        # A few letters are little to go by: text may start with them too.
        return not head.startswith(_LETTERS_ONLY) or _controls(head) > 0
    if head[:4] == b"RIFF" or head[4:8] == b"ftyp":
        return True
    return _controls(head) * 16 > len(head)


def _controls(head: bytes) -> int:
    """How many bytes there are that no text has."""
    return len(head) - len(head.translate(None, _BINARY))
