"""All hostile answers in one crawl with good pages: the figures of a crawl of the wild web, judged by its files."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from processes import command, environment, kill_tree, rows
from wildweb import hostile_web

from gossamer.errors import FetchError
from gossamer.settings import MIB
from gossamer.testing.web import SimWeb

SITES, PAGES = 20, 25


class Crawl(NamedTuple):
    """How a crawl ended: its exit code and complaints, and the most memory that its process had."""

    code: int
    said: str
    peak_bytes: int


def watched(folder: Path, seeds: list[str], *options: str, seconds: float) -> Crawl:
    """A crawl from its start to its end, with an eye on its memory."""
    line = command(folder, seeds, *options, "--max-seconds", str(seconds))
    with (folder.parent / f"{folder.name}.stderr").open("w+") as errors:
        process = subprocess.Popen(
            line, stdout=subprocess.DEVNULL, stderr=errors, text=True, start_new_session=True, env=environment()
        )
        peak = 0
        try:
            while process.poll() is None:
                peak = max(peak, peak_bytes(process.pid))
                time.sleep(0.05)
        finally:
            kill_tree(process)
        errors.seek(0)
        return Crawl(process.returncode, errors.read(), peak)


def peak_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def kinds() -> set[str]:
    """The words for all errors of a fetch."""
    found, left = set(), [FetchError]
    while left:
        one = left.pop()
        left += one.__subclasses__()
        found.add(one.kind)
    return found


def crawl_the_wild(folder: Path, shared: Path, *, body_bytes: int, fetch_seconds: float, late_seconds: float) -> Crawl:
    """One crawl of good and hostile pages; all that must hold of its files does."""
    limits = ("--max-body-bytes", str(body_bytes), "--max-decoded-bytes", str(2 * body_bytes))
    patience = ("--fetch-seconds", f"{fetch_seconds:g}", "--connect-seconds", "2", "--tries", "2")
    back_off = ("--backoff-seconds", "0.05", "--backoff-max-seconds", "0.1", "--site-failures", "4")
    reading = ("--sitemaps", "--cookies", "--text", "--delay", "0", "--resolve", "*.wild=127.0.0.1")
    with (
        SimWeb(sites=SITES, pages_per_site=PAGES, page_bytes=8000) as web,
        hostile_web(shared / "tools", folder.parent / "tls", size=2 * body_bytes - 1000) as wild,
    ):
        options = (*limits, *patience, *back_off, *reading, "--ca-file", str(wild.authority))
        done = watched(folder, [*web.seeds, *wild.urls], *options, seconds=100 * fetch_seconds)
        good = web.reachable()
        assert not web.judge(sitemaps=True).missed
    assert "Traceback" not in done.said
    assert done.code == 3, done.said
    records: dict[str, list[dict[str, Any]]] = {}
    for row in rows(folder / "pages.jsonl"):
        records.setdefault(row["url"], []).append(row)
    assert len(good) == SITES * PAGES
    assert {url for url in good if [row["status"] for row in records.get(url, ())] != [200]} == set()
    assert {url: len(records.get(url, ())) for url in wild.urls if len(records.get(url, ())) != 1} == dict.fromkeys(wild.dark, 0)
    ends = {url: records[url][0] for url in wild.urls if url not in wild.dark}
    typed = kinds() | {"redirects", "redirect-refused"}
    assert [row for row in ends.values() if not row["status"] and row["error"].partition(":")[0] not in typed] == []
    assert {url for url in wild.broken - wild.dark if ends[url]["status"] == 200} == set()
    # Most of what was recorded is sound, only odd: it must not be refused with the rest.
    assert Counter(bool(row["status"]) for row in ends.values())[True] > 400
    late = {
        step["url"]: step.get("latency", 0.0)
        for path in (folder / "trail").glob("*.jsonl")
        for step in rows(path)
        if step.get("latency", 0.0) > fetch_seconds + late_seconds
    }
    assert late == {}
    assert {url: row["elapsed"] for url, row in ends.items() if row["elapsed"] > fetch_seconds + late_seconds} == {}
    return done


def test_h27_all_hostile_answers_leave_five_hundred_good_pages_unharmed(tmp_path: Path, shared: Path) -> None:
    """H01 to H47 as far as one crawl can meet them; with small limits, so that they are met soon."""
    done = crawl_the_wild(tmp_path / "job", shared, body_bytes=MIB, fetch_seconds=2, late_seconds=5)
    print(f"peak {done.peak_bytes / MIB:.0f} MiB")


@pytest.mark.long
def test_h27_no_hostile_answer_costs_more_than_its_limits(tmp_path: Path, shared: Path) -> None:
    """The same with the limits as they are by default, and the memory of a crawl of the good pages to compare with."""
    done = crawl_the_wild(tmp_path / "job", shared, body_bytes=10 * MIB, fetch_seconds=10, late_seconds=1)
    print(f"peak {done.peak_bytes / MIB:.0f} MiB")
