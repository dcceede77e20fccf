"""Spiders and pipelines are opened and closed in each process that runs them, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest
from processes import children, command, crawl, environment, kill_tree, start, stored, until

from gossamer.lab.simweb.process import SimWeb

SPIDER = """
import asyncio
import atexit
import os
import time
from pathlib import Path

import gossamer

def note(event):
    with open({notes!r}, "a") as file:
        file.write(f"{{os.getpid()}} {{event}}\\n")

class Batches:
    def open(self):
        note("pipeline open")
        self.items = []

    def __call__(self, item):
        self.items.append(item)
        return item

    async def close(self):
        await asyncio.sleep({seconds})
        note(f"pipeline close {{len(self.items)}}")

class Noting(gossamer.Spider):
    follows_links = True
    pipelines = [Batches(), dict]

    async def open(self):
        await asyncio.sleep(0)
        self.loop = asyncio.get_running_loop()
        atexit.register(note, "exit")
        note("open")

    def parse(self, page):
        assert self.loop is asyncio.get_running_loop()
        {parse}
        yield {{"url": page.url}}

    def close(self):
        {close}
        note("close")
"""


def noting(folder: Path, *, parse: str = "pass", close: str = "pass", seconds: float = 0.1) -> list[str]:
    """The option of a spider that notes what is called; its pipeline takes some time to be closed."""
    path = folder / "noting.py"
    path.write_text(SPIDER.format(notes=str(folder / "notes"), parse=parse, close=close, seconds=seconds))
    return ["--spider", f"{path}:Noting"]


def notes(folder: Path) -> dict[int, list[str]]:
    """What was called in each process."""
    found: dict[int, list[str]] = defaultdict(list)
    path = folder / "notes"
    for line in path.read_text().splitlines() if path.exists() else ():
        pid, _, event = line.partition(" ")
        found[int(pid)].append(event)
    return dict(found)


def lines(folder: Path) -> int:
    """Pages that are stored so far."""
    path = folder / "pages.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def in_order(events: list[str], *, handles: bool = True) -> bool:
    """Whether one process called everything once, in order; pipelines only where pages are handled."""
    names = [event.rstrip("0123456789").strip() for event in events]
    inner = ["pipeline open", "pipeline close"] if handles else []
    return names == ["open", *inner, "close", "exit"]


ONE, WORKERS, PARSERS = (), ("--workers", "2"), ("--parse-processes", "2")


@pytest.mark.parametrize("options", [ONE, WORKERS, PARSERS], ids=["one process", "workers", "parsers"])
@pytest.mark.parametrize(
    ("number", "to_group"),
    [(None, False), (signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGINT, True), (signal.SIGTERM, True)],
    ids=["finished", "SIGINT", "SIGTERM", "SIGINT to all", "SIGTERM to all"],
)
def test_each_process_opens_and_closes_once(
    tmp_path: Path, options: tuple[str, ...], number: signal.Signals | None, to_group: bool
) -> None:
    """A terminal and a process manager send their signals to all processes."""
    processes = {ONE: 1, WORKERS: 2, PARSERS: 3}[options]
    folder = tmp_path / "job"
    with SimWeb(sites=3, pages_per_site=200 if number else 5, page_bytes=2000) as web:
        # A second signal would end the process after 1.2 s.
        slow = noting(tmp_path, seconds=2.5 if to_group else 0.1)
        process = start(folder, web, "--delay", "0", *slow, *options)
        if number:
            until(lambda: lines(folder) > 20 and len(notes(tmp_path)) == processes)
            (os.killpg if to_group else os.kill)(process.pid, number)
        code = process.wait(60)
        said = process.stderr.read() if process.stderr else ""
        until(lambda: not children(process.pid))
        kill_tree(process)
    assert code == (130 if number is signal.SIGINT else 0), said
    found = notes(tmp_path)
    own = found.pop(process.pid, None)
    if options == WORKERS:
        assert own is None
    else:
        assert own is not None
        assert in_order(own, handles=options == ONE), own
    assert len(notes(tmp_path)) == processes
    for events in found.values():
        assert in_order(events), events
    closed = [event for events in [own or [], *found.values()] for event in events if event.startswith("pipeline c")]
    assert sum(int(event.split()[-1]) for event in closed) == sum(stored(folder).values())


@pytest.mark.parametrize("number", [None, signal.SIGTERM], ids=["finished", "SIGTERM"])
def test_workers_of_a_fleet_open_and_close_too(tmp_path: Path, number: signal.Signals | None) -> None:
    (tmp_path / "shared").mkdir()
    with SimWeb(sites=3, pages_per_site=100 if number else 5, page_bytes=2000) as web:
        words = command(tmp_path / "job", web.seeds, "--delay", "0.02", *noting(tmp_path), "--workers", "2")
        process = subprocess.Popen(
            [*words, "--frontier", f"folder:{tmp_path}/shared"],
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
        )
        if number:
            until(lambda: len(notes(tmp_path)) == 2)
            os.kill(process.pid, number)
        assert process.wait(90) == 0, process.stderr.read() if process.stderr else ""
        kill_tree(process)
    assert len(notes(tmp_path)) == 2
    for events in notes(tmp_path).values():
        assert in_order(events), events


@pytest.mark.parametrize("options", [ONE, PARSERS], ids=["one process", "parsers"])
def test_a_page_in_hand_is_interrupted_before_its_spider_is_closed(tmp_path: Path, options: tuple[str, ...]) -> None:
    folder = tmp_path / "job"
    with SimWeb(sites=3, pages_per_site=4, page_bytes=2000) as web:
        odd = noting(tmp_path, parse="note('at work'); time.sleep(1e6)")
        more = ("--handler-seconds", "1000", "--parse-seconds", "1000")
        process = start(folder, web, "--delay", "0", *more, *odd, *options)
        # Without parser processes, one is begun for the page that takes longer than its slice.
        until(lambda: "at work" in str([events for pid, events in notes(tmp_path).items() if pid != process.pid]))
        began = time.monotonic()
        os.kill(process.pid, signal.SIGINT)
        code, seconds = process.wait(60), time.monotonic() - began
        said = process.stderr.read() if process.stderr else ""
        until(lambda: not children(process.pid))
        kill_tree(process)
    assert code == 130, said
    assert seconds < 10, said
    assert not stored(folder)
    for pid, events in notes(tmp_path).items():
        called = [event for event in events if event != "at work"]
        assert in_order(called, handles=pid != process.pid or options == ONE), events


def test_a_close_that_blocks_is_waited_for_also_when_a_signal_comes_while_it_runs(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with SimWeb(sites=1, pages_per_site=2, page_bytes=2000) as web:
        slow = noting(tmp_path, close="note('closing'); time.sleep(3)")
        process = start(folder, web, "--delay", "0", *slow)
        until(lambda: "closing" in notes(tmp_path).get(process.pid, ()))
        os.kill(process.pid, signal.SIGINT)
        process.wait(60)
        kill_tree(process)
    assert notes(tmp_path)[process.pid][-2:] == ["close", "exit"]


def test_a_second_signal_ends_a_close_that_does_not_end(tmp_path: Path) -> None:
    for close in ("time.sleep(1e6)", "return asyncio.sleep(1e6)"):
        (tmp_path / "notes").unlink(missing_ok=True)
        with SimWeb(sites=1, pages_per_site=2, page_bytes=2000) as web:
            endless = noting(tmp_path, close=f"note('closing'); {close}")
            process = start(tmp_path / "job", web, "--delay", "0", *endless)
            until(lambda pid=process.pid: "closing" in notes(tmp_path).get(pid, ()))  # type: ignore[misc]
            for _ in range(2):
                os.kill(process.pid, signal.SIGINT)
                time.sleep(0.2)
            assert process.wait(10) == 130
            kill_tree(process)
        assert notes(tmp_path)[process.pid][-1] == "exit", close


RAISING = """
import os
import gossamer

