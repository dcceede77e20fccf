"""Links of a page, from markup, srcset, and Link headers, resolved like in a browser."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from turbohtml import Document, Element, Namespace, SelectorSyntaxError, parse_fragment

from gossamer import urls
from gossamer.errors import ExtractError
from gossamer.extract import formatting
from gossamer.extract.encoding import encode

_NUMBER = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
SPACES = "\t\n\f\r "
MAX_LINKS = 20_000
"""Default limit of links per page. All of them reach the frontier in one call: many more than this block a Redis for a
quarter of a second."""
MAX_CHARACTERS = 10 * 1024 * 1024
"""Limit of the total length of a page's links, or `_MEAN_LENGTH` for each requested link if that is more: a long base
with many short links would fill the memory."""
_MEAN_LENGTH = 192
MAX_REFERENCE = 65_536
LOST = ("max_links", "links_length", "long_links")
"""The reasons why links are missing from the list: too many, too long in total, or a single one too long."""
_LONG_BASE = 2048

# A path and query of only these characters is already normalized, unless a segment starts with a dot.
_PATH_QUERY = r"[A-Za-z0-9._~/-]*(?:\?[A-Za-z0-9._~/=&%+,;:-]*)?"
_SIMPLE = re.compile(rf"((?:\.\./){{0,20}})((?:[A-Za-z0-9_~/-]{_PATH_QUERY})?)(?:#.*)?", re.DOTALL)
_PLAIN = re.compile(r"[A-Za-z0-9._~/?=&%+,;:@!$*()-]+")
_PLAIN_BYTES = bytes(byte for byte in range(128) if _PLAIN.fullmatch(chr(byte))) + b"\n"
"""Characters that a browser copies unchanged to a path and a query."""
_ABSOLUTE = re.compile(rf"(https?://[a-z0-9.:-]{{1,300}})(/{_PATH_QUERY})(?:#.*)?", re.DOTALL)
_REFRESH = re.compile(
    r"[\t\n\f\r ]*(?P<seconds>[0-9]*+)(?P<fraction>[0-9.]*+)"
    r"(?:(?P<end>\Z)|(?=[;,\t\n\f\r ])[\t\n\f\r ]*[;,]?[\t\n\f\r ]*(?P<rest>.*))",
    re.DOTALL,
)
_REFRESH_URL = re.compile(r"url[\t\n\f\r ]*=[\t\n\f\r ]*", re.IGNORECASE)
_NOFOLLOW = frozenset({"nofollow", "ugc", "sponsored"})
_FOLLOWED_RELS = frozenset({"canonical", "next", "prev"})
_LEADING = r":is([href],[xlink\:href],meta,iframe,frame,noframes)"
_INERT = "template"
"""The content of a template is not part of the page yet."""
_AROUND = "".join(map(chr, range(0x21)))
_UNSEEN = {ord(letter): None for letter in "\t\n\r"}
_OTHER_SCHEME = re.compile(r"[\x00-\x20]*(?!https?:)[a-z][a-z0-9+.-]{0,30}:", re.IGNORECASE)
_UNSAFE_QUERY = re.compile(rb"[\x00-\x20\x22\x23\x27\x3c\x3e\x7f-\xff]")


class Links(NamedTuple):
    """The distinct links of a page, and its base URL; `cut` counts the missing links by reason."""

    urls: list[str]
    base: str
    cut: dict[str, int | None]


class PageLinks(NamedTuple):
    """What the markup says about links: base, references, and the name and content of `<meta>` elements."""

    base: str | None
    references: list[str]
    metas: list[tuple[str, str]]


class LinkCache:
    """A bounded cache of resolved links, shared by the pages of a crawl, since menus and footers repeat.

    Plain links on the page's own host are not cached: resolving them is as cheap as a lookup. The cache has two
    generations: entries used while the younger one fills up move to it, the others are dropped with the older one."""

    __slots__ = ("_half", "_old", "_young")

    def __init__(self, size: int = 32_768) -> None:
        self._half = max(1, size // 2)
        self._young: dict[tuple[str, str], str | None] = {}
        self._old: dict[tuple[str, str], str | None] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def resolve(self, base: str, references: Sequence[str]) -> list[str | None]:
        """Resolve each reference against `base`; None if the result is not an http(s) URL."""
        origin, folder = _places(base)
        root, young = f"{origin}/", self._young
        text = "\n".join(references)
        # A segment that starts with a dot, however escaped, may be a dot segment.
        is_even = bool(origin) and "/." not in text and "/%2" not in text
        # Most pages have only plain references: one check of all of them is as fast as one check of one.
        is_plain = is_even and text.isascii() and not text.encode().translate(None, _PLAIN_BYTES)
        is_plain = is_plain and text.count("\n") == len(references) - 1
        found: list[str | None] = []
        for reference in references:
            first = reference[:1]
            if is_plain or (is_even and _PLAIN.fullmatch(reference)):
                if first == "/":
                    if reference[1:2] != "/":
                        found.append(origin + reference)
                        continue
                elif reference.startswith(root):
                    found.append(reference)
                    continue
                elif first.isalnum() and ":" not in reference:
                    found.append(folder + reference)
                    continue
                elif first == "h" and (end := reference.find("/", 8)) > 0 and _is_origin(reference[:end]):
                    found.append(reference)
                    continue
            # Cache by the part of the base that the result depends on: pages with the same part share entries.
            if first == "/":
                part = origin or base
            elif first == "h" and reference.startswith(("http://", "https://")):
                part = ""
            elif first.isalnum() and ":" not in reference:
                part = folder
            else:
                part = base
            key = (part, reference)
            url = young.get(key, "")
            if url == "":
                url = self._remember(key, base)
                young = self._young
            found.append(url)
        return found

    def _remember(self, key: tuple[str, str], base: str) -> str | None:
        url = self._old.pop(key, "")
        if url == "":
            url = resolve(base, key[1])
        if len(key[1]) <= 512 and len(key[0]) <= _LONG_BASE and len(url or "") <= _LONG_BASE:
            if len(self._young) >= self._half:
                self._old, self._young = self._young, {}
            self._young[key] = url
        return url


def find(tree: Document, *, nofollow: bool = True) -> PageLinks:
    """Collect everything about links in a page's markup; `nofollow` skips links whose `rel` forbids following."""
    base: list[str] = []
    metas: list[tuple[str, str]] = []
    references = _references(tree, nofollow=nofollow, base=base, metas=metas)
    return PageLinks(base[0] if base else None, references, metas)


