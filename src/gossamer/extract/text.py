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
_CELLS = frozenset({"td", "th", "button"})
MAX_TITLE = 4096
MAX_CHARACTERS = 32 * 1024 * 1024
MAX_MAIN = 4 * 1024 * 1024
_SLICE = 65_536


def title_of(tree: LexborHTMLParser) -> str:
    """The text of the document's `<title>`, up to 4096 characters; one inside a picture is not it."""
    head = tree.head
    node = head.css_first("title") if head is not None else None
    if node is None:
        node = next((found for found in tree.css("title")[:8] if not _in_picture(found)), None)
    return " ".join(node.text()[:_SLICE].split())[:MAX_TITLE].rstrip() if node is not None else ""


def visible_text(
    tree: LexborHTMLParser, *, hidden: frozenset[str] = _HIDDEN, max_characters: int = MAX_CHARACTERS
) -> str:
    """The text outside scripts, styles and the like: a line per block, no white space but single spaces."""
    room = max_characters
    lines: list[str] = []
    pieces: list[str] = []
    node: LexborNode | None = tree.body
    depth = 0
    while node is not None:
        if node.is_text_node:
            piece = (node.text_content or "")[:room]
            pieces.append(piece)
            room -= len(piece)
            if room <= 0:
                break
            below = None
        else:
            tag = node.tag or ""
            if tag in _CELLS:
                pieces.append(" ")
            elif tag in _BLOCKS and pieces:
                _end_line(pieces, lines)
            below = None if tag in hidden else node.first_child
        if below is not None:
            node, depth = below, depth + 1
            continue
        while depth and node is not None and node.next is None:
            node, depth = node.parent, depth - 1
            if node is not None and node.tag in _BLOCKS:
                if node.tag in _CELLS:
                    pieces.append(" ")
                elif pieces:
                    _end_line(pieces, lines)
        node = node.next if depth and node is not None else None
    _end_line(pieces, lines)
    return "\n".join(lines)


def _end_line(pieces: list[str], lines: list[str]) -> None:
    line = _single_spaced("".join(pieces))
    pieces.clear()
    if line:
        lines.append(line)


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
    """The visible text without what surrounds it on every page of a site: menus, asides, forms and footers.

    To tell pages apart the first four million characters are enough."""
    return visible_text(tree, hidden=_AROUND, max_characters=MAX_MAIN)


def _in_picture(node: LexborNode) -> bool:
    above = node.parent
    for _ in range(64):
        if above is None:
            return False
        if above.tag in {"svg", "math"}:
            return True
        above = above.parent
    return False
