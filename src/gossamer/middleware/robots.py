"""robots.txt by RFC 9309: what it says to our agent, whether a path is allowed, and how long an answer is good for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from io import StringIO
from typing import Literal

import msgspec

from gossamer.compression import ZSTD_LEVEL, zstd
from gossamer.middleware.robots_rules import Matcher, Rules, Rulings, escaped

__all__ = ["Matcher", "Robots", "Rules", "Rulings", "is_due", "parse", "product_token", "settle", "unpack"]

MAX_REDIRECTS = 5
"""Redirects that the fetcher of a robots.txt follows; more count as a 4xx: give `settle` the last 3xx."""
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
"""What a line or a value never begins with: the bytes of byte order marks, whole or in part, among them."""


NOTHING_ALLOWED = Rules.of([("/", False)])


class Robots(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What is kept of one origin's robots.txt; `rules` always say what is allowed now, `kind` says why."""

    kind: Literal["rules", "allow", "unreachable"]
    rules: Rules = Rules()
    fetched_at: float = 0.0
    """Epoch seconds of the last answer that settled something (2xx or 4xx)."""
    good_until: float = 0.0
    """Epoch seconds from which on it is fetched again."""
    failures: int = 0
    failing_since: float = 0.0
    failed_at: float = 0.0
    """Epoch seconds of the last failure."""
    failing_seconds: float = 0.0
    """How long it has been failing while it was asked for; clocks of workers that differ add next to nothing."""

    def pack(self) -> bytes:
        """As bytes for the site's record; a large one is compressed."""
        packed = msgspec.msgpack.encode(self)
        return packed if len(packed) < 1024 else b"z" + zstd.compress(packed, ZSTD_LEVEL)


def unpack(packed: bytes) -> Robots:
    """What `pack` gave; bytes that are not ours give a Robots that is due and allows nothing."""
    try:
        return msgspec.msgpack.decode(zstd.decompress(packed[1:]) if packed[:1] == b"z" else packed, type=Robots)
    except (msgspec.DecodeError, zstd.ZstdError, ValueError):
        return Robots(kind="unreachable", rules=NOTHING_ALLOWED)


def settle(previous: Robots | None, status: int | None, body: bytes, *, agent: str, now: float, ttl: float) -> Robots:
    """What holds after a robots.txt was asked for; `status` is None where no answer came.

    2xx is parsed and 3xx or 4xx allows all. 429, 5xx and no answer forbid all, unless there is a copy of at most
    30 days, which then goes on (as after a 304); when nothing but those came for 30 days, in which it was asked for
    at least every two hours, all is allowed."""
    if status is not None and 200 <= status < 500 and status not in (304, 429):
        found = status < 300
        rules = parse(body, agent) if found else Rules()
        return Robots(kind="rules" if found else "allow", rules=rules, fetched_at=now, good_until=now + ttl)
    failures = previous.failures + 1 if previous else 1
    since, failing_seconds = now, 0.0
    if previous and previous.failures:
        # Times of two workers may be months apart: no more counts than lies between two failures of one.
        step = min(max(0.0, now - (previous.failed_at or now)), 2 * LAST_RETRY_SECONDS)
        since, failing_seconds = previous.failing_since, previous.failing_seconds + step
    # The exponent is bounded, or a month of failures would overflow a float.
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
    """Whether to ask for the robots.txt (again); also when the clock went back by more than workers' clocks differ."""
    if robots is None or now >= robots.good_until or now < robots.fetched_at - 3600.0:
        return True
    # Whoever could not have it, with a clock ahead of ours, set that time; by the frontier's clock it has come.
    return robots.kind == "unreachable" and now < robots.failed_at - _CLOCK_SLACK_SECONDS


def product_token(agent: str) -> str:
    """The name in a User-Agent that robots.txt calls it by, in lower case; empty if there is none.

    It is the first word, or what a robot in the guise of a browser says after `Mozilla/5.0 (compatible;`. Digits are no
    part of names in RFC 9309, but of those that robots have."""
    browser, mark, guest = agent.partition("compatible;")
    own = _NAME.match(guest.lstrip()) if mark and browser.startswith("Mozilla/") else None
    found = own or _NAME.match(agent)
    return found.group().lower() if found else ""


def parse(body: bytes, agent: str) -> Rules:
    """What the file says to `agent`, a User-Agent header or its product token; never raises."""
    flags = dict.fromkeys(["file-cut"] if len(body) > MAX_BYTES else [])
    token = product_token(agent)
    # By whether a group is ours, or everyone's.
    rules: dict[bool, list[str]] = {True: [], False: []}
    delays: dict[bool, float] = {}
    sitemaps: dict[str, None] = {}
    ruled: set[bool] = set()
    slowed: set[bool] = set()
    in_heading = in_slow_heading = named = False
    for line in _lines(body):
        key, value = _key_value(line)
        if key in _AGENT:
            # A delay does not end the heading of a group, as rules do, but is for those who are named before it.
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
    """Whether a User-agent line means the robot of this name: `mybot2` by that, or by `mybot`, but not by `mybot3`."""
    found = _NAME.match(value)
    said = found.group().lower() if found else ""
    if said == token:
        return True
    # To RFC 9309 a name ends where a digit comes.
    letters = _letters(token)
    return bool(letters) and letters == _letters(said) and letters in (said, token)


def _letters(name: str) -> str:
    found = _LETTERS.match(name)
    return found.group() if found else ""


def _lines(body: bytes) -> Iterable[str]:
    """Lines as latin-1, one character a byte; the one that the size limit cuts is left out."""
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
