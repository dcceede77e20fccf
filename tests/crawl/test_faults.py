"""Failures inside and around a worker: raising or crashing spiders, slow pages, full disks, wrong clocks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import command, crawl, environment, four_is_long, rows, start, stored, until, wrong_clock

from gossamer.lab.simweb.log import fetched, gaps
from gossamer.lab.simweb.process import SimWeb
from gossamer.testing.sinks import fill, small_disk


def spider(folder: Path, body: str) -> str:
    """A spider file whose handler does something to the pages whose URL holds a word, and then follows all links."""
    path = folder / "spider.py"
    path.write_text(
        "import os, time\nimport gossamer\n\nclass Odd(gossamer.Spider):\n    def parse(self, page):\n"
        + "".join(f"        {line}\n" for line in body.splitlines())
        + "        yield from page.follow_all()\n"
    )
    return str(path)


def numbered(web: SimWeb, page: int) -> str:
    """The path of a page on the first site."""
    return web.plan.path(0, page)


def below(web: SimWeb, page: int) -> set[str]:
    """The pages of the first site that can only be reached through this one, if links run just along the tree."""
    children = web.plan.children(page)
    return {web.url(0, numbered(web, child)) for child in children}.union(*(below(web, child) for child in children))


@four_is_long
def test_a_spider_that_raises_costs_only_its_page(tmp_path: Path, workers: str) -> None:
    with SimWeb(sites=2, pages_per_site=10, page_bytes=2000) as web:
        odd = spider(
            tmp_path, f"if {numbered(web, 9)!r} in page.url: raise ValueError('no price')\nyield {{'url': page.url}}"
        )
        done = crawl(tmp_path / "job", web, "--delay", "0", "--spider", odd, "--workers", workers)
    assert done.returncode == 3, done.stderr
    failed = [row for row in rows(tmp_path / "job" / "pages.jsonl") if row["error"]]
    assert [row["error"] for row in failed] == ["spider: ValueError: no price (spider.py:6)"]
    assert len(rows(tmp_path / "job" / "items.jsonl")) == 19
    assert set(stored(tmp_path / "job").values()) == {1}


def test_a_page_that_kills_its_workers_is_isolated_and_the_rest_crawled(tmp_path: Path) -> None:
    with SimWeb(sites=4, pages_per_site=12, page_bytes=2000) as web:
        odd = spider(tmp_path, f"if page.url == {web.url(0, numbered(web, 5))!r}: os._exit(7)")
        done = crawl(tmp_path / "job", web, "--delay", "0", "--spider", odd, "--workers", "2", "--max-deliveries", "3")
        assert done.returncode == 3, done.stderr
        poison = web.url(0, numbered(web, 5))
        lost = web.judge().missed
        tries = fetched(web.log())[poison]
        assert lost <= below(web, 5)
    assert set(stored(tmp_path / "job").values()) == {1}
    assert tries == 3
    [row] = [row for row in rows(tmp_path / "job" / "pages.jsonl") if row["url"] == poison]
    assert row["error"] == "spider: the spider's process died on this page"


def test_a_page_that_kills_the_whole_crawl_is_isolated_by_the_next_run(tmp_path: Path) -> None:
    with SimWeb(sites=2, pages_per_site=8, page_bytes=2000) as web:
        poison = web.url(0, numbered(web, 7))
        odd = spider(tmp_path, f"if page.url == {poison!r}: os._exit(7)")
        codes = [
            crawl(tmp_path / "job", web, "--delay", "0", "--spider", odd, "--max-deliveries", "3").returncode
            for _ in range(2)
        ]
    assert codes == [7, 3]
    assert len(stored(tmp_path / "job")) == 16
    assert set(stored(tmp_path / "job").values()) == {1}


@four_is_long
def test_parser_processes_take_heavy_handlers_and_survive_their_death(tmp_path: Path, workers: str) -> None:
    with SimWeb(sites=3, pages_per_site=10, page_bytes=2000) as web:
        poison = web.url(0, numbered(web, 9))
        odd = spider(tmp_path, f"if page.url == {poison!r}: os._exit(7)\nyield {{'pid': os.getpid()}}")
        done = crawl(
            tmp_path / "job", web, "--delay", "0", "--spider", odd, "--parse-processes", "2", "--workers", workers
        )
        assert not web.judge().missed
    assert done.returncode == 3, done.stderr
    pids = {item["pid"] for item in rows(tmp_path / "job" / "items.jsonl")}
    assert 2 <= len(pids) <= 2 * int(workers) + 1
    assert stored(tmp_path / "job")[poison] == 1


@four_is_long
def test_a_download_slower_than_the_lease_is_fetched_once(tmp_path: Path, workers: str) -> None:
    with SimWeb(sites=2, pages_per_site=3, page_bytes=2000, latency_seconds=2.5) as web:
        done = crawl(tmp_path / "job", web, "--delay", "0", "--lease-seconds", "1", "--workers", workers)
        assert done.returncode == 0, done.stderr
        assert set(fetched(web.log()).values()) == {1}


def test_a_handler_that_takes_longer_than_the_lease_costs_no_lease(tmp_path: Path) -> None:
    with SimWeb(sites=3, pages_per_site=6, page_bytes=2000) as web:
        odd = spider(tmp_path, f"if page.url == {web.url(0, numbered(web, 2))!r}: time.sleep(2.5)")
        done = crawl(
            tmp_path / "job",
            web,
            "--delay",
            "0",
            "--lease-seconds",
            "1",
            "--workers",
            "2",
            "--spider",
            odd,
        )
        # It is handled by another process, and the leases are renewed meanwhile.
        assert done.returncode == 0, done.stderr
        assert set(fetched(web.log()).values()) == {1}
    assert set(stored(tmp_path / "job").values()) == {1}
    assert len(stored(tmp_path / "job")) == 18


@four_is_long
def test_few_file_descriptors_slow_the_crawl_down_but_lose_nothing(tmp_path: Path, workers: str) -> None:
    with SimWeb(sites=60, pages_per_site=3, page_bytes=2000) as web:
        arguments = command(tmp_path / "job", web.seeds, "--delay", "0", "--workers", workers)
        done = subprocess.run(
            ["bash", "-c", 'ulimit -n 64; exec "$@"', "bash", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=environment(),
        )
        assert done.returncode == 0, done.stderr
        assert not web.judge().missed


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_pauses_the_crawl_and_nothing_is_lost(tmp_path: Path, workers: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], check=True)
    try:
        ballast = disk / "ballast"
        ballast.write_bytes(b"x" * 2_500_000)
        with SimWeb(sites=8, pages_per_site=150, page_bytes=3000, links_per_page=30) as web:
            lines = command(tmp_path / "seeds", web.seeds, "--delay", "0", "--workers", workers)
            lines[lines.index("--job") + 1] = str(disk / "job")
            with (tmp_path / "said").open("w") as said:
                process = subprocess.Popen(lines, stderr=said, env=environment())
            until(lambda: "waiting to store" in (tmp_path / "said").read_text(), 40)
            assert process.poll() is None
            ballast.unlink()
            assert process.wait(60) == 0, (tmp_path / "said").read_text()
            assert not web.judge().missed
            assert not web.judge().repeated
        assert set(stored(disk / "job").values()) == {1}
        assert len(stored(disk / "job")) == 1200
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


@pytest.mark.parametrize("shift", ["+1h", "-1h"])
def test_a_worker_with_a_wrong_clock_breaks_no_delay_and_steals_no_lease(tmp_path: Path, shift: str) -> None:
    with SimWeb(sites=6, pages_per_site=30, page_bytes=2000) as web:
        process = start(tmp_path / "job", web, "--delay", "0.1", "--concurrency", "3")
        until(lambda: (tmp_path / "job" / "socket").exists())
        joined = subprocess.run(
            [sys.executable, "-m", "gossamer", "worker", str(tmp_path / "job")],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**environment(), **wrong_clock(shift)},
        )
        assert joined.returncode == 0, joined.stderr
        assert process.wait(30) == 0
        assert not web.judge().missed
        assert not web.judge().repeated
        assert min(gaps(web.log()).values()) >= 0.1
        if process.stderr is not None:
            process.stderr.close()


@pytest.mark.parametrize("zone", ["Asia/Kathmandu", ""])
def test_times_in_the_files_are_utc_in_any_time_zone(tmp_path: Path, zone: str) -> None:
    import time

    with SimWeb(sites=1, pages_per_site=2, page_bytes=2000) as web:
        lines = command(tmp_path / "job", web.seeds, "--delay", "0", "--quiet")
        subprocess.run(lines, check=True, timeout=30, env={**environment(), "TZ": zone})
    for row in rows(tmp_path / "job" / "pages.jsonl"):
        assert abs(row["fetched_at"] - time.time()) < 60


def test_closed_standard_streams_do_not_stop_a_crawl(tmp_path: Path) -> None:
    with SimWeb(sites=2, pages_per_site=5, page_bytes=2000) as web:
        lines = command(tmp_path / "job", web.seeds, "--delay", "0")
        done = subprocess.run(
            ["bash", "-c", '"$@" 1>&- 2>&-', "bash", *lines], timeout=30, check=False, env=environment()
        )
        assert done.returncode == 0
    assert len(stored(tmp_path / "job")) == 10


@four_is_long
def test_middleware_that_raises_costs_only_its_page(tmp_path: Path, workers: str) -> None:
    with SimWeb(sites=2, pages_per_site=8, page_bytes=2000) as web:
        victim = web.url(0, numbered(web, 7))
        path = tmp_path / "spider.py"
        path.write_text(
            "import gossamer\n\n"
            "def picky(fetch):\n"
            "    async def fetch_or_not(request):\n"
            f"        if request.url == {victim!r}:\n"
            "            raise KeyError('no key')\n"
            "        return await fetch(request)\n"
            "    return fetch_or_not\n\n"
            "class Picky(gossamer.Spider):\n"
            "    fetch_middleware = [picky]\n"
        )
        done = crawl(tmp_path / "job", web, "--delay", "0", "--spider", str(path), "--workers", workers)
        assert victim not in fetched(web.log())
    assert done.returncode == 3, done.stderr
    assert stored(tmp_path / "job")[victim] == 1
    errors = [row["error"] for row in rows(tmp_path / "job" / "pages.jsonl") if row["error"]]
    assert errors == ["middleware: KeyError: 'no key'"]
    assert len(stored(tmp_path / "job")) == 16


def test_a_worker_that_starts_on_a_full_disk_lives(tmp_path: Path) -> None:
    """F60. The page in hand is named in a file that is mapped: a hole in it would be the end of the process."""
    handles = "import sys; from pathlib import Path; from gossamer.engine.supervision import CrashMarker\n"
    handles += "CrashMarker(Path(sys.argv[1]) / 'hand').name(7); print('lives')"
    with small_disk(tmp_path / "disk", 1_000_000) as disk:
        (disk / "hand").touch()
        fill(disk / "filler")
        done = subprocess.run(
            [sys.executable, "-c", handles, str(disk)], capture_output=True, text=True, check=False, env=environment()
        )
    assert (done.returncode, done.stdout) == (0, "lives\n"), done.stderr