class Gone:
    {kind} {method}(self):
        raise {error}

    def __call__(self, item):
        return item

class Raising(gossamer.Spider):
    pipelines = [Gone()]

    def parse(self, page):
        return [{{"url": page.url}}]

    def close(self):
        print("closed", flush=True)
"""


@pytest.mark.parametrize("options", [ONE, PARSERS], ids=["one process", "parsers"])
@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("method", ["open", "close"])
def test_an_error_in_open_or_close_fails_the_command_and_closes_the_others(
    tmp_path: Path, options: tuple[str, ...], kind: str, method: str
) -> None:
    path = tmp_path / "raising.py"
    path.write_text(RAISING.format(kind=kind, method=method, error="OSError('the database is away')"))
    with SimWeb(sites=1, pages_per_site=2, page_bytes=2000) as web:
        done = crawl(tmp_path / "job", web, "--delay", "0", "--spider", f"{path}:Raising", *options)
    assert done.returncode == 1, done.stderr
    assert f"error: Gone.{method}() raised OSError: the database is away (raising.py:7)" in done.stderr
    assert "Traceback" not in done.stderr
    # What a spider prints in a parser process goes where messages go.
    assert "closed" in done.stdout + done.stderr
    assert len(stored(tmp_path / "job")) == (1 if method == "close" else 0)


def test_workers_that_cannot_open_are_restarted_unless_that_is_useless(tmp_path: Path) -> None:
    path = tmp_path / "raising.py"
    away = "OSError('away') if not os.path.exists({0!r}) and not os.mkdir({0!r}) else SystemExit(0)"
    error = away.format(str(tmp_path / "seen")).replace("else SystemExit(0)", "else None")
    path.write_text(RAISING.format(kind="def", method="open", error=error).replace("raise ", "error = ", 1).replace(
        "    def __call__", "        if error: raise error\n\n    def __call__", 1
    ))  # fmt: skip
    with SimWeb(sites=1, pages_per_site=2, page_bytes=2000) as web:
        done = crawl(tmp_path / "job", web, "--delay", "0", "--spider", f"{path}:Raising", "--workers", "2")
        assert done.returncode == 0, done.stderr
        assert "starting it again" in done.stderr
        path.write_text(
            RAISING.format(kind="def", method="open", error="gossamer.ConfigError('no key', hint='set KEY')")
        )
        began = time.monotonic()
        done = crawl(tmp_path / "other", web, "--delay", "0", "--spider", f"{path}:Raising", "--workers", "2")
    assert done.returncode == 1, done.stderr
    assert "error: no key\nhint: set KEY" in done.stderr
    assert "starting it again" not in done.stderr
    assert time.monotonic() - began < 20


def test_the_first_signal_interrupts_a_waiting_open(tmp_path: Path) -> None:
    path = tmp_path / "waiting.py"
    path.write_text(
        "import asyncio, pathlib, gossamer\n"
        "class Waiting(gossamer.Spider):\n"
        "    async def open(self):\n"
        f"        pathlib.Path({str(tmp_path / 'begun')!r}).touch()\n"
        "        await asyncio.sleep(1e6)\n"
    )
    with SimWeb(sites=1, pages_per_site=2, page_bytes=2000) as web:
        process = start(tmp_path / "job", web, "--spider", str(path))
        until((tmp_path / "begun").exists)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(10) == 130
        kill_tree(process)


@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM], ids=["finished", "SIGINT", "SIGTERM"])
@pytest.mark.parametrize("options", [(), ("--extra-thread",)], ids=["copies", "new processes"])
def test_processes_of_a_replay_open_and_close_too(
    tmp_path: Path, number: signal.Signals | None, options: tuple[str, ...]
) -> None:
    folder = tmp_path / "job"
    with SimWeb(sites=1, pages_per_site=50, page_bytes=2000) as web:
        assert crawl(folder, web, "--delay", "0", "--sink", "warc").returncode == 0
    slow = "note('at work'); time.sleep(1e6)" if number else "pass"
    words = ["replay", str(folder), *noting(tmp_path, parse=slow), "--out", str(tmp_path / "out"), "--processes", "2"]
    # Beside another thread no copies of the process are made.
    thread = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    code = f"import sys; {thread if options else ''}\nfrom gossamer.__main__ import main\nmain()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    if number:
        until(lambda: "at work" in str(notes(tmp_path)))
        os.killpg(process.pid, number)
    assert process.wait(60) == (130 if number else 0), process.stderr.read() if process.stderr else ""
    kill_tree(process)
    found = notes(tmp_path)
    assert found
    assert process.pid not in found
    for events in found.values():
        assert in_order([event for event in events if event != "at work"]), events


@pytest.mark.parametrize("how", ["fetch", "shell"])
def test_commands_that_look_at_one_page_open_and_close_too(tmp_path: Path, how: str) -> None:
    with SimWeb(sites=1, pages_per_site=2, page_bytes=2000) as web:
        words = [sys.executable, "-m", "gossamer", how, web.seeds[0], "--allow-private", *noting(tmp_path)]
        done = subprocess.run(
            words, input="print(spider)\n", capture_output=True, text=True, env=environment(), check=False
        )
    assert done.returncode == 0, done.stderr
    (events,) = notes(tmp_path).values()
    assert in_order(events), events


def test_a_crawl_in_python_opens_and_closes_its_spider_also_when_it_is_left(tmp_path: Path) -> None:
    for leave in ("pass", "break"):
        (tmp_path / "notes").unlink(missing_ok=True)
        noting(tmp_path)
        program = (
            f"import sys, gossamer; sys.path.insert(0, {str(tmp_path)!r})\n"
            "from noting import Noting\n"
            "for page in gossamer.crawl(*sys.argv[1:], spider=Noting, delay=0, allow_private=True):\n"
            f"    {leave}\n"
        )
        with SimWeb(sites=1, pages_per_site=8, page_bytes=2000) as web:
            subprocess.run([sys.executable, "-c", program, *web.seeds], check=True, env=environment())
        (events,) = notes(tmp_path).values()
        assert in_order(events), events


@pytest.mark.parametrize("options", [WORKERS, PARSERS], ids=["workers", "parsers"])
@pytest.mark.parametrize("number", [None, signal.SIGINT], ids=["finished", "SIGINT"])
def test_coverage_sees_the_spider_in_every_process(
    tmp_path: Path, options: tuple[str, ...], number: signal.Signals | None
) -> None:
    """Coverage writes what it has seen at the exit of each process."""
    folder = tmp_path / "job"
    config = tmp_path / "coverage.ini"
    data = tmp_path / "data"
    config.write_text(f"[run]\nparallel = true\ndata_file = {data}/seen\npatch = subprocess\n")
    data.mkdir()
    with SimWeb(sites=3, pages_per_site=200 if number else 5, page_bytes=2000) as web:
        odd = noting(tmp_path)
        _, _, module, *words = command(folder, web.seeds, "--delay", "0", *odd, *options)
        covered = [sys.executable, "-m", "coverage", "run", f"--rcfile={config}", f"--include={tmp_path}/*"]
        process = subprocess.Popen(
            [*covered, "-m", module, *words],
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
        )
        if number:
            until(lambda: lines(folder) > 20)
            os.killpg(process.pid, number)
        process.wait(60)
        said = process.stderr.read() if process.stderr else ""
        kill_tree(process)
    seen = {int(name.split(".pid")[1].split(".")[0]) for name in os.listdir(data) if ".pid" in name}
    assert set(notes(tmp_path)) <= seen, (os.listdir(data), said)
