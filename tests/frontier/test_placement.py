"""Placement of sites: region rules, moves by measured latency, and ranges of shards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.errors import ConfigError
from gossamer.frontier.placement import (
    MARGIN_SECONDS,
    MOST_REGIONS,
    NEAR_SECONDS,
    RegionMeasure,
    ShardRange,
    check_region,
    check_regions,
    parse_part,
    place,
    region_of,
)

RULES = {
    "eu": (".de", "*.example.org", "shop.example.com", "127.0.0.1", "[::1]:8080"),
    "us": ("www.example.org", ".com", "a.b.example.org:8080"),
    "asia": (".co.jp", "*"),
}


@pytest.mark.parametrize(
    ("site", "region"),
    [
        ("heise.de", "eu"),
        ("de", "eu"),
        ("a.b.de:8443", "eu"),
        ("notde", "asia"),
        ("example.org", "eu"),
        ("deep.down.example.org", "eu"),
        ("www.example.org", "us"),
        ("www.example.org:81", "us"),
        ("not-example.org", "asia"),
        ("a.b.example.org:8080", "us"),
        ("a.b.example.org", "eu"),
        ("shop.example.com", "eu"),
        ("other.example.com", "us"),
        ("x.co.jp", "asia"),
        ("127.0.0.1:9000", "eu"),
        ("127.0.0.2", "asia"),
        ("[::1]:8080", "eu"),
        ("[::1]", "asia"),
    ],
)
def test_the_most_specific_pattern_decides(site: str, region: str) -> None:
    assert region_of(RULES, site) == region
    assert region_of(dict(reversed(RULES.items())), site) == region


def test_a_site_that_no_rule_speaks_of_has_no_region() -> None:
    assert region_of({}, "example.org") == ""
    assert region_of({"eu": (".de",)}, "example.org") == ""


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"eu": ("A.de",)}, "write a.de"),
        ({"eu": ("*.münchen.de",)}, "write *.xn--mnchen-3ya.de"),
        ({"eu": ("https://x.org/",)}, "write .de"),
        ({"eu": ("a*.de",)}, "write .de"),
        ({"eu": ("",)}, "write .de"),
        ({"e u": (".de",)}, "letters"),
        ({"": (".de",)}, "letters"),
        ({"eu": (".de",), "us": ("*.de",)}, "both eu and us"),
        ({f"r{number}": () for number in range(MOST_REGIONS + 1)}, "at most"),
    ],
)
def test_rules_that_cannot_be_meant_are_refused_with_a_way_out(rules: dict[str, tuple[str, ...]], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_regions(rules)
    assert words in f"{refused.value} {refused.value.hint}"


def test_rules_that_can_be_meant_are_taken() -> None:
    check_regions(RULES)
    assert check_region("us-east.1") == "us-east.1"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("0-63/256", ShardRange(0, 63, 256)),
        ("7/16", ShardRange(7, 7, 16)),
        (" 5-5/6 ", ShardRange(5, 5, 6)),
        ("256", ShardRange(0, 255, 256)),
        ("0-0/1", ShardRange(0, 0, 1)),
    ],
)
def test_a_part_is_read_and_written(text: str, part: ShardRange) -> None:
    assert parse_part(text) == part
    assert parse_part(str(part)) == part
    assert list(part.shards) == [number for number in range(part.of) if part.first <= number <= part.last]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("63-0/256", "write 0-63/256"),
        ("16/16", "0 to 15"),
        ("0-16/16", "no shard 16"),
        ("0/0", "between 1 and"),
        ("0-1/99999", "between 1 and"),
        ("", "not a range"),
        ("-1/4", "not a range"),
        ("1-/4", "not a range"),
        ("0-3", "not a range"),
        ("a/b", "not a range"),
        ("1e3", "not a range"),
    ],
)
def test_an_invalid_range_of_shards_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_part(text)
    assert words in f"{refused.value} {refused.value.hint}"
    assert repr(text) in str(refused.value)


class Site:
    """A site, and where a crawl goes to fetch it."""

    def __init__(self, here: str, live: set[str]) -> None:
        self.here = here
        self.live = live
        self.standing = RegionMeasure()
        self.moves: list[str] = []

    def visit(self, seconds: float) -> None:
        region, self.standing = place("x.org", self.standing, here=self.here, seconds=seconds, live=self.live)
        if region != self.here:
            self.moves.append(region)
        self.here = region


def test_a_near_site_stays_and_is_tried_nowhere_else() -> None:
    site = Site("eu", {"eu", "us", "asia"})
    for _ in range(5):
        site.visit(NEAR_SECONDS)
    assert site.moves == []
    assert site.standing.home == "eu"


def test_a_far_site_is_tried_once_from_each_live_region_and_settles_where_it_is_fastest() -> None:
    seconds = {"eu": 0.3, "us": 0.25, "asia": 0.1}
    site = Site("eu", set(seconds))
    for _ in range(10):
        site.visit(seconds[site.here])
    assert sorted(site.moves[:2]) == ["asia", "us"], "each once"
    assert site.here == site.standing.home == "asia"
    assert len(site.moves) <= 3


def test_a_site_that_is_as_slow_everywhere_settles() -> None:
    site = Site("eu", {"eu", "us"})
    for _ in range(10):
        site.visit(0.5)
    assert len(site.moves) <= 2


def test_a_little_faster_is_no_reason_to_move() -> None:
    for here, there in ((0.3, 0.25), (NEAR_SECONDS + 0.005, NEAR_SECONDS + 0.005 - MARGIN_SECONDS)):
        standing = RegionMeasure({"eu": here, "us": there}, "eu", 0)
        assert place("x.org", standing, here="eu", seconds=here, live={"eu", "us"})[0] == "eu"
    standing = RegionMeasure({"eu": 0.3, "us": 0.15}, "eu", 0)
    assert place("x.org", standing, here="eu", seconds=0.3, live={"eu", "us"})[0] == "us"


def test_no_site_moves_to_a_region_without_live_workers() -> None:
    standing = RegionMeasure({"eu": 0.3, "us": 0.01}, "eu", 0)
    assert place("x.org", standing, here="eu", seconds=0.3, live={"eu"})[0] == "eu"


def test_a_site_whose_region_died_is_taken_over_and_goes_back_as_often_as_that_happens() -> None:
    site = Site("eu", {"eu", "us"})
    seconds = {"eu": 0.06, "us": 0.3}
    for _ in range(4):
        site.visit(seconds[site.here])
    assert site.here == "eu"
    for _ in range(6):
        # A worker of the other region has it, since nobody else is there.
        site.live, site.here = {"us"}, "us"
        site.visit(seconds["us"])
        assert (site.here, site.standing.home) == ("us", "us")
        site.live = {"eu", "us"}
        site.visit(seconds["us"])
        assert (site.here, site.standing.home) == ("eu", "eu")


def test_a_region_that_is_new_is_tried_by_sites_that_are_far() -> None:
    site = Site("eu", {"eu"})
    site.visit(0.3)
    assert site.moves == []
    site.live = {"eu", "us"}
    site.visit(0.3)
    assert site.here == "us"
    site.visit(0.29)
    assert site.here == "eu", "not worth it"


@given(
    seconds=st.lists(st.floats(0.0, 120.0), max_size=300),
    regions=st.integers(1, 6),
)
def test_no_site_moves_back_and_forth_forever(seconds: list[float], regions: int) -> None:
    """Whatever is measured: each region is tried once, and every move after that doubles what the next one needs."""
    site = Site("r0", {f"r{number}" for number in range(regions)})
    for value in seconds:
        site.visit(value)
    assert len(site.moves) <= regions + 12


@given(
    visits=st.lists(
        st.tuples(st.floats(0.0, 120.0), st.sets(st.sampled_from(("r0", "r1", "r2")), min_size=1)), max_size=60
    )
)
def test_a_site_is_always_where_somebody_is(visits: list[tuple[float, set[str]]]) -> None:
    site = Site("r0", set())
    for value, live in visits:
        site.live = live
        if site.here not in live:
            site.here = min(live)
        site.visit(value)
        assert site.here in live


def test_different_sites_are_not_all_sent_to_one_region_first() -> None:
    live = {"a", "b", "c", "d"}
    first = {place(f"s{number}.org", RegionMeasure(), here="a", seconds=1.0, live=live)[0] for number in range(50)}
    assert first == live - {"a"}
