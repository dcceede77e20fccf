"""Scope of a crawl: which links it follows, and the reason for each that it does not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from gossamer import urls
from gossamer.errors import ConfigError
from gossamer.settings import Settings

_SKIPPED = """
    7z aac aiff apk avi avif bin bmp bz2 cab css cur deb dll dmg dwg dxf eot eps exe flac flv gif gz heic ico ics img
    ipa iso jar jp2 jpe jpeg jpg js jxl less lz4 lzma m3u8 m4a m4v mid mjs mkv mov mp2 mp3 mp4 mpeg mpg msi oga ogg ogv
    opus otf pkg png ps psd rar rm rpm sass scss svg svgz swf tar tbz tgz tif tiff torrent ttf txz vcf wasm wav weba
    webm webmanifest webp whl wma wmv woff woff2 xapk xz zip zst
"""
SKIPPED_EXTENSIONS = frozenset(_SKIPPED.split())
"""Extensions of files that are neither pages nor documents; the setting `allow` overrides them."""


class Scope:
    """The rules of a job about which links to follow.

    An invalid regular expression raises a ConfigError that names it."""

    def __init__(self, settings: Settings) -> None:
        self._allow = _compiled(settings.allow, "allow")
        self._deny = _compiled(settings.deny, "deny")
        self._kind = settings.scope
        self._max_depth = settings.max_depth
        self._max_length = settings.max_url_length
        self._max_segments = settings.max_segments
        self._max_repeats = settings.max_repeats

    def refuse(self, url: str, page_url: str, depth: int, *, is_file: bool = False) -> str | None:
        """Return the reason not to follow a normalized URL that was found on a page; None to follow it.

        A file that the spider requests as one (`is_file`) may have any extension."""
        if self._max_depth is not None and depth > self._max_depth:
            return "depth"
        if len(url) > self._max_length:
            return "length"
        if self._kind != "any" and not self._near(url, page_url):
            return "scope"
        if self._deny and any(pattern.search(url) for pattern in self._deny):
            return "deny"
        if self._allow and not any(pattern.search(url) for pattern in self._allow):
            return "allow"
        path = url.partition("?")[0]
        if not self._allow and not is_file and _extension(path) in SKIPPED_EXTENSIONS:
            return "extension"
        segments = path.count("/") - 2
        if segments > self._max_segments:
            return "segments"
        # Most paths are too short to repeat anything.
        if segments > self._max_repeats and _repeats(path.split("/", 3)[3]) > self._max_repeats:
            return "repeats"
        return None

    def refusals(self, found: Sequence[str], page_url: str, depth: int) -> list[str | None]:
        """Return the result of `refuse` for each of these links of a page, with a fast path for short, near, plain
        URLs."""
        if self._deny or self._allow or (self._max_depth is not None and depth > self._max_depth):
            return [self.refuse(url, page_url, depth) for url in found]
        home = page_url[: page_url.find("/", 8) + 1]
        is_near, longest = self._kind == "any", self._max_length
        # With more slashes than this, a path may have too many segments, or too many that repeat.
        most = 2 + min(self._max_segments, self._max_repeats)
        reasons: list[str | None] = []
        for url in found:
            reason = None
            path = url.partition("?")[0] if "?" in url else url
            if len(url) > longest or path.count("/") > most:
                reason = self.refuse(url, page_url, depth)
            elif not (is_near or url.startswith(home) or self._near(url, page_url)):
                reason = "scope"
            elif path.rfind(".", -13) >= 0 and _extension(path) in SKIPPED_EXTENSIONS:
                reason = "extension"
            reasons.append(reason)
        return reasons

    def _near(self, url: str, page_url: str) -> bool:
        end = page_url.find("/", 8) + 1
        if url.startswith(page_url[:end]):
            return True
        authority, own = urls.host_port(url), urls.host_port(page_url)
        if self._kind == "domain":
            return urls.registered_domain(authority) == urls.registered_domain(own)
        return authority.removeprefix("www.") == own.removeprefix("www.")


def _extension(path: str) -> str:
    """Return the extension of the last segment, in lower case."""
    dot = path.rfind(".")
    if dot < 8 or len(path) - dot > 12:
        return ""
    last = path[dot + 1 :]
    return "" if "/" in last or path.find("/", 8) > dot or path.find("/", 8) < 0 else last.lower()


def _repeats(path: str) -> int:
    """Return how often the most frequent segment is in a path: a loop of relative links repeats its segments."""
    return max(Counter(segment for segment in path.split("/") if segment).values(), default=0)


def _compiled(patterns: tuple[str, ...], setting: str) -> tuple[re.Pattern[str], ...]:
    # Not joined into one pattern: flags and numbered groups would mix.
    found = []
    for pattern in patterns:
        try:
            found.append(re.compile(pattern))
        except re.error as error:
            raise ConfigError(
                f"{setting}: {pattern!r} is not a regular expression: {error}",
                hint="escape dots, question marks, and brackets with a backslash",
            ) from None
    return tuple(found)
