"""Links: the URLs that a page refers to, found and resolved as a browser would, at the least cost."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from selectolax.lexbor import LexborHTMLParser, LexborNode, SelectolaxError

from gossamer import urls
from gossamer.errors import ExtractError
from gossamer.extract.encoding import codec

SPACES = "\t\n\f\r "

# A path and query of these characters is its own normal form, unless a segment starts with a dot.
_SIMPLE = re.compile(r"([A-Za-z0-9_~/-][A-Za-z0-9._~/-]*(?:\?[A-Za-z0-9._~/=&%+,;:-]*)?)(?:#.*)?", re.DOTALL)
_ABSOLUTE = re.compile(r"(https?://[a-z0-9.:-]+)(/[^#]*)?(?:#.*)?", re.DOTALL)
_REFRESH = re.compile(
    r"[\t\n\f\r ]*(?P<seconds>[0-9]*)(?P<fraction>[0-9.]*)"
    r"(?:(?P<end>\Z)|(?=[;,\t\n\f\r ])[\t\n\f\r ]*[;,]?[\t\n\f\r ]*(?P<rest>.*))",
    re.DOTALL,
)
_REFRESH_URL = re.compile(r"url[\t\n\f\r ]*=[\t\n\f\r ]*", re.IGNORECASE)
_NOFOLLOW = frozenset({"nofollow", "ugc", "sponsored"})
_FOLLOWED_RELS = frozenset({"canonical", "next", "prev"})
_RULES_WITH_VALUE = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})
_UNSEEN = {ord(letter): None for letter in "\t\n\r"}
_UNSAFE_QUERY = re.compile(rb"[\x00-\x20\x22\x23\x27\x3c\x3e\x7f-\xff]")


_FLOAT = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


class Resolved(NamedTuple):
    """The links of a page, each once; `cut` says that there were more than were asked for."""

    urls: list[str]
    cut: bool


class LinkMemo:
    """A bounded memory of resolved links, to be shared by the pages of a crawl: menus and footers come again and again.

    Two generations: what is asked for while the younger one fills up stays, the rest is forgotten with the older."""

    __slots__ = ("_half", "_old", "_young")

    def __init__(self, size: int = 32_768) -> None:
        self._half = max(1, size // 2)
        self._young: dict[tuple[str, str], str | None] = {}
        self._old: dict[tuple[str, str], str | None] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def resolve(self, base: str, references: Iterable[str]) -> list[str | None]:
        """Each reference resolved against `base`; None where there is no http(s) URL."""
        origin, folder = _places(base)
        young = self._young
        found = []
        for reference in references:
            # What begins with a slash depends on the origin alone, an absolute URL on nothing.
            first = reference[:1]
            scope = (
                origin
                if first == "/"
                else ""
                if first == "h" and reference.startswith(("http://", "https://"))
                else folder
            )
            key = (scope, reference)
            url = young.get(key, "")
            if url == "":
                url = self._older(key, base, reference)
                young = self._young
            found.append(url)
        return found

    def _older(self, key: tuple[str, str], base: str, reference: str) -> str | None:
        url = self._old.pop(key, "")
        if url == "":
            url = resolve(base, reference)
        if len(reference) <= 512:
            if len(self._young) >= self._half:
                self._old, self._young = self._young, {}
            self._young[key] = url
        return url


def links(
    tree: LexborHTMLParser,
    base: str,
    *,
    encoding: str = "utf-8",
    region: str = "",
    nofollow: bool = True,
    max_links: int = 5000,
    memo: LinkMemo | None = None,
) -> Resolved:
    """The http(s) URLs that the page links to, in its order; `nofollow` leaves out what the page asks not to follow."""
    references = dict.fromkeys(_references(tree, region=region, nofollow=nofollow))
    if encoding != "utf-8":
        references = dict.fromkeys(encode_query(reference, encoding) for reference in references)
    found = (memo or LinkMemo()).resolve(base, references)
    distinct = dict.fromkeys(found)
    distinct.pop(None, None)
    every = [url for url in distinct if url is not None]
    return Resolved(every[:max_links], len(every) > max_links)


def resolve(base: str, reference: str) -> str | None:
    """`reference` as `urls.join` resolves it, by a shorter way where that is sure to give the same."""
    simple = _SIMPLE.fullmatch(reference)
    if simple is not None:
        path = simple[1]
        if "/." not in path and path[:2] != "//":
            origin, folder = _places(base)
            if origin:
                return (origin if path[0] == "/" else folder) + path
    else:
        absolute = _ABSOLUTE.fullmatch(reference)
        if absolute is not None and _is_normal(absolute[1]):
            path = absolute[2] or "/"
            if path[:2] != "//" and "/." not in path and _SIMPLE.fullmatch(path):
                return absolute[1] + path
    return urls.join(base, reference)


def base_url(tree: LexborHTMLParser, url: str) -> str:
    """The URL that the page's links are relative to: the first `<base href>` if it is usable, else the page's own."""
    for node in tree.css("base[href]")[:1]:
        found = urls.resolve(url, (node.attributes["href"] or "").strip(SPACES))
        if found is not None and not found.startswith(("data:", "javascript:")):
            return found
    return url


def says_nofollow(tree: LexborHTMLParser, headers: Iterable[str] = ()) -> bool:
    """Whether the page as a whole asks not to follow its links, by X-Robots-Tag or `<meta name=robots>`."""
    if any(_is_general(header) and _has_nofollow(header) for header in headers):
        return True
    for node in tree.css("meta[name][content]"):
        attributes = node.attributes
        if (attributes["name"] or "").strip(SPACES).lower() == "robots" and _has_nofollow(attributes["content"] or ""):
            return True
    return False


def parse_refresh(content: str) -> tuple[int, str | None] | None:
    """Seconds and URL of a meta refresh or a Refresh header, by the HTML standard; None if it is not one."""
    parts = _REFRESH.fullmatch(content)
    if parts is None or not (parts["seconds"] or parts["fraction"]):
        return None
    seconds = int(parts["seconds"] or 0) if len(parts["seconds"]) <= 9 else 10**9
    rest = parts["rest"] or ""
    if not rest:
        return seconds, None
    named = _REFRESH_URL.match(rest)
    target = rest[named.end() :] if named is not None else rest
    if target[:1] in {'"', "'"}:
        target = target[1:].partition(target[0])[0]
    return seconds, target


def parse_srcset(value: str) -> list[str]:
    """The URLs of the image candidates in a srcset attribute, by the HTML standard."""
    found, position = [], 0
    while (start := _skip(value, position, SPACES + ",")) < len(value):
        end = start
        while end < len(value) and value[end] not in SPACES:
            end += 1
        url = value[start:end]
        if url.endswith(","):
            descriptors: list[str] = []
            position = end
        else:
            descriptors, position = _descriptors(value, end)
        if _valid_descriptors(descriptors):
            found.append(url.rstrip(","))
    return found


def _references(tree: LexborHTMLParser, *, region: str, nofollow: bool) -> Iterable[str]:
    for root in _roots(tree, region):
        for node in root.css("[href]"):
            tag = node.tag
            attributes = node.attributes
            rel = attributes.get("rel")
            if tag in {"a", "area"}:
                if rel and nofollow and not _NOFOLLOW.isdisjoint(rel.lower().split()):
                    continue
            elif tag != "link" or not rel or _FOLLOWED_RELS.isdisjoint(rel.lower().split()):
                continue
            yield attributes["href"] or ""
        for node in root.css("frame,iframe,meta"):
            attributes = node.attributes
            if node.tag != "meta":
                if "src" in attributes:
                    yield attributes["src"] or ""
            elif (attributes.get("http-equiv") or "").lower() == "refresh":
                refresh = parse_refresh(attributes.get("content") or "")
                if refresh is not None and refresh[1] is not None:
                    yield refresh[1]


def _roots(tree: LexborHTMLParser, region: str) -> list[LexborNode]:
    if not region:
        return [tree.root] if tree.root is not None else []
    try:
        return tree.css(region)
    except (SelectolaxError, ValueError) as error:
        raise ExtractError(f"bad CSS selector {region!r} for the region of links") from error


@lru_cache(maxsize=1024)
def _places(base: str) -> tuple[str, str]:
    """Origin and folder of a normal http(s) URL; empty where a short way is not safe."""
    path = base.partition("#")[0].partition("?")[0]
    parts = path.split("/", 3)
    if not base.startswith(("http://", "https://")) or len(parts) < 4 or "@" in parts[2]:
        return "", base
    return "/".join(parts[:3]), path[: path.rfind("/") + 1]


@lru_cache(maxsize=4096)
def _is_normal(origin: str) -> bool:
    return urls.normal(origin + "/") == origin + "/"


def encode_query(reference: str, encoding: str) -> str:
    """A reference whose query is written in the page's encoding, which is what its server expects."""
    if reference.isascii() or encoding.startswith("utf-16") or encoding == "replacement":
        return reference
    before, mark, fragment = reference.strip(SPACES).translate(_UNSEEN).partition("#")
    path, question, query = before.partition("?")
    if query.isascii():
        return reference
    try:
        raw = query.encode(codec(encoding))
    except UnicodeEncodeError:
        # What the encoding lacks is written as a character reference.
        raw = b"".join(letter.encode(codec(encoding), "ignore") or b"%%26%%23%d%%3B" % ord(letter) for letter in query)
    quoted = _UNSAFE_QUERY.sub(lambda match: b"%%%02X" % match[0][0], raw).decode("ascii")
    return f"{path}{question}{quoted}{mark}{fragment}"


