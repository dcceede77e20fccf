from __future__ import annotations

import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.engine import robots_txt
from gossamer.engine.robots_txt import Matcher, Robots, Rules, is_due, parse, settle, unpack

AGENT = "Gossamer/0.1 (+https://example.org)"
DAY = 86_400.0
NOW = 1_700_000_000.0


def allowed(text: str | bytes, path: str) -> bool:
    body = text if isinstance(text, bytes) else text.encode()
    return Matcher(parse(body, AGENT)).allowed(path)


def after(*answers: tuple[float, int | None], body: bytes = b"User-agent: *\nDisallow: /private") -> Robots:
    """What holds after answers (seconds from NOW, status) in turn."""
    state: Robots | None = None
    for seconds, status in answers:
        state = settle(state, status, body if status == 200 else b"", agent=AGENT, now=NOW + seconds, ttl=DAY)
    assert state is not None
    return state


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\n\r\n"])
def test_lines_end_in_any_way(end: str) -> None:
    assert not allowed(end.join(["User-agent: *", "Disallow: /a", "Disallow: /b"]), "/a")


@pytest.mark.parametrize(
    "body",
    [
        b"\xef\xbb\xbfUser-agent: *\nDisallow: /a",
        "\ufeffUser-agent: *\nDisallow: /a".encode("utf-16-le"),
        "User-agent: *\nDisallow: /a".encode("utf-16-be"),
        b"User-\0agent: *\n\0Disallow: /a\0",
        b"\xff\xff\x80\nUser-agent: *\nDisallow: /a\n\xc3\x28",
        b"<html>\nUser-agent: *  # all\n\t Disallow :\t/a # not this\n</html>",
        b"user-agent *\ndisallow /a",
        # Byte order marks in part, twice, and where none belongs.
        b"\xefUser-agent: *\nDisallow: /a",
        b"\xef\xbbUser-agent: *\nDisallow: /a",
        b"\xef\xbb\xbf\xef\xbb\xbfUser-agent: *\nDisallow: /a",
        b"\n \xef\xbb\xbf User-agent: *\n\xef\xbb\xbfDisallow: /a",
        b"User-agent\xef\xbb\xbf: \xef\xbb\xbf*\nDisallow: \xef\xbb\xbf/a",
        b"\xef\xbb\xbfUser-agent *\nDisallow /a",
    ],
)
def test_malformed_files_are_parsed(body: bytes) -> None:
    """H45: UTF-16, NUL, HTML."""
    assert not allowed(body, "/a")
    assert allowed(body, "/b")


def test_the_end_of_a_rule_is_no_byte_order_mark() -> None:
    body = "User-agent: *\nDisallow: /a\u00bb\nDisallow: /\ufeff".encode()
    assert parse(body, AGENT).text == "-/a%C2%BB\n-/%EF%BB%BF"


def test_own_group_replaces_the_common_one() -> None:
    text = "User-agent: *\nDisallow: /a\nUser-agent: GOSSAMER\nDisallow: /b"
    assert allowed(text, "/a")
    assert not allowed(text, "/b")


def test_own_group_without_rules_allows_all() -> None:
    assert allowed("User-agent: gossamer\nAllow:\n\nUser-agent: *\nDisallow: /", "/a")


def test_groups_of_one_agent_merge() -> None:
    text = (
        "User-agent: gossamer\nDisallow: /a\nUser-agent: y\nDisallow: /b\n"
        "User-agent: x\nUser-agent: gossamer\nAllow: /\nDisallow: /c"
    )
    assert [allowed(text, path) for path in ("/a", "/b", "/c")] == [False, True, False]


def test_only_the_whole_product_token_names_us() -> None:
    assert allowed("User-agent: goss\nDisallow: /\nUser-agent: gossamer-images\nDisallow: /", "/a")


@pytest.mark.parametrize(
    ("agent", "token"),
    [
        ("Gossamer/0.1 (+https://example.org)", "gossamer"),
        ("Mozilla/5.0 (compatible; ExampleBot/0.1; https://www.example.com/bot.html)", "examplebot"),
        ("Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; compatible; My_Bot/2; +https://x.org) Safari/1", "my_bot"),
        ("Mozilla/5.0 (compatible; +https://x.org)", "mozilla"),
        ("Mozilla/5.0 (X11; Linux x86_64)", "mozilla"),
        ("Other/1.0 (compatible; ExampleBot/0.1)", "other"),
        ("4bot/1.0", "4bot"),
        ("(none)", ""),
    ],
)
def test_a_robot_is_called_by_its_own_name(agent: str, token: str) -> None:
    assert robots_txt.product_token(agent) == token
    if token:
        assert parse(f"User-agent: {token}\nDisallow: /a\nUser-agent: *\nAllow: /".encode(), agent).text == "-/a"


