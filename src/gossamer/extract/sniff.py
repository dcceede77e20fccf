"""Whether a body is HTML: by its type, and by a look at its first bytes, because types lie."""

from __future__ import annotations

SNIFF_BYTES = 1024

_HTML_TYPES = frozenset({"text/html", "application/xhtml+xml", "application/vnd.wap.xhtml+xml"})
_UNSURE_TYPES = frozenset(
    {"", "text/plain", "application/octet-stream", "unknown/unknown", "*/*", "text/xml", "application/xml"}
)
_SPACES = b"\t\n\f\r "

# The first bytes of what is not a page, whatever its type says.
_FOREIGN = (
    *(b"%PDF-", b"%!PS", b"SQLite format 3\0", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", b"ITSF"),
    *(b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07"),
    *(b"\x28\xb5\x2f\xfd", b"!<arch>\n", b"\x7fELF", b"MZ", b"\0asm", b"\xca\xfe\xba\xbe", b"\xcf\xfa\xed\xfe"),
    *(b"GIF87a", b"GIF89a", b"\x89PNG\r\n", b"\xff\xd8\xff", b"BM", b"II*\0", b"MM\0*", b"\0\0\1\0"),
    *(b"OggS", b"fLaC", b"ID3", b"\xff\xfb", b"\x1aE\xdf\xa3", b"FLV\1", b"CWS", b"FWS", b"wOFF", b"wOF2"),
)
_LETTERS_ONLY = (b"BM", b"MZ", b"ID3", b"CWS", b"FWS", b"BZh", b"ITSF")
_BINARY = bytes([*range(0x09), 0x0B, *range(0x0E, 0x1B), *range(0x1C, 0x20)])
_TAGS = b"<!doctype html|<html|<head|<script|<iframe|<h1|<div|<font|<table|<a|<style|<title|<b|<body|<br|<p|<meta"
_HTML_STARTS = tuple(_TAGS.split(b"|"))


def is_html(body: bytes, content_type: str) -> bool:
    """Whether to parse a body as HTML; reads at most its first KiB."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind in _HTML_TYPES:
        return not _foreign(body[:SNIFF_BYTES])
    if kind not in _UNSURE_TYPES:
        return False
    return not _foreign(body[:SNIFF_BYTES]) and _looks_like_html(body[:SNIFF_BYTES])


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


def _looks_like_html(head: bytes) -> bool:
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip(_SPACES)
    if start[:5] == b"<?xml":
        return b"<html" in start.lower()
    lowered = start[:16].lower()
    if lowered.startswith(b"<!--"):
        return True
    ends = {b" ", b">", b"\n", b"\t", b"\r", b""}
    return any(lowered.startswith(tag) and lowered[len(tag) : len(tag) + 1] in ends for tag in _HTML_STARTS)