def links(
    tree: Document,
    found: PageLinks,
    url: str,
    *,
    encoding: str = "utf-8",
    region: str = "",
    nofollow: bool = True,
    also: Sequence[str] = (),
    max_links: int = MAX_LINKS,
    cache: LinkCache | None = None,
) -> Links:
    """Return the http(s) URLs that the page links to, in document order, after `also`, the links of its headers.

    `region` limits the search to elements that match a CSS selector."""
    base = effective_base(url, found.base)
    references = found.references
    if region:
        references = [
            reference for root in _regions(tree, region) for reference in _references(root, nofollow=nofollow)
        ]
    if encoding != "utf-8":
        references = [encode_query(reference, encoding) for reference in references]
    # An empty cache is falsy: compare with None.
    cache = LinkCache() if cache is None else cache
    once = list(dict.fromkeys(references))
    if max(map(len, once), default=0) > MAX_REFERENCE:
        short = [reference for reference in once if len(reference) <= MAX_REFERENCE]
        found_short = _some(base, short, cache, max_links, also)
        # data: URLs are not links, and may be long.
        if lost := _count(reference for reference in once if len(reference) > MAX_REFERENCE):
            found_short.cut["long_links"] = lost
        return found_short
    if len(also) + len(once) > max_links or len(base) > _LONG_BASE:
        return _some(base, once, cache, max_links, also)
    resolved: dict[str | None, None] = dict.fromkeys([*also, *cache.resolve(base, once)])
    resolved.pop(None, None)
    return Links(list(resolved), base, {})  # type: ignore[arg-type]


