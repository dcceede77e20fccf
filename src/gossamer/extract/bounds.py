"""How much of a body may be given to the HTML parser, whose work is quadratic in corners that a page can reach."""

from __future__ import annotations

import re
from itertools import islice

# One unit is one element that the parser looks at while it searches its stack: about 1.2 ns.
WORK = 32_000_000
WORK_PER_BYTE = 16
# The body, its tree with a copy of the text, and the longest piece once more as the parser reads it, and as a string.
MAX_PAGE_BYTES = 39 * 1024 * 1024
LEAST_TREE_BYTES = 8 * 1024 * 1024
MOST_TEXT_BYTES = 8 * 1024 * 1024
# A tag, or a title, which the parser keeps twice; a picture in an attribute may be of some size.
MAX_PIECE_BYTES = 4 * 1024 * 1024
# What the parser was seen to take for each of them.
ELEMENT_BYTES = 210
TEXT_BYTES = 140
ATTRIBUTE_BYTES = 260
COMMENT_BYTES = 140
END_TAG_BYTES = 24
STRAY_BYTES = 20
# Who looks for links has a node and a string of Python for each.
LINK_BYTES = 320

SMALL_BYTES = 4096
LARGE_BYTES = 524_288
MANY_TAGS = 8192
MANY_COPIES = 300_000
LONG_TAG_BYTES = 12_288
MANY_ATTRIBUTES = 2048
MANY_QUOTED_ENDS = 2
MANY_NULS = 100_000

_PARTS = {
    b"S": rb"\t\n\f\r ",
    b"V": rb"(?:[\t\n\f\r ]*+=[\t\n\f\r ]*+(?:\"[^\"]*+\"?|'[^']*+'?|[^\t\n\f\r >\"'][^\t\n\f\r >]*+)?)?",
}
_ATTRIBUTE = rb"[^%(S)s/>][^%(S)s/>=]*+%(V)s" % _PARTS
_NAMES = re.compile(rb"([^%(S)s/>][^%(S)s/>=]*+)%(V)s" % _PARTS)
_TOKEN = re.compile(
    rb"<(?:/([a-zA-Z][^%(S)s/>]*+)(?:[%(S)s/]++|%(A)s)*+>?"
    rb"|([a-zA-Z][^%(S)s/>]*+)(?:[%(S)s/]++|%(A)s)*+>?"
    rb"|!--(?:-?>|(?:[^-]++|-(?!-!?>))*+(?:--!?>)?)|(!\[CDATA\[)|[!?/][^>]*+>?"
    # Signs that begin nothing, with the text between them.
    rb"|([^<]*+(?:<(?![a-zA-Z!?/])[^<]*+)*+))" % {b"A": _ATTRIBUTE, **_PARTS},
    re.DOTALL,
)
# What may be a character for which a string takes four bytes each, or two.
_WIDE = re.compile(rb"[&\xf0-\xf4]")
_FOREIGN_LETTER = re.compile(rb"[\x80-\xff]")
_LONG_TAG = re.compile(rb"<[a-zA-Z][^>]{%d}" % LONG_TAG_BYTES)
_FORMATTING_START = re.compile(
    rb"<(?:[bBiIuUsS][\t\n\f\r />mMtTiI]|[eE][mM]|[tT][tT]|[fF][oO][nN]|[cC][oO][dD]|[nN][oO][bB])"
)
_FORMATTED_TEXT = re.compile(rb"<(b|i|u|s|em|strong|small|code|tt|B|I|U|S|EM|STRONG)>[^<]*+</\1>")
"""If such a start tag is one, its end tag is too, and nothing can be open in between: it is never opened again."""
_SCRIPT = re.compile(rb"<[sS][cC][rR][iI][pP][tT]")

