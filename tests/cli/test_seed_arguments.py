"""Seeds on the command line: files, paths, mistyped URLs and commands, and other locales."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import gossamer, small_site

FAST = ("--allow-private", "--delay", "0.01", "--commit-seconds", "0.01", "--max-pages", "1")
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with small_site() as url:
        yield url


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("crwal", "x"), "'crwal' is not a command", "did you mean: gossamer crawl"),
        (("https://a.example/?a&b",), "is not a command", "gossamer crawl 'https://a.example/?a&b'"),
        (("zzzzzz",), "'zzzzzz' is not a command", "gossamer --help"),
        (("crawl", "http:/a.example/"), "'http:/a.example/' is not a valid seed URL", "did you mean http://a.example/"),
        (("crawl", "./none.txt"), "./none.txt: no such file", "check the path"),
        (("crawl", "none.txt"), "none.txt: no such file", "https://none.txt/"),
        (("crawl", "."), ". is a folder, not a URL", "--job ."),
        (("crawl", "spider.py"), "spider.py is a Python file, not a URL", "--spider spider.py"),
        (("crawl", "bad.txt"), "bad.txt, line 3: 'not a url'", "https://example.com/"),
        (("crawl", "--seeds", "bad.txt"), "bad.txt, line 3: 'not a url'", "https://example.com/"),
        (("try", "./x"), "'./x' is a path", "give a URL"),
    ],
)
def test_a_wrong_argument_has_a_hint_and_crawls_nothing(
    arguments: tuple[str, ...], message: str, hint: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.txt").write_text("http://a.invalid/\n# comment\nnot a url\n")
    (tmp_path / "spider.py").write_text("")
    done = gossamer(*arguments, cwd=tmp_path)
    lines = done.stderr.decode().splitlines()[-2:]
    assert done.returncode == 2, lines
    assert message in lines[0]
    assert lines[1].startswith("hint: ")
    assert hint in lines[1]
    assert not (tmp_path / "crawls").exists()


@pytest.mark.parametrize("prefix", ["", "./", "{folder}/"])
def test_a_file_given_as_a_url_is_read_as_a_seeds_file(prefix: str, site: str, tmp_path: Path) -> None:
    (tmp_path / "seeds.txt").write_text(f"# one page\n\n{site}/a\n")
    file = f"{prefix.format(folder=tmp_path)}seeds.txt"
    done = gossamer("crawl", file, *FAST, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"note: {file} is a file; reading its URLs, as with --seeds {file}" in done.stderr.decode()
    assert [path.name for path in (tmp_path / "crawls").iterdir()] == [site[7:].replace(":", "_")]


def test_commands_work_in_an_ascii_locale(site: str, tmp_path: Path) -> None:
    done = gossamer("crawl", f"{site}/é", f"{site}/b", *FAST, "--max-pages", "9", "--job", "x", cwd=tmp_path, **ASCII)
    for arguments in (
        ("--help",),
        ("status", "x"),
        ("why", f"{site}/b", "--job", "x"),
        ("export", "x"),
        ("sql", "x", "select title from pages"),
        ("fetch", f"{site}/b", "--text", "--allow-private"),
    ):
        more = gossamer(*arguments, cwd=tmp_path, **ASCII)
        assert more.returncode == 0, more.stderr
        assert b"Traceback" not in more.stderr
    assert b"Traceback" not in done.stderr
    pages = [json.loads(line) for line in (tmp_path / "crawls/x/pages.jsonl").read_text("utf-8").splitlines()]
    assert f"{site}/%C3%A9" in [page["url"] for page in pages]
