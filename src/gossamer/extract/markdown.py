"""Markdown of a page or of its main part: GitHub's dialect, with absolute links.

One pass over the tree writes it in time linear in the page: marks of one kind do not nest, the nesting of lists and
quotes is limited, and tables are as wide as their rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from turbohtml import Document, Element, Node, Text

from gossamer.extract import links
from gossamer.extract.text import BLOCKS, HIDDEN, MainPart, part_of

_SPACES = re.compile(r"\s+")
_SPECIAL = re.compile(r"[\\`*\[\]]|(?<![^\W_])_|_(?![^\W_])|<(?=[a-zA-Z/!?])|&(?=#?\w+;)|~~")
_LINE_START = re.compile(r"#{1,6}(?= |$)|>|[-+](?= |$)|={2,}$|-{2,}$|~{3}")
_NUMBER = re.compile(r"(\d{1,9})([.)])(?= |$)")
_BACKTICKS = re.compile("`+")
_LANGUAGE = re.compile(r"(?:^|\s)(?:lang(?:uage)?|highlight(?:-source)?|brush:?|sourceCode)[-\s:]\s*([\w+#.-]+)")
_LANGUAGES = {"python3": "python", "pycon3": "pycon", "ipython3": "python", "shell-session": "console"}
_NO_LANGUAGES = frozenset({"default", "none", "text", "plain", "plaintext", "nohighlight", "no-highlight", "src"})
_OTHER_SCHEMES = re.compile(r"\s*(?:mailto|tel|sms|ftp|ftps|magnet|xmpp|irc|geo):", re.IGNORECASE)
_PERMALINK = re.compile(r"\s*[¶#§🔗]?\s*")
_LINE_NUMBERS = re.compile(r"\b(?:linenos?|linenodiv|line-?numbers|gutter)\b")
_MARKS = {
    "b": "**", "strong": "**", "i": "*", "em": "*", "cite": "*", "dfn": "*", "del": "~~", "s": "~~", "strike": "~~",
}  # fmt: skip
_CODE, _FENCED = frozenset({"code", "tt", "kbd", "samp"}), frozenset({"pre", "listing", "xmp"})
_CELLS, _HEADINGS = frozenset({"td", "th"}), frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
_DEEPEST, _MOST_SPAN = 12, 20
_PARTS = _HEADINGS | {"table", "section", "article"}
"""A cell with one of these belongs to a layout table, not to a table of data."""

Close = Callable[[], None]


def to_markdown(tree: Document, base: str, *, main: MainPart | None = None, encoding: str = "utf-8") -> str:
    """Convert the page, or only its main part, to Markdown; links and images are resolved against `base`."""
    top = main.element if main is not None else part_of(tree, "body")
    if top is None:
        return ""
    hidden = HIDDEN if main is None else HIDDEN | {"button"}
    return _Writer(base, encoding, hidden, main.without if main is not None else frozenset()).write(top)


class _Container:
    """A quote or a list item: the prefix of its lines, and the marker of its first line."""

    __slots__ = ("indent", "is_first", "marker")

    def __init__(self, indent: str, marker: str = "", *, is_first: bool = False) -> None:
        self.indent, self.marker, self.is_first = indent, marker, is_first


class _Mark:
    """Emphasis or similar markup, from a position in the open block on."""

    __slots__ = ("end", "name", "start")

    def __init__(self, name: str, end: str, start: int) -> None:
        self.name, self.end, self.start = name, end, start


class _Table:
    """The rows of a table, and the columns that cells of earlier rows span."""

    __slots__ = ("row", "rows", "spans")

    def __init__(self) -> None:
        self.rows: list[list[str]] = []
        self.row: list[str] = []
        self.spans: dict[int, int] = {}

    def skip_spans(self) -> None:
        """Fill the columns that cells above span."""
        while (rows := self.spans.pop(len(self.row), 0)) > 0:
            if rows > 1:
                self.spans[len(self.row)] = rows - 1
            self.row.append("")

    def add(self, text: str, columns: int, rows: int) -> None:
        """A cell."""
        for number in range(columns):
            if rows > 1 and len(self.spans) < _MOST_SPAN:
                self.spans[len(self.row)] = rows - 1
            self.row.append("" if number else text)
        self.skip_spans()

    def end_row(self) -> None:
        if any(self.row):
            self.rows.append(self.row)
        self.row = []


class _Writer:
    """Writes one page. Blocks are written when they end; inline content is collected first."""

    def __init__(self, base: str, encoding: str, hidden: frozenset[str], without: frozenset[Node]) -> None:
        self._base, self._encoding = base, encoding
        self._place = base.partition("#")[0]
        self._hidden, self._without = hidden, without
        self._lines: list[str] = []
        self._pieces: list[str] = []
        self._marks: list[_Mark] = []
        self._around: list[_Container] = []
        self._indent = ""
        self._last: list[_Container] = []
        self._has_markers = False
        self._lists: list[list[int]] = []
        self._table: _Table | None = None
        self._cells: list[str] | None = None
        """Blocks of the open table cell."""
        self._heading = ""
        self._last_code = (0, "")

    def write(self, top: Element) -> str:
        """Return the Markdown of an element."""
        inside: list[tuple[Iterator[Node], Close | None]] = [(iter((top,)), None)]
        while inside:
            nodes, close = inside[-1]
            for node in nodes:
                if type(node) is Text:
                    self._add(node.data)
                elif type(node) is Element:
                    tag = node.tag
                    if tag in self._hidden or (self._without and node in self._without):
                        continue
                    is_open, at_end = self._open(node, tag)
                    if is_open:
                        inside.append((iter(node), at_end))
                        break
            else:
                inside.pop()
                if close is not None:
                    close()
        self._end_block()
        return "\n".join(self._lines)

    def _add(self, text: str) -> None:
        if _SPECIAL.search(text):
            text = _SPECIAL.sub(r"\\\g<0>", text)
        self._pieces.append(_SPACES.sub(" ", text))

    # Handlers for elements return whether to descend, and a function to call at the end tag.

    def _open(self, node: Element, tag: str) -> tuple[bool, Close | None]:
        if tag not in BLOCKS:
            return self._open_inline(node, tag)
        if tag == "br":
            self._pieces.append("\n")
            return False, None
        if tag in _FENCED:
            self._fenced(node)
            return False, None
        if self._cells is not None:
            return self._open_in_cell(tag)
        self._end_block()
        return self._cell(node) if tag in _CELLS else self._open_block(node, tag)

    def _open_inline(self, node: Element, tag: str) -> tuple[bool, Close | None]:
        if tag == "a":
            return self._link(node)
        if tag in _MARKS:
            return True, self._mark(_MARKS[tag], _MARKS[tag])
        if tag == "q":
            return True, self._quotation()
        if tag in _CODE:
            self._code(node)
        elif tag == "img":
            self._image(node)
        else:
            return True, None
        return False, None

    def _open_in_cell(self, tag: str) -> tuple[bool, Close | None]:
        if tag in _CELLS or tag == "caption":
            self._pieces.append(" ")
            return True, None
        self._end_block()
        if tag == "li":
            self._pieces.append("- ")
        return True, self._end_block

    def _open_block(self, node: Element, tag: str) -> tuple[bool, Close | None]:
        if tag in _HEADINGS:
            self._heading = "#" * int(tag[1]) + " "
            return True, self._end_heading
        if tag in {"ul", "ol", "menu", "dir", "dl"}:
            return True, self._list(node, tag)
        if tag in {"li", "dt", "dd"}:
            return True, self._item(node, tag)
        if tag == "blockquote":
            return True, self._contain(_Container("> "))
        if tag == "table":
            return True, self._open_table(node)
        if tag == "tr" and self._table is not None:
            self._table.skip_spans()
            return True, self._end_row
        if tag == "hr":
            self._write_block(["---"])
            return False, None
        return True, self._end_block

    # Blocks

    def _end_block(self) -> None:
        """Write the collected text as a paragraph, a heading, or a part of a cell."""
        if not self._pieces:
            return
        for mark in reversed(self._marks):
            self._wrap(mark)
            mark.start = 0
        text = "".join(self._pieces)
        self._pieces.clear()
        self._last_code = (0, "")
        text = text.strip()
        if not text:
            return
        lines = [" ".join(line.split()) for line in text.split("\n")]
        if self._cells is not None:
            self._cells.append("<br>".join(lines))
        elif self._heading:
            self._write_block([self._heading + " ".join(filter(None, lines))])
        else:
            self._write_block(_hard_breaks([_escaped_start(line) for line in lines]))

    def _write_block(self, lines: list[str]) -> None:
        """Write lines with the prefixes of the surrounding containers, separated from the block before."""
        around = self._around
        markers = [one for one in around if one.marker] if self._has_markers else []
        shared = len(around) if around == self._last else _shared(around, self._last)
        # A blank line goes before a list, except within an item of another list.
        is_nested = 0 < shared == len(self._last)
        is_tight = bool(markers) and (not markers[0].is_first or (is_nested and markers[0].marker <= "1. "))
        if self._lines and not is_tight:
            self._lines.append("".join([one.indent for one in around[:shared]]).rstrip())
        indent = self._indent
        first = "".join([one.marker or one.indent for one in around]) if markers else indent
        for one in markers:
            one.marker = ""
        self._has_markers = False
        self._lines.append(first + lines[0])
        self._lines += [indent + line if line else indent.rstrip() for line in lines[1:]]
        self._last = around.copy()

    def _end_heading(self) -> None:
        self._end_block()
        self._heading = ""

    def _contain(self, container: _Container) -> Close:
        if len(self._around) >= _DEEPEST:
            return self._end_block
        self._around.append(container)
        before, self._indent = self._indent, self._indent + container.indent
        self._has_markers = self._has_markers or bool(container.marker)

        def close() -> None:
            self._end_block()
            self._around.pop()
            self._indent = before

        return close

    def _list(self, node: Element, tag: str) -> Close:
        start = _number(node.attr("start"), 1, most=10**8) if tag == "ol" else -1
        self._lists.append([start, 1])

        def close() -> None:
            self._end_block()
            self._lists.pop()

        return close

    def _item(self, node: Element, tag: str) -> Close:
        found = self._lists[-1] if self._lists else [-1, 1]
        if tag == "dd" and not found[1]:
            return self._contain(_Container("  "))
        marker = "- "
        if found[0] >= 0 and tag == "li":
            found[0] = _number(node.attr("value"), found[0], most=10**8)
            marker = f"{found[0]}. "
            found[0] += 1
        container = _Container(" " * len(marker), marker, is_first=bool(found[1]))
        found[1] = 0
        if tag != "dt":
            return self._contain(container)
        mark = self._mark("**", "**")
        close = self._contain(container)

        def both() -> None:
            if mark is not None:
                mark()
            close()

        return both

    def _fenced(self, node: Element) -> None:
        code = "".join(_code_of(node)).removeprefix("\n").rstrip()
        if self._cells is not None:
            self._end_block()
            self._cells += [_in_backticks(line) for line in code.split("\n") if line.strip()]
            return
        self._end_block()
        if code:
            fence = "`" * max(3, 1 + max(map(len, _BACKTICKS.findall(code)), default=0))
            self._write_block([fence + _language_of(node), *code.split("\n"), fence])

    # Tables

    def _open_table(self, node: Element) -> Close:
        if self._table is not None or not _has_data(node):
            return self._end_block
        self._table = _Table()

        def close() -> None:
            self._end_block()
            table, self._table = self._table, None
            if table is not None:
                table.end_row()
                if table.rows:
                    self._write_block(_pipes(table))

        return close

    def _end_row(self) -> None:
        if self._table is not None:
            self._table.end_row()

    def _cell(self, node: Element) -> tuple[bool, Close | None]:
        table = self._table
        if table is None:
            if node.tag == "td" and _LINE_NUMBERS.search(node.attr("class") or ""):
                return False, None
            return True, self._end_block
        self._cells = []
        columns, rows = _number(node.attr("colspan"), 1, most=_MOST_SPAN), _number(node.attr("rowspan"), 1, most=65534)

        def close() -> None:
            self._end_block()
            text = "<br>".join(self._cells or ()).replace("|", "\\|")
            self._cells = None
            table.add(text, columns or 1, rows)

        return True, close

    # Inline content

    def _mark(self, name: str, end: str) -> Close | None:
        if any(mark.name == name for mark in self._marks):
            return None
        self._marks.append(_Mark(name, end, len(self._pieces)))
        return self._end_mark

    def _end_mark(self) -> None:
        self._wrap(self._marks.pop())

    def _wrap(self, mark: _Mark) -> None:
        """Wrap the text since the mark's start in its signs, unless it is only white space."""
        text = "".join(self._pieces[mark.start :])
        inner = text.strip()
        if not inner:
            return
        del self._pieces[mark.start :]
        self._last_code = (0, "")
        before, after = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
        if mark.name == "a":
            self._pieces.append(f"{before}[{inner}{mark.end}{after}")
        else:
            self._pieces.append(f"{before}{mark.name}{inner}{mark.end}{after}")

    def _quotation(self) -> Close:
        self._pieces.append("“")
        return lambda: self._pieces.append("”")

    def _code(self, node: Element) -> None:
        text = " ".join(node.text.split())
        if not text:
            return
        # Two adjacent code spans would be parsed as one with backticks in it.
        place, before = self._last_code
        if 0 < place == len(self._pieces):
            self._pieces.pop()
            text = before + text
        self._pieces.append(_in_backticks(text))
        self._last_code = (len(self._pieces), text)

    def _link(self, node: Element) -> tuple[bool, Close | None]:
        href = node.attr("href")
        if href is None:
            return True, None
        if "headerlink" in (node.attr("class") or "") or len(node) == 1:
            text = node.text
            if text and len(text) <= 4 and not text.isspace() and _PERMALINK.fullmatch(text):
                return False, None
        url = self._resolved(href)
        return True, self._mark("a", f"]({url})") if url else None

    def _image(self, node: Element) -> None:
        if node.attr("width") in {"0", "1"} or node.attr("height") in {"0", "1"}:
            return
        source = next((given for name in ("src", "data-src", "data-original") if (given := _source(node, name))), "")
        if not source:
            source = next(iter(links.parse_srcset(node.attr("srcset") or node.attr("data-srcset") or "")), "")
        alt = " ".join((node.attr("alt") or "").split())
        alt = _SPECIAL.sub(r"\\\g<0>", alt)
        url = self._resolved(source) if source else ""
        self._pieces.append(f"![{alt}]({url})" if url else alt)

    def _resolved(self, reference: str) -> str:
        """Return a URL that Markdown can hold; empty for scripts and the like."""
        if _OTHER_SCHEMES.match(reference):
            url = "".join(reference.split())
        else:
            place, mark, fragment = reference.strip().partition("#")
            found = links.resolve(self._base, links.encode_query(place, self._encoding)) if place else self._place
            if found is None:
                return ""
            url = found + mark + "".join(fragment.split())
        return url.replace("(", "%28").replace(")", "%29").replace("<", "%3C").replace(">", "%3E")


