"""robots.txt (RFC 9309): a pure parser and matcher.

Protego takes 1.5 times as long to check a path against a dozen rules, and 1.9 times against 300 (benchmarks/robots.py).
Of Google's 145 cases it passes 131 and this module 141; the other four are deliberate, with reasons in
tests/suites/scores_robots.py."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from io import StringIO
from operator import itemgetter
from typing import Literal

import msgspec

from gossamer.compression import ZSTD_LEVEL, zstd

MANY = 2000
"""Number of rules from which the index saves memory rather than time."""
_RULE_BYTES = 400
_WORK = 8_000_000
"""Max steps of a few nanoseconds that one check may take."""
_HEAVIEST = 9_999_999
_UNSAFE = re.compile(r"%[0-9A-Fa-f]{2}|[^A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]")
_UNSAFE_ASCII = re.compile(r"""%[0-9A-Fa-f]{2}|[\x00-\x20"<>\\^`{|}\x7f*$]""")
_ESCAPED_LETTER = re.compile(r"%(?:3[0-9]|4[1-9A-F]|5[0-9A]|6[1-9A-F]|7[0-9A])")
_ESCAPED_MARK = re.compile(r"%(?:2[16-9BCDE]|3[ABD]|40|5[BDF]|7E)")
_ESCAPED_DELIMITER = re.compile(r"%(?:2F|3F)")
_LINE = re.compile(r"[^\n]+")
_Wild = tuple[int, int, int, list[str], str | None]


class Rules(msgspec.Struct, frozen=True, array_like=True):
    """The rules of a robots.txt for one agent, in the order of the file."""

    text: str = ""
    """One line for each rule: `+` (allow) or `-` (disallow), and its pattern, in ASCII with upper-case escapes."""
    crawl_delay: float | None = None
    """Seconds, at most MAX_DELAY_SECONDS."""
    sitemaps: tuple[str, ...] = ()
    """URLs as written: absolute, or paths at the same origin."""
    flags: tuple[str, ...] = ()
    """Irregularities: `delay-ignored`, `delay-cut`, `file-cut`, `sitemaps-cut`."""

    @classmethod
    def of(cls, rules: Iterable[tuple[str, bool]]) -> Rules:
        """Make rules from (pattern, whether it allows)."""
        return cls("\n".join(f"{'+' if allow else '-'}{pattern}" for pattern, allow in rules))

    @property
    def count(self) -> int:
        """Return the number of rules."""
        return self.text.count("\n") + 1 if self.text else 0

    def lines(self) -> Iterator[tuple[str, bool]]:
        """Yield (pattern, whether it allows) one at a time: a hostile file has tens of thousands of rules."""
        for line in _LINE.finditer(self.text):
            yield line[0][1:], line[0][0] == "+"


def escaped(pattern: str) -> str:
    """Return a pattern with upper-case escapes, and with everything escaped that a URL cannot contain."""
    return _UNSAFE.sub(_escape, pattern)


def _escape(found: re.Match[str]) -> str:
    text = found.group()
    return text.upper() if len(text) == 3 else f"%{ord(text):02X}"


def _plain(text: str) -> str:
    """Unescape letters and digits."""
    return _ESCAPED_LETTER.sub(_unescape, text) if "%" in text else text


def _common(text: str) -> str:
    """Unescape everything that RFC 9309 treats as equal to its escape: `-._~`, and reserved characters.

    Only `/` and `?` delimit parts of a path, so there they differ from their escapes; `*` and `$` are escaped in paths.
    """
    if "%" not in text:
        return text
    path, mark, query = _ESCAPED_MARK.sub(_unescape, text).partition("?")
    return path + mark + _ESCAPED_DELIMITER.sub(_unescape, query)


def _unescape(found: re.Match[str]) -> str:
    return chr(int(found.group()[1:], 16))


class Matcher:
    """Rules compiled for many checks.

    RFC 9309 reads `%62` as `b`, in a rule and in a path; Google's parser reads it in a rule as written. A path is
    allowed only if both readings allow it. They differ only where a rule has an escaped letter or digit, so mostly one
    of them is checked."""

    def __init__(self, rules: Rules) -> None:
        count = rules.count
        self._written = self._plain = _PatternIndex(
            ((_common(pattern), allow) for pattern, allow in rules.lines()), count
        )
        self.weight = count * _RULE_BYTES if count <= MANY else 4 * len(rules.text)
        """Approximate size in bytes."""
        if _ESCAPED_LETTER.search(rules.text):
            plain = ((_plain(_common(pattern)), allow) for pattern, allow in rules.lines())
            self._plain = _PatternIndex(plain, count)
            self.weight *= 2

    def allowed(self, path_query: str) -> bool:
        """Return whether the path and query of a normalized URL may be fetched; takes under a millisecond except for
        hostile files."""
        written = plain = path_query
        if _UNSAFE_ASCII.search(path_query):
            written = _common(_UNSAFE_ASCII.sub(_escape, path_query))
            plain = _plain(written)
        if plain == "/robots.txt":
            return True
        if not self._plain.allows(plain):
            return False
        return self._plain is self._written or self._written.allows(written) or self._written.allows(plain)


