"""Legacy multi-byte encodings as the Encoding Standard reads and writes them, on top of Python's codecs.

Python's tables are those of other standards. Where the two differ, letters are exchanged afterwards, or, where Python
knows none, given by an error handler, which also says how many bytes a mistake takes along."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import chain
from unicodedata import normalize

MAX_MISTAKES = 2000
"""Beyond these, a text is read as Python reads it, which is sooner done: it is none of that encoding."""
MAX_RUNS = 50_000
"""The same for a text of many short runs, or of mistakes, in ISO-2022-JP."""
SLICE_BYTES = 1024 * 1024
_BAD = "\ufffd"
# Letters of the index big5 that HKSCS-2004 does not have, or that it has elsewhere.
_BIG5 = """
    877a㡵𡵓𣚞𦀡㻬
    87a1𥣞㫵竼龗𤅡𨤍𣇪𠪊𣉞䌊蒄龖鐯䤰蘓墖靊鈘秐稲晠権袝瑌篅枂稬剏遆㓦珄𥶹瓆鿇垳䤯呌䄱𣚎堘穲𧭥讏䚮𦺈䆁𥶙箮𢒼鿈𢓁𢓉𢓌鿉蔄𣖻䂴鿊䓡𪷿拁灮鿋
    8e69箸 8e6f簆 8e7e糎 8eab緒 8eb4縝 8ecd者 8ed0耨 8f57菁 8f69蒨 8f6e萏 8fcb覦覩
    8ffe起 906d都 907a銹 90dc靜 90f1響 91bf鼖 9244蔃 92af兙兛兝兞 92c8鍮 92d1瑹 9447浧
    94ca禛 95d9邗 9644靝 96ed瀞 96fc嬨 9b76爁 9b78矗 9b7b纇 9bc6駖 9bde釔 9bec惞
    9bf6澶 9c42輶 9c53侻 9c62營 9c68鄄 9c6b鷰 9c77菏 9cbc尐秣 9cd0婧 9d57輋 9d5a筑
    9dc4拐 9ea9恢 9eef痹 9efd汊 9f60鬮 9f66鼗 9fcb僭 9fd8弌 a063蠏 a077拎 a0d5瑨
    a0df煢 a0e4牐 c6cf廴 c6d3无 c6d5癶 c6d7隶 c6de〃仝 fa5f倩 fa66偽 fabd包 fac5卄
    fad5卿 fb48嘅 fbb8婷 fbf3幵 fbf9廐 fc4f彘 fc6c悤 fcb9撐 fce2晴 fcf1杞 fdb7沜渝
    fdbb港 fdf1煮 fe52猪 fe6f瑜 feaa瓩 fedd砉
