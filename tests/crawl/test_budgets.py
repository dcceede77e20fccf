"""Budgets of pages: spiders that never return, and the effect on their pages, sites, and crawls."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from processes import children, command, crawl, environment, kill_tree, rows, start, stored, until

from gossamer.lab.simweb.log import fetched
from gossamer.lab.simweb.process import SimWeb

QUICK = ("--delay", "0", "--handler-seconds", "1", "--parse-seconds", "1")
SPIDER = """
import re
import sys
import time
from pathlib import Path

import gossamer

class Endless(gossamer.Spider):
    follows_links = True

    def parse(self, page):
        if not page.url.endswith("/") and ({where}):
            Path({note!r}).touch()
            {does}
        return [{{"url": page.url}}]

    def items(self):
        while True:
            yield {{}}

    def stubborn(self):
        while True:
            try:
                while True:
                    pass
            except BaseException:
                pass

    async def waits(self):
        import asyncio
        await asyncio.sleep(1e6)
"""
LOOP = "while True: pass"
YIELD = "return self.items()"
SLEEP = "time.sleep(1e6)"
REGEX = "re.match('(a+)+$', 'a' * 60 + 'b')"
IN_C = "sum(iter(int, 1))"
STUBBORN = "self.stubborn()"
WAIT = "return self.waits()"


def endless(folder: Path, does: str, where: str = "True") -> str:
    """A spider that does this on all pages but the first of each site; it writes a file when it starts."""
    path = folder / "endless.py"
    path.write_text(SPIDER.format(does=does, where=where, note=str(folder / "begun")))
    return str(path)


def errors(folder: Path) -> Counter[str]:
    """The errors of the pages in pages.jsonl."""
    return Counter(row["error"] for row in rows(folder / "pages.jsonl"))


@pytest.mark.parametrize(
    ("does", "error"),
    [
        (LOOP, "too-costly: the handler took more than 1 s; --handler-seconds raises the limit"),
        (SLEEP, "too-costly: the handler took more than 1 s; --handler-seconds raises the limit"),
        (REGEX, "too-costly: the handler took more than 1 s; --handler-seconds raises the limit"),
        (WAIT, "too-costly: the handler took more than 1 s; --handler-seconds raises the limit"),
        (YIELD, "too-costly: the handler yielded more than 1,000 items; --handler-items raises the limit"),
    ],
    ids=["loop", "sleep", "regex", "wait", "yield"],
)
def test_a_handler_without_end_costs_only_its_pages(tmp_path: Path, does: str, error: str) -> None:
    with SimWeb(sites=2, pages_per_site=3, page_bytes=2000) as web:
        odd = endless(tmp_path, does, f"{web.seeds[0]!r} in page.url")
        done = crawl(tmp_path / "job", web, *QUICK, "--handler-items", "1000", "--spider", odd)
        tries = fetched(web.log())
    assert done.returncode == 3, done.stderr
    assert set(tries.values()) == {1}
    assert errors(tmp_path / "job")[error] >= 1
    assert errors(tmp_path / "job")[""] == 4
    assert "too-costly, as" in done.stderr


@pytest.mark.parametrize(
    ("does", "options"),
    [
        (LOOP, ("--parse-processes", "1")),
        (IN_C, ("--parse-processes", "1")),
        (LOOP, ("--workers", "2")),
        pytest.param(IN_C, ("--workers", "2"), marks=pytest.mark.long),
    ],
)
def test_endless_handlers_are_killed_in_parser_processes(tmp_path: Path, does: str, options: tuple[str, str]) -> None:
    """A loop in C kills the worker that meets it twice, and is given up by the process that handles it then."""
    with SimWeb(sites=2, pages_per_site=3, page_bytes=2000) as web:
        odd = endless(tmp_path, does, f"page.url == {_second(web)!r}")
        done = crawl(tmp_path / "job", web, *QUICK, "--spider", odd, *options, timeout=300)
        assert not web.judge().missed
    assert done.returncode == 3, done.stderr
    assert set(stored(tmp_path / "job").values()) == {1}
    found = errors(tmp_path / "job")
    assert sum(found[error] for error in found if error.startswith("too-costly: ")) == 1
    assert found[""] == 5


def test_a_page_that_hangs_in_c_code_is_isolated_on_resume(tmp_path: Path) -> None:
    with SimWeb(sites=2, pages_per_site=3, page_bytes=2000) as web:
        odd = endless(tmp_path, IN_C, f"page.url == {_second(web)!r}")
        first = crawl(tmp_path / "job", web, *QUICK, "--spider", odd)
        assert first.returncode == -signal.SIGVTALRM, first.stderr
        assert "hint: run the command again" in first.stderr
        assert "endless.py" in first.stderr, "the line of the spider"
        done = crawl(tmp_path / "job", web, *QUICK, "--spider", odd)
        assert not web.judge().missed
    assert done.returncode == 3, done.stderr
    assert set(stored(tmp_path / "job").values()) == {1}
    assert sum(error.startswith("too-costly") for error in errors(tmp_path / "job")) == 1


def _second(web: SimWeb) -> str:
    return next(url for url in sorted(web.reachable()) if url.startswith(web.seeds[0]) and url != web.seeds[0])


@pytest.mark.parametrize(
    ("does", "options"),
    [
        (LOOP, ()),
        (YIELD, ("--handler-items", "1000000000")),
        (SLEEP, ()),
        (REGEX, ()),
        (IN_C, ()),
        (STUBBORN, ()),
        (WAIT, ()),
        (LOOP, ("--parse-processes", "1")),
        (IN_C, ("--parse-processes", "1")),
        (LOOP, ("--workers", "2")),
        (IN_C, ("--workers", "2")),
    ],
)
@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_ends_a_spider_that_loops(tmp_path: Path, does: str, options: tuple[str, ...], presses: int) -> None:
    folder = tmp_path / "job"
    with SimWeb(sites=3, pages_per_site=4, page_bytes=2000) as web:
        odd = endless(tmp_path, does)
        more = ("--delay", "0", "--handler-seconds", "1000", "--parse-seconds", "1000")
        process = start(folder, web, *more, "--spider", odd, *options)
        until((tmp_path / "begun").exists)
        began = time.monotonic()
        for _ in range(presses):
            os.kill(process.pid, signal.SIGINT)
            time.sleep(0.2)
        code = process.wait(60)
        seconds = time.monotonic() - began
        said = process.stderr.read() if process.stderr else ""
        until(lambda: not children(process.pid))
        kill_tree(process)
        # Two seconds are the promise; the rest is for a machine that is busy with other tests.
        assert seconds < 10, said
        assert code in (130, -signal.SIGKILL), said
        odd = endless(tmp_path, "pass")
        done = crawl(folder, web, "--delay", "0", "--spider", odd, *options)
        assert done.returncode == 0, done.stderr
        verdict = web.judge()
    assert not verdict.missed
    assert set(stored(folder).values()) == {1}


def test_atexit_functions_are_called(tmp_path: Path) -> None:
    """Coverage and profilers rely on it, also after a second Ctrl-C."""
    for presses in (0, 1, 2):
        note = tmp_path / f"left-{presses}"
        spider = tmp_path / f"noting_{presses}.py"
        spider.write_text(
            "import atexit, pathlib, gossamer\n"
            f"atexit.register(pathlib.Path({str(note)!r}).touch)\n"
            "class Noting(gossamer.Spider):\n    follows_links = True\n"
        )
        with SimWeb(sites=2, pages_per_site=8, page_bytes=2000) as web:
            job = tmp_path / f"job-{presses}"
            process = start(job, web, "--delay", "0.5" if presses else "0", "--spider", str(spider))
            if presses:
                until(lambda job=job: sum(stored(job).values()) > 1)  # type: ignore[misc]
            for _ in range(presses):
                os.kill(process.pid, signal.SIGINT)
                time.sleep(0.05)
            code, said = process.wait(60), process.stderr.read() if process.stderr else ""
            kill_tree(process)
            assert code == (130 if presses else 0), said
        assert note.exists(), presses


def test_a_profiler_works_during_a_crawl(tmp_path: Path) -> None:
    with SimWeb(sites=1, pages_per_site=2, page_bytes=2000) as web:
        _, _, module, *rest = command(tmp_path / "job", web.seeds, "--delay", "0")
        profiled = [sys.executable, "-m", "cProfile", "-o", str(tmp_path / "profile"), "-m", module, *rest]
        done: Any = subprocess.run(profiled, capture_output=True, timeout=60, check=False, env=environment())
    assert (tmp_path / "profile").stat().st_size > 10_000, done.stderr


def test_a_spider_that_loops_does_not_hold_off_other_sites(tmp_path: Path) -> None:
    with SimWeb(sites=4, pages_per_site=12, page_bytes=2000) as web:
        odd = endless(tmp_path, LOOP, f"{web.seeds[0]!r} in page.url")
        process = start(tmp_path / "job", web, "--delay", "0.1", "--spider", odd, "--handler-seconds", "1000")
        until(lambda: sum(stored(tmp_path / "job").values()) >= 37)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(60) == 0
        kill_tree(process)


@pytest.mark.parametrize("command", ["replay", "fetch", "shell"])
def test_ctrl_c_ends_the_other_commands_that_run_a_spider(tmp_path: Path, command: str) -> None:
    with SimWeb(sites=1, pages_per_site=3, page_bytes=2000) as web:
        if command == "replay":
            assert crawl(tmp_path / "job", web, "--delay", "0", "--sink", "warc").returncode == 0
            words = ["replay", str(tmp_path / "job"), "--spider", endless(tmp_path, IN_C), "--out", str(tmp_path / "o")]
        else:
            odd = endless(tmp_path, IN_C)
            words = [command, _second(web), "--spider", odd, "--allow-private"]
        process = subprocess.Popen(
            [sys.executable, "-m", "gossamer", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
            # Tests that run in the background of a shell are started with Ctrl-C ignored, and so is what they start.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
        )
        if command == "shell":
            assert process.stdin is not None
            process.stdin.write("list(spider.parse(page))\n")
            process.stdin.close()
        until((tmp_path / "begun").exists)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(10) in (130, -signal.SIGINT, -signal.SIGKILL)
        until(lambda: not children(process.pid))
        kill_tree(process)
