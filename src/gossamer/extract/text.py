"""The text of a page: its title, and what a reader sees."""

from __future__ import annotations

from turbohtml import CData, Document, Element, Namespace, Node, Text

_HIDDEN_TAGS = """
    script style template noscript noembed noframes iframe head title textarea select datalist object svg math
    canvas audio video
"""
_BLOCK_TAGS = """
    address article aside blockquote body br button caption center dd details dialog dir div dl dt fieldset figcaption
    figure footer form frameset h1 h2 h3 h4 h5 h6 header hgroup hr html legend li listing main menu nav ol optgroup
    option p plaintext pre search section summary table tbody td tfoot th thead tr ul xmp
"""
HIDDEN = frozenset(_HIDDEN_TAGS.split())
_AROUND = HIDDEN | {"nav", "aside", "footer", "form"}
BLOCKS = frozenset(_BLOCK_TAGS.split())
_CELLS = frozenset({"td", "th", "button"})
MAX_TITLE = 4096
_SLICE = 65_536


def title_of(tree: Document) -> str:
    """The text of the document's `<title>`, up to 4096 characters; one inside a picture is not it."""
    head = part_of(tree, "head")
    node = _child_of(head, "title") if head is not None else None
    if node is None:
        node = next((found for found in tree.find_all("title", limit=8) if found.namespace is Namespace.HTML), None)
    return " ".join(node.text[:_SLICE].split())[:MAX_TITLE].rstrip() if node is not None else ""


def visible_text(
    tree: Document | Element, *, hidden: frozenset[str] = HIDDEN, without: frozenset[Node] = frozenset()
) -> str:
    """The text outside scripts, styles and the like: a line per block, no white space but single spaces.

    `without` are elements whose text is left out. Of a document that is not HTML, all text, a line per element."""
    top: Element | None
    if isinstance(tree, Document):
        top = part_of(tree, "body")
        if tree.root is not None and tree.root.tag != "html":
            return "\n".join(filter(None, (" ".join(text.split()) for text in tree.root.strings)))
    else:
        top = tree
    if top is None or top.tag in hidden:
        return ""
    lines: list[str] = []
    pieces: list[str] = []
    # The children still to come of each element around, and its tag: markup is nested deeper than calls may be.
    inside = [(iter(top), top.tag)]
    while inside:
        nodes, around = inside[-1]
        for node in nodes:
            if type(node) is Text or type(node) is CData:
                pieces.append(node.data)
            elif type(node) is Element:
                tag = node.tag
                if tag in BLOCKS:
                    if tag in _CELLS:
                        pieces.append(" ")
                    elif pieces:
                        lines.append("".join(pieces))
                        pieces.clear()
                if tag not in hidden and not (without and node in without):
                    inside.append((iter(node), tag))
                    break
        else:
            inside.pop()
            if around in BLOCKS:
                if around in _CELLS:
                    pieces.append(" ")
                elif pieces:
                    lines.append("".join(pieces))
                    pieces.clear()
    lines.append("".join(pieces))
    return "\n".join(filter(None, (" ".join(line.split()) for line in lines)))


def main_text(tree: Document) -> str:
    """The visible text without what surrounds it on every page of a site: menus, asides, forms and footers."""
    return visible_text(tree, hidden=_AROUND)


def text_beside_links(tree: Document) -> str:
    """The main text without that of its links: what a page that lists others says of its own."""
    return visible_text(tree, hidden=_AROUND | {"a"})


def part_of(tree: Document, tag: str) -> Element | None:
    """The `<head>` or the `<body>`; a frameset has no body."""
    return _child_of(tree.root, tag) if tree.root is not None else None


def _child_of(element: Element, tag: str) -> Element | None:
    return next((node for node in element if isinstance(node, Element) and node.tag == tag), None)