@pytest.mark.parametrize(
    ("agent", "line", "is_ours"),
    [
        ("MyBot2/1.0", "mybot2", True),
        ("MyBot2/1.0", "MyBot2/0.9", True),
        ("MyBot2/1.0", "MyBot", True),
        ("MyBot", "MyBot2", True),
        ("MyBot2", "MyBot3", False),
        ("4bot", "5bot", False),
        ("4bot", "*bot", False),
        ("4bot", "bot", False),
        ("My2bot", "My2botnet", False),
    ],
)
def test_digits_distinguish_robot_names(agent: str, line: str, is_ours: bool) -> None:
    assert bool(parse(f"User-agent: {line}\nDisallow: /".encode(), agent).text) is is_ours


def test_other_lines_do_not_end_a_group() -> None:
    text = (
        "User-agent: gossamer\nSitemap: https://x.org/s.xml\nCrawl-delay: 3\nHost: x.org\nUser-agent: y\nDisallow: /a"
    )
    assert not allowed(text, "/a")
    assert parse(text.encode(), "y").crawl_delay is None


def test_longest_rule_wins_and_allow_wins_ties() -> None:
    text = "User-agent: *\nDisallow: /a\nAllow: /a/b\nDisallow: /a/b/c\nDisallow: /same\nAllow: /same"
    assert [allowed(text, path) for path in ("/a", "/a/b", "/a/b/c", "/same", "/")] == [False, True, False, True, True]


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("/*.gif$", "/x/y.gif", True),
        ("/*.gif$", "/x/y.gif?z", False),
        ("/a*b*c", "/a-b-c", True),
        ("/a*b*c", "/a-c-b", False),
        ("/a*ab$", "/ab", False),
        ("/a*$", "/a/anything", True),
        ("/a$", "/a", True),
        ("/a$", "/a/", False),
        ("/a$b", "/a$b", True),
        ("/**a", "/xa", True),
        ("*", "/", True),
        ("/with-a-%2A.html", "/with-a-*.html", True),
        ("/with-a-%2A.html", "/with-a-b.html", False),
        ("/with-%24", "/with-$", True),
        ("/a b", "/a%20b", True),
        ("/ツ", "/%E3%83%84", True),
        ("/%e3%83%84", "/%E3%83%84", True),
        ("/%E3%83%84", "/%e3%83%84", True),
        ("/%62az", "/baz", True),
        ("/baz", "/%62az", True),
        ("/a%2Fb", "/a/b", False),
        ("/a/b", "/a%2Fb", False),
        ("/a%3Fb", "/a?b", False),
        ("/~joe", "/%7Ejoe", True),
        ("/%7ejoe", "/~joe", True),
        ("/a=b", "/a%3Db", True),
        ("/a%3Db", "/a=b", True),
        ("/a?b=https://c.d", "/a?b=https%3A%2F%2Fc.d", True),
        ("/a?b=https%3A%2F%2Fc.d", "/a?b=https://c.d", True),
        ("/*?*=/c", "/a?b=%2Fc", True),
        ("a", "/a", False),
    ],
)
def test_pattern_matches(pattern: str, path: str, matches: bool) -> None:
    assert allowed(f"User-agent: *\nDisallow: {pattern}", path) is not matches


def test_the_stricter_reading_of_an_escape_wins() -> None:
    assert not allowed("User-agent: *\nDisallow: /\nAllow: /%62az", "/baz")
    assert allowed("User-agent: *\nDisallow: /\nAllow: /%62az", "/%62az")


@pytest.mark.parametrize(
    ("rule", "path"),
    [("/~mak", "/%7Emak/x"), ("/%7Emak", "/~mak/x"), ("/baz", "/%62az"), ("/a?b=c://d", "/a?b=c%3a%2f%2fd")],
)
def test_what_is_the_same_in_the_standard_is_allowed_too(rule: str, path: str) -> None:
    assert allowed(f"User-agent: *\nDisallow: /\nAllow: {rule}", path)