def _is_general(header: str) -> bool:
    """Whether the rules of an X-Robots-Tag are for all robots, not for one that it names."""
    name, colon, _ = header.partition(",")[0].partition(":")
    return not colon or name.strip().lower() in _RULES_WITH_VALUE


def _has_nofollow(content: str) -> bool:
    return not {"nofollow", "none"}.isdisjoint(word.strip(SPACES).lower() for word in content.split(","))


def _skip(value: str, position: int, letters: str) -> int:
    while position < len(value) and value[position] in letters:
        position += 1
    return position


def _descriptors(value: str, position: int) -> tuple[list[str], int]:
    """The descriptors of one candidate, and where the next one starts; brackets hide commas and spaces."""
    found, current, inside = [], "", False
    while position < len(value):
        letter = value[position]
        position += 1
        if inside:
            inside = letter != ")"
        elif letter == "(":
            inside = True
        elif letter == ",":
            break
        elif letter in SPACES:
            if current:
                found.append(current)
            current = ""
            continue
        current += letter
    return ([*found, current] if current else found), position


def _valid_descriptors(descriptors: list[str]) -> bool:
    """Whether a candidate has at most one density, or a width with at most one height."""
    kinds: dict[str, int] = {}
    for descriptor in descriptors:
        kind, number = descriptor[-1], descriptor[:-1]
        whole = number.isascii() and number.isdigit()
        if kind in "wh" and not (whole and int(number[:18]) > 0):
            return False
        if kind == "x" and not (_FLOAT.fullmatch(number) and (not number.startswith("-") or float(number) == 0)):
            return False
        kinds[kind] = kinds.get(kind, 0) + 1
    if not set(kinds) <= {"w", "h", "x"} or any(count > 1 for count in kinds.values()):
        return False
    return not ("x" in kinds and len(kinds) > 1) and ("h" not in kinds or "w" in kinds)
