"""XML documents as trees: RSS, Atom, and any other, well-formed or not. Expands no entities and fetches nothing.

A malformed document is repaired first, since an XML parser stops at the first error, and feeds are full of errors.
Names in the tree are as written, `dc:creator` with its prefix, so that you can select what you see in the source."""

from __future__ import annotations

import html
import html.entities
import re
from collections import Counter
from collections.abc import Iterator, Mapping

import turbohtml
from turbohtml import Document, Element, Node

MAX_DEPTH = 512
"""Max nesting depth of elements; deeper ones become siblings, as in HTML."""
_PART = r"[A-Za-z_\u0080-\U0010ffff][\w.\-\u00b7]*+"
_NAME = rf"{_PART}(?::{_PART})?"
_PASSIVE = re.compile(r"<!--(.*?)(?:-->|\Z)|<!\[CDATA\[(.*?)(?:\]\]>|\Z)", re.DOTALL)
_DOCTYPE = re.compile(r"<!DOCTYPE(?:[^\[<>\"']++|\"[^\"]*+\"?|'[^']*+'?)*+(\[)?", re.IGNORECASE)
_SUBSET_END = re.compile(r"\]\s*+>")
_TOKEN = re.compile(
    rf"<!--.*?-->|<\?.*?(?:\?>|\Z)|</\s*+(?P<end>{_NAME})[^<>]*+>?"
    rf"|<(?P<start>{_NAME})(?P<rest>(?:[^<>\"']++|\"[^\"]*+\"|'[^']*+')*+)>|<![^<>]*+>?|(?P<text>[^<]++|<)",
    re.DOTALL,
)
_ATTRIBUTE = re.compile(rf"({_NAME})\s*+=\s*+(?:\"([^\"]*+)\"|'([^']*+)'|([^\s\"'<>]++))")
_REFERENCE = re.compile(r"&(?!#\d{1,7};|#[xX][0-9a-fA-F]{1,6};|(?:amp|lt|gt|quot|apos);)([A-Za-z][A-Za-z0-9]{0,31};)?")
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# Tokens of a query: strings and variables, which stay; and names with a prefix after an axis, except functions.
_QUALIFIED = re.compile(
    r"\"[^\"]*+\"|'[^']*+'|\$[\w.:\-]++"
    rf"|((?:@|[a-z\-]++\s*+::)\s*+)?({_PART}):(?!:)(\*|{_PART})(?!\s*+\(|\s*+::)"
)
_CSS_QUALIFIED = re.compile(r"\"[^\"]*+\"|'[^']*+'|([A-Za-z_][\w\-]*+)\|(?=[A-Za-z_])")


def parse(text: str) -> Document:
    """Parse a document; the tree has no root if no element is found."""
    text = _without_doctype(_FORBIDDEN.sub("", text).lstrip())
    text = _PASSIVE.sub(_active, text)
    try:
        document = turbohtml.parse_xml(text)
    except turbohtml.HTMLParseError:
        return _parsed(_repaired(text))
    return _parsed(_repaired(text)) if is_deep(document) else document


def is_deep(document: Document) -> bool:
    """Whether a document nests elements deeper than the tree allows."""
    inside: list[object] = []
    for element in document.iter_elements():
        above = element.parent
        while inside and inside[-1] is not above:
            inside.pop()
        inside.append(element)
        if len(inside) > MAX_DEPTH:
            return True
    return False


def xpath_of(query: str, node: Node, namespaces: Mapping[str, str] | None) -> str:
    """Rewrite `dc:creator` in an XPath expression to a test for an element of that name.

    Prefixes are those of the page. A prefix in `namespaces` stands for all that the page binds to the same URI."""
    bound = _prefixes(node) if namespaces else {}

    def test(found: re.Match[str]) -> str:
        axis, prefix, local = found.groups()
        if prefix is None:
            return found[0]
        own = bound.get((namespaces or {}).get(prefix, ""), [prefix])
        tests = [_test(each, local) for each in own]
        return f"{axis or ''}*[{' or '.join(tests)}]"

    return _QUALIFIED.sub(test, query)


def css_of(query: str) -> str:
    """Rewrite `dc|creator` in a CSS selector to the name in the tree."""
    return _CSS_QUALIFIED.sub(lambda found: f"{found[1]}\\:" if found[1] else found[0], query)


def _test(prefix: str, local: str) -> str:
    if local != "*":
        return f'name()="{prefix}:{local}"' if prefix else f'name()="{local}"'
    return f'starts-with(name(),"{prefix}:")' if prefix else 'not(contains(name(),":"))'


