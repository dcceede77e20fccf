"""The encoding of a short page that declares none, by the top-level domain of its host, as browsers guess it.

A detector counts letters, and a page of a few foreign letters has too few of them: one apostrophe of windows-1252 reads
as Chinese. What pages of a country were written in says more, as long as it gives text that looks like words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

MOST_BYTES = 48
"""With more foreign bytes than this, the detector's word is better."""
_FEW = 3
_PLACES = {
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
_BY_PLACE = {place: tuple(names.split()) for names, places in _PLACES.items() for place in places.split()}
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


def likeliest(sample: bytes, tld: str, detected: str, decode: Callable[[bytes, str], str]) -> str:
    """The encoding of a short sample from a host of this top-level domain; else what was detected."""
    if len(sample.translate(None, bytes(range(0x80)))) > MOST_BYTES:
        return detected
    names, longest = (_BY_PLACE[tld], 5) if tld in _BY_PLACE else (("windows-1252",), 2)
    is_of_a_country = len(tld) == 2 or tld in _BY_PLACE
    told = ((_faults(decode(sample, name), name, longest), name) for name in names)
    fitting = [(faults, name) for faults, name in told if faults is not None]
    if not fitting:
        return detected
    faults, name = min(fitting, key=lambda one: one[0])
    foreign = "".join(_FOREIGN.findall(decode(sample, name)))
    if 4 * faults > len(foreign):
        return detected
    # A host of no country may be of any: then only what is hardly a guess counts.
    letters = sum(map(str.isalpha, foreign))
    return name if is_of_a_country or detected not in _LATIN or letters <= _FEW else detected


def _faults(text: str, name: str, longest: int) -> int | None:
    """How much of the foreign part of a text makes no sense; None if it cannot be in this encoding.

    `longest` is how many foreign letters may stand together in a language that is written in Latin ones."""
    runs = _FOREIGN.findall(text)
    if any("\ufffd" in run or any("\x80" <= letter < "\xa0" for letter in run) for run in runs):
        return None
    if name in _DOUBLE:
        # Half of a pair is never alone; what is in another Japanese encoding reads as half-width katakana.
        return sum(1 for run in runs for letter in run if "\uff61" <= letter <= "\uff9f")
    script = _SCRIPTS.get(name)
    if script is not None:
        odd = sum(len(re.sub(f"[{script}{_SIGNS}]", "", run)) for run in runs)
        return odd + _turns(text)
    return sum(_latin_faults(text, longest)) + _turns(text)


def _latin_faults(text: str, longest: int) -> Iterator[int]:
    for run in _FOREIGN.finditer(text):
        before, after = text[run.start() - 1 : run.start()], text[run.end() : run.end() + 1]
        is_inside = before.isalpha() and after.isalpha()
        letters = sum(letter.isalpha() and letter not in "\xaa\xba" for letter in run[0])
        signs = sum(letter in _SIGNS for letter in run[0])
        yield len(run[0]) - letters - signs
        # Words are not of foreign letters alone, nor have they other signs than apostrophes in them.
        is_alone = letters > 1 and not before.isalpha() and not after.isalpha()
        yield max(0, letters - longest) + 2 * is_alone
        yield sum(letter in _SIGNS and letter not in "\u2018\u2019\xb4\xb7" for letter in run[0]) * is_inside


def _turns(text: str) -> int:
    """How many words have a capital behind a small letter."""
    words = _WORD.findall(text)
    return sum(any(one.islower() and other.isupper() for one, other in pairwise(word)) for word in words)