def _shared(some: list[_Container], others: list[_Container]) -> int:
    """Count the outermost containers that both have."""
    pairs = enumerate(zip(some, others, strict=False))
    return next((number for number, (one, other) in pairs if one is not other), min(len(some), len(others)))


def _source(node: Element, name: str) -> str:
    given = (node.attr(name) or "").strip()
    return "" if given[:5].lower() == "data:" else given


def _escaped_start(line: str) -> str:
    """Escape a line that would start a heading, quote, list, or rule."""
    if _LINE_START.match(line):
        return f"\\{line}"
    return _NUMBER.sub(r"\1\\\2", line, count=1) if _NUMBER.match(line) else line


def _hard_breaks(lines: list[str]) -> list[str]:
    """Add a line break after each line of a paragraph; an empty line starts a new paragraph."""
    return [
        f"{line}  " if line and number + 1 < len(lines) and lines[number + 1] else line
        for number, line in enumerate(lines)
        if line or lines[number - 1]
    ]


def _in_backticks(text: str) -> str:
    longest = max(map(len, _BACKTICKS.findall(text)), default=0)
    fence = "`" * (longest + 1)
    space = " " if longest and (text[0] == "`" or text[-1] == "`") else ""
    return f"{fence}{space}{text}{space}{fence}"


