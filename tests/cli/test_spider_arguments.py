"""Arguments of a spider's constructor: -a NAME=VALUE."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import gossamer, small_site

import gossamer as library
from gossamer.errors import ConfigError

LOOK = ("--allow-private", "--delay", "0.01")
FAST = (*LOOK, "--commit-seconds", "0.01", "--max-seconds", "30", "--job", "x")
SPIDER = """\
from gossamer import Spider

class Part(Spider):
    def __init__(self, part="none", token=""):
        self.part, self.token = part, token
        self.start = [f"{SITE}/{part}"]

    def parse(self, page):
        yield {"part": self.part, "token": self.token}

class Plain(Spider):
    def parse(self, page):
        yield {"color": self.color}
"""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with small_site() as url:
        yield url


@pytest.fixture
def folder(site: str, tmp_path: Path) -> Path:
    (tmp_path / "spider.py").write_text(SPIDER.replace("{SITE}", site))
    return tmp_path


def items(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_crawl_stores_the_arguments_and_replay_uses_them(folder: Path) -> None:
    token = ("-a", "token=${TOKEN}")
    sinks = ("--sink", "jsonl", "--sink", "warc")
    command = ("crawl", "--spider", "spider.py:Part", "-a", "part=a", *token, *sinks, *FAST)
    done = gossamer(*command, cwd=folder, TOKEN="s3cret")
    assert done.returncode == 0, done.stderr
    job = folder / "crawls/x"
    assert items(job / "items.jsonl") == [{"part": "a", "token": "s3cret"}]
    assert "s3cret" not in (job / "job.toml").read_text()
    again = gossamer("crawl", "--job", "x", *LOOK, cwd=folder, TOKEN="s3cret")
    assert again.returncode == 0, again.stderr
    for arguments, part in (((), "a"), (("-a", "part=b", *token), "b")):
        done = gossamer("replay", "x", "--out", f"out-{part}", *arguments, cwd=folder, TOKEN="other")
        assert done.returncode == 0, done.stderr
        assert items(folder / f"out-{part}/items.jsonl") == [{"part": part, "token": "other"}]


def test_fetch_shell_and_try_pass_arguments(site: str, folder: Path) -> None:
    options = ("--spider", "spider.py:Plain", "--spider-arg", "color=red", *LOOK)
    assert json.loads(gossamer("fetch", f"{site}/a", *options, cwd=folder).stdout) == {"color": "red"}
    assert gossamer("shell", f"{site}/a", *options, cwd=folder, stdin="print(spider.color)").stdout == b"red\n"
    tried = gossamer("try", f"{site}/a", *options, cwd=folder)
    assert "--spider-arg color=red" in tried.stdout.decode().splitlines()[-1]
    assert "'color': 'red'" in tried.stdout.decode()


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (("--spider", "spider.py:Part", "-a", "x=1"), "unexpected keyword argument 'x'", "receives the arguments x"),
        (("--spider", "spider.py:Plain", "-a", "parse=1"), "'parse' would replace an attribute", "arguments parse"),
        (("--spider", "spider.py:Plain", "-a", "parse"), "missing '='", "NAME=VALUE"),
        (("-a", "x=1"), "spider arguments (-a) without a spider", "--spider FILE.py"),
        (("--spider", "spider.py:Part", "-a", "part=${NONE}"), "environment variable NONE is not set", "export NONE"),
    ],
)
def test_a_wrong_argument_is_explained(options: tuple[str, ...], message: str, hint: str, folder: Path) -> None:
    done = gossamer("crawl", *options, *FAST, cwd=folder)
    lines = done.stderr.decode().splitlines()
    assert done.returncode == 2, lines
    assert message in lines[0]
    assert hint in lines[1]
    assert not (folder / "crawls").exists()


class Colored(library.Spider):
    def parse(self, page: library.Page) -> Iterator[dict[str, str]]:
        yield {"color": vars(self)["color"]}


def test_crawls_in_python_pass_arguments_to_a_class(site: str) -> None:
    options: dict[str, Any] = {"spider_args": {"color": "red"}, "allow_private": True, "delay": 0.0}
    assert [page.items for page in library.crawl(f"{site}/a", spider=Colored, **options)] == [[{"color": "red"}]]
    with pytest.raises(ConfigError, match="needs a spider class"):
        library.crawl(f"{site}/a", spider=Colored(color="red"), **options)
