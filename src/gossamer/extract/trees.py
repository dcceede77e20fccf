"""Trees of lxml, for XPath: loaded by the first page that is asked that way, since most crawls never do."""

from __future__ import annotations

from cssselect import HTMLTranslator, SelectorError
from lxml import etree, html

from gossamer.errors import ExtractError
from gossamer.extract.selectors import EXAMPLE

_PARTS = ("html", "head", "body")


def xpath(root: etree._Element | None, query: str) -> list[etree._Element | str]:
    """What an XPath expression gives: elements, strings, or the one number or truth value as a string."""
    if root is None:
        return []
    try:
        found = root.xpath(query, namespaces={"re": "http://exslt.org/regular-expressions"}, smart_strings=False)
    except (etree.XPathError, ValueError, TypeError) as error:
        raise ExtractError(f"bad XPath expression {query!r}: {error}") from None
    if isinstance(found, bool):
        return ["true" if found else "false"]
    if isinstance(found, float):
        return [str(int(found)) if found.is_integer() else str(found)]
    if isinstance(found, str):
        return [found]
    return [hit if isinstance(hit, etree._Element) else str(hit) for hit in found]


def document(text: str) -> etree._Element | None:
    """The tree that XPath walks over; None where there is nothing to parse."""
    parser = html.HTMLParser(encoding="utf-8", recover=True, no_network=True, remove_blank_text=False)
    try:
        return html.document_fromstring(text.replace("\0", "").encode("utf-8", "replace"), parser=parser)
    except (etree.ParserError, etree.XMLSyntaxError):
        return None


def fragment(text: str, tag: str) -> etree._Element | None:
    """The tree of one element of this name."""
    if tag in _PARTS:
        whole = document(text)
        return whole if whole is None or tag == "html" else whole.find(tag)
    try:
        found: etree._Element = html.fragment_fromstring(text)
    except etree.ParserError:
        # This parser takes some elements out of others, such as a table out of a paragraph.
        found = html.fragment_fromstring(text, create_parent=tag)
    except (etree.XMLSyntaxError, ValueError):
        return None
    return found


def path_of(selector: str, query: str) -> str:
    """The XPath of a CSS selector, which is a part of the query that an ExtractError names."""
    try:
        return HTMLTranslator().css_to_xpath(selector)
    except SelectorError as error:
        raise ExtractError(f"bad CSS selector {query!r}: {error}", hint=EXAMPLE) from error


def markup(element: etree._Element) -> str:
    """An element as HTML."""
    return str(etree.tostring(element, encoding="unicode", method="html", with_tail=False))
