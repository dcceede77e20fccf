"""`gossamer report`: contents, memory, and escaping of external text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from commands import gossamer, small_site

from gossamer.model import PageRow
from gossamer.results.report import MOST_TIMES, Bar, Most, ReportCounts, bars, render, stored_rows
from gossamer.storage.reader import StoredJob

CHART = re.compile(r'<svg viewBox="[^"]*" role="img" aria-label="([^"]*)">(.*?)</svg>', re.DOTALL)


def tally_of(*rows: PageRow) -> ReportCounts:
    tally = ReportCounts()
    for row in rows:
        tally.add(row)
    return tally


def page_of(*rows: PageRow) -> str:
    return render(tally_of(*rows), job="test", facts={}, made_at=0.0)


def test_report_agrees_with_the_stored_rows(tmp_path: Path) -> None:
    with small_site() as url:
        done = gossamer("crawl", url, "--job", "one", "--allow-private", "--delay", "0.01", cwd=tmp_path)
        assert b"report.html" in done.stderr
    folder = tmp_path / "crawls/one"
    rows = list(stored_rows(StoredJob.of(folder)))
    page = (folder / "report.html").read_text("utf-8")
    assert f"<b>{len(rows):,}</b><span>pages</span>" in page
    charts = dict(CHART.findall(page))
    for name in ("pages over time", "pages by status", "pages by depth", "pages by size"):
        output = [
            int(count.replace(",", "")) for count in re.findall(r"<title>[^<]*: ([\d,]+)[^<]*</title>", charts[name])
        ]
        assert sum(map(int, output)) == len([row for row in rows if row.status or name != "pages by size"]), name
    again = gossamer("report", "one", "--out", "-", cwd=tmp_path)
    assert CHART.findall(again.stdout.decode()) == CHART.findall(page)


def test_report_escapes_external_text() -> None:
    """H64: servers control titles, URLs, and errors."""
    evil = '"><script>alert(1)</script><img src=x onerror=alert(2)>'
    page = page_of(
        PageRow(
            url=f"https://a.example/{evil}",
            status=500,
            fetched_at=5.0,
            error=f"{evil}: x",
            referrer="https://b.example/",
        ),
        PageRow(url="https://b.example/", status=200, fetched_at=6.0, referrer=f"https://a.example/{evil}/x"),
    )
    tags = set[str]()

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.add(tag)
            assert not any(name.startswith("on") for name, _ in attrs)

    Reader().feed(page)
    assert not tags & {"script", "img", "iframe", "link"}
    assert "default-src &#x27;none&#x27;" in page or "default-src 'none'" in page


def test_report_memory_is_bounded() -> None:
    tally = ReportCounts()
    for number in range(60_000):
        tally.add(PageRow(url=f"https://s{number}.example/", status=200, bytes=1000, fetched_at=1e9 + 7 * number))
    assert len(tally.times) <= MOST_TIMES
    assert sum(tally.times.values()) == tally.pages == 60_000
    few: Most[int] = Most(100)
    for number in range(10_000):
        few.add(-1)
        few.add(number)
    assert len(few.counts) <= 101
    assert few.counts.most_common(1) == [(-1, 10_000)]
    assert not few.is_exact


def test_report_without_rows_names_what_is_missing(tmp_path: Path) -> None:
    output = gossamer("report", "nothing", cwd=tmp_path)
    assert (output.returncode, b"does not exist" in output.stderr) == (2, True)
    folder = tmp_path / "crawls/cut"
    folder.mkdir(parents=True)
    row = msgspec.json.encode(PageRow(url="https://a.example/", status=200, fetched_at=1.0))
    (folder / "pages.jsonl").write_bytes(row + b"\n" + row[:20])
    assert [one.url for one in stored_rows(StoredJob.of(folder))] == ["https://a.example/"]
    (folder / "pages.jsonl").write_bytes(row[:20] + b"\n")
    output = gossamer("report", "cut", cwd=tmp_path)
    assert (output.returncode, b"line 1" in output.stderr) == (1, True)


@pytest.mark.parametrize("values", [[0.0], [1.0, 0.0], [3.0, 999.0], [1e9, 1.0]])
def test_report_bars_stay_inside_the_chart(values: list[float]) -> None:
    chart = bars([Bar(str(value), value) for value in values], name="x")
    heights = [float(tall) for tall in re.findall(r'height="([\d.]+)"', chart)]
    assert len(heights) == len(values)
    assert all(0 <= tall <= 181 for tall in heights)
    assert all((tall > 0) == (value > 0) for tall, value in zip(heights, values, strict=True))
