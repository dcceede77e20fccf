from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from commands import Terminal, on_terminal, small_site

from gossamer.lab.simweb.process import SimWeb

OPTIONS = ("--allow-private", "--delay", "0.1", "--job", "job/x", "--max-seconds", "60")


@contextmanager
def crawl_on_terminal(folder: Path, *options: str, **plan: Any) -> Iterator[Terminal]:
    """A crawl of a whole simulated web."""
    with SimWeb(page_bytes=3000, **plan) as web:
        (folder / "seeds.txt").write_text("\n".join(web.seeds))
        with on_terminal("crawl", "--seeds", "seeds.txt", *OPTIONS, *options, cwd=folder) as terminal:
            yield terminal


def has(*words: str) -> Callable[[list[str]], bool]:
    return lambda shown: all(any(word in line for line in shown) for word in words)


def test_a_crawl_is_shown_live_at_any_width_and_leaves_a_summary(tmp_path: Path) -> None:
    with crawl_on_terminal(tmp_path, sites=4, pages_per_site=40, kinds=("plain", "errors")) as terminal:
        shown = terminal.until(has("gossamer x", "pages", "now", "mean", "queue", "active", "answers", "latest"))
        assert sum("gossamer x" in line for line in shown) == 1
        terminal.resize(40, 20)
        shown = terminal.until(lambda shown: any(line.endswith("…") for line in shown))
        assert sum("gossamer x" in line for line in shown) == 1
        terminal.resize(120, 30)
        assert terminal.wait() == 3
    end = terminal.shown()
    assert not [line for line in end if line.startswith(("queue ", "latest "))]
    assert any(line.startswith("finished: ") for line in end)


def test_warnings_and_worker_output_scroll_above_the_view(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        "import logging, sys\nfrom gossamer import Spider\n\n\nclass Loud(Spider):\n    follows_links = True\n\n"
        "    def parse(self, page):\n        logging.getLogger('mine').warning('saw \\x1b[2J %s', page.depth)\n"
        "        print('printed', file=sys.stderr)\n"
    )
    with crawl_on_terminal(tmp_path, "--spider", "loud.py", "--workers", "2", sites=2, pages_per_site=10) as terminal:
        assert terminal.wait() == 0
    everything = terminal.everything()
    assert sum("WARNING mine: saw \\x1b[2J" in line for line in everything) == 20
    assert sum(line == "printed" for line in everything) == 20
    assert b"\x1b[2J" not in terminal.raw


def test_ctrl_c_drains_and_prints_how_to_resume(tmp_path: Path) -> None:
    with crawl_on_terminal(tmp_path, sites=2, pages_per_site=200) as terminal:
        terminal.until(has("latest"))
        terminal.type(b"\x03")
        assert terminal.wait() == 130
    everything = terminal.everything()
    assert any(line.startswith("stopping: ") for line in everything)
    assert any("stopped by Ctrl-C" in line for line in everything)
    assert any("resume with: gossamer crawl --job job/x" in line for line in everything)


def test_text_from_the_network_is_escaped(tmp_path: Path) -> None:
    with small_site() as site, on_terminal("crawl", f"{site}/", *OPTIONS, cwd=tmp_path) as terminal:
        assert terminal.wait() == 3
    for command in (b"\x1b]0;", b"\x07", b"\x1b[2J", "\u202e".encode()):
        assert command not in terminal.raw


def test_a_terminal_that_goes_away_does_not_end_the_crawl(tmp_path: Path) -> None:
    """The terminal is closed while the view draws; SIGHUP is ignored, as under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with crawl_on_terminal(tmp_path, sites=2, pages_per_site=12) as terminal:
            terminal.until(has("latest"))
            terminal.hang_up()
            assert os.waitstatus_to_exitcode(os.waitpid(terminal.pid, 0)[1]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    rows = [json.loads(line) for line in (tmp_path / "job/x/pages.jsonl").read_bytes().splitlines()]
    assert len(rows) == 24


def test_frozen_terminal_does_not_block_the_crawl(tmp_path: Path) -> None:
    """The terminal is not read, as after Ctrl-S, until all pages are on disk."""
    path = tmp_path / "job/x/pages.jsonl"
    (tmp_path / "loud.py").write_text(
        "import sys\nfrom gossamer import Spider\n\n\nclass Loud(Spider):\n    follows_links = True\n\n"
        "    def parse(self, page):\n        print('x' * 5000, file=sys.stderr)\n"
    )
    with crawl_on_terminal(tmp_path, "--spider", "loud.py", sites=4, pages_per_site=25) as terminal:
        end = time.monotonic() + 60
        while not path.exists() or len(path.read_bytes().splitlines()) < 100:
            assert time.monotonic() < end, "the crawl waits for its terminal"
            time.sleep(0.1)
        assert terminal.wait() == 0


def test_a_dumb_terminal_gets_no_drawing(tmp_path: Path) -> None:
    with small_site() as site, on_terminal("crawl", f"{site}/", *OPTIONS, cwd=tmp_path, term="dumb") as terminal:
        assert terminal.wait() == 3
    assert b"\x1b" not in terminal.raw
