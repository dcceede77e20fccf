"""The rules of a robots.txt for one agent, and what answers whether they allow a path.

Protego takes 1.5 times as long to check a path against a dozen rules, and 1.9 times against 300 (benchmarks/robots.py).
Of Google's 145 cases it passes 131 and this module 141; the other four are deliberate, with reasons in
tests/suites/scores_robots.py."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter

import msgspec

MANY = 2000
"""With more rules than this, an index takes little memory rather than little time."""
_RULE_BYTES = 400
_WORK = 8_000_000
"""Steps of a few nanoseconds that one check may take."""
_HEAVIEST = 9_999_999
_UNSAFE = re.compile(r"%[0-9A-Fa-f]{2}|[^A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]")
_UNSAFE_ASCII = re.compile(r"""%[0-9A-Fa-f]{2}|[\x00-\x20"<>\\^`{|}\x7f*$]""")
_ESCAPED_LETTER = re.compile(r"%(?:3[0-9]|4[1-9A-F]|5[0-9A]|6[1-9A-F]|7[0-9A])")
_ESCAPED_MARK = re.compile(r"%(?:2[16-9BCDE]|3[ABD]|40|5[BDF]|7E)")
_ESCAPED_DELIMITER = re.compile(r"%(?:2F|3F)")
_LINE = re.compile(r"[^\n]+")
_Wild = tuple[int, int, int, list[str], str | None]


class Rules(msgspec.Struct, frozen=True, array_like=True):
    """What a robots.txt says to one agent, in the order of the file."""

    text: str = ""
    """A line for each rule: `+` or `-`, whether it allows, and its pattern; escapes are upper case, all is ASCII."""
    crawl_delay: float | None = None
    """Seconds, at most MAX_DELAY_SECONDS."""
    sitemaps: tuple[str, ...] = ()
    """URLs as they are written; whole ones, or paths at the same origin."""
    flags: tuple[str, ...] = ()
    """What was odd: `delay-ignored`, `delay-cut`, `file-cut`, `sitemaps-cut`."""

    @classmethod
    def of(cls, rules: Iterable[tuple[str, bool]]) -> Rules:
        """Those of (pattern, whether it allows)."""
        return cls("\n".join(f"{'+' if allow else '-'}{pattern}" for pattern, allow in rules))

    @property
    def count(self) -> int:
        """How many there are."""
        return self.text.count("\n") + 1 if self.text else 0

    def lines(self) -> Iterator[tuple[str, bool]]:
        """(pattern, whether it allows) of each, one at a time: a hostile file has tens of thousands."""
        for line in _LINE.finditer(self.text):
            yield line[0][1:], line[0][0] == "+"


def escaped(pattern: str) -> str:
    """A pattern with its escapes in upper case, and whatever no URL has escaped."""
    return _UNSAFE.sub(_escape, pattern)


def _escape(found: re.Match[str]) -> str:
    text = found.group()
    return text.upper() if len(text) == 3 else f"%{ord(text):02X}"


def _plain(text: str) -> str:
    """With letters and digits as themselves."""
    return _ESCAPED_LETTER.sub(_unescape, text) if "%" in text else text


def _common(text: str) -> str:
    """With all as itself that RFC 9309 takes for the same as its escape: `-._~`, and what is reserved.

    Only `/` and `?` part a path, so there they differ from their escapes; `*` and `$` are escaped in paths."""
    if "%" not in text:
        return text
    path, mark, query = _ESCAPED_MARK.sub(_unescape, text).partition("?")
    return path + mark + _ESCAPED_DELIMITER.sub(_unescape, query)


def _unescape(found: re.Match[str]) -> str:
    return chr(int(found.group()[1:], 16))


class Matcher:
    """Rules made ready for many questions.

    RFC 9309 reads `%62`, in a rule and in a path, as `b`; Google's parser takes it in a rule as written. What such
    rules allow is allowed if both readings allow it. They differ only where a rule has a letter or a digit escaped, so
    mostly one of them is asked."""

    def __init__(self, rules: Rules) -> None:
        count = rules.count
        self._written = self._plain = _Reading(((_common(pattern), allow) for pattern, allow in rules.lines()), count)
        self.weight = count * _RULE_BYTES if count <= MANY else 4 * len(rules.text)
        """About how many bytes it takes."""
        if _ESCAPED_LETTER.search(rules.text):
            plain = ((_plain(_common(pattern)), allow) for pattern, allow in rules.lines())
            self._plain = _Reading(plain, count)
            self.weight *= 2

    def allowed(self, path_query: str) -> bool:
        """Whether the path and query of a normal URL may be fetched; under a millisecond but for hostile files."""
        written = plain = path_query
        if _UNSAFE_ASCII.search(path_query):
            written = _common(_UNSAFE_ASCII.sub(_escape, path_query))
            plain = _plain(written)
        if plain == "/robots.txt":
            return True
        if not self._plain.allows(plain):
            return False
        return self._plain is self._written or self._written.allows(written) or self._written.allows(plain)


class Rulings:
    """Which rule decides on a path, for people. It asks each rule alone, so a `Matcher` says sooner what is allowed."""

    def __init__(self, rules: Rules) -> None:
        found = dict.fromkeys(rules.lines())
        self._rules = sorted(found, key=lambda rule: (len(_plain(_common(rule[0]))), rule[1]), reverse=True)

    def of(self, path_query: str) -> tuple[str, bool] | None:
        """(pattern, whether it allows) of the rule that decides; None where none speaks of the path."""
        for rule in self._rules:
            if not Matcher(Rules.of([(rule[0], False)])).allowed(path_query):
                return rule
        return None


