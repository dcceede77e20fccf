"""Character encoding of a page by the WHATWG standards, with a detector as the last resort; includes legacy codecs.

`w3lib.encoding` finds 30 of the 83 encodings of html5lib's suite, this module all. The detector is faust-cchardet: it
finds 16 of 17 encodings in 0.17 ms, chardet 17 in 0.89 ms.

Python's codec tables follow other standards than WHATWG. Where they differ, letters are replaced after decoding. Where
Python cannot decode a sequence, an error handler supplies the letter and the number of bytes to skip.

A detector relies on letter frequencies, and a page with a few non-ASCII letters has too few: one windows-1252
apostrophe is detected as Chinese. For these pages the legacy encodings of the host's country are tried first, as long
as the decoded text looks like words."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import chain, pairwise
from unicodedata import normalize

import cchardet

from gossamer.extract import mime

MAX_ERRORS = 2000
"""After this many errors, the text is decoded by Python's own codec, which is faster: it is not in that encoding."""
MAX_RUNS = 50_000
"""The same limit for short runs, or errors, in ISO-2022-JP."""
SLICE_BYTES = 1024 * 1024
_BAD = "\ufffd"
# Letters in the index of Big5 that HKSCS-2004 lacks or maps differently.
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
# Byte sequences that Python decodes as a letter that has another encoding too: text before it, and the letter.
_DUPLICATES = {
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
# For letters that Big5 has twice, the standard encodes these with their second pointer.
_BIG5_SECOND = frozenset("\u2550\u255e\u2561\u256a\u5341\u5345")
_ESCAPE = re.compile(rb"\x1b(\(B|\(J|\(I|\$@|\$B)")
_PAIRS = re.compile(rb"((?:[!-~]{2}){1,16384})|[!-~][^!-~\x1b]|.", re.DOTALL)
_SINGLES = re.compile(rb"([^\x0e\x0f\x1b\x80-\xff]{1,32768})|.", re.DOTALL)
_KANA = re.compile(rb"([!-_]{1,32768})|.", re.DOTALL)
_LEGACY_RUNS = {b"(B": _SINGLES, b"(J": _SINGLES, b"(I": _KANA, b"$@": _PAIRS, b"$B": _PAIRS}
_UPPER = bytes(byte | 0x80 for byte in range(256))


def decode_legacy(body: bytes, name: str) -> str:
    """Decode a body in a legacy encoding; invalid bytes become U+FFFD."""
    return "".join(_pieces(body, name))


def _pieces(body: bytes, name: str) -> Iterator[str]:
    """Yield the text of a body in parts of bounded size."""
    if name == "iso-2022-jp":
        yield from _iso_2022_jp(body)
        return
    start = 0
    before, strays = _DUPLICATES.get(name, (_NOTHING, {}))
    if any(stray in body for stray in strays):
        for _ in range(MAX_ERRORS):
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
            # At the end of input, the decoder would take the rest of a slice for one error.
            text = (decoder.getstate()[0] + body[at:end]).decode(_LEGACY_CODECS[name], _handler(name))
        exchanged = _EXCHANGED.get(name)
        yield text.translate(exchanged) if exchanged and not text.isascii() else text


def _iso_2022_jp(body: bytes) -> Iterator[str]:
    """Decode runs of letters, each by the escape sequence before it; two escape sequences in a row are an error."""
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


def encode_legacy(text: str, name: str, encode_missing: Callable[[str], bytes]) -> bytes:
    """Encode a text; `encode_missing` supplies the bytes for letters that the encoding does not have."""
    if name == "iso-2022-jp":
        return b"".join(_escaped(text, encode_missing))
    places = _legacy_places(name)
    if name != "gb18030":
        return b"".join(places.get(letter) or _ascii(letter) or encode_missing(letter) for letter in text)
    return b"".join(
        places.get(letter) or (encode_missing(letter) if letter == "\ue5e5" else letter.encode("gb18030", "replace"))
        for letter in text
    )


def _ascii(letter: str) -> bytes:
    return letter.encode() if letter.isascii() else b""


@lru_cache(maxsize=8)
def _legacy_places(name: str) -> dict[str, bytes]:
    """Map each letter to its bytes: the first sequence that decodes to it."""
    found: dict[str, bytes] = {}
    second = _BIG5_SECOND if name == "big5" else frozenset()
    for lead in _written_leads(name):
        pairs = [bytes((lead, trail)) for trail in range(0x40, 0xFF)]
        # No pair contains a line end, so each pair is a line.
        for pair, letter in zip(pairs, decode_legacy(b"\n".join(pairs), name).split("\n"), strict=True):
            if len(letter) == 1 and letter != _BAD and (letter not in found or letter in second):
                found[letter] = pair
    if name in ("euc-jp", "shift_jis"):
        found.update(_ROMAN)
        found["\u2212"] = found["\uff0d"]
    if name == "shift_jis":
        found |= {chr(0xFF61 + place): bytes((0xA1 + place,)) for place in range(63)} | {"\x80": b"\x80"}
    if name in ("gbk", "gb18030"):
        # Older editions of the standard encode these letters elsewhere, and encoders still do.
        found |= {chr(old): found[chr(new)] for old, new in _GB18030.items() if old not in (0xE5E5, 0xE7C7)}
        found |= {"\u20ac": b"\x80"} if name == "gbk" else {"\ue7c7": b"\x81\x35\xf4\x37"}
    return found


def _written_leads(name: str) -> list[int]:
    """Return the lead bytes that the encoder uses; the decoder accepts more."""
    if name == "big5":
        return list(range(0xA1, 0xFF))
    if name == "euc-jp":
        return [0x8E, *range(0xA1, 0xFF)]
    if name == "shift_jis":
        return [*range(0x81, 0xA0), *range(0xE0, 0xED), 0xEF, *range(0xFA, 0xFD)]
    return list(range(0x81, 0xFF))


def _escaped(text: str, encode_missing: Callable[[str], bytes]) -> Iterator[bytes]:
    """Encode as ISO-2022-JP, which has a state: ASCII, Roman (with yen and overline), or pairs."""
    state, places = b"(B", _legacy_places("euc-jp")
    for letter in text:
        pair = b"" if letter.isascii() or letter in _ROMAN else places.get(_WIDE.get(letter) or letter, b"")
        if pair or letter in _ROMAN:
            wanted = b"$B" if pair else b"(J"
        else:
            # Missing letters, and most of ASCII, are written in either state.
            wanted = state if state == b"(J" and letter not in "\\~" else b"(B"
        if wanted != state:
            yield b"\x1b" + wanted
            state = wanted
        if letter in "\x0e\x0f\x1b":
            yield encode_missing(_BAD)
        else:
            yield _ROMAN.get(letter) or bytes(byte & 0x7F for byte in pair) or _ascii(letter) or encode_missing(letter)
    if state != b"(B":
        yield b"\x1b(B"


def _jis(row: int, cell: int) -> str:
    """Return the letter at a row and cell (from 0), or U+FFFD."""
    lead = row // 2 + (0x81 if row < 62 else 0xC1)
    trail = cell + (0x9F if row % 2 else 0x40 if cell < 63 else 0x41)
    try:
        return bytes((lead, trail)).decode("cp932")
    except UnicodeDecodeError:
        return _BAD


def _replacement(name: str, data: bytes, at: int) -> tuple[str, int]:
    """Return the replacement for a sequence that Python cannot decode, and its length in bytes."""
    lead, trail = data[at], data[at + 1] if at + 1 < len(data) else 0
    if name in ("gbk", "gb18030"):
        if lead == 0x80:
            return "\u20ac", 1
        if lead != 0xFF and 0x30 <= trail <= 0x39:
            # Four bytes, or as many as are left.
            third, fourth = data[at + 2 : at + 3] or b"\x81", data[at + 3 : at + 4] or b"0"
            return _BAD, 4 if b"\x81" <= third <= b"\xfe" and b"0" <= fourth <= b"9" else 1
    if name == "euc-jp":
        if lead == 0x8F and 0xA1 <= trail <= 0xFE:
            return _BAD, 3 if data[at + 2 : at + 3] > b"\x7f" else 2
        if 0xA1 <= lead <= 0xFE and 0xA1 <= trail <= 0xFE:
            return _jis(lead - 0xA1, trail - 0xA1), 2
    if name == "big5" and (found := _BIG5_LETTERS.get(lead << 8 | trail)):
        return found, 2
    # Never consume an ASCII byte: it may be the end of a tag.
    return _BAD, 2 if _leads(name, lead) and trail >= 0x80 else 1


def _leads(name: str, byte: int) -> bool:
    if name == "shift_jis":
        return 0x81 <= byte <= 0x9F or 0xE0 <= byte <= 0xFC
    if name == "euc-jp":
        return byte in (0x8E, 0x8F) or 0xA1 <= byte <= 0xFE
    return 0x81 <= byte <= 0xFE


def _handler(name: str) -> str:
    """Return the name of the decoder error handler for an encoding."""
    return f"gossamer-{name}"


def _register(name: str) -> None:
    def handle(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeDecodeError):
            raise error
        # Python reuses one exception for all errors of a text, so it can count them.
        error.error_count = getattr(error, "mistakes", 0) + 1  # type: ignore[attr-defined]
        if error.error_count > MAX_ERRORS:  # type: ignore[attr-defined]
            return error.object[error.start :].decode(_LEGACY_CODECS[name], "replace"), len(error.object)
        found, taken = _replacement(name, error.object, error.start)
        return found, min(error.start + taken, len(error.object))

    codecs.register_error(_handler(name), handle)


for _name in _LEGACY_CODECS:
    _register(_name)

MAX_NON_ASCII_BYTES = 48
"""With more non-ASCII bytes than this, the detector is more reliable."""
_FEW = 3
_COUNTRIES = {
    "windows-1251 koi8-u": "ru su by kz kg mn mk rs tj ua xn--p1ai xn--j1amh xn--80ao21a xn--90a3ac xn--90ais",
    "windows-1251": "bg xn--90ae",
    "windows-1250 iso-8859-2": "cz sk hr ba me al",
    "iso-8859-2 windows-1250": "pl hu si ro",
    "windows-1253 iso-8859-7": "gr cy xn--qxam",
    "windows-1254": "tr az",
    "windows-1255": "il xn--4dbrk0ce",
    "windows-1256": "ae af bh dz eg iq ir jo kw lb ly ma om pk ps qa sa sd sy tn ye "
    "xn--mgbaam7a8h xn--mgberp4a5d4ar xn--wgbh1c xn--mgba3a4f16a",
    "windows-1257": "ee lt lv",
    "windows-1258": "vn",
    "windows-874": "th xn--o3cw4h",
    "shift_jis euc-jp": "jp",
    "gbk": "cn sg xn--fiqs8s xn--fiqz9s",
    "big5 gbk": "tw hk mo xn--kpry57d xn--kprw13d xn--j6w193g",
    "euc-kr": "kr xn--3e0b707e",
}
_BY_COUNTRY = {place: tuple(names.split()) for names, places in _COUNTRIES.items() for place in places.split()}
_LATIN_NAMES = "windows-1250 windows-1252 windows-1254 windows-1257 windows-1258 iso-8859-2 iso-8859-15"
_LATIN = frozenset(_LATIN_NAMES.split())
_DOUBLE = frozenset({"shift_jis", "euc-jp", "gbk", "big5", "euc-kr"})
_SCRIPTS = {
    "windows-1251": "\u0400-\u04ff",
    "koi8-u": "\u0400-\u04ff",
    "windows-1253": "\u0370-\u03ff",
    "iso-8859-7": "\u0370-\u03ff",
    "windows-1255": "\u0590-\u05ff",
    "windows-1256": "\u0600-\u06ff\u200c-\u200f",
    "windows-874": "\u0e00-\u0e7f",
}
_SIGNS = (
    "\u2018\u2019\u201a\u201c\u201d\u201e\u2013\u2014\u2026\u2022\u20ac\u2122\u2039\u203a"
    "\xa0\xa9\xae\xb0\xa3\xa7\xab\xbb\xb7\xa1\xbf\xb4"
)
_FOREIGN = re.compile(r"[^\x00-\x7f]+")
_WORD = re.compile(r"[^\W\d_]+(?:['\u2018\u2019\xb4\xb7][^\W\d_]+)*")


def guess_by_country(sample: bytes, tld: str, detected: str, decode: Callable[[bytes, str], str]) -> str:
    """Guess the encoding of a short sample from the host's top-level domain; fall back to the detected one."""
    if len(sample.translate(None, bytes(range(0x80)))) > MAX_NON_ASCII_BYTES:
        return detected
    names, longest = (_BY_COUNTRY[tld], 5) if tld in _BY_COUNTRY else (("windows-1252",), 2)
    is_of_a_country = len(tld) == 2 or tld in _BY_COUNTRY
    scored = ((_faults(decode(sample, name), name, longest), name) for name in names)
    fitting = [(faults, name) for faults, name in scored if faults is not None]
    if not fitting:
        return detected
    faults, name = min(fitting, key=lambda one: one[0])
    foreign = "".join(_FOREIGN.findall(decode(sample, name)))
    if 4 * faults > len(foreign):
        return detected
    # A generic domain says nothing of a country: then only near certainty overrides the detector.
    letters = sum(map(str.isalpha, foreign))
    return name if is_of_a_country or detected not in _LATIN or letters <= _FEW else detected


def _faults(text: str, name: str, longest: int) -> int | None:
    """Count the non-ASCII characters that look wrong in this encoding; None if the text cannot be in it.

    `longest` is the max number of adjacent non-ASCII letters in languages with Latin script."""
    runs = _FOREIGN.findall(text)
    if any("\ufffd" in run or any("\x80" <= letter < "\xa0" for letter in run) for run in runs):
        return None
    if name in _DOUBLE:
        # Double-byte text in the wrong Japanese encoding decodes to half-width katakana.
        return sum(1 for run in runs for letter in run if "\uff61" <= letter <= "\uff9f")
    script = _SCRIPTS.get(name)
    if script is not None:
        odd = sum(len(re.sub(f"[{script}{_SIGNS}]", "", run)) for run in runs)
        return odd + _inner_capitals(text)
    return sum(_latin_faults(text, longest)) + _inner_capitals(text)


def _latin_faults(text: str, longest: int) -> Iterator[int]:
    for run in _FOREIGN.finditer(text):
        before, after = text[run.start() - 1 : run.start()], text[run.end() : run.end() + 1]
        is_inside = before.isalpha() and after.isalpha()
        letters = sum(letter.isalpha() and letter not in "\xaa\xba" for letter in run[0])
        signs = sum(letter in _SIGNS for letter in run[0])
        yield len(run[0]) - letters - signs
        # A word in Latin script is not made of non-ASCII letters only, and contains no punctuation but apostrophes.
        is_alone = letters > 1 and not before.isalpha() and not after.isalpha()
        yield max(0, letters - longest) + 2 * is_alone
        yield sum(letter in _SIGNS and letter not in "\u2018\u2019\xb4\xb7" for letter in run[0]) * is_inside


def _inner_capitals(text: str) -> int:
    """Count the words with a capital after a lower-case letter."""
    words = _WORD.findall(text)
    return sum(any(one.islower() and other.isupper() for one, other in pairwise(word)) for word in words)


PRESCAN_BYTES = 1024
LATE_BYTES = 65_536
DETECT_BYTES = 65_536
_SLICE_BYTES = 1024 * 1024
DETECT_LEAST_BYTES = 512
DETECT_CONFIDENCE = 0.4
DEFAULT = "windows-1252"

# The labels of the Encoding Standard by the encoding's name, both in lower case.
_LABELS = {
    "utf-8": "unicode-1-1-utf-8 unicode11utf8 unicode20utf8 utf-8 utf8 x-unicode20utf8",
    "ibm866": "866 cp866 csibm866 ibm866",
    "iso-8859-2": "csisolatin2 iso-8859-2 iso-ir-101 iso8859-2 iso88592 iso_8859-2 iso_8859-2:1987 l2 latin2",
    "iso-8859-3": "csisolatin3 iso-8859-3 iso-ir-109 iso8859-3 iso88593 iso_8859-3 iso_8859-3:1988 l3 latin3",
    "iso-8859-4": "csisolatin4 iso-8859-4 iso-ir-110 iso8859-4 iso88594 iso_8859-4 iso_8859-4:1988 l4 latin4",
    "iso-8859-5": "csisolatincyrillic cyrillic iso-8859-5 iso-ir-144 iso8859-5 iso88595 iso_8859-5 iso_8859-5:1988",
    "iso-8859-6": "arabic asmo-708 csiso88596e csiso88596i csisolatinarabic ecma-114 iso-8859-6 iso-8859-6-e "
    "iso-8859-6-i iso-ir-127 iso8859-6 iso88596 iso_8859-6 iso_8859-6:1987",
    "iso-8859-7": "csisolatingreek ecma-118 elot_928 greek greek8 iso-8859-7 iso-ir-126 iso8859-7 iso88597 iso_8859-7 "
    "iso_8859-7:1987 sun_eu_greek",
    "iso-8859-8": "csiso88598e csisolatinhebrew hebrew iso-8859-8 iso-8859-8-e iso-ir-138 iso8859-8 iso88598 "
    "iso_8859-8 iso_8859-8:1988 visual",
    "iso-8859-8-i": "csiso88598i iso-8859-8-i logical",
    "iso-8859-10": "csisolatin6 iso-8859-10 iso-ir-157 iso8859-10 iso885910 l6 latin6",
    "iso-8859-13": "iso-8859-13 iso8859-13 iso885913",
    "iso-8859-14": "iso-8859-14 iso8859-14 iso885914",
    "iso-8859-15": "csisolatin9 iso-8859-15 iso8859-15 iso885915 iso_8859-15 l9",
    "iso-8859-16": "iso-8859-16",
    "koi8-r": "cskoi8r koi koi8 koi8-r koi8_r",
    "koi8-u": "koi8-ru koi8-u",
    "macintosh": "csmacintosh mac macintosh x-mac-roman",
    "windows-874": "dos-874 iso-8859-11 iso8859-11 iso885911 tis-620 windows-874",
    "windows-1250": "cp1250 windows-1250 x-cp1250",
    "windows-1251": "cp1251 windows-1251 x-cp1251",
    "windows-1252": "ansi_x3.4-1968 ascii cp1252 cp819 csisolatin1 ibm819 iso-8859-1 iso-ir-100 iso8859-1 iso88591 "
    "iso_8859-1 iso_8859-1:1987 l1 latin1 us-ascii windows-1252 x-cp1252",
    "windows-1253": "cp1253 windows-1253 x-cp1253",
    "windows-1254": "cp1254 csisolatin5 iso-8859-9 iso-ir-148 iso8859-9 iso88599 iso_8859-9 iso_8859-9:1989 l5 latin5 "
    "windows-1254 x-cp1254",
    "windows-1255": "cp1255 windows-1255 x-cp1255",
    "windows-1256": "cp1256 windows-1256 x-cp1256",
    "windows-1257": "cp1257 windows-1257 x-cp1257",
    "windows-1258": "cp1258 windows-1258 x-cp1258",
    "x-mac-cyrillic": "x-mac-cyrillic x-mac-ukrainian",
    "gbk": "chinese csgb2312 csiso58gb231280 gb2312 gb_2312 gb_2312-80 gbk iso-ir-58 x-gbk",
    "gb18030": "gb18030",
    "big5": "big5 big5-hkscs cn-big5 csbig5 x-x-big5",
    "euc-jp": "cseucpkdfmtjapanese euc-jp x-euc-jp",
    "iso-2022-jp": "csiso2022jp iso-2022-jp",
    "shift_jis": "csshiftjis ms932 ms_kanji shift-jis shift_jis sjis windows-31j x-sjis",
    "euc-kr": "cseuckr csksc56011987 euc-kr iso-ir-149 korean ks_c_5601-1987 ks_c_5601-1989 ksc5601 ksc_5601 "
    "windows-949",
    "replacement": "csiso2022kr hz-gb-2312 iso-2022-cn iso-2022-cn-ext iso-2022-kr replacement",
    "utf-16be": "unicodefffe utf-16be",
    "utf-16le": "csunicode iso-10646-ucs-2 ucs-2 unicode unicodefeff utf-16 utf-16le",
    "x-user-defined": "x-user-defined",
}
NAMES = {label: name for name, labels in _LABELS.items() for label in labels.split()}

# The Python codec that decodes a name as browsers do, where it differs from the name.
_CODECS = {
    "iso-8859-8-i": "iso8859_8",
    "macintosh": "mac_roman",
    "windows-874": "cp874",
    "x-mac-cyrillic": "mac_cyrillic",
    "gbk": "gb18030",
    "big5": "big5hkscs",
    "iso-2022-jp": "iso2022_jp_ext",
    "shift_jis": "cp932",
    "euc-kr": "cp949",
    "replacement": "ascii",
}
_MARKS = {"utf-8": b"\xef\xbb\xbf", "utf-16be": b"\xfe\xff", "utf-16le": b"\xff\xfe"}
_EAST_ASIAN = ("shift_jis", "euc-jp", "euc-kr", "gbk", "big5")
_MULTIBYTE = frozenset({*_EAST_ASIAN, "utf-8", "utf-16le", "utf-16be", "gb18030", "iso-2022-jp"})
# Detector result -> encoding on the web: results that pages never use are near misses of these.
_DETECTED = {
    "uhc": "euc-kr",
    "koi8-r": "koi8-u",
    "iso-8859-13": "windows-1257",
    "iso-8859-15": "windows-1252",
    "iso-8859-3": "windows-1252",
    "iso-8859-4": "windows-1252",
    "iso-8859-10": "windows-1252",
    "iso-8859-14": "windows-1252",
    "iso-8859-16": "windows-1250",
    "macintosh": "windows-1252",
    "x-user-defined": "windows-1252",
    "iso-2022-kr": "windows-1252",
    "iso-2022-cn": "windows-1252",
    "hz-gb-2312": "windows-1252",
}

_WINDOWS = {
    "iso-8859-2": "windows-1250",
    "iso-8859-6": "windows-1256",
    "iso-8859-7": "windows-1253",
    "iso-8859-8": "windows-1255",
}
_C1 = re.compile(rb"[\x80-\x9f]")
_KATAKANA_LEAST = 16
_RUNS = re.compile(rb"[<>]")
_ATTRIBUTE = re.compile(
    rb"[\t\n\f\r /]*+(?:([^\t\n\f\r />][^\t\n\f\r />=]*+)"
    rb"(?:[\t\n\f\r ]*+=[\t\n\f\r ]*+(?:\"([^\"]*+)(\"?)|'([^']*+)('?)|([^\t\n\f\r >\"'][^\t\n\f\r >]*+))?)?)"
)
_REST_OF_TAG = re.compile(
    rb"(?:[\t\n\f\r /]++|[^\t\n\f\r />][^\t\n\f\r />=]*+"
    rb"(?:[\t\n\f\r ]*+=[\t\n\f\r ]*+(?:\"[^\"]*+\"?|'[^']*+'?|[^\t\n\f\r >\"'][^\t\n\f\r >]*+)?)?)*+>?"
)
_MARKUP = re.compile(rb"<!--|<[mM][eE][tT][aA](?=[\t\n\f\r /])|</?[a-zA-Z][^\t\n\f\r >]*+|<[!/?]")
_CONTENT_CHARSET = re.compile(
    r"charset[\t\n\f\r ]*=[\t\n\f\r ]*(?:\"([^\"]*)\"|'([^']*)'|([^\t\n\f\r ;\"'][^\t\n\f\r ;]*)|)", re.IGNORECASE
)
_XML_ENCODING = re.compile(
    rb"<\?xml(?:(?!encoding)[^>])*+encoding[\x00-\x20]*=[\x00-\x20]*(?:\"([^\"\x00-\x20]+)\"|'([^'\x00-\x20]+)')"
)


def detect(body: bytes, content_type: str = "", *, host: str = "") -> str:
    """Return the name, in lower case, of the encoding that a browser would use for the body; never empty."""
    return declared(body, content_type) or guess(body, host)


def declared(body: bytes, content_type: str = "", *, within: int = PRESCAN_BYTES) -> str | None:
    """Return the encoding by byte order mark, Content-Type header, or `<meta>`, in this order; None without one."""
    if body.startswith(b"\xef\xbb\xbf"):
        return "utf-8"
    if body.startswith((b"\xfe\xff", b"\xff\xfe")):
        return "utf-16be" if body[0] == 0xFE else "utf-16le"
    mime_type = mime.of_headers((content_type,)) if content_type else None
    if mime_type is not None and (label := mime_type.parameters.get("charset")):
        name = NAMES.get(label.strip("\t\n\f\r ").lower())
        if name is not None:
            return name
    return _prescan(body[:within])


def guess(body: bytes, host: str = "") -> str:
    """Guess the encoding of a body that declares none: UTF-8 if valid, then a late `<meta>`, then the detector.

    With few non-ASCII letters, the country of the host is the better evidence."""
    start = _first_fault(body, "utf-8")
    if start is None:
        return "iso-2022-jp" if b"\x1b$" in body and body.isascii() else "utf-8"
    late = _prescan(body[:LATE_BYTES])
    if late is not None and late != "utf-8":
        return late
    # Markup and long scripts would only dilute the few bytes that carry information.
    sample = body[max(0, start - DETECT_BYTES // 4) :][:DETECT_BYTES]
    foreign = b" ".join(run for run in _RUNS.split(sample) if not run.isascii())
    found = _detected(foreign if len(foreign) >= DETECT_LEAST_BYTES else foreign * 8)
    tld = host.rpartition(".")[2].lower()
    return guess_by_country(foreign, "" if tld.isdecimal() else tld, found, decode)


def _first_fault(body: bytes, name: str) -> int | None:
    """Return the approximate position of the first decoding error; None if it decodes, or ends inside a character.

    Decodes in slices: as one string, a body may take four times its size."""
    decoder = codecs.getincrementaldecoder(name)()
    for start in range(0, len(body), _SLICE_BYTES):
        try:
            decoder.decode(body[start : start + _SLICE_BYTES])
        except UnicodeDecodeError as error:
            return start + error.start
    return None


def _detected(sample: bytes) -> str:
    word = cchardet.detect(sample)
    found, sure = (word["encoding"] or "").lower(), (word["confidence"] or 0.0) >= DETECT_CONFIDENCE
    name = _DETECTED.get(found) or NAMES.get(found, "")
    if name in _WINDOWS and not _decodes_without_controls(sample, name):
        return _WINDOWS[name]
    if name in _EAST_ASIAN and _is_half_width(sample):
        return "shift_jis"
    if name in _MULTIBYTE and name != "utf-8":
        return name if _decodes(sample, name) else next((one for one in _EAST_ASIAN if _decodes(sample, one)), name)
    if found.startswith("ibm") and not name and _decodes(sample, "gbk"):
        # Web pages never use the DOS code pages that the detector knows; it reports them for short Chinese text.
        return "gbk"
    return name if name and name != "utf-8" and sure else DEFAULT


def _decodes(sample: bytes, name: str) -> bool:
    try:
        codecs.getincrementaldecoder(codec(name))().decode(sample)
    except UnicodeDecodeError:
        return False
    return True


def _decodes_without_controls(sample: bytes, name: str) -> bool:
    """Whether a sample has only bytes that an ISO encoding maps to letters: pages contain no C1 controls."""
    return not _C1.search(sample) and _decodes(sample, name)


def _is_half_width(sample: bytes) -> bool:
    """Whether all letters are in the row of half-width katakana; pairs of another encoding would go beyond it."""
    letters = sample.translate(None, bytes(range(0x80)))
    return len(letters) >= _KATAKANA_LEAST and not letters.translate(None, bytes(range(0xA1, 0xE0)))


def decode(body: bytes, encoding: str) -> str:
    """Decode a body without its byte order mark; invalid bytes become U+FFFD, and nothing raises."""
    name = NAMES.get(encoding.lower(), DEFAULT)
    if name == "replacement":
        return "\ufffd" if body else ""
    if name not in _MULTIBYTE:
        return codecs.charmap_decode(body, "replace", _characters(name))[0]
    if name in ENCODINGS:
        return decode_legacy(body, name)
    return body.removeprefix(_MARKS[name]).decode(name, "replace")


def encode(text: str, encoding: str, encode_missing: Callable[[str], bytes]) -> bytes:
    """Encode a text as a browser submits it; `encode_missing` supplies the bytes for missing letters.

    UTF-16 is never submitted: browsers use UTF-8 instead."""
    name = NAMES.get(encoding.lower(), DEFAULT)
    if name in ENCODINGS:
        return encode_legacy(text, name, encode_missing)
    if name in _MULTIBYTE or name == "replacement":
        return text.encode("utf-8", "replace")
    places = _places(name)
    return b"".join(places.get(letter) or encode_missing(letter) for letter in text)


def codec(encoding: str) -> str:
    """Return the Python codec for an encoding's name or label."""
    name = NAMES.get(encoding.lower(), DEFAULT)
    return _CODECS.get(name, "cp1252" if name == "x-user-defined" else name)


@lru_cache(maxsize=64)
def _characters(name: str) -> str:
    if name == "x-user-defined":
        return "".join(map(chr, (*range(0x80), *range(0xF780, 0xF800))))
    # The standard decodes bytes in 80-9F that Python leaves undefined as control characters.
    table = list(bytes(range(256)).decode(codec(name), "replace"))
    for byte in range(0x80, 0xA0):
        if table[byte] == "\ufffd":
            table[byte] = chr(byte)
    if name == "koi8-u":
        table[0xAE], table[0xBE] = "\u045e", "\u040e"
    elif name == "windows-1255":
        table[0xCA] = "\u05ba"
    return "".join(table)


@lru_cache(maxsize=64)
def _places(name: str) -> dict[str, bytes]:
    return {letter: bytes((byte,)) for byte, letter in enumerate(_characters(name)) if letter != "\ufffd"}


def _prescan(head: bytes) -> str | None:
    """Prescan a head by the HTML standard: return the encoding that a `<meta>` or an XML declaration names."""
    if head.startswith((b"<\0?\0x\0", b"\0<\0?\0x")):
        return "utf-16le" if head[0] else "utf-16be"
    position = 0 if b"charset" in head.lower() else len(head)
    while (found := _MARKUP.search(head, position)) is not None:
        position = found.end()
        token = found[0]
        if token == b"<!--":
            end = head.find(b"-->", position - 2)
            if end < 0:
                break
            position = end + 3
        elif token[1:].lower() == b"meta":
            name, position = _meta(head, position)
            if name is not None:
                return name
        elif token in {b"<!", b"</", b"<?"}:
            end = head.find(b">", position)
            if end < 0:
                break
            position = end + 1
        else:
            rest = _REST_OF_TAG.match(head, position)
            position = rest.end() if rest is not None else position
    match = _XML_ENCODING.match(head)
    return _from_markup((match[1] or match[2]).decode("latin-1")) if match is not None else None


def _meta(head: bytes, position: int) -> tuple[str | None, int]:
    attributes, position = _attributes(head, position)
    if position >= len(head) and not head.endswith(b">"):
        return None, position
    if "charset" in attributes:
        return _from_markup(attributes["charset"]), position
    if attributes.get("http-equiv", "").lower() != "content-type":
        return None, position
    match = _CONTENT_CHARSET.search(attributes.get("content", ""))
    return (_from_markup(match[1] or match[2] or match[3] or "") if match is not None else None), position


def _attributes(head: bytes, position: int) -> tuple[dict[str, str], int]:
    """Parse attributes up to the end of the tag, the first of each name; also return where the tag ends."""
    found: dict[str, str] = {}
    while (one := _ATTRIBUTE.match(head, position)) is not None:
        position = one.end()
        value = one[2] if one[2] is not None else one[4] if one[4] is not None else one[6] or b""
        if one[3] == b"" or one[5] == b"":
            return {}, len(head)
        found.setdefault(one[1].decode("latin-1").lower(), value.decode("latin-1"))
    end = head.find(b">", position)
    return (found, end + 1) if end >= 0 else ({}, len(head))


def _from_markup(label: str) -> str | None:
    """Return the encoding for a label in markup, where UTF-16 cannot be true and x-user-defined means windows-1252."""
    name = NAMES.get(label.strip("\t\n\f\r ").lower())
    if name in {"utf-16le", "utf-16be"}:
        return "utf-8"
    return DEFAULT if name == "x-user-defined" else name
