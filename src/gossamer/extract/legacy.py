"""Legacy multi-byte encodings as the Encoding Standard reads and writes them, on top of Python's codecs.

Python's tables are those of other standards. Where the two differ, letters are exchanged afterwards, or, where Python
knows none, given by an error handler, which also says how many bytes a mistake takes along."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from functools import lru_cache
from unicodedata import normalize

MAX_MISTAKES = 2000
"""Beyond these, a text is read as Python reads it, which is sooner done: it is none of that encoding."""
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
    "iso-2022-jp": _JIS,
    "shift_jis": dict.fromkeys(range(0xF8F0, 0xF8F4), 0xFFFD),
}
_CODECS = {
    **{"gbk": "gb18030", "gb18030": "gb18030", "big5": "big5hkscs", "euc-jp": "euc_jp"},
    **{"iso-2022-jp": "iso2022_jp_ext", "shift_jis": "cp932", "euc-kr": "cp949"},
}
ENCODINGS = frozenset(_CODECS)
_ROMAN = {"\xa5": b"\\", "\u203e": b"~"}
_WIDE = {chr(half): normalize("NFKC", chr(half)) for half in range(0xFF61, 0xFF9E)} | {
    "\uff9e": "\u309b",
    "\uff9f": "\u309c",
}


def handler(name: str) -> str:
    """The name of the error handler of an encoding, for decoders."""
    return f"gossamer-{name}"


def letters(text: str, name: str) -> str:
    """What Python's codec has decoded, with the letters of the standard."""
    exchanged = _EXCHANGED.get(name)
    return text.translate(exchanged) if exchanged and not text.isascii() else text


def decode(body: bytes, name: str) -> str:
    """The body as text; what does not decode becomes U+FFFD."""
    return letters(body.decode(_CODECS[name], handler(name)), name)


def encode(text: str, name: str, lacking: Callable[[str], bytes]) -> bytes:
    """The text in an encoding; `lacking` is asked for what it has no letter for."""
    if name == "iso-2022-jp":
        return b"".join(_escaped(text, lacking))
    return b"".join(_one(letter, name) or lacking(letter) for letter in text)


def _one(letter: str, name: str) -> bytes:
    if letter.isascii():
        return letter.encode()
    if letter in _ROMAN and name in ("euc-jp", "shift_jis"):
        return _ROMAN[letter]
    if name == "euc-jp" and (raw := _as_jis(letter)):
        return bytes(byte | 0x80 for byte in raw)
    if name == "gbk" and letter == "\u20ac":
        return b"\x80"
    if name in ("gbk", "gb18030") and ord(letter) in _GB18030:
        return b""
    known = next((old for old, new in _EXCHANGED["big5"].items() if chr(new) == letter), 0) if name == "big5" else 0
    found = (chr(known) if known else letter).encode(_CODECS[name], "ignore")
    if name == "big5" and (found < b"\xa1" or letters(found.decode(_CODECS[name]), name) != letter):
        # Letters of Hong Kong are read, but not written.
        return b""
    return found


def _escaped(text: str, lacking: Callable[[str], bytes]) -> Iterator[bytes]:
    """ISO-2022-JP, which has a state: ASCII, that with a yen and an overline, or pairs."""
    state = b"B"
    for letter in text + "\0":
        place = b"" if letter.isascii() else _as_jis(_WIDE.get(letter) or letter)
        if letter in _ROMAN:
            wanted = b"J"
        elif place:
            wanted = b"$B"
        else:
            wanted = b"J" if state == b"J" and letter.isascii() and letter not in "\\~\0" else b"B"
        if wanted != state:
            yield b"\x1b$B" if wanted == b"$B" else b"\x1b(" + wanted
            state = wanted
        if letter in "\x0e\x0f\x1b":
            yield lacking(_BAD)
        elif letter != "\0":
            yield _ROMAN.get(letter) or place or (letter.encode() if letter.isascii() else lacking(letter))


def _as_jis(letter: str) -> bytes:
    """The place of a letter in JIS X 0208 with the vendors' rows, found by way of Shift_JIS."""
    raw = "\uff0d".encode("cp932") if letter == "\u2212" else letter.encode("cp932", "ignore")
    if len(raw) == 2 and raw[0] >= 0xF0:
        raw = _selected().get(letter, b"")
    if len(raw) != 2:
        return b""
    row = 2 * (raw[0] - (0x81 if raw[0] <= 0x9F else 0xC1)) + (raw[1] >= 0x9F)
    cell = raw[1] - (0x9F if raw[1] >= 0x9F else 0x40 if raw[1] < 0x7F else 0x41)
    return bytes((row + 0x21, cell + 0x21))


@lru_cache(maxsize=1)
def _selected() -> dict[str, bytes]:
    """IBM's letters where NEC put them, which is where EUC-JP has them."""
    places = [bytes((lead, trail)) for lead in (0xED, 0xEE) for trail in range(0x40, 0xFD) if trail != 0x7F]
    return {place.decode("cp932", "replace"): place for place in reversed(places)}


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
    if name == "iso-2022-jp":
        if not 0x21 <= lead <= 0x7E or trail == 0x1B:
            return _BAD, 1
        return _jis(lead - 0x21, trail - 0x21) if 0x21 <= trail <= 0x7E else _BAD, 2
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


def _register(name: str) -> None:
    def handle(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeDecodeError):
            raise error
        # One error is used for all mistakes of a text: it can count them.
        error.mistakes = getattr(error, "mistakes", 0) + 1  # type: ignore[attr-defined]
        if error.mistakes > MAX_MISTAKES:  # type: ignore[attr-defined]
            return error.object[error.start :].decode(_CODECS[name], "replace"), len(error.object)
        found, taken = _mistake(name, error.object, error.start)
        return found, min(error.start + taken, len(error.object))

    codecs.register_error(handler(name), handle)


for _name in _CODECS:
    _register(_name)