class _Reading:
    """Patterns by the text before their first wildcard.

    A pattern's weight is twice its length, plus one if it allows: the heaviest match wins, and Allow wins a tie."""

    def __init__(self, rules: Iterable[tuple[str, bool]], count: int) -> None:
        shelf = _Quick if count <= MANY else _Narrow
        exact, prefixes, wild = shelf(), shelf(), shelf()
        heaviest: dict[int, int] = {}
        for pattern, allow in rules:
            weight = 2 * len(pattern) + allow
            anchored = pattern.endswith("$")
            # In the path, `*` and a `$` are escaped too, so that `%2A` and `%24` in a rule mean them literally.
            text = (pattern[:-1] if anchored else pattern.rstrip("*")).replace("$", "%24")
            prefix, star, rest = text.partition("*")
            if star:
                wild.add(prefix, weight, rest + "$" if anchored else rest)
            elif anchored:
                exact.add(prefix, weight)
                continue
            else:
                prefixes.add(prefix, weight)
            heaviest[len(prefix)] = max(weight, heaviest.get(len(prefix), 0))
        self._exact, self._prefixes, self._wild = exact.weights(), prefixes.weights(), wild.patterns()
        self._lengths = sorted(((weight, length) for length, weight in heaviest.items()), reverse=True)

    def allows(self, path: str) -> bool:
        best = self._exact(path, 1)
        size = len(path)
        work = 0
        for heaviest, length in self._lengths:
            if heaviest <= best:
                break
            if length > size:
                continue
            prefix = path[:length]
            best = max(best, self._prefixes(prefix, 0))
            for weight, needed, steps, pieces, tail in self._wild(prefix, ()):
                if weight <= best:
                    break
                # A file made to cost time gets none: its paths are refused.
                work += size * steps + 100 * (1 + len(pieces)) if needed <= size else 20
                if work > _WORK:
                    return False
                if needed <= size and _found(path, length, pieces, tail):
                    best = weight
                    break
        return best & 1 == 1


class _Quick:
    """Weights, and what follows the first wildcard of patterns, by prefix, for files as people write them."""

    def __init__(self) -> None:
        self._weights: dict[str, int] = {}
        self._wild: dict[str, list[_Wild]] = {}

    def add(self, prefix: str, weight: int, rest: str | None = None) -> None:
        if rest is None:
            self._weights[prefix] = max(weight, self._weights.get(prefix, 0))
        else:
            self._wild.setdefault(prefix, []).append(_wild(prefix, weight, rest))

    def weights(self) -> Callable[[str, int], int]:
        """What gives the weight of a prefix, or else another."""
        return self._weights.get

    def patterns(self) -> Callable[[str, tuple[()]], Iterable[_Wild]]:
        """What gives the patterns that begin with a prefix, the heaviest first."""
        for group in self._wild.values():
            group.sort(key=itemgetter(0), reverse=True)
        return self._wild.get


class _Narrow:
    """The same for files with very many rules: one sorted text instead of an object for each."""

    def __init__(self) -> None:
        self._adding: list[str] = []
        self._text = ""
        self._starts = array("I")

    def add(self, prefix: str, weight: int, rest: str | None = None) -> None:
        # NUL comes before all that a pattern has, so prefixes are in order; the heaviest of one is the first.
        self._adding.append(f"{prefix}\0{_HEAVIEST - weight:07d}{rest or ''}\n")

    def weights(self) -> Callable[[str, int], int]:
        self._sort()
        return lambda prefix, other: next((_weight(entry) for entry in self._entries(prefix)), other)

    def patterns(self) -> Callable[[str, tuple[()]], Iterable[_Wild]]:
        self._sort()
        return lambda prefix, _: (_wild(prefix, _weight(entry), entry[7:]) for entry in self._entries(prefix))

    def _sort(self) -> None:
        self._adding.sort()
        position = 0
        for entry in self._adding:
            self._starts.append(position)
            position += len(entry)
        self._text = "".join(self._adding)
        self._adding = []

    def _entries(self, prefix: str) -> Iterator[str]:
        """What was added under a prefix, the heaviest first."""
        text, key = self._text, prefix + "\0"
        place = bisect_left(self._starts, key, key=lambda start: text[start : start + len(key)])
        while place < len(self._starts) and text.startswith(key, self._starts[place]):
            start = self._starts[place] + len(key)
            yield text[start : text.index("\n", start)]
            place += 1


def _weight(entry: str) -> int:
    return _HEAVIEST - int(entry[:7])


def _wild(prefix: str, weight: int, rest: str) -> _Wild:
    """A pattern made ready: its weight, the least length of a path, the price of a search, pieces, an anchored end."""
    tail = None
    needed = len(prefix) + len(rest) - rest.count("*")
    # A search may take as many steps as needle times text.
    pieces = rest.split("*")
    steps = 1 if len(rest) < 20 else 1 + max(map(len, pieces)) // 20
    if rest[-1:] == "$":
        tail = pieces.pop()[:-1]
        needed -= 1
    if "" in pieces:
        pieces = [piece for piece in pieces if piece]
    return weight, needed, steps, pieces, tail


def _found(path: str, start: int, pieces: list[str], tail: str | None) -> bool:
    """Whether the pieces follow one another from `start`; taking each as early as it comes misses nothing."""
    for piece in pieces:
        at = path.find(piece, start)
        if at < 0:
            return False
        start = at + len(piece)
    return tail is None or (len(path) - len(tail) >= start and path.endswith(tail))