class RuleFinder:
    """Finds the rule that decides about a path, to show it to people. A `Matcher` is faster for allow or deny."""

    def __init__(self, rules: Rules) -> None:
        found = dict.fromkeys(rules.lines())
        self._rules = sorted(found, key=lambda rule: (len(_plain(_common(rule[0]))), rule[1]), reverse=True)

    def of(self, path_query: str) -> tuple[str, bool] | None:
        """Return (pattern, whether it allows) of the rule that decides; None if no rule matches the path."""
        for rule in self._rules:
            if not Matcher(Rules.of([(rule[0], False)])).allowed(path_query):
                return rule
        return None


class _PatternIndex:
    """Patterns by the text before their first wildcard.

    A pattern's weight is twice its length, plus one if it allows: the heaviest match wins, and Allow wins a tie."""

    def __init__(self, rules: Iterable[tuple[str, bool]], count: int) -> None:
        index_type = _SmallIndex if count <= MANY else _LargeIndex
        exact, prefixes, wild = index_type(), index_type(), index_type()
        heaviest: dict[int, int] = {}
        for pattern, allow in rules:
            weight = 2 * len(pattern) + allow
            anchored = pattern.endswith("$")
            # Paths have `*` and `$` escaped too, so that `%2A` and `%24` in a rule mean them literally.
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
                # If a check would take too many steps, the path is refused: the file was made to cost time.
                work += size * steps + 100 * (1 + len(pieces)) if needed <= size else 20
                if work > _WORK:
                    return False
                if needed <= size and _found(path, length, pieces, tail):
                    best = weight
                    break
        return best & 1 == 1


class _SmallIndex:
    """The index for typical files: weights, and the rest after the first wildcard of each pattern, by prefix."""

    def __init__(self) -> None:
        self._weights: dict[str, int] = {}
        self._wild: dict[str, list[_Wild]] = {}

    def add(self, prefix: str, weight: int, rest: str | None = None) -> None:
        if rest is None:
            self._weights[prefix] = max(weight, self._weights.get(prefix, 0))
        else:
            self._wild.setdefault(prefix, []).append(_wild(prefix, weight, rest))

    def weights(self) -> Callable[[str, int], int]:
        """Return a function that gives the weight of a prefix, or a default."""
        return self._weights.get

    def patterns(self) -> Callable[[str, tuple[()]], Iterable[_Wild]]:
        """Return a function that gives the patterns that begin with a prefix, heaviest first."""
        for group in self._wild.values():
            group.sort(key=itemgetter(0), reverse=True)
        return self._wild.get


class _LargeIndex:
    """The index for files with very many rules: one sorted text instead of an object for each rule."""

    def __init__(self) -> None:
        self._adding: list[str] = []
        self._text = ""
        self._starts = array("I")

    def add(self, prefix: str, weight: int, rest: str | None = None) -> None:
        # NUL sorts before every character of a pattern, so prefixes are in order; the heaviest of each is the first.
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
        """Yield the entries under a prefix, heaviest first."""
        text, key = self._text, prefix + "\0"
        place = bisect_left(self._starts, key, key=lambda start: text[start : start + len(key)])
        while place < len(self._starts) and text.startswith(key, self._starts[place]):
            start = self._starts[place] + len(key)
            yield text[start : text.index("\n", start)]
            place += 1


def _weight(entry: str) -> int:
    return _HEAVIEST - int(entry[:7])


def _wild(prefix: str, weight: int, rest: str) -> _Wild:
    """Compile a pattern: weight, min length of a path, max steps of a search, pieces, and anchored end."""
    tail = None
    needed = len(prefix) + len(rest) - rest.count("*")
    # A search may take as many steps as pattern length times text length.
    pieces = rest.split("*")
    steps = 1 if len(rest) < 20 else 1 + max(map(len, pieces)) // 20
    if rest[-1:] == "$":
        tail = pieces.pop()[:-1]
        needed -= 1
    if "" in pieces:
        pieces = [piece for piece in pieces if piece]
    return weight, needed, steps, pieces, tail


def _found(path: str, start: int, pieces: list[str], tail: str | None) -> bool:
    """Return whether the pieces follow one another from `start`; matching each as early as possible misses nothing."""
    for piece in pieces:
        at = path.find(piece, start)
        if at < 0:
            return False
        start = at + len(piece)
    return tail is None or (len(path) - len(tail) >= start and path.endswith(tail))