def _some(base: str, references: list[str], cache: LinkCache, max_links: int, also: Sequence[str]) -> Links:
    """Resolve the first links of a page with too many links, or with a long base."""
    found: dict[str, None] = dict.fromkeys(also[:max_links])
    room = max(MAX_CHARACTERS, max_links * _MEAN_LENGTH)
    step = max(1, min(1024, MAX_CHARACTERS // len(base)))
    missing = max(0, len(also) - max_links)
    for start in range(0, len(references), step):
        for number, url in enumerate(cache.resolve(base, references[start : start + step]), start):
            if url is None or url in found:
                continue
            if len(found) == max_links or (room < len(url) and found):
                reason = "max_links" if len(found) == max_links else "links_length"
                # Deduplicate before resolving: resolving all of them to find equal ones could take seconds.
                return Links(list(found), base, {reason: missing + _count(references[number:])})
            room -= len(url)
            found[url] = None
    return Links(list(found), base, {"max_links": missing} if missing else {})


def _count(references: Iterable[str]) -> int:
    """Count the references that may be links to a page."""
    return sum(_OTHER_SCHEME.match(reference) is None for reference in references)


def resolve(base: str, reference: str) -> str | None:
    """Resolve like `urls.join`, with a shortcut where it gives the same result."""
    return _resolve_plain(*_places(base), reference) or urls.join(base, reference)


def normal(url: str) -> str | None:
    """Normalize an absolute URL like `urls.normal`, with the same shortcut."""
    return _resolve_plain("", "", url) or urls.normal(url)


def _resolve_plain(origin: str, folder: str, reference: str) -> str:
    """Append a plain reference to the origin or the folder of the base; empty where that may be wrong."""
    if reference.startswith("http"):
        absolute = _ABSOLUTE.fullmatch(reference)
        if absolute is not None and "/." not in absolute[2] and _is_normal(absolute[1]):
            return absolute[1] + absolute[2]
    simple = _SIMPLE.fullmatch(reference) if origin else None
    if simple is None:
        return ""
    up, path = simple.groups()
    if "/." in path:
        return ""
    if up:
        for _ in range(0, len(up), 3):
            # The root has no parent folder.
            folder = folder[: max(folder.rfind("/", 0, -1), len(origin)) + 1]
        return folder + path
    if path[:1] == "/":
        return origin + path if path[:2] != "//" else ""
    return folder + path if path else ""


def base_url(tree: Document, url: str) -> str:
    """Return the base URL of the page's links: the first usable `<base href>`, else the page's own URL."""
    hrefs = (node.attr("href") for node in tree.select("base[href]") if _is_base(node))
    return effective_base(url, next(hrefs, None))


def is_followed(rels: Collection[str], language: str | None) -> bool:
    """Whether a link with these relations and this `hreflang` leads to a page related to this one."""
    return not _FOLLOWED_RELS.isdisjoint(rels) or ("alternate" in rels and bool(language))


def parse_refresh(content: str) -> tuple[int, str | None] | None:
    """Parse a meta refresh or a Refresh header by the HTML standard: seconds and URL; None if invalid."""
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


def _references(
    root: Document | Element,
    *,
    nofollow: bool,
    base: list[str] | None = None,
    metas: list[tuple[str, str]] | None = None,
) -> list[str]:
    """Collect raw references at and below a node; bases and metas of the page go to the other lists."""
    found: list[str] = []
    besides: list[str] = []
    for node in _leading(root):
        tag = node.tag
        if tag in {"a", "area"}:
            rel = node.attr("rel") if nofollow else None
            if not rel or _NOFOLLOW.isdisjoint(rel.lower().split()):
                href = href_of(node)
                if href is not None:
                    found.append(href)
        elif tag == "link":
            href = href_of(node)
            if href is not None and is_followed((node.attr("rel") or "").lower().split(), node.attr("hreflang")):
                found.append(href)
        elif tag == "base":
            if base is not None and not base and _is_base(node):
                base.append(node.attr("href") or "")
        elif tag in {"iframe", "frame"}:
            if (source := node.attr("src")) is not None:
                besides.append(source)
        elif tag == "noframes":
            besides += _without_frames(node.text, nofollow=nofollow)
        elif tag == "meta":
            if metas is not None and (name := node.attr("name")):
                metas.append((name.strip(SPACES).lower(), node.attr("content") or ""))
            elif (target := _refresh_target(node)) is not None:
                besides.append(target)
    return found + besides


def _leading(root: Document | Element) -> list[Element]:
    """Return the elements at and below a node that may have references, outside templates."""
    nodes = root.select(_LEADING)
    if isinstance(root, Element) and root.matches(_LEADING):
        nodes.insert(0, root)
    if root.select_one(_INERT) is not None:
        inert = set(root.select(f"{_INERT} {_LEADING}"))
        nodes = [node for node in nodes if node not in inert]
    return nodes


def _refresh_target(node: Element) -> str | None:
    """Return the reference of a `<meta http-equiv=refresh>`, if any."""
    if (node.attr("http-equiv") or "").lower() != "refresh":
        return None
    refresh = parse_refresh(node.attr("content") or "")
    return refresh[1] if refresh is not None else None


def _without_frames(markup: str, *, nofollow: bool) -> list[str]:
    """Collect references in `<noframes>`, which parsers treat as text: the only links of some sites with frames."""
    if formatting.is_suspicious(markup.encode("utf-8", "replace")):
        markup, _ = formatting.drop_excess_tags(markup)
    fragment = parse_fragment(markup, "body")
    for inner in fragment.select("noframes"):
        inner.decompose()
    return _references(fragment, nofollow=nofollow)


def href_of(node: Element) -> str | None:
    """Return the raw href of a link; in SVG and MathML it may be an `xlink:href`."""
    href = node.attr("href")
    return node.attr("xlink:href") if href is None and node.namespace is not Namespace.HTML else href


def _is_base(node: Element) -> bool:
    return node.namespace is Namespace.HTML and node.attr("href") is not None


def effective_base(url: str, href: str | None) -> str:
    """Return the base of a page at `url` whose first `<base>` has this href."""
    if href is None:
        return url
    found = urls.resolve(url, href)
    return url if found is None or found.startswith(("data:", "javascript:")) else found


def _regions(tree: Document, region: str) -> list[Element]:
    try:
        return tree.select(region)
    except SelectorSyntaxError as error:
        raise ExtractError(f"invalid CSS selector {region!r} for the region of links") from error


def _places(base: str) -> tuple[str, str]:
    """Return origin and folder of a normalized http(s) URL; empty where the shortcut is not safe."""
    return _known_places(base) if len(base) <= _LONG_BASE else _split(base)


@lru_cache(maxsize=1024)
def _known_places(base: str) -> tuple[str, str]:
    return _split(base)


def _split(base: str) -> tuple[str, str]:
    path = base.partition("#")[0].partition("?")[0]
    parts = path.split("/", 3)
    if not base.startswith(("http://", "https://")) or len(parts) < 4 or "@" in parts[2]:
        return "", base
    return "/".join(parts[:3]), path[: path.rfind("/") + 1]


@lru_cache(maxsize=16_384)
def _is_origin(text: str) -> bool:
    """Whether a text is the scheme and authority of a normalized URL."""
    return text.startswith(("http://", "https://")) and "?" not in text and _is_normal(text)


@lru_cache(maxsize=4096)
def _is_normal(origin: str) -> bool:
    return urls.normal(origin + "/") == origin + "/"


def encode_query(reference: str, encoding: str) -> str:
    """Encode the query of a reference in the page's encoding, which the server expects."""
    plain = encoding != "iso-2022-jp"
    if (plain and reference.isascii()) or encoding.startswith("utf-16") or encoding == "replacement":
        return reference
    before, mark, fragment = reference.strip(_AROUND).translate(_UNSEEN).partition("#")
    path, question, query = before.partition("?")
    if plain and query.isascii():
        return reference
    # Letters that the encoding lacks become character references.
    raw = encode(query, encoding, _reference)
    quoted = _UNSAFE_QUERY.sub(lambda match: b"%%%02X" % match[0][0], raw).decode("ascii")
    return f"{path}{question}{quoted}{mark}{fragment}"


def _reference(letter: str) -> bytes:
    return b"%%26%%23%d%%3B" % ord(letter)


MAX_HEADER = 65_536
MAX_RELATIONS = 1000
_SPACES = " \t"


class Relation(NamedTuple):
    """A URL, its relation to the page, and further attributes (hreflang, type, media, title ...)."""

    url: str
    rels: frozenset[str]
    attributes: dict[str, str]


def header_relations(headers: Iterable[str], url: str) -> Iterator[Relation]:
    """Yield the relations in the Link headers of the response from `url`, in order.

    References are relative to the response's URL, whatever a `<base>` says. Links whose `anchor` is another resource
    are skipped, and so are URLs that are not http(s)."""
    for header in headers:
        for target, parameters in parse_link(header[:MAX_HEADER]):
            rels = frozenset(parameters.pop("rel", "").lower().split())
            anchor = parameters.pop("anchor", None)
            if anchor is not None and urls.join(url, anchor) != urls.join(url, ""):
                continue
            parameters.pop("rev", None)
            found = urls.join(url, target) if rels else None
            if found is not None:
                yield Relation(found, rels, parameters)


def element_relations(tree: Document, base: str, *, encoding: str = "utf-8") -> Iterator[Relation]:
    """Yield the relations of the `<link>` elements in a page's head; in a body, they may be user content.

    Their queries are encoded in the page's encoding."""
    for node in tree.select("head link[rel][href]")[:MAX_RELATIONS]:
        attributes = {name: node.attr(name) or "" for name in node.attrs}
        rels = frozenset(attributes.pop("rel", "").lower().split())
        href = attributes.pop("href", None)
        found = urls.join(base, encode_query(href, encoding)) if rels and href is not None else None
        if found is not None:
            yield Relation(found, rels, attributes)


def parse_link(value: str) -> list[tuple[str, dict[str, str]]]:
    """Parse a Link header by RFC 8288: targets and their parameters, the first of each name.

    Parsing stops at the first invalid part."""
    found: list[tuple[str, dict[str, str]]] = []
    position = 0
    while len(found) < MAX_RELATIONS:
        position = _past(value, position, _SPACES + ",")
        end = value.find(">", position)
        if value[position : position + 1] != "<" or end < 0:
            break
        target = value[position + 1 : end]
        parameters, position = _parameters(value, end + 1)
        found.append((target, parameters))
    return found


def _parameters(value: str, position: int) -> tuple[dict[str, str], int]:
    found: dict[str, str] = {}
    extended: dict[str, str] = {}
    while True:
        position = _past(value, position, _SPACES)
        if value[position : position + 1] != ";":
            break
        start = position = _past(value, position + 1, _SPACES)
        position = _until(value, position, _SPACES + "=;,")
        name = value[start:position].lower()
        position = _past(value, position, _SPACES)
        text = ""
        if value[position : position + 1] == "=":
            position = _past(value, position + 1, _SPACES)
            if value[position : position + 1] == '"':
                text, position = _quoted(value, position + 1)
            else:
                start = position
                position = _until(value, position, ";,")
                text = value[start:position].rstrip(_SPACES)
        if not name.endswith("*"):
            found.setdefault(name, text)
        elif (decoded := _extended(text)) is not None:
            extended.setdefault(name[:-1], decoded)
    found.pop("", None)
    return {**found, **extended}, position


def _quoted(value: str, position: int) -> tuple[str, int]:
    """Read a quoted string up to the closing quote or the end, without backslashes; also return the next position."""
    parts: list[str] = []
    while position < len(value):
        start = position
        position = _until(value, position, '"\\')
        parts.append(value[start:position])
        if value[position : position + 1] == '"':
            return "".join(parts), position + 1
        parts.append(value[position + 1 : position + 2])
        position += 2
    return "".join(parts), len(value)


def _extended(text: str) -> str | None:
    """Decode a value of RFC 8187, like `UTF-8'en'%e2%82%ac`; None if invalid."""
    charset, mark, rest = text.partition("'")
    _, second, escaped = rest.partition("'")
    if not mark or not second or charset.lower() not in ("utf-8", "iso-8859-1"):
        return None
    try:
        return unquote_to_bytes(escaped).decode(charset)
    except UnicodeDecodeError:
        return None


def _past(value: str, position: int, letters: str) -> int:
    while position < len(value) and value[position] in letters:
        position += 1
    return position


def _until(value: str, position: int, letters: str) -> int:
    while position < len(value) and value[position] not in letters:
        position += 1
    return position


def parse_srcset(value: str) -> list[str]:
    """Return the URLs of the image candidates of a srcset attribute, by the HTML standard."""
    found, position = [], 0
    while (start := _skip_letters(value, position, SPACES + ",")) < len(value):
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


def _skip_letters(value: str, position: int, letters: str) -> int:
    while position < len(value) and value[position] in letters:
        position += 1
    return position


def _descriptors(value: str, position: int) -> tuple[list[str], int]:
    """Parse the descriptors of one candidate; parentheses hide commas and spaces. Also return the next position."""
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
    """Whether a candidate has at most one density, or one width and at most one height."""
    kinds: dict[str, int] = {}
    for descriptor in descriptors:
        kind, number = descriptor[-1], descriptor[:-1]
        whole = number.isascii() and number.isdigit()
        if kind in "wh" and not (whole and int(number[:18]) > 0):
            return False
        if kind == "x" and not (_NUMBER.fullmatch(number) and (not number.startswith("-") or float(number) == 0)):
            return False
        kinds[kind] = kinds.get(kind, 0) + 1
    if not set(kinds) <= {"w", "h", "x"} or any(count > 1 for count in kinds.values()):
        return False
    return not ("x" in kinds and len(kinds) > 1) and ("h" not in kinds or "w" in kinds)