_VOID_TAGS = b"area base basefont bgsound br col embed frame hr image img input keygen link meta param source track wbr"
_RAW_TAGS = b"script style textarea title xmp iframe noembed noframes"
_FORMATTING_TAGS = b"b big code em font i s small strike strong tt u a nobr"
_FENCE_TAGS = b"table td th caption template object marquee applet foreignobject desc mi mo mn ms mtext annotation-xml"
_REACHING_TAGS = (
    b"address article aside blockquote button center details dialog dir div dl fieldset figcaption figure footer "
    b"header hgroup listing main menu nav ol pre search section summary ul dd dt"
)
_LINKS = frozenset({b"a", b"area", b"link"})
_VOID = frozenset(_VOID_TAGS.split())
_RAW = frozenset(_RAW_TAGS.split())
_TEXT = frozenset({b"title", b"textarea"})
_FORMATTING = frozenset(_FORMATTING_TAGS.split())
_FENCES = frozenset(_FENCE_TAGS.split())
_REACHING = frozenset(_REACHING_TAGS.split())
"""Their end tags close all that is open inside them; those of others stop at such an element."""
_SPECIAL = _REACHING | {b"li", b"p", b"form", b"select", b"h1", b"h2", b"h3", b"h4", b"h5", b"h6"}
_TABLE_PARTS = frozenset({b"tr", b"td", b"th", b"tbody", b"thead", b"tfoot", b"caption", b"colgroup"})
_CELLS = frozenset({b"td", b"th", b"caption"})
_SIBLINGS = {
    **{name: frozenset({name}) for name in (b"p", b"li", b"option", b"a", b"nobr")},
    **{name: frozenset({b"dt", b"dd"}) for name in (b"dt", b"dd")},
    **{name: frozenset({b"rt", b"rp"}) for name in (b"rt", b"rp")},
}
"""A start tag ends an open element of these names, and the paragraph that stands in between."""
_UNIQUE = frozenset({b"a", b"nobr"})
_FOREIGN = frozenset({b"svg", b"math"})
# Spelled out in both cases and behind a lookahead, which lets the search run from one `<` to the next.
_END_RAW = {
    name: re.compile(rb"<(?=/" + b"".join(b"[%c%c]" % (letter, letter - 32) for letter in name) + rb"[\t\n\f\r />])")
    for name in _RAW
}


def safe_length(body: bytes, *, held_bytes: int = 0) -> int:
    """The length of the longest prefix whose tree is built in linear time and bounded memory; mostly all of it.

    `held_bytes` is what the page takes besides this body."""
    length = _measure(body, held_bytes) if _is_suspicious(body) else len(body)
    if b"\0" in body and body.count(0, 0, length) > MANY_NULS:
        # The parser leaves each of them out, and keeps a piece of memory for it.
        end = -1
        for _ in range(MANY_NULS):
            end = body.find(0, end + 1)
        length = min(length, end)
    return length