def _code_of(node: Element) -> Iterator[str]:
    """Yield the text of code, with `<br>` as a line break."""
    for below in node.descendants:
        if type(below) is Text:
            yield below.data
        elif type(below) is Element and below.tag == "br":
            yield "\n"


def _language_of(node: Element) -> str:
    """Return the language of a code block from the class names of common highlighters."""
    child = next((below for below in node if isinstance(below, Element)), None)
    above = node.parent
    around = above.parent if above is not None else None
    for element in (child, node, above, around):
        if not isinstance(element, Element):
            continue
        if element is child and element.tag != "code":
            continue
        given = element.attr("data-lang") or element.attr("data-language")
        found = _LANGUAGE.search(element.attr("class") or "")
        name = (given or (found[1] if found else "")).strip().lower().removeprefix("source-")
        if name in _NO_LANGUAGES:
            return ""
        if name and re.fullmatch(r"[\w+#.-]{1,40}", name):
            return _LANGUAGES.get(name, name)
    return ""


def _has_data(table: Element) -> bool:
    """Whether a table holds data rather than page layout."""
    if (table.attr("role") or "") in {"presentation", "none"}:
        return False
    widest = rows = heads = 0
    for row in _rows(table):
        cells = [cell for cell in row if isinstance(cell, Element) and cell.tag in _CELLS]
        if any(isinstance(part, Element) and part.tag in _PARTS for cell in cells for part in cell):
            return False
        heads += sum(cell.tag == "th" for cell in cells)
        widest, rows = max(widest, len(cells)), rows + 1
    return heads > 0 or (widest > 1 and rows > 1)


def _rows(table: Element) -> Iterator[Element]:
    for part in table:
        if isinstance(part, Element):
            if part.tag == "tr":
                yield part
            elif part.tag in {"thead", "tbody", "tfoot"}:
                yield from (row for row in part if isinstance(row, Element) and row.tag == "tr")


def _pipes(table: _Table) -> list[str]:
    """Return the rows as lines; the first one is the header, since the dialect requires one."""
    head, *rows = table.rows
    head += [""] * (max(map(len, table.rows)) - len(head))
    return [_row(head), _row(["---"] * len(head)), *map(_row, rows)]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(text: str | None, default: int, *, most: int) -> int:
    found = re.match(r"\s*\+?(\d{1,9})", text or "")
    return min(int(found[1]), most) if found else default