def test_the_reported_rule_is_the_one_that_decides() -> None:
    """An escape does not make a rule longer than what it stands for."""
    rules = parse(b"User-agent: *\nDisallow: /%7Ejoe\nAllow: /~joe/", AGENT)
    assert Matcher(rules).allowed("/~joe/")
    assert robots_txt.RuleFinder(rules).of("/~joe/") == ("/~joe/", True)
    assert robots_txt.RuleFinder(rules).of("/~joe") == ("/%7Ejoe", False)


def test_robots_txt_itself_is_always_allowed() -> None:
    assert allowed("User-agent: *\nDisallow: /", "/robots.txt")
    assert not allowed("User-agent: *\nDisallow: /", "/robots.txt?x")


@pytest.mark.parametrize(
    ("lines", "delay", "flags"),
    [
        ("Crawl-delay: 2.5", 2.5, ()),
        ("crawl-delay: 0", 0.0, ()),
        ("Crawl-delay: 1\nCrawl-delay: 4", 4.0, ()),
        ("Crawl-delay: 86400", 300.0, ("delay-cut",)),
        ("Crawl-delay: inf", 300.0, ("delay-cut",)),
        ("Crawl-delay: nan", None, ("delay-ignored",)),
        ("Crawl-delay: -1", None, ("delay-ignored",)),
        ("Crawl-delay: soon", None, ("delay-ignored",)),
        ("Crawl-delay: " + "9" * 1000, None, ("delay-ignored",)),
    ],
)
def test_crawl_delay_is_a_sane_number(lines: str, delay: float | None, flags: tuple[str, ...]) -> None:
    """H46."""
    rules = parse(f"User-agent: *\n{lines}".encode(), AGENT)
    assert (rules.crawl_delay, rules.flags) == (delay, flags)


def test_crawl_delay_of_others_is_not_ours() -> None:
    assert parse(b"User-agent: x\nCrawl-delay: nan\nUser-agent: gossamer\nAllow: /", AGENT) == Rules.of([("/", True)])


def test_crawl_delay_is_for_those_named_since_the_last_one() -> None:
    text = b"User-agent: a\nUser-agent: b\nCrawl-delay: 1\nUser-agent: c\nCrawl-delay: 2\n"
    text += b"User-agent: *\nCrawl-delay: 9\n"
    assert [parse(text, agent).crawl_delay for agent in "abcd"] == [1.0, 1.0, 2.0, 9.0]
    rules = b"Disallow: /a\nCrawl-delay: 5\n"
    assert [parse(text + rules, agent).crawl_delay for agent in "abcd"] == [1.0, 1.0, 2.0, 9.0]
    assert parse(b"User-agent: a\nUser-agent: b\n" + rules, "b").crawl_delay == 5.0


def test_sitemaps_count_wherever_they_stand() -> None:
    text = "Sitemap: https://x.org/ä.xml\nUser-agent: x\nSITEMAP: http://x.org/b.xml\nSitemap: file:///etc\nSitemap: http://x.org/b.xml"
    assert parse(text.encode(), AGENT).sitemaps == ("https://x.org/ä.xml", "http://x.org/b.xml")
    assert parse(b"Site-map: /s.xml", AGENT).sitemaps == ("/s.xml",)
    assert parse(b"Sitemap: /s.xml\nSitemap: s.xml\nSitemap:\nSitemap: data:,/", AGENT).sitemaps == ("/s.xml",)


def test_500_kib_are_read_and_the_cut_line_is_not() -> None:
    head = b"User-agent: *\n" + b"#" * (500 * 1024 - 40) + b"\n"
    assert not allowed(head + b"Disallow: /a\n", "/a")
    text = head + b"Disallow: /" + b"b" * robots_txt.MAX_BYTES
    assert allowed(text, "/b")
    assert parse(text, AGENT).flags == ("file-cut",)


def test_hostile_files_cost_bounded_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """H45."""
    searched = 0
    real = robots_txt._found

    def counted(path: str, start: int, pieces: list[str], tail: str | None) -> bool:
        nonlocal searched
        searched += len(path) + sum(map(len, pieces))
        return real(path, start, pieces, tail)

    monkeypatch.setattr(robots_txt, "_found", counted)
    many = "".join(f"Disallow: /*a*{number:x}\n" for number in range(100_000))
    assert not allowed("User-agent: *\n" + many, "/" + "a" * 20_000)
    assert searched <= robots_txt._WORK


def test_ten_thousand_stars_match_in_one_pass() -> None:
    """H45."""
    text = "User-agent: *\nDisallow: /" + "*a" * 10_000
    assert not allowed(text, "/" + "a" * 10_000)
    assert allowed(text, "/" + "a" * 9_999)


