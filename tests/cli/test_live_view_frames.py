from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
from rich.console import Console

from gossamer.cli.live_view import Progress, RateHistory, follow, frame, progress_line, rendered
from gossamer.clock import ManualClock
from gossamer.jobs.local_run import LocalRun
from gossamer.model import Counts, Outcome, PageRow, Record, SiteNote
from gossamer.settings import Settings

EVIL = "http://h/\x1b[2J[bold red]x[/]\r\nERROR\u202e" + "y" * 300


class Run(LocalRun):
    """A fake crawl with settable statistics."""

    def __init__(self, **settings: object) -> None:
        self.hands = ManualClock()
        super().__init__(Path("crawls/example.org"), Settings(**settings), [], clock=self.hands)  # type: ignore[arg-type]
        self.now = Counts()

    async def counts(self) -> Counts:
        return self.now


def busy(**settings: object) -> tuple[Run, Progress]:
    run = Run(**settings)
    progress = Progress(run)
    asyncio.run(progress.look())
    run.hands.advance(2)
    outcomes = [
        Outcome(site="s", lane=0, token=1, key=key, status=status, code=code, reason=reason)  # type: ignore[arg-type]
        for key, status, code, reason in (
            (1, "done", 200, ""),
            (2, "failed", 404, "http-404"),
            (3, "retry", 0, "timeout"),
            (4, "skipped", 0, "robots"),
        )
    ]
    records = [Record(key=key, token=1, page=PageRow(url=EVIL, status=200, bytes=1000)) for key in (1, 2)]
    run.stats.saw(outcomes, records, [SiteNote(site="s", lane=0, token=1, hold=60.0)])
    run.now = Counts(queued=1234, delayed=2, leased=4, done=1, failed=1, skipped=1, sites=3, held_sites=1, stored=2)
    run.hands.advance(2)
    asyncio.run(progress.look())
    return run, progress


@pytest.mark.parametrize("width", [20, 39, 79, 200])
@pytest.mark.parametrize("height", [1, 5, 12, 40])
def test_frame_fits_the_terminal_with_any_content(width: int, height: int) -> None:
    _, progress = busy(max_pages=100)
    rows = frame(progress, width, height)
    assert 1 <= len(rows) <= height
    assert all(row.cell_len <= width for row in rows)
    plain = rendered(rows, Console(file=io.StringIO(), force_terminal=True, color_system=None, width=width))
    assert [line.text for line in plain] == [row.plain for row in rows]
    assert all(line.text.isprintable() for line in plain)


def test_frame_shows_progress() -> None:
    _, progress = busy(max_pages=100)
    text = "\n".join(row.plain for row in frame(progress, 79, 40))
    for word in (
        "example.org",
        "1,240",
        "1 failed",
        "200 1",
        "404 1",
        "1 timeout",
        "1 http-404",
        "s 58 s",
        "2%",
        "left",
    ):
        assert word in text, text
    assert "[bold red]" in text


def test_only_our_own_colors_are_emitted() -> None:
    _, progress = busy()
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=200)
    text = "".join(line.text for line in rendered(frame(progress, 199, 40), console))
    assert "\x1b[2J" not in text
    assert "\\x1b[2J" in text


def test_progress_is_one_line_of_key_value_pairs() -> None:
    _, progress = busy(max_pages=100)
    head, *words = progress_line(progress).split(" ")
    assert head == "progress"
    found = dict(word.split("=") for word in words)
    assert found["pages"] == "2"
    assert found["queued"] == "1240"
    assert found["failed"] == "1"
    assert found["rate"] == "0.5/s"


def test_progress_lines_without_a_terminal(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossamer.cli.live_view._LINE_SECONDS", 1)

    async def listen() -> str:
        output = ""
        following = asyncio.create_task(follow(Run()))
        while output.count("\n") < 2:
            await asyncio.sleep(0.05)
            output += capfd.readouterr().err
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        return output

    assert all(line.startswith("progress elapsed=") for line in asyncio.run(listen()).splitlines())


def test_eta_from_max_pages() -> None:
    _, progress = busy(max_pages=12)
    # Ten pages are left, at half a page a second.
    assert progress.eta == pytest.approx(20.0)


def test_eta_from_a_shrinking_queue_only() -> None:
    run = Run()
    progress = Progress(run)
    for queued in (100, 90, 80, 70):
        run.now = Counts(queued=queued)
        asyncio.run(progress.look())
        run.hands.advance(5)
    assert progress.eta == pytest.approx(70 / 2)
    for queued in (90, 120, 150):
        run.now = Counts(queued=queued)
        asyncio.run(progress.look())
        run.hands.advance(5)
    assert progress.eta is None


def test_continuous_crawl_has_no_eta() -> None:
    run = Run(recrawl="table", max_seconds=100.0)
    progress = Progress(run)
    for queued in (100, 50, 0, 0):
        run.now = Counts(queued=queued)
        asyncio.run(progress.look())
        run.hands.advance(5)
    assert progress.eta == pytest.approx(80.0)


def test_expensive_counts_are_polled_rarely() -> None:
    class Slow(Run):
        asked = 0

        async def counts(self) -> Counts:
            self.asked += 1
            self.hands.advance(0.1)
            return self.now

    run = Slow()
    progress = Progress(run)
    for _ in range(400):
        asyncio.run(progress.look())
        run.hands.advance(0.25)
    # 400 looks in 100 seconds; a tenth of a second each would be a tenth of the time if all of them asked.
    assert run.asked <= 6


def test_long_history_has_bounded_size() -> None:
    history = RateHistory()
    pages = 0
    for second in range(100_000):
        pages += 10 if second < 50_000 else 0
        history.add(float(second), pages)
    assert len(history._totals) <= 121
    rates = history.rates(20)
    assert len(rates) <= 20
    assert rates[2] == pytest.approx(10, rel=0.1)
    assert rates[-2] == 0


def test_held_sites_are_shown_with_reason_until_they_end() -> None:
    run, _ = busy()
    assert [(site, reason) for site, _, reason in run.stats.holds()] == [("s", "http-404")]
    run.hands.advance(61)
    assert run.stats.holds() == []
    for number in range(3000):
        run.stats.saw([], [], [SiteNote(site=f"s{number}", lane=0, token=1, hold=5.0)])
    assert len(run.stats.held) <= 1000
