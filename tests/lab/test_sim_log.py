from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, cast

from gossamer.lab.simweb import log
from gossamer.lab.simweb.log import LogWriter, SimRequest


def entry(
    arrived: float, headers: float, finished: float, *, target: str = "/", site: str = "a.sim", status: int = 200
) -> SimRequest:
    return SimRequest(arrived, headers, finished, f"http://{site}", "GET", target, status, 5000, "test")


def test_what_is_written_is_read_back_in_order_of_arrival(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = LogWriter(path)
    writer.write((20.5, 20.6, 20.7), ("http://a.sim", "GET", "/x\ty\n\x1b"), 200, (1, "agent\twith\ntabs"))
    writer.write((10.123456, 10.2, 10.3), ("http://a.sim:81", "HEAD", "/"), 404, (2, ""))
    assert path.read_bytes() == b""
    writer.flush()
    first, second = log.read(path)
    assert first == SimRequest(10.123456, 10.2, 10.3, "http://a.sim:81", "HEAD", "/", 404, 2, "")
    assert (second.target, second.agent) == ("/x\\ty\\n\\x1b", "agent\\twith\\ntabs")
    assert first.url == "http://a.sim:81/"
    assert first.site == "a.sim:81"
    writer.close()


def test_partial_last_line_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = LogWriter(path)
    for second in (1.0, 2.0):
        writer.write((second, second, second), ("http://a.sim", "GET", "/"), 200, (1, ""))
    writer.close()
    path.write_bytes(path.read_bytes()[:-5])
    assert [found.arrived_at for found in log.read(path)] == [1.0]


def test_a_gap_counts_from_the_headers_of_the_previous_answer() -> None:
    entries = [
        entry(0.0, 0.5, 3.0, target="/robots.txt"),
        entry(1.5, 1.6, 1.7),
        entry(2.1, 2.2, 2.3),
        entry(1.55, 1.6, 1.7, site="b.sim"),
    ]
    assert {site: round(gap, 6) for site, gap in log.gaps(entries).items()} == {"a.sim": 0.5}
    assert {site: round(gap, 6) for site, gap in log.gaps(entries[:2]).items()} == {"a.sim": 1.0}


def test_a_request_before_the_answer_is_a_negative_gap() -> None:
    entries = [entry(0.0, 5.0, 5.0), entry(1.0, 1.1, 1.1), entry(7.0, 7.0, 7.0)]
    assert log.gaps(entries) == {"a.sim": -4.0}


def test_overlap_is_counted_per_site() -> None:
    entries = [
        entry(0.0, 0.1, 2.0),
        entry(1.0, 1.1, 3.0),
        entry(2.0, 2.1, 2.5),
        entry(3.0, 3.1, 3.5),
        entry(1.0, 1.1, 1.5, site="b.sim"),
    ]
    assert log.max_overlap(entries) == {"a.sim": 2, "b.sim": 1}


def test_robots_files_are_counted_apart() -> None:
    entries = [entry(0, 0, 0, target="/robots.txt"), entry(1, 1, 1), entry(2, 2, 2, status=500), entry(3, 3, 3)]
    assert log.fetched(entries) == {"http://a.sim/": 3}
    assert log.fetched(entries, robots=True) == {"http://a.sim/": 3, "http://a.sim/robots.txt": 1}
    assert log.answered(entries) == {"http://a.sim/": 2}
    assert log.robots_fetches(entries) == {"a.sim": 1}


def test_the_verdict_names_every_kind_of_difference() -> None:
    fates = {
        "http://a.sim/": "page",
        "http://a.sim/lost": "page",
        "http://a.sim/broken": "page",
        "http://a.sim/twice": "redirect",
        "http://a.sim/flaky": "flaky",
        "http://a.sim/gone": "missing",
        "http://a.sim/maybe": "optional",
        "http://a.sim/private": "robots",
        "http://b.sim/": "scope",
    }
    asked = [
        ("/", 200),
        ("/robots.txt", 200),
        ("/sitemap-index.xml", 200),
        ("/broken", 0),
        ("/twice", 301),
        ("/twice", 301),
        ("/flaky", 500),
        ("/flaky", 200),
        ("/gone", 404),
        ("/private", 200),
        ("/typo", 404),
    ]
    entries = [entry(at, at, at, target=target, status=status) for at, (target, status) in enumerate(asked)]
    verdict = log.judge(entries, cast(Any, fates))
    assert verdict.missed == {"http://a.sim/lost", "http://a.sim/broken"}
    assert verdict.forbidden == {"http://a.sim/private": 1}
    assert verdict.repeated == {"http://a.sim/twice": 2}
    assert verdict.unknown == {"http://a.sim/typo": 1}
    assert log.disallowed(entries, ["http://a.sim/private", "http://b.sim/"]) == Counter({"http://a.sim/private": 1})