MAX_REDIRECTS = 5
"""Redirects that a fetcher follows for a robots.txt; more count as a 4xx: pass the last 3xx to `settle`."""
MAX_BYTES = 512 * 1024
MAX_DELAY_SECONDS = 300.0
MAX_SITEMAPS = 1000
KEEP_COPY_SECONDS = 30 * 86_400.0
FIRST_RETRY_SECONDS = 60.0
LAST_RETRY_SECONDS = 3600.0

_CLOCK_SLACK_SECONDS = 5.0
_DISALLOW = frozenset({"disallow", "dissallow", "dissalow", "disalow", "diasllow", "disallaw"})
_AGENT = frozenset({"user-agent", "useragent", "user agent"})
_SITEMAP = frozenset({"sitemap", "site-map"})
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_LETTERS = re.compile(r"[a-z_-]+")
_EVERYONE = re.compile(r"\*(?:\s|$)")
_SPACE = " \t\v\f\n"
_BEFORE = _SPACE + "\xef\xbb\xbf\xff\xfe"
"""Characters that are stripped from the start of a line or value, among them the bytes of byte order marks."""


NOTHING_ALLOWED = Rules.of([("/", False)])


class Robots(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The stored state of one origin's robots.txt; `rules` are those in force, `kind` is the reason for them."""

    kind: Literal["rules", "allow", "unreachable"]
    rules: Rules = Rules()
    fetched_at: float = 0.0
    """Epoch seconds of the last answer that was decisive (2xx or 4xx)."""
    good_until: float = 0.0
    """Epoch seconds from which it is fetched again."""
    failures: int = 0
    failing_since: float = 0.0
    failed_at: float = 0.0
    """Epoch seconds of the last failure."""
    failing_seconds: float = 0.0
    """Seconds for which it has been failing while it was requested; differing worker clocks add next to nothing."""

    def pack(self) -> bytes:
        """Pack for the site's record; a large file is compressed."""
        packed = msgspec.msgpack.encode(self)
        return packed if len(packed) < 1024 else b"z" + zstd.compress(packed, ZSTD_LEVEL)


def unpack(packed: bytes) -> Robots:
    """Unpack what `pack` made; invalid bytes give a Robots that is due and allows nothing."""
    try:
        return msgspec.msgpack.decode(zstd.decompress(packed[1:]) if packed[:1] == b"z" else packed, type=Robots)
    except (msgspec.DecodeError, zstd.ZstdError, ValueError):
        return Robots(kind="unreachable", rules=NOTHING_ALLOWED)


def settle(previous: Robots | None, status: int | None, body: bytes, *, agent: str, now: float, ttl: float) -> Robots:
    """Return the state after a robots.txt was requested; `status` is None if no answer came.

    A 2xx is parsed; a 3xx or 4xx allows everything. A 429, a 5xx, or no answer forbids everything, unless there is a
    copy of at most 30 days, which stays in force (as after a 304). If there were only such failures for 30 days, with a
    request at least every two hours, everything is allowed."""
    if status is not None and 200 <= status < 500 and status not in (304, 429):
        found = status < 300
        rules = parse(body, agent) if found else Rules()
        return Robots(kind="rules" if found else "allow", rules=rules, fetched_at=now, good_until=now + ttl)
    failures = previous.failures + 1 if previous else 1
    since, failing_seconds = now, 0.0
    if previous and previous.failures:
        # Times of two workers may be months apart: count no more than the pause between two failures of one worker.
        step = min(max(0.0, now - (previous.failed_at or now)), 2 * LAST_RETRY_SECONDS)
        since, failing_seconds = previous.failing_since, previous.failing_seconds + step
    # The exponent is bounded: a month of failures would overflow a float.
    wait = min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** min(failures - 1, 10))
    fetched_at = previous.fetched_at if previous else 0.0
    kind: Literal["rules", "allow", "unreachable"] = "unreachable"
    rules = NOTHING_ALLOWED
    if previous and previous.kind == "rules" and now - fetched_at <= KEEP_COPY_SECONDS:
        kind, rules = "rules", previous.rules
    elif failing_seconds >= KEEP_COPY_SECONDS:
        kind, rules, wait = "allow", Rules(), ttl
    return Robots(
        kind=kind,
        rules=rules,
        fetched_at=fetched_at,
        good_until=now + wait,
        failures=failures,
        failing_since=since,
        failed_at=now,
        failing_seconds=failing_seconds,
    )


