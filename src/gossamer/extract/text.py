"""The text of a page: its title, and what a reader sees."""

from __future__ import annotations

from io import BytesIO

from selectolax.lexbor import LexborHTMLParser, LexborNode

from gossamer.extract.bounds import MOST_TEXT_BYTES

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
_HTML_INSIDE = frozenset({"foreignObject", "desc", "annotation-xml", "mi", "mo", "mn", "ms", "mtext"})
"""What is inside of these is HTML again."""
MAX_TITLE = 4096
_SLICE = 65_536


def title_of(tree: LexborHTMLParser) -> str:
    """The text of the document's `<title>`, up to 4096 characters; one inside a picture is not it."""
    head = tree.head
    node = head.first_child if head is not None else None
    while node is not None and node.tag != "title":
        node = node.next
    if node is None:
        node = next((found for found in tree.css("title")[:8] if not in_picture(found)), None)
    return " ".join(node.text()[:_SLICE].split())[:MAX_TITLE].rstrip() if node is not None else ""


def visible_text(tree: LexborHTMLParser, *, hidden: frozenset[str] = _HIDDEN, room_bytes: int = MOST_TEXT_BYTES) -> str:
    """The text outside scripts, styles and the like: a line per block, no white space but single spaces.

    At most so much of it as a string of `room_bytes` can hold."""
    written = _Text(room_bytes)
    node: LexborNode | None = tree.body
    depth = 0
    while node is not None and written.has_room:
        if node.is_text_node:
            written.add(node.text_content or "")
            below = None
        else:
            tag = node.tag or ""
            if tag in _CELLS:
                written.add(" ")
            elif tag in _BLOCKS:
                written.end_line()
            below = None if tag in hidden else node.first_child
        if below is not None:
            node, depth = below, depth + 1
            continue
        while depth and node is not None and node.next is None:
            node, depth = node.parent, depth - 1
            if node is not None and node.tag in _BLOCKS:
                if node.tag in _CELLS:
                    written.add(" ")
                else:
                    written.end_line()
        node = node.next if depth and node is not None else None
    return written.whole()


class _Text:
    """Lines that grow, within a limit. Long pieces are taken in slices, and kept as UTF-8: all words of a large page
    at once, or a string that one emoji makes four times as wide, would take much memory."""

    def __init__(self, room_bytes: int) -> None:
        self._room_bytes = room_bytes
        self._lines: list[str] = []
        self._pieces: list[str] = []
        self._stored = BytesIO()
        self._size = 0

    @property
    def has_room(self) -> bool:
        return self._room_bytes > 0

    def add(self, text: str) -> None:
        self._pieces.append(text[: self._room_bytes])
        self._room_bytes -= _bytes_of(self._pieces[-1])
        self._size += len(self._pieces[-1])

    def end_line(self) -> None:
        if not self._pieces:
            return
        line = _single_spaced("".join(self._pieces) if len(self._pieces) > 1 else self._pieces[0])
        self._pieces.clear()
        if line:
            self._lines.append(line)
        if self._size > _SLICE:
            self._store()

    def whole(self) -> str:
        self.end_line()
        if not self._stored.tell():
            return "\n".join(self._lines)
        self._store()
        return self._stored.getvalue().decode("utf-8", "surrogatepass")

    def _store(self) -> None:
        for line in self._lines:
            if self._stored.tell():
                self._stored.write(b"\n")
            self._stored.write(line.encode("utf-8", "surrogatepass"))
        self._lines.clear()
        self._size = 0


def _bytes_of(text: str) -> int:
    """What a string takes, without its head."""
    return len(text) if text.isascii() else text.__sizeof__()


def _single_spaced(line: str) -> str:
    """The line with single spaces."""
    if len(line) <= _SLICE:
        return " ".join(line.split())
    found = BytesIO()
    is_apart = False
    for start in range(0, len(line), _SLICE):
        part = line[start : start + _SLICE]
        words = " ".join(part.split())
        if words:
            if found.tell() and (is_apart or part[0].isspace()):
                found.write(b" ")
            found.write(words.encode("utf-8", "surrogatepass"))
            is_apart = part[-1].isspace()
        else:
            is_apart = True
    return found.getvalue().decode("utf-8", "surrogatepass")


def main_text(tree: LexborHTMLParser) -> str:
    """The visible text without what surrounds it on every page of a site: menus, asides, forms and footers."""
    return visible_text(tree, hidden=_AROUND)


def text_beside_links(tree: LexborHTMLParser) -> str:
    """The main text without that of its links: what a page that lists others says of its own."""
    return visible_text(tree, hidden=_AROUND | {"a"})


def in_picture(node: LexborNode) -> bool:
    """Whether an element belongs to SVG or MathML: then it is not the HTML element of its name."""
    above = node.parent
    for _ in range(64):
        tag = above.tag if above is not None else None
        if above is None or tag in _HTML_INSIDE:
            return False
        if tag in {"svg", "math"}:
            return True
        above = above.parent
    return False
