"""Usage errors: wrong spiders, settings files, and output paths give a message, not a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import environment, gossamer, small_site

from gossamer.cli import first_cause
from gossamer.errors import ConfigError

SPIDER = "from gossamer import Spider\nclass One(Spider):\n"
FAST = ("--allow-private", "--delay", "0.01", "--commit-seconds", "0.01", "--max-seconds", "30")


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with small_site() as url:
        yield url


@pytest.fixture(scope="module")
def job(site: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a crawl in crawls/x."""
    folder = tmp_path_factory.mktemp("mistakes")
    gossamer("crawl", f"{site}/", "--job", "x", *FAST, cwd=folder)
    return folder


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\nraise RuntimeError('boom')\n", "spider.py, line 2: RuntimeError: boom"),
        ("import no_such_module\n", "is no_such_module installed here?"),
        ("import sys\nsys.exit(5)\n", "line 2: SystemExit"),
        ("\0", "spider.py: source code"),
        (SPIDER + "  start = 'http://x.invalid/'\n", "hint: start = ['http://x.invalid/']"),
        (SPIDER + "  start = ['http://x.invalid/']\n  def __init__(self): raise ValueError('no')\n", "One() raised"),
    ],
)
def test_unusable_spider_error_names_the_problem(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "spider.py").write_text(text)
    done = gossamer("crawl", "--spider", "spider.py", "--job", "x", cwd=tmp_path)
    error = done.stderr.decode()
    assert done.returncode == 2, error
    assert words in error
    assert "hint: " in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gossamer.toml", "dely = 1\n", "gossamer.toml: unknown setting dely"),
        ("gossamer.toml", "delay = [\n", "gossamer.toml: "),
        ("pyproject.toml", "tool = 1\n", "pyproject.toml: tool must be a table"),
        ("pyproject.toml", "[tool]\ngossamer = 1\n", "pyproject.toml: gossamer must be a table"),
        ("pyproject.toml", "[tool.gossamer]\ndely = 1\n", "hint: did you mean delay?"),
    ],
)
def test_invalid_settings_file_is_named(name: str, text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    done = gossamer("crawl", "http://x.invalid/", cwd=tmp_path)
    error = done.stderr.decode()
    assert done.returncode == 2, error
    assert words in error
    assert "hint: " in error
    assert "Traceback" not in error


def test_rejected_option_is_not_saved(site: str, tmp_path: Path) -> None:
    assert gossamer("crawl", f"{site}/a", "--job", "x", "--resolve", "typo", *FAST, cwd=tmp_path).returncode == 2
    done = gossamer("crawl", f"{site}/a", "--job", "x", "--max-pages", "1", *FAST, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()


def test_seeds_from_a_closed_standard_input_are_none(tmp_path: Path) -> None:
    script = f"exec {sys.executable} -m gossamer crawl --seeds - <&-"
    done = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, env=environment(), capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert b"no URL to crawl" in done.stderr


def test_a_list_of_seeds_may_begin_with_a_byte_order_mark(site: str, tmp_path: Path) -> None:
    (tmp_path / "seeds.txt").write_bytes(b"\xef\xbb\xbf" + f"{site}/a\r\n".encode())
    done = gossamer("crawl", "--seeds", "seeds.txt", "--job", "x", "--max-pages", "1", *FAST, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("command", [("export", "x"), ("report", "x")])
@pytest.mark.parametrize(("out", "words"), [(".", "is a folder"), ("no/such/file", "folder no/such does not exist")])
def test_unwritable_output_path_is_rejected(command: tuple[str, str], out: str, words: str, job: Path) -> None:
    done = gossamer(*command, "--out", out, cwd=job)
    assert done.returncode == 2
    assert words in done.stderr.decode()
    assert "hint: " in done.stderr.decode()


@pytest.mark.parametrize("command", [("export", "x", "--format", "urls"), ("report", "x")])
def test_output_pipe_is_written_not_replaced(command: tuple[str, ...], job: Path) -> None:
    pipe = job / f"{command[0]}.pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    done = gossamer(*command, "--out", pipe.name, cwd=job)
    assert done.returncode == 0, done.stderr.decode()
    assert pipe.is_fifo()
    reader.join(30)
    assert read[0]


def test_numbers_that_json_does_not_have_are_null(job: Path) -> None:
    done = gossamer("sql", "x", "select 'inf'::double as a, 'nan'::double as b, 1.5::double as c", "--json", cwd=job)

    def refuse(word: str) -> None:
        raise AssertionError(word)

    assert json.loads(done.stdout, parse_constant=refuse) == {"a": None, "b": None, "c": 1.5}


def test_crawl_with_memory_frontier_can_be_inspected_and_stopped(site: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gossamer", "crawl", f"{site}/", "--job", "x", "--frontier", "memory:"]
    options = ["--allow-private", "--delay", "60", "--max-seconds", "60"]
    running = subprocess.Popen([*command, *options], cwd=tmp_path, env=environment(), stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            looked = gossamer("status", "x", "--json", cwd=tmp_path)
            if looked.returncode == 0:
                break
        assert json.loads(looked.stdout)["state"] == "running"
        assert gossamer("stop", "x", cwd=tmp_path).returncode == 0
        assert running.wait(60) == 0
    finally:
        running.kill()
        running.wait()


def test_extract_options_override_the_spider_of_a_settings_file(site: str, tmp_path: Path) -> None:
    (tmp_path / "spider.py").write_text(SPIDER + "  def parse(self, page):\n    return []\n")
    (tmp_path / "gossamer.toml").write_text('spider = "spider.py"\n')
    done = gossamer("fetch", f"{site}/", "--allow-private", "--quiet", "--extract", "title=h1::text", cwd=tmp_path)
    assert json.loads(done.stdout)["title"] == "Home", done.stderr.decode()
    both = gossamer("fetch", f"{site}/", "--spider", "spider.py", "--extract", "title=h1::text", cwd=tmp_path)
    assert both.returncode == 2
    assert b"--spider and --extract" in both.stderr


def test_failed_crawl_reports_that_pages_are_not_retried(site: str, tmp_path: Path) -> None:
    first = gossamer("crawl", f"{site}/gone", "--job", "x", *FAST, cwd=tmp_path)
    assert first.returncode == 3
    assert b"failed pages are not retried in this job" in first.stderr
    second = gossamer("crawl", f"{site}/gone", "--job", "x", *FAST, cwd=tmp_path)
    assert second.returncode == 3
    assert b"this job was already finished, and failed pages are not retried" in second.stderr


def test_ctrl_c_during_startup_prints_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    done = subprocess.run(
        [sys.executable, "-m", "gossamer", "status"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 130
    assert done.stderr == b""


def test_task_errors_are_one_line_and_others_are_shown() -> None:
    inner = ExceptionGroup("inner", [ConfigError("first"), OSError("second")])
    assert str(first_cause(ExceptionGroup("outer", [inner]))) == "first"
    mixed = ExceptionGroup("outer", [inner, ZeroDivisionError()])
    assert first_cause(mixed) is mixed


@pytest.mark.parametrize(
    ("parse", "items"),
    [
        ("def parse(self, page): return {'title': page.title}", [{"title": "Home"}]),
        ("async def parse(self, page): return {'title': page.title}", [{"title": "Home"}]),
        ("def parse(self, page): return page.follow('/a')", []),
    ],
)
def test_spider_may_use_start_urls_and_return_one_item_or_request(
    parse: str, items: list[dict[str, str]], site: str, tmp_path: Path
) -> None:
    (tmp_path / "spider.py").write_text(f"{SPIDER}    start_urls = ['{site}/']\n    {parse}\n")
    done = gossamer("crawl", "--spider", "spider.py", "--job", "x", *FAST, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in (tmp_path / "crawls/x/items.jsonl").read_text().splitlines()] == items
    pages = (tmp_path / "crawls/x/pages.jsonl").read_text().splitlines()
    assert len(pages) == (1 if items else 2)


@pytest.mark.parametrize("job", [(), ("--job", "x")])
def test_spider_without_start_urls_gets_a_hint(job: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "spider.py").write_text(f"{SPIDER}    pass\n")
    done = gossamer("crawl", "--spider", "spider.py", *job, cwd=tmp_path)
    assert done.returncode == (1 if job else 2)
    assert 'spider.py: start = ["https://example.com/"]' in done.stderr.decode()


def test_class_without_the_base_class_is_named(tmp_path: Path) -> None:
    (tmp_path / "spider.py").write_text("class Shop:\n    start = []\n    def parse(self, page): yield {}\n")
    done = gossamer("crawl", "--spider", "spider.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "`from gossamer import Spider`, and `class Shop(Spider):`" in done.stderr.decode()
