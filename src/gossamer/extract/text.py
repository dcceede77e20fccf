"""The text of a page: its title, and what a reader sees."""

from __future__ import annotations

from selectolax.lexbor import LexborHTMLParser, LexborNode

_HIDDEN_TAGS = """
    script style template noscript noembed noframes iframe head title textarea select datalist object svg math
    canvas audio video -comment -doctype
"""
_BLOCK_TAGS = """
    address article aside blockquote body br button caption center dd details dialog dir div dl dt fieldset figcaption
    figure footer form frameset h1 h2 h3 h4 h5 h6 header hgroup hr html legend li listing main menu nav ol optgroup
    option p plaintext pre search section summary table tbody td tfoot th thead tr ul xmp
"""
_HIDDEN = frozenset(_HIDDEN_TAGS.split())
_AROUND = _HIDDEN | {"nav", "aside", "footer", "form"}
_BLOCKS = frozenset(_BLOCK_TAGS.split())
_BREAK = "\0"
"""Stands for the edge of a block; the parser lets no such character through."""
_CELLS = frozenset({"td", "th", "button"})
MAX_TITLE = 4096
_SLICE = 65_536


def title_of(tree: LexborHTMLParser) -> str:
    """The text of the document's `<title>`, up to 4096 characters; one inside a picture is not it."""
    head = tree.head
    node = head.css_first("title") if head is not None else None
    if node is None:
        node = next((found for found in tree.css("title")[:8] if not _in_picture(found)), None)
    return " ".join(node.text()[:_SLICE].split())[:MAX_TITLE].rstrip() if node is not None else ""


def visible_text(tree: LexborHTMLParser, *, hidden: frozenset[str] = _HIDDEN) -> str:
    """The text outside scripts, styles and the like: a line per block, no white space but single spaces."""
    pieces: list[str] = []
    node: LexborNode | None = tree.body
    depth = 0
    while node is not None:
        if node.is_text_node:
            pieces.append(node.text_content or "")
            below = None
        else:
            tag = node.tag or ""
            if tag in _BLOCKS:
                pieces.append(" " if tag in _CELLS else _BREAK)
            below = None if tag in hidden else node.first_child
        if below is not None:
            node, depth = below, depth + 1
            continue
        while depth and node is not None and node.next is None:
            node, depth = node.parent, depth - 1
            if node is not None and node.tag in _BLOCKS:
                pieces.append(" " if node.tag in _CELLS else _BREAK)
        node = node.next if depth and node is not None else None
    lines = (_single_spaced(line) for line in "".join(pieces).split(_BREAK))
    return "\n".join(line for line in lines if line)


def _single_spaced(line: str) -> str:
    """The line with single spaces. A long one is taken in slices: its words, all at once, would take much memory."""
    if len(line) <= _SLICE:
        return " ".join(line.split())
    pieces: list[str] = []
    is_apart = False
    for start in range(0, len(line), _SLICE):
        part = line[start : start + _SLICE]
        words = " ".join(part.split())
        if words:
            if pieces and (is_apart or part[0].isspace()):
                pieces.append(" ")
            pieces.append(words)
            is_apart = part[-1].isspace()
        else:
            is_apart = True
    return "".join(pieces)


def main_text(tree: LexborHTMLParser) -> str:
    """The visible text without what surrounds it on every page of a site: menus, asides, forms and footers."""
    return visible_text(tree, hidden=_AROUND)


def _in_picture(node: LexborNode) -> bool:
    above = node.parent
    for _ in range(64):
        if above is None:
            return False
        if above.tag in {"svg", "math"}:
            return True
        above = above.parent
    return False