def test_many_plain_rules_all_hold() -> None:
    text = "User-agent: *\n" + "".join(f"Disallow:/{number:x}/\n" for number in range(25_000))
    matcher = Matcher(parse(text.encode(), AGENT))
    assert not matcher.allowed("/61a7/x")
    assert matcher.allowed("/61a8/x")


@pytest.mark.parametrize("rule", ["/{}", "*{}", "/{}*b", "/{}$", "*{}*b*c$", "/%61{}"])
def test_h45_tens_of_thousands_of_rules_take_little_memory(rule: str) -> None:
    """H45: of half a megabyte of rules no more than a dozen megabytes are made at any time, and a few are kept."""
    lines = ["allow:" + rule.format(f"{number:05x}") for number in range(512 * 1024 // (len(rule) + 10))]
    body = ("user-agent:*\n" + "\n".join(lines)).encode()
    tracemalloc.start()
    try:
        packed = settle(None, 200, body, agent=AGENT, now=NOW, ttl=60).pack()
        robots = unpack(packed)
        matcher = Matcher(robots.rules)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert robots.rules.count > 20_000
    assert matcher.allowed("/00fffbc")
    assert kept < 4 * 2**20
    assert peak < 12 * 2**20


PIECES = st.sampled_from(["/", "a", "b", "*", "$", "%61", "%2f", "%2F", "%2A", "%"])
PATTERNS = st.lists(PIECES, max_size=6).map(lambda pieces: "/" + "".join(pieces))
RULES = st.lists(st.tuples(PATTERNS, st.booleans()), max_size=6)


def naive(rules: list[tuple[str, bool]], path: str, *, decode: bool = False, decode_path: bool = False) -> bool:
    """One reading of the rules by a regular expression each."""

    def form(text: str, decode: bool = decode) -> str:
        text = re.sub("%[0-9a-fA-F]{2}", lambda found: found.group().upper(), text)
        return text.replace("%61", "a") if decode else text

    path = form(path, decode or decode_path).replace("*", "%2A").replace("$", "%24")
    best, verdict = 0, True
    for pattern, allow in rules:
        shape = form(pattern)
        body, end = (shape[:-1], r"\Z") if shape.endswith("$") else (shape, "")
        expression = ".*".join(re.escape(piece.replace("$", "%24")) for piece in body.split("*")) + end
        if re.match(expression, path, re.DOTALL) and (len(shape) > best or (len(shape) == best and allow)):
            best, verdict = len(shape), allow
    return verdict


@given(RULES, PATTERNS)
def test_matcher_agrees_with_a_naive_one(rules: list[tuple[str, bool]], path: str) -> None:
    text = "User-agent: *\n" + "".join(f"{'Allow' if allow else 'Disallow'}: {pattern}\n" for pattern, allow in rules)
    expected = naive(rules, path, decode=True)
    if any("%61" in pattern for pattern, _ in rules):
        expected = expected and (naive(rules, path) or naive(rules, path, decode_path=True))
    assert allowed(text, path) is expected
    quick, narrow = (robots_txt._PatternIndex(rules, count) for count in (0, robots_txt.MANY + 1))
    assert quick.allows(path) is narrow.allows(path)


LINES = st.sampled_from(
    [
        b"User-agent: *",
        b"User-agent: gossamer",
        b"Allow: /a",
        b"disallow:/",
        b"Crawl-delay: 1",
        b"Sitemap: http://x/",
        b"\r\n",
        b"\0",
        b":",
        b"#",
    ]
)


@given(st.lists(st.one_of(LINES, st.binary(max_size=20)), max_size=20), st.text())
def test_parser_and_matcher_never_raise(parts: list[bytes], path: str) -> None:
    for separator in (b"\n", b""):
        assert allowed(separator.join(parts), "/" + path) in (True, False)


@given(
    st.builds(
        Robots,
        kind=st.sampled_from(["rules", "allow", "unreachable"]),
        rules=st.builds(
            Rules,
            text=st.text(max_size=2000),
            crawl_delay=st.none() | st.floats(0, 300),
            sitemaps=st.lists(st.text()).map(tuple),
        ),
        fetched_at=st.floats(0, 2e9),
        good_until=st.floats(0, 2e9),
        failures=st.integers(0, 10_000),
        failing_since=st.floats(0, 2e9),
        failed_at=st.floats(0, 2e9),
        failing_seconds=st.floats(0, 2e9),
    )
)
def test_packed_robots_come_back_the_same(state: Robots) -> None:
    assert unpack(state.pack()) == state


@given(st.binary())
def test_invalid_packed_rules_are_due_and_allow_nothing(packed: bytes) -> None:
    for foreign in (packed, b"z" + packed):
        state = unpack(foreign)
        assert state.kind == "unreachable"
        assert is_due(state, NOW)
        assert not Matcher(state.rules).allowed("/")


def test_large_robots_are_compressed() -> None:
    state = after((0, 200), body=b"User-agent: *\n" + b"".join(b"Disallow: /folder/%d\n" % n for n in range(5_000)))
    assert state.rules.count == 5_000
    assert len(state.pack()) < 25_000
    assert unpack(state.pack()) == state


@pytest.mark.parametrize(
    ("status", "kind", "page", "private"),
    [
        (200, "rules", True, False),
        (204, "rules", True, True),
        (301, "allow", True, True),
        (403, "allow", True, True),
        (404, "allow", True, True),
        (429, "unreachable", False, False),
        (500, "unreachable", False, False),
        (503, "unreachable", False, False),
        (999, "unreachable", False, False),
        (None, "unreachable", False, False),
    ],
)
def test_first_answer_decides(status: int | None, kind: str, page: bool, private: bool) -> None:
    state = after((0, status))
    assert state.kind == kind
    assert [Matcher(state.rules).allowed(path) for path in ("/page", "/private")] == [page, private]


def test_answer_is_good_for_its_time() -> None:
    state = after((0, 200))
    assert is_due(None, NOW)
    assert not is_due(state, NOW + DAY - 1)
    assert is_due(state, NOW + DAY)
    assert is_due(state, NOW - DAY), "a clock that went back does not keep a file forever"


@pytest.mark.parametrize("status", [429, 500, None])
def test_the_last_good_copy_stays_in_force_while_the_server_fails(status: int | None) -> None:
    state = after((0, 200), (DAY, status), (20 * DAY, status))
    assert (state.kind, state.failures) == ("rules", 2)
    assert not Matcher(state.rules).allowed("/private")
    assert Matcher(state.rules).allowed("/page")


def test_copy_of_more_than_30_days_is_not_used() -> None:
    assert after((0, 200), (10 * DAY, 500), (31 * DAY, 500)).kind == "unreachable"


def test_earlier_404_is_no_copy() -> None:
    assert after((0, 404), (DAY, 500)).kind == "unreachable"


def test_unreachable_for_30_days_allows() -> None:
    hourly = [(hour * 3600, 500 if hour % 2 else None) for hour in range(30 * 24)]
    assert after(*hourly).kind == "unreachable"
    state = after(*hourly, (30 * DAY, 503))
    assert state.kind == "allow"
    assert not is_due(state, NOW + 30 * DAY + DAY - 1)
    assert after(*hourly, (30 * DAY, 503), (31 * DAY, None)).kind == "allow"


def test_clocks_that_are_months_apart_do_not_make_a_month_of_failures() -> None:
    """Two workers in turn, of which one has a clock that is 40 days ahead, for ten days."""
    state = after(*[(hour * 3600 + 40 * DAY * (hour % 2), 503) for hour in range(240)])
    assert (state.kind, state.failures) == ("unreachable", 240)
    assert after((0, 503), (40 * DAY, 503)).kind == "unreachable"


def test_a_clock_that_is_behind_waits_no_longer_than_the_one_that_failed() -> None:
    state = after((3600, 503))
    assert is_due(state, NOW)
    assert not is_due(state, NOW + 3599), "clocks of a fleet differ by a little"
    assert not is_due(state, NOW + 3600 + 59)
    assert is_due(state, NOW + 3600 + 60)


def test_good_answer_ends_a_row_of_failures() -> None:
    state = after((0, 500), (60, 500), (180, 200))
    assert (state.kind, state.failures, state.failing_since) == ("rules", 0, 0.0)
    assert after((0, 500), (60, 200), (31 * DAY, 500)).failures == 1


def test_failures_are_retried_with_growing_pauses_up_to_an_hour() -> None:
    waits, state = [], None
    for _ in range(2000):
        state = settle(state, None, b"", agent=AGENT, now=NOW, ttl=DAY)
        waits.append(state.good_until - NOW)
    assert waits[:8] == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert waits[-1] == 3600
