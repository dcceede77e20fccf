"""How much of a body may be given to the HTML parser, whose work is quadratic in corners that a page can reach."""

from __future__ import annotations

import re

# One unit is one element that the parser looks at while it searches its stack: about 1.2 ns.
WORK = 32_000_000
WORK_PER_BYTE = 64
# An element costs the parser about 300 bytes of memory.
MAX_ELEMENTS = 400_000

SMALL_BYTES = 4096
BLOCK_BYTES = 4096
MANY_TAGS = 8192
MANY_COPIES = 300_000

_SPACE = rb"\t\n\f\r "
_ATTRIBUTE = rb"[^%(s)s/>][^%(s)s/>=]*+(?:[%(s)s]*+=[%(s)s]*+(?:\"[^\"]*+\"?|'[^']*+'?|[^%(s)s>\"'][^%(s)s>]*+)?)?" % {
    b"s": _SPACE
}
_ATTRIBUTES = re.compile(_ATTRIBUTE)
_TOKEN = re.compile(
    rb"<(?:/([a-zA-Z][^%(s)s/>]*+)(?:[%(s)s/]++|%(a)s)*+>?"
    rb"|([a-zA-Z][^%(s)s/>]*+)(?:[%(s)s/]++|%(a)s)*+>?"
    rb"|!--(?:-?>|.*?(?:--!?>|\Z))|(!\[CDATA\[)|[!?/][^>]*+>?)" % {b"s": _SPACE, b"a": _ATTRIBUTE},
    re.DOTALL,
)
_LONG_TAG = re.compile(rb"<[a-zA-Z][^>]{%d}" % (BLOCK_BYTES // 2))
_QUOTED_END = re.compile(rb"=[\t\n\f\r ]*(?:\"[^\">]*>|'[^'>]*>)")
_FORMATTING_START = re.compile(
    rb"<(?:[bBiIuUsS][\t\n\f\r />mMtTiI]|[eE][mM]|[tT][tT]|[fF][oO][nN]|[cC][oO][dD]|[nN][oO][bB])"
)
_HIDDEN_SCRIPT = re.compile(rb"<!--.*?<script", re.IGNORECASE | re.DOTALL)

_VOID = frozenset(
    b"area base basefont bgsound br col embed frame hr image img input keygen link meta param source track wbr".split()
)
_RAW = frozenset(b"script style textarea title xmp iframe noembed noframes".split())
_FORMATTING = frozenset(b"b big code em font i s small strike strong tt u nobr a".split())
_FENCES = frozenset(
    b"table td th caption template object marquee applet foreignobject desc mi mo mn ms mtext annotation-xml".split()
)
_TABLE_PARTS = frozenset(b"tr td th tbody thead tfoot caption colgroup".split())
_CELLS = frozenset(b"td th caption".split())
# A start tag of these ends an open element of the same kind, and the paragraph that stands in between.
_SIBLINGS = frozenset(b"p li dt dd option optgroup rt rp a nobr".split())
_END_RAW = {name: re.compile(rb"</" + name + rb"(?=[\t\n\f\r />])", re.IGNORECASE) for name in _RAW}


def safe_length(body: bytes) -> int:
    """The length of the longest prefix whose tree is built in linear time and bounded memory; mostly all of it."""
    return _measure(body) if _suspicious(body) else len(body)


def _suspicious(body: bytes) -> bool:
    """Whether a body could reach a bad corner at all, told without reading its tags."""
    size = len(body)
    if size <= SMALL_BYTES:
        return False
    formatting = len(_FORMATTING_START.findall(body))
    if formatting * (size // 4) > MANY_COPIES or size > 4 * BLOCK_BYTES:
        tags = body.count(b"<")
        if tags > MANY_TAGS or formatting * tags > MANY_COPIES:
            return True
    # A tag with thousands of attributes leaves a whole block without an end of tag, or hides one in quotes.
    for start in range(0, size - BLOCK_BYTES, BLOCK_BYTES):
        if body.find(b">", start, start + BLOCK_BYTES) < 0:
            return _LONG_TAG.search(body) is not None
    return size > 16 * BLOCK_BYTES and len(_QUOTED_END.findall(body)) > 8


def _measure(body: bytes) -> int:
    tree, budget = _Tree(), WORK + WORK_PER_BYTE * len(body)
    tokens = _TOKEN.finditer(body)
    while (token := next(tokens, None)) is not None:
        start, end = token.span()
        if end - start > BLOCK_BYTES // 2 and token[2]:
            tree.work += len(_ATTRIBUTES.findall(body, start + 1 + len(token[2]), end)) ** 2
        if token[1]:
            tree.close(token[1].lower())
        elif token[2]:
            name = token[2].lower()
            if name not in _RAW:
                tree.open(name)
            elif not tree.foreign:
                tree.elements += 1
                found = _END_RAW[name].search(body, end)
                after = found.start() if found is not None else len(body)
                # Inside such a comment the parser may not see the script's end where it seems to be.
                if name == b"script" and _HIDDEN_SCRIPT.search(body, end, after) is not None:
                    tree.trusting = False
                tokens = _TOKEN.finditer(body, after)
        elif token[3] and tree.foreign:
            tree.trusting = False
        if tree.work > budget or tree.elements > MAX_ELEMENTS:
            return start
    return len(body)


class _Frame:
    """The open elements inside one table cell, table or other element that end tags do not reach through."""

    __slots__ = ("counts", "fence", "formatting", "names")

    def __init__(self, fence: bytes) -> None:
        self.fence = fence
        self.names: list[bytes] = []
        self.counts: dict[bytes, int] = {}
        self.formatting = 0


class _Tree:
    """A rough copy of the parser's stack that is seldom lower than the real one, and the work it would have caused."""

    def __init__(self) -> None:
        self.frames = [_Frame(b"")]
        self.depth = 0
        self.formatting = 0
        self.foreign = 0
        self.work = 0
        self.elements = 0
        self.trusting = True
        """Whether end tags are where they seem to be; after doubtful markup they count for nothing."""

    def open(self, name: bytes) -> None:
        self.work += self.depth
        # Formatting that was left open is opened again, by copies, in each new place.
        self.elements += 1 + self.formatting
        if name in _VOID:
            return
        if name in _TABLE_PARTS and not self._enter_row(name):
            return
        frame = self.frames[-1]
        if name in _SIBLINGS and frame.names and self.trusting:
            if frame.names[-1] == b"p" and name != b"p" and len(frame.names) > 1 and frame.names[-2] == name:
                self._pop(frame)
            if frame.names[-1] == name:
                self._pop(frame)
        frame.names.append(name)
        frame.counts[name] = frame.counts.get(name, 0) + 1
        self.depth += 1
        if name in _FORMATTING:
            frame.formatting += 1
            self.formatting += 1
        elif name in {b"svg", b"math"}:
            self.foreign += 1
        if name in _FENCES:
            self.frames.append(_Frame(name))

    def close(self, name: bytes) -> None:
        self.work += self.depth
        if not self.trusting:
            return
        if name in _FENCES or name in _TABLE_PARTS:
            self._leave(name)
            return
        frame = self.frames[-1]
        if not frame.counts.get(name):
            return
        if name in _FORMATTING and frame.names[-1] != name:
            # Closed out of turn: it is not opened again, but what stands on top of it stays open.
            if frame.formatting:
                frame.formatting -= 1
                self.formatting -= 1
            return
        while self._pop(frame, ended=name) != name:
            pass

    def _pop(self, frame: _Frame, *, ended: bytes = b"") -> bytes:
        name = frame.names.pop()
        frame.counts[name] -= 1
        self.depth -= 1
        # Formatting that is cut off by the end of its parent is not over: it will be opened again.
        if name == ended and name in _FORMATTING and frame.formatting:
            frame.formatting -= 1
            self.formatting -= 1
        elif name in {b"svg", b"math"}:
            self.foreign -= 1
        return name

    def _drop_frame(self) -> None:
        frame = self.frames.pop()
        while frame.names:
            self._pop(frame)
        self.formatting -= frame.formatting

    def _leave(self, name: bytes) -> None:
        """End an element that stands for a fence, or a part of the table; cells give way, other fences do not."""
        for back in range(1, min(len(self.frames), 8) + 1):
            frame = self.frames[-back]
            if frame.counts.get(name):
                for _ in range(back - 1):
                    self._drop_frame()
                while self._pop(frame) != name:
                    pass
                return
            if frame.fence and frame.fence not in _CELLS and frame.fence != name:
                return

    def _enter_row(self, name: bytes) -> bool:
        """Make room for a part of a table; False where there is no table, and so the tag is ignored."""
        if self.frames[-1].fence in _CELLS and self.trusting:
            self._leave(self.frames[-1].fence)
        frame = self.frames[-1]
        if frame.fence not in {b"table", b"template"}:
            return False
        while frame.names and self.trusting and frame.names[-1] in _TABLE_PARTS and not _holds(frame.names[-1], name):
            self._pop(frame)
        return True


def _holds(outer: bytes, inner: bytes) -> bool:
    return (inner in {b"td", b"th"} and outer == b"tr") or (inner == b"tr" and outer in {b"tbody", b"thead", b"tfoot"})