def _prefixes(node: Node) -> dict[str, list[str]]:
    """Map namespaces to their prefixes in a document; the empty prefix is the default namespace."""
    found: dict[str, dict[str, None]] = {}
    document = node.xpath("/")
    for element in document[0].iter_elements() if isinstance(document, list) and isinstance(document[0], Node) else ():
        for name in element.attrs:
            if name == "xmlns" or name.startswith("xmlns:"):
                found.setdefault(element.attr(name) or "", {})[name[6:]] = None
    return {uri: list(names) for uri, names in found.items()}


def _parsed(text: str) -> Document:
    try:
        return turbohtml.parse_xml(text)
    except turbohtml.HTMLParseError:
        return empty()


def empty() -> Document:
    """Return a document without a root."""
    document = turbohtml.parse("")
    if document.root is not None:
        document.root.extract()
    return document


def _without_doctype(text: str) -> str:
    """Remove the document type, and with it all entity declarations."""
    start = _DOCTYPE.search(text)
    if start is None:
        return text
    end = _SUBSET_END.search(text, start.end()) if start[1] else None
    rest = text[end.end() :] if end is not None else text[start.end() :].removeprefix(">")
    return text[: start.start()] + rest


def _active(found: re.Match[str]) -> str:
    """Return the content of a CDATA section as text; a comment becomes harmless."""
    if found[2] is not None:
        return html.escape(found[2], quote=False)
    return "" if "--" in found[1] or found[1].endswith("-") else f"<!--{found[1]}-->"


def _repaired(text: str) -> str:
    """Return a well-formed document with the elements and text of this one."""
    root = ""
    parts: list[str] = []
    inside: list[str] = []
    opened: Counter[str] = Counter()
    prefixes: set[str] = set()
    for token in _TOKEN.finditer(text):
        if (name := token["start"]) is not None:
            is_empty = token["rest"].endswith("/")
            attributes = dict(_attributes(token["rest"].removesuffix("/")))
            prefixes |= {each.partition(":")[0] for each in (name, *attributes) if ":" in each}
            tag = " ".join([name, *(f'{each}="{value}"' for each, value in attributes.items())])
            if not inside:
                root = tag
                inside.append(name)
                continue
            if len(inside) >= MAX_DEPTH:
                last = inside.pop()
                opened[last] -= 1
                parts.append(f"</{last}>")
            parts.append(f"<{tag}/>" if is_empty else f"<{tag}>")
            if not is_empty:
                inside.append(name)
                opened[name] += 1
        elif (name := token["end"]) is not None:
            if not opened[name] and inside and _local(name) == _local(inside[-1]):
                # The end tag of the current element, apart from its prefix.
                name = inside[-1]
            # The root stays open for further content.
            while opened[name] and len(inside) > 1:
                last = inside.pop()
                opened[last] -= 1
                parts.append(f"</{last}>")
                if last == name:
                    break
        elif token["text"] is not None:
            if inside:
                parts.append(_text(token["text"]))
        elif inside and token[0].startswith("<!--"):
            parts.append(token[0])
    if not inside:
        return ""
    declared = [f'xmlns:{prefix}="{prefix}"' for prefix in sorted(prefixes - {"xml", "xmlns"})]
    missing = [each for each in declared if f"{each.partition('=')[0]}=" not in root]
    closing = "".join(f"</{name}>" for name in reversed(inside))
    return f"<{' '.join([root, *missing])}>{''.join(parts)}{closing}"


def _local(name: str) -> str:
    return name.rpartition(":")[2]


def _attributes(text: str) -> Iterator[tuple[str, str]]:
    for name, *values in _ATTRIBUTE.findall(text):
        if name not in ("xml", "xmlns:xmlns", "xmlns:xml"):
            yield name, _text("".join(values)).replace('"', "&quot;")


def _text(text: str) -> str:
    """Escape each `&` that does not start a reference known to XML."""
    return _REFERENCE.sub(_reference, text).replace("<", "&lt;").replace("]]>", "]]&gt;")


def _reference(found: re.Match[str]) -> str:
    name = found[1]
    known = html.entities.html5.get(name) if name else None
    return html.escape(known) if known is not None else f"&amp;{name or ''}"


def links(document: Document) -> list[str]:
    """Return the references of an XML document that is not a feed: XLinks, and the link elements of HTML."""
    return [
        href
        for element in document.select(r"[href],[xlink\:href]")
        if (href := element.attr("xlink:href") or (element.attr("href") if _is_link(element) else None)) is not None
    ]


def _is_link(element: Element) -> bool:
    return _local(element.tag) in ("a", "area", "link")