def is_due(robots: Robots | None, now: float) -> bool:
    """Return whether the robots.txt must be fetched (again).

    It is due, too, if the clock went back by more than the clocks of workers differ."""
    if robots is None or now >= robots.good_until or now < robots.fetched_at - 3600.0:
        return True
    # Another worker, whose clock is ahead of ours, recorded the failure; by the frontier's clock the time has come.
    return robots.kind == "unreachable" and now < robots.failed_at - _CLOCK_SLACK_SECONDS


def product_token(agent: str) -> str:
    """Return the product token of a User-Agent for matching robots.txt, in lower case; empty if there is none.

    It is the first word, or the name after `Mozilla/5.0 (compatible;`. Digits are not part of names in RFC 9309, but
    robots use them."""
    browser, mark, guest = agent.partition("compatible;")
    own = _NAME.match(guest.lstrip()) if mark and browser.startswith("Mozilla/") else None
    found = own or _NAME.match(agent)
    return found.group().lower() if found else ""


def parse(body: bytes, agent: str) -> Rules:
    """Parse the rules for `agent`, a User-Agent header or its product token; never raises."""
    flags = dict.fromkeys(["file-cut"] if len(body) > MAX_BYTES else [])
    token = product_token(agent)
    # Key: whether the group is ours, or that of all agents.
    rules: dict[bool, list[str]] = {True: [], False: []}
    delays: dict[bool, float] = {}
    sitemaps: dict[str, None] = {}
    ruled: set[bool] = set()
    slowed: set[bool] = set()
    in_heading = in_slow_heading = named = False
    for line in _lines(body):
        key, value = _key_value(line)
        if key in _AGENT:
            # A Crawl-delay does not end the heading of a group, as rules do, but applies to the agents named before it.
            ruled = ruled if in_heading else set()
            slowed = slowed if in_slow_heading else set()
            in_heading = in_slow_heading = True
            called = {True} if token and _is_called(token, value) else set()
            called |= {False} if _EVERYONE.match(value) else set()
            ruled |= called
            slowed |= called
            named = named or True in called
        elif key == "allow" or key in _DISALLOW:
            in_heading = in_slow_heading = False
            if value[:1] in ("/", "*"):
                rule = ("+" if key == "allow" else "-") + escaped(value)
                for mine in ruled:
                    rules[mine].append(rule)
        elif key == "crawl-delay" and slowed:
            in_slow_heading = False
            seconds, flag = _delay(value)
            if flag:
                flags[flag] = None
            if seconds is not None:
                for mine in slowed:
                    delays[mine] = max(seconds, delays.get(mine, 0.0))
        elif key in _SITEMAP:
            url = value.encode("latin-1").decode("utf-8", "replace")
            if url in sitemaps or not url[:8].lower().startswith(("/", "http://", "https://")) or len(url) > 4096:
                continue
            if len(sitemaps) < MAX_SITEMAPS:
                sitemaps[url] = None
            else:
                flags["sitemaps-cut"] = None
    return Rules("\n".join(rules[named]), delays.get(named), tuple(sitemaps), tuple(flags))


def _is_called(token: str, value: str) -> bool:
    """Return whether a User-agent line names this robot: `mybot` and `mybot2` match `mybot2`, `mybot3` does not."""
    found = _NAME.match(value)
    said = found.group().lower() if found else ""
    if said == token:
        return True
    # In RFC 9309 a name ends at the first digit.
    letters = _letters(token)
    return bool(letters) and letters == _letters(said) and letters in (said, token)


def _letters(name: str) -> str:
    found = _LETTERS.match(name)
    return found.group() if found else ""


def _lines(body: bytes) -> Iterable[str]:
    """Yield lines as latin-1, one character per byte; the line that the size limit cuts is left out."""
    if len(body) > MAX_BYTES:
        body = body[: max(body.rfind(b"\n", 0, MAX_BYTES), body.rfind(b"\r", 0, MAX_BYTES)) + 1]
    # Without its NUL bytes, a file in UTF-16 reads as ASCII.
    return StringIO(body.replace(b"\0", b"").replace(b"\r", b"\n").decode("latin-1"))


def _key_value(line: str) -> tuple[str, str]:
    line = line.partition("#")[0].lstrip(_BEFORE).rstrip(_SPACE)
    key, colon, value = line.partition(":")
    if not colon:
        words = line.split(None, 2)
        if len(words) != 2:
            return "", ""
        key, value = words
    return key.rstrip(_BEFORE).lower(), value.lstrip(_BEFORE).rstrip(_SPACE)


def _delay(value: str) -> tuple[float | None, str]:
    try:
        seconds = float(value) if len(value) <= 32 else -1.0
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        return None, "delay-ignored"
    return (seconds, "") if seconds <= MAX_DELAY_SECONDS else (MAX_DELAY_SECONDS, "delay-cut")