def room_for(held_bytes: int) -> int:
    """How much the tree of a page may take, with everything that is made of it, where so much is held already."""
    # The more there is of a page, the more is made of it besides: its text, its links, a line of output.
    return max(MAX_PAGE_BYTES - held_bytes * 3 // 2, LEAST_TREE_BYTES)


def room_for_text(body_bytes: int) -> int:
    """How much the text of a page may take as a string: eight megabytes, less of a body near the limits."""
    return min(max(room_for(body_bytes) // 3, MOST_TEXT_BYTES // 4), MOST_TEXT_BYTES)


def _is_suspicious(body: bytes) -> bool:
    """Whether a body could reach a bad corner at all, told without reading its tags."""
    size = len(body)
    if size <= SMALL_BYTES:
        return False
    if size > LARGE_BYTES:
        return True
    # To leave them out goes from one to the next, where to count them looks at each byte.
    tags = size - len(body.replace(b"<", b""))
    # Half of them formatting, the other half places to open it again in, is the worst that they could be.
    if tags > MANY_TAGS or (tags * tags > 4 * MANY_COPIES and _left_open(body) * tags > MANY_COPIES):
        return True
    return _hides_its_end(body)


def _left_open(body: bytes) -> int:
    """How many formatting elements may be left open, at most."""
    return len(_FORMATTING_START.findall(body)) - len(_FORMATTED_TEXT.findall(body))


def _hides_its_end(body: bytes) -> bool:
    """Whether there may be a tag with thousands of attributes: over its length, each `>` is missing or in quotes."""
    block = LONG_TAG_BYTES // 2
    quoted, looked = 0, False
    for start in range(0, len(body) - block, block):
        end = body.find(b">", start, start + block)
        if end < 0:
            if not looked and any(_has_many_attributes(body, found.start()) for found in _LONG_TAG.finditer(body)):
                return True
            looked = True
        elif _is_quoted(body, end):
            quoted += 1
            if quoted >= MANY_QUOTED_ENDS:
                return True
        else:
            quoted = 0
    return False


def _is_quoted(body: bytes, end: int) -> bool:
    """Whether a `>` may be inside of an attribute's value: the last quote before it, of either kind, has begun one."""
    for quote in (b'"', b"'"):
        # One that stands behind kilobytes of white space is looked at closer.
        place = max(0, body.rfind(quote, 0, end))
        before = body[max(0, place - SMALL_BYTES) : place].rstrip(b"\t\n\f\r ")
        if before.endswith(b"=") or (not before and place > SMALL_BYTES):
            return True
    return False


def _has_many_attributes(body: bytes, start: int) -> bool:
    """Whether what looks like a tag has them; mostly it is a comparison in a script."""
    end = body.find(b">", start)
    return len(_NAMES.findall(body, start + 1, end if end >= 0 else len(body))) > MANY_ATTRIBUTES


def _measure(body: bytes, held_bytes: int) -> int:
    tree, budget = _Tree(), WORK + WORK_PER_BYTE * len(body)
    room = room_for(len(body) + held_bytes)
    names: set[bytes] = set()
    # Up to `safe` there is room for a copy too, which is made of a body that is cut.
    position = safe = longest = last = 0
    while position < len(body):
        restart = len(body)
        for token in _TOKEN.finditer(body, position):
            kind, start, end = token.lastindex, token.start(), token.end()
            if piece := start - last:
                tree.bytes += TEXT_BYTES
                if piece > longest // 5:
                    longest = max(longest, _twice_more(body, last, start))
                    if tree.bytes + start + longest > room:
                        return max(safe, last + _share(room - tree.bytes - 2 * last))
            last = end
            if kind == 1:
                tree.close(token[1].lower())
            elif kind == 2:
                name, size = token[2].lower(), end - start
                if size > MAX_PIECE_BYTES:
                    return min(safe, start)
                if name not in names:
                    tree.work += len(names) // 4
                    names.add(name)
                if size > len(name) + 2:
                    tree.work += _attribute_work(token[0][len(name) + 1 :], names, tree, room)
                if name in _RAW and not tree.foreign:
                    tree.bytes += ELEMENT_BYTES
                    restart = _end_of_raw(body, name, end, tree)
                    most = MAX_PIECE_BYTES if name in _TEXT else len(body)
                    longest, last = max(longest, _twice_more(body, end, restart)), restart
                    if restart - end > most or tree.bytes + restart + longest > room:
                        return max(safe, end + min(most, _share(room - tree.bytes - 2 * end)))
                    break
                tree.open(name, token[0])
            elif kind == 4:
                tree.bytes += TEXT_BYTES + STRAY_BYTES * body.count(b"<", start, end)
                longest = max(longest, _twice_more(body, start, end))
            else:
                tree.bytes += COMMENT_BYTES
                longest = max(longest, end - start)
                if kind == 3 and tree.foreign:
                    tree.trusting = False
            taken = tree.bytes + end + longest
            if tree.work > budget or taken > room:
                return safe
            if taken + end <= room:
                safe = end
        position = restart
    if tree.bytes + len(body) + max(longest, _twice_more(body, last, len(body))) > room:
        return max(safe, last + _share(room - tree.bytes - 2 * last))
    return len(body)


def _twice_more(body: bytes, start: int, end: int) -> int:
    """What a piece takes besides its place in the tree: while it is read, and as a string, which may be wider."""
    if end - start < SMALL_BYTES:
        return 2 * (end - start)
    wide = 4 if _WIDE.search(body, start, end) else 2 if _FOREIGN_LETTER.search(body, start, end) else 1
    return (1 + wide) * (end - start)


def _share(left: int) -> int:
    """How much of one long piece there is room for: cut off with all before it, read, in the tree, and as a string."""
    return max(left, 0) // 7


def _attribute_work(rest: bytes, names: set[bytes], tree: _Tree, room: int) -> int:
    """Each name is compared with those before it in the tag, and a new one with a share of all names of the page."""
    most = room // ATTRIBUTE_BYTES + 1
    found = [name[1] for name in islice(_NAMES.finditer(rest), most)] if len(rest) > most else _NAMES.findall(rest)
    tree.bytes += ATTRIBUTE_BYTES * len(found)
    known = len(names)
    names.update(found)
    return len(found) * len(found) + (len(names) - known) * known // 4


def _end_of_raw(body: bytes, name: bytes, start: int, tree: _Tree) -> int:
    found = _END_RAW[name].search(body, start)
    end = found.start() if found is not None else len(body)
    hidden = body.find(b"<!--", start, end) if name == b"script" else -1
    if hidden >= 0 and _SCRIPT.search(body, hidden, end) is not None:
        # Inside such a comment the parser may not see the script's end where it seems to be.
        tree.trusting = False
    return end


class _Frame:
    """The open elements inside one table, cell or other element that end tags do not reach through."""

    __slots__ = ("counts", "fence", "formatting", "names")

    def __init__(self, fence: bytes) -> None:
        self.fence = fence
        self.names: list[bytes] = []
        self.counts: dict[bytes, int] = {}
        self.formatting: dict[tuple[bytes, bytes], int] = {}
        """Formatting that is opened again in each new place until it is closed, by name and whole tag."""


class _Tree:
    """A rough copy of the parser's stack that is seldom lower than the real one, and the work it would have caused."""

    def __init__(self) -> None:
        self.frames = [_Frame(b"")]
        self.depth = 0
        self.copies = 0
        """How many elements each new place may begin with, to go on with formatting that was left open."""
        self.foreign = 0
        self.work = 0
        self.bytes = 0
        self.trusting = True
        """Whether end tags are where they seem to be; after doubtful markup they count for nothing."""

    def open(self, name: bytes, tag: bytes) -> None:
        self.work += self.depth
        self.bytes += ELEMENT_BYTES * (1 + self.copies) + (LINK_BYTES if name in _LINKS else 0)
        if name in _VOID:
            return
        if name in _TABLE_PARTS and not self._enter_row(name):
            return
        frame = self.frames[-1]
        names = frame.names
        ended = _SIBLINGS.get(name)
        if ended is not None and names and self.trusting:
            if names[-1] == b"p" and name != b"p" and len(names) > 1 and names[-2] in ended:
                self._pop(frame)
            if names[-1] in ended:
                self._pop(frame)
        names.append(name)
        frame.counts[name] = frame.counts.get(name, 0) + 1
        self.depth += 1
        if name in _FORMATTING:
            self._format(frame, name, b"" if name in _UNIQUE else tag)
        elif name in _FENCES:
            self.frames.append(_Frame(name))
        elif name in _FOREIGN:
            self.foreign += 1

    def close(self, name: bytes) -> None:
        self.work += self.depth
        # Two of them make an element where none is open.
        self.bytes += ELEMENT_BYTES if name in (b"br", b"p") and not self.frames[-1].counts.get(name) else END_TAG_BYTES
        if not self.trusting:
            return
        frame = self.frames[-1]
        names = frame.names
        if name in _FORMATTING:
            self._unformat(frame, name)
        if names and names[-1] == name:
            self._pop(frame)
        elif name in _FENCES or name in _TABLE_PARTS:
            self._leave(name)
        elif frame.counts.get(name) and (name in _REACHING or self._is_near(names, name)):
            while self._pop(frame) != name:
                pass

    def _is_near(self, names: list[bytes], name: bytes) -> bool:
        for above in names[-16:][::-1]:
            if above == name:
                return name != b"form"
            if above in _SPECIAL:
                return False
        return False

    def _format(self, frame: _Frame, name: bytes, tag: bytes) -> None:
        # The parser keeps at most three of the same tag, and one of some.
        same = frame.formatting.get((name, tag), 0)
        if same < (1 if name in _UNIQUE else 3):
            frame.formatting[name, tag] = same + 1
            self.copies += 1

    def _unformat(self, frame: _Frame, name: bytes) -> None:
        for key in reversed(frame.formatting):
            if key[0] == name:
                frame.formatting[key] -= 1
                if not frame.formatting[key]:
                    del frame.formatting[key]
                self.copies -= 1
                return

    def _pop(self, frame: _Frame) -> bytes:
        name = frame.names.pop()
        frame.counts[name] -= 1
        self.depth -= 1
        if name in _FOREIGN:
            self.foreign -= 1
        return name

    def _drop_frame(self) -> None:
        frame = self.frames.pop()
        while frame.names:
            self._pop(frame)
        self.copies -= sum(frame.formatting.values())

    def _leave(self, name: bytes) -> None:
        """End a fenced element or a part of a table; cells give way, other fences do not."""
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