"""
_BIG5_LETTERS = (
    {int(word[:4], 16) + place: letter for word in _BIG5.split() for place, letter in enumerate(word[4:])}
    | {0xA3C0 + place: chr(0x2400 + place) for place in range(32)}
    | {0xA3E0: "\u2421", 0xA3E1: "\u20ac"}
)
_JIS = {0x301C: 0xFF5E, 0x2016: 0x2225, 0x2212: 0xFF0D, 0xA2: 0xFFE0, 0xA3: 0xFFE1, 0xAC: 0xFFE2}
_GB18030 = {
    **{0xE5E5: 0x3000, 0xE7C7: 0x1E3F},
    **dict(zip(range(0xE78D, 0xE797), (0xFE10, 0xFE12, 0xFE11, *range(0xFE13, 0xFE1A)), strict=True)),
    **dict(zip((0xE81E, 0xE826, 0xE82B, 0xE82C, 0xE832, 0xE843, 0xE854, 0xE864), range(0x9FB4, 0x9FBC), strict=True)),
}
_EXCHANGED = {
    "gbk": _GB18030,
    "gb18030": _GB18030,
    "big5": {
        **{0x2022: 0x2027, 0xFF64: 0xFE51, 0x203E: 0xAF, 0x223C: 0xFF5E, 0x2641: 0x2295, 0x2609: 0x2299},
        **{0xA5: 0xFFE5, 0xA2: 0xFFE0, 0xA3: 0xFFE1},
    },
    "euc-jp": _JIS,
    "shift_jis": dict.fromkeys(range(0xF8F0, 0xF8F4), 0xFFFD),
}
_LEGACY_CODECS = {
    **{"gbk": "gb18030", "gb18030": "gb18030", "big5": "big5hkscs", "euc-jp": "euc_jp"},
    **{"iso-2022-jp": "iso2022_jp_ext", "shift_jis": "cp932", "euc-kr": "cp949"},
}
ENCODINGS = frozenset(_LEGACY_CODECS)
_ROMAN = {"\xa5": b"\\", "\u203e": b"~"}
_WIDE = {chr(half): normalize("NFKC", chr(half)) for half in range(0xFF61, 0xFF9E)} | {
    "\uff9e": "\u309b",
    "\uff9f": "\u309c",
}
# Bytes that Python reads as a letter which it also has elsewhere: all that comes before them, and the letters they are.
_STRAY = {
    "big5": (
        re.compile(rb"(?:[\x00-\x80\xff]|(?!\xa2[AB])[\x81-\xfe][\x40-\x7e\x80-\xff]?+)*+"),
        {b"\xa2A": "\u2215", b"\xa2B": "\ufe68"},
    ),
    "euc-jp": (
        re.compile(
            rb"(?:[\x00-\x8d\x90-\xa0\xff]|(?!\x8f\xa2\xb7)"
            rb"(?:\x8f[\xa1-\xfe][\x80-\xff]?+|[\x8e\x8f\xa1-\xfe][\x80-\xff]?+))*+"
        ),
        {b"\x8f\xa2\xb7": "\uff5e"},
    ),
}
_NOTHING = re.compile(b"")
# Of letters that Big5 has twice, the standard writes these in their second place.
_BIG5_SECOND = frozenset("\u2550\u255e\u2561\u256a\u5341\u5345")
_ESCAPE = re.compile(rb"\x1b(\(B|\(J|\(I|\$@|\$B)")
_PAIRS = re.compile(rb"((?:[!-~]{2}){1,16384})|[!-~][^!-~\x1b]|.", re.DOTALL)
_SINGLES = re.compile(rb"([^\x0e\x0f\x1b\x80-\xff]{1,32768})|.", re.DOTALL)
_KANA = re.compile(rb"([!-_]{1,32768})|.", re.DOTALL)
_LEGACY_RUNS = {b"(B": _SINGLES, b"(J": _SINGLES, b"(I": _KANA, b"$@": _PAIRS, b"$B": _PAIRS}
_UPPER = bytes(byte | 0x80 for byte in range(256))


def decode_legacy(body: bytes, name: str) -> str:
    """The body as text; what does not decode becomes U+FFFD."""
    return "".join(_pieces(body, name))


def _pieces(body: bytes, name: str) -> Iterator[str]:
    """The text of a body in pieces of a bounded size."""
    if name == "iso-2022-jp":
        yield from _iso_2022_jp(body)
        return
    start = 0
    before, strays = _STRAY.get(name, (_NOTHING, {}))
    if any(stray in body for stray in strays):
        for _ in range(MAX_MISTAKES):
            upto = before.match(body, start).end()  # type: ignore[union-attr]
            size = next((len(stray) for stray in strays if body.startswith(stray, upto)), 0)
            if not size:
                break
            yield from _slices(body, name, start, upto)
            yield strays[body[upto : upto + size]]
            start = upto + size
    yield from _slices(body, name, start, len(body))


def _slices(body: bytes, name: str, start: int, end: int) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder(_LEGACY_CODECS[name])(_handler(name))
    for at in range(start, end, SLICE_BYTES):
        if at + SLICE_BYTES < end:
            text = decoder.decode(body[at : at + SLICE_BYTES])
        else:
            # At its end, the decoder would take all that is left of a text for one mistake.
            text = (decoder.getstate()[0] + body[at:end]).decode(_LEGACY_CODECS[name], _handler(name))
        exchanged = _EXCHANGED.get(name)
        yield text.translate(exchanged) if exchanged and not text.isascii() else text


def _iso_2022_jp(body: bytes) -> Iterator[str]:
    """Runs of letters, each as the escape sequence before it says; two of these with nothing between are a mistake."""
    state, start, left = b"(B", 0, MAX_RUNS
    for escape in chain(_ESCAPE.finditer(body), (None,)):
        end = len(body) if escape is None else escape.start()
        if start == end and start and escape is not None:
            left -= 1
            yield _BAD
        for run in _LEGACY_RUNS[state].finditer(body, start, end):
            if left <= 0:
                break
            left -= 1
            start = run.end()
            yield _BAD if run[1] is None else _run(run[1], state)
        if left <= 0:
            yield (b"\x1b" + state + body[start:]).decode("iso2022_jp_ext", "replace")
            return
        if escape is not None:
            state, start = escape[1], escape.end()


def _run(letters: bytes, state: bytes) -> str:
    if state == b"(I":
        return letters.translate(_UPPER).decode("cp932")
    if state[:1] == b"$":
        return letters.translate(_UPPER).decode("euc_jp", _handler("euc-jp")).translate(_JIS)
    text = letters.decode("ascii")
    return text.replace("\\", "\xa5").replace("~", "\u203e") if state == b"(J" else text


def encode_legacy(text: str, name: str, lacking: Callable[[str], bytes]) -> bytes:
    """The text in an encoding; `lacking` is asked for what it has no letter for."""
    if name == "iso-2022-jp":
        return b"".join(_escaped(text, lacking))
    places = _legacy_places(name)
    if name != "gb18030":
        return b"".join(places.get(letter) or _ascii(letter) or lacking(letter) for letter in text)
    return b"".join(
        places.get(letter) or (lacking(letter) if letter == "\ue5e5" else letter.encode("gb18030", "replace"))
        for letter in text
    )


def _ascii(letter: str) -> bytes:
    return letter.encode() if letter.isascii() else b""


@lru_cache(maxsize=8)
def _legacy_places(name: str) -> dict[str, bytes]:
    """Letter -> the bytes that are written for it: the first that are read as that letter."""
    found: dict[str, bytes] = {}
    second = _BIG5_SECOND if name == "big5" else frozenset()
    for lead in _written_leads(name):
        pairs = [bytes((lead, trail)) for trail in range(0x40, 0xFF)]
        # No pair takes a line end along, so that each of them is a line.
        for pair, letter in zip(pairs, decode_legacy(b"\n".join(pairs), name).split("\n"), strict=True):
            if len(letter) == 1 and letter != _BAD and (letter not in found or letter in second):
                found[letter] = pair
    if name in ("euc-jp", "shift_jis"):
        found.update(_ROMAN)
        found["\u2212"] = found["\uff0d"]
    if name == "shift_jis":
        found |= {chr(0xFF61 + place): bytes((0xA1 + place,)) for place in range(63)} | {"\x80": b"\x80"}
    if name in ("gbk", "gb18030"):
        # Older editions had these letters elsewhere, where they are still written.
        found |= {chr(old): found[chr(new)] for old, new in _GB18030.items() if old not in (0xE5E5, 0xE7C7)}
        found |= {"\u20ac": b"\x80"} if name == "gbk" else {"\ue7c7": b"\x81\x35\xf4\x37"}
    return found


def _written_leads(name: str) -> list[int]:
    """The first bytes of pairs that are written; others are only read."""
    if name == "big5":
        return list(range(0xA1, 0xFF))
    if name == "euc-jp":
        return [0x8E, *range(0xA1, 0xFF)]
    if name == "shift_jis":
        return [*range(0x81, 0xA0), *range(0xE0, 0xED), 0xEF, *range(0xFA, 0xFD)]
    return list(range(0x81, 0xFF))


def _escaped(text: str, lacking: Callable[[str], bytes]) -> Iterator[bytes]:
    """ISO-2022-JP, which has a state: ASCII, that with a yen and an overline, or pairs."""
    state, places = b"(B", _legacy_places("euc-jp")
    for letter in text:
        pair = b"" if letter.isascii() or letter in _ROMAN else places.get(_WIDE.get(letter) or letter, b"")
        if pair or letter in _ROMAN:
            wanted = b"$B" if pair else b"(J"
        else:
            # What it lacks, and most of ASCII, is written in either state.
            wanted = state if state == b"(J" and letter not in "\\~" else b"(B"
        if wanted != state:
            yield b"\x1b" + wanted
            state = wanted
        if letter in "\x0e\x0f\x1b":
            yield lacking(_BAD)
        else:
            yield _ROMAN.get(letter) or bytes(byte & 0x7F for byte in pair) or _ascii(letter) or lacking(letter)
    if state != b"(B":
        yield b"\x1b(B"


def _jis(row: int, cell: int) -> str:
    """The letter at a place (from 0), or U+FFFD."""
    lead = row // 2 + (0x81 if row < 62 else 0xC1)
    trail = cell + (0x9F if row % 2 else 0x40 if cell < 63 else 0x41)
    try:
        return bytes((lead, trail)).decode("cp932")
    except UnicodeDecodeError:
        return _BAD


def _mistake(name: str, data: bytes, at: int) -> tuple[str, int]:
    """What stands for the bytes at a place that Python cannot read, and how many they are."""
    lead, trail = data[at], data[at + 1] if at + 1 < len(data) else 0
    if name in ("gbk", "gb18030"):
        if lead == 0x80:
            return "\u20ac", 1
        if lead != 0xFF and 0x30 <= trail <= 0x39:
            # Four bytes, or as many of them as there are.
            third, fourth = data[at + 2 : at + 3] or b"\x81", data[at + 3 : at + 4] or b"0"
            return _BAD, 4 if b"\x81" <= third <= b"\xfe" and b"0" <= fourth <= b"9" else 1
    if name == "euc-jp":
        if lead == 0x8F and 0xA1 <= trail <= 0xFE:
            return _BAD, 3 if data[at + 2 : at + 3] > b"\x7f" else 2
        if 0xA1 <= lead <= 0xFE and 0xA1 <= trail <= 0xFE:
            return _jis(lead - 0xA1, trail - 0xA1), 2
    if name == "big5" and (found := _BIG5_LETTERS.get(lead << 8 | trail)):
        return found, 2
    # A letter of ASCII is never swallowed: it may be the end of a tag.
    return _BAD, 2 if _leads(name, lead) and trail >= 0x80 else 1


def _leads(name: str, byte: int) -> bool:
    if name == "shift_jis":
        return 0x81 <= byte <= 0x9F or 0xE0 <= byte <= 0xFC
    if name == "euc-jp":
        return byte in (0x8E, 0x8F) or 0xA1 <= byte <= 0xFE
    return 0x81 <= byte <= 0xFE


def _handler(name: str) -> str:
    """The name of the error handler of an encoding, for decoders."""
    return f"gossamer-{name}"


def _register(name: str) -> None:
    def handle(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeDecodeError):
            raise error
        # One error is used for all mistakes of a text: it can count them.
        error.mistakes = getattr(error, "mistakes", 0) + 1  # type: ignore[attr-defined]
        if error.mistakes > MAX_MISTAKES:  # type: ignore[attr-defined]
            return error.object[error.start :].decode(_LEGACY_CODECS[name], "replace"), len(error.object)
        found, taken = _mistake(name, error.object, error.start)
        return found, min(error.start + taken, len(error.object))

    codecs.register_error(_handler(name), handle)


for _name in _LEGACY_CODECS:
    _register(_name)
