from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import environment, gossamer, on_terminal, small_site

FAST = ("--allow-private", "--delay", "0.01", "--commit-seconds", "0.01", "--max-seconds", "30")
LOOK = ("--allow-private", "--delay", "0")


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with small_site() as url:
        yield url


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["crawl", "ftp://x/"], "is not a valid"),
        (["crawl", "http://user:secret@x/"], "is not a valid"),
        (["crawl"], "no URL to crawl"),
        (["crawl", "http://x.invalid/", "--scope", "galaxy"], "galaxy"),
        (["crawl", "http://x.invalid/", "--no-such-option"], "--no-such-option"),
        (["crawl", "http://x.invalid/", "--delay", "-1"], "delay"),
        (["crawl", "http://x.invalid/", "--delay", "inf"], "delay is inf"),
        (["crawl", "http://x.invalid/", "--recrawl", "budget=0/d"], "budget=0/d"),
        (["crawl", "http://x.invalid/", "--resolve", "x"], "PATTERN=ADDR"),
        (["crawl", "http://x.invalid/", "--nameservers", "x"], "nameservers"),
        (["crawl", "http://x.invalid/", "--ca-file", "missing.pem"], "missing.pem"),
        (["crawl", "http://x.invalid/", "--client-cert", "missing.pem"], "missing.pem"),
        (["crawl", "http://x.invalid/", "--proxy", "@missing.txt"], "missing.txt"),
        (["crawl", "http://x.invalid/", "--header", "two words=1"], "header"),
        (["crawl", "http://x.invalid/", "--secrets", "NOT_THERE"], "NOT_THERE"),
        (["crawl", "http://x.invalid/", "--cache", "/dev/null/x"], "/dev/null/x"),
        (["crawl", "http://x.invalid/", "--notify", "nobody"], "nobody"),
        (["crawl", "http://x.invalid/", "--spider", "."], "FILE.py"),
        (["crawl", "http://x.invalid/", "--extract", "=h1"], "missing name"),
        (["crawl", "http://x.invalid/", "--deny", "("], "regular expression"),
        (["crawl", "http://x.invalid/", "--extract", "nothing"], "'='"),
        (["crawl", "http://x.invalid/", "--extract", "a=p["], "extract a"),
        (["crawl", "http://x.invalid/", "--links", "p["], "links"),
        (["crawl", "http://x.invalid/", "--spider", "missing.py"], "missing.py"),
        (["crawl", "http://x.invalid/", "--frontier", "cassandra:"], "cassandra"),
        (["crawl", "--seeds", "missing.txt"], "missing.txt"),
        (["crawl", "--seeds", "latin.txt"], "latin.txt"),
        (["fetch", "mailto:me"], "is not a valid"),
        (["fetch"], "URL"),
        (["try", "http://x.invalid/", "--allow", "*"], "regular expression"),
        (["shell", ""], "URL"),
        (["status", "nothing-here"], "nothing-here"),
        (["status", ""], "no job given"),
        (["export", ""], "no job given"),
        (["worker", "nothing-here"], "there is no job"),
        (["status", "x", "--frontier", "cassandra:"], "cassandra"),
        (["why", "http://x.invalid/", "--job", "x", "--frontier", "folder:not/from/the/root"], "folder:/path"),
        (["export", "x", "--frontier", "cassandra:"], "cassandra"),
        (["worker", "folder:not/from/the/root", "--job", "x"], "folder:/path"),
        (["nonsense"], "nonsense"),
    ],
)
def test_usage_error_has_a_hint_and_creates_nothing(arguments: list[str], words: str, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"http://x.invalid/\xe9\xff\n")
    done = gossamer(*arguments, cwd=tmp_path)
    error = done.stderr.decode()
    assert done.returncode == 2, error
    assert done.stdout == b""
    assert words in error
    assert "Traceback" not in error
    assert "hint: " in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latin.txt"]


def test_crawl_summary_goes_to_stderr_only(site: str, tmp_path: Path) -> None:
    done = gossamer("crawl", f"{site}/", "--job", "job/x", *FAST, cwd=tmp_path)
    output = done.stderr.decode()
    assert done.returncode == 3, output
    assert done.stdout == b""
    assert output.startswith("finished: nothing is left to fetch")
    for words in ("http-404, as ", "/gone", "1 on another site", "job/x/pages.jsonl", "--user-agent"):
        assert words in output
    grep = re.search(r"list failed pages: (.*)", output)
    assert grep is not None
    shown = subprocess.run(["sh", "-c", grep[1]], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert [json.loads(line)["status"] for line in shown.splitlines()] == [404]


def test_json_output_is_the_only_stdout(site: str, tmp_path: Path) -> None:
    done = gossamer("crawl", f"{site}/", "--json", "--quiet", *FAST, cwd=tmp_path)
    assert json.loads(done.stdout)["pages"] == 4
    assert done.stderr == b""


def test_stopped_crawl_prints_how_to_resume(site: str, tmp_path: Path) -> None:
    done = gossamer("crawl", f"{site}/", "--job", "job/x", "--max-pages", "2", *FAST, cwd=tmp_path)
    output = done.stderr.decode()
    assert done.returncode == 0
    assert "reached --max-pages 2" in output
    assert "gossamer crawl --job job/x --max-pages N" in output


@pytest.mark.parametrize(
    ("path", "options", "words"),
    [
        ("/secret", FAST, "robots.txt disallows it"),
        ("/", ("--delay", "0"), "--allow-private"),
    ],
)
def test_crawl_without_pages_prints_the_reason(
    site: str, tmp_path: Path, path: str, options: tuple[str, ...], words: str
) -> None:
    done = gossamer("crawl", f"{site}{path}", *options, cwd=tmp_path)
    assert words in done.stderr.decode()


def test_unknown_host_fails_immediately(tmp_path: Path) -> None:
    done = gossamer("crawl", "http://no.such.host.invalid/", "--delay", "0", "--max-seconds", "20", cwd=tmp_path)
    assert done.returncode == 3
    assert "nxdomain" in done.stderr.decode() or "dns" in done.stderr.decode()


def test_finished_job_is_reported(site: str, tmp_path: Path) -> None:
    gossamer("crawl", f"{site}/", *FAST, cwd=tmp_path)
    done = gossamer("crawl", f"{site}/", *FAST, cwd=tmp_path)
    assert "finished before this run" in done.stderr.decode()
    assert "--job NAME" in done.stderr.decode()


def test_status_without_a_name_lists_jobs(site: str, tmp_path: Path) -> None:
    assert "no jobs in crawls/" in gossamer("status", cwd=tmp_path).stderr.decode()
    for name, pages in (("whole", "100"), ("./beside", "2")):
        gossamer("crawl", f"{site}/", "--job", name, *FAST, "--max-pages", pages, cwd=tmp_path)
    gossamer("crawl", f"{site}/", "--job", "begun", *FAST, "--max-pages", "2", cwd=tmp_path)
    settings = tmp_path / "crawls" / "begun" / "job.toml"
    settings.write_text(settings.read_text().replace("max_pages = 2", "max_pages = 100"))
    listed = json.loads(gossamer("status", "--json", cwd=tmp_path).stdout)
    assert [(job["job"], job["state"]) for job in listed] == [
        ("begun", "resting"), ("beside", "finished"), ("whole", "finished"),
    ]  # fmt: skip
    lines = gossamer("status", cwd=tmp_path).stdout.decode().splitlines()
    assert [line.split()[0] for line in lines] == ["JOB", "begun", "beside", "whole"]
    one = gossamer("status", "begun", cwd=tmp_path).stdout.decode()
    assert one.startswith("begun: resting\n")


def test_fetch_prints_only_the_body(site: str, tmp_path: Path) -> None:
    done = gossamer("fetch", f"{site}/data", *LOOK, cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout == b"\0\1\2"
    assert b"content-type: application/octet-stream" in done.stderr
    assert "\x9b" not in done.stderr.decode()
    assert b"2J[bold]x" in done.stderr


def test_fetch_follows_and_prints_redirects(site: str, tmp_path: Path) -> None:
    done = gossamer("fetch", f"{site}/old", "--json", *LOOK, cwd=tmp_path)
    record = json.loads(done.stdout)
    assert record["url"] == f"{site}/a"
    assert record["redirects"] == [f"{site}/old"]
    assert record["title"] == "A"
    assert record["links"] == [f"{site}/gone", f"{site}/b"]


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        (["--links"], "{site}/gone\n{site}/b\n"),
        (["--text"], "one\ngoneb\n"),
        (["--markdown"], "one\n\n[gone]({site}/gone)[b]({site}/b)\n"),
        (["--markdown", "--whole"], "one\n\n[gone]({site}/gone)[b]({site}/b)\n"),
        (["--extract", "q=.quote::text"], '{"url":"{site}/a","q":"one"}\n'),
    ],
)
def test_fetch_prints_parts_of_a_page(site: str, tmp_path: Path, options: list[str], printed: str) -> None:
    done = gossamer("fetch", f"{site}/a", "--quiet", *LOOK, *options, cwd=tmp_path)
    assert done.stderr == b""
    assert done.stdout.decode() == printed.replace("{site}", site)


def test_fetch_prints_only_headers_if_asked(site: str, tmp_path: Path) -> None:
    done = gossamer("fetch", f"{site}/gone", "--headers", *LOOK, cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr == b""
    assert done.stdout.startswith(b"HTTP/1.1 404 ")


def test_fetch_obeys_robots_by_default(site: str, tmp_path: Path) -> None:
    done = gossamer("fetch", f"{site}/secret", *LOOK, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == b""
    assert b"hint: " in done.stderr
    assert b"--no-robots" in done.stderr
    assert gossamer("fetch", f"{site}/secret", "--no-robots", *LOOK, cwd=tmp_path).returncode == 0


def test_fetch_goes_through_the_address_guard(site: str, tmp_path: Path) -> None:
    done = gossamer("fetch", f"{site}/", cwd=tmp_path)
    assert done.returncode == 1
    assert b"error: forbidden" in done.stderr
    assert b"--allow-private" in done.stderr


def test_body_is_escaped_for_the_terminal(site: str, tmp_path: Path) -> None:
    with on_terminal("fetch", f"{site}/b", "--quiet", *LOOK, cwd=tmp_path) as terminal:
        assert terminal.wait() == 0
    assert b"\x1b" not in terminal.raw
    assert b"\\x1b]0;owned\\x07" in terminal.raw


def test_a_shell_takes_a_script_from_stdin(site: str, tmp_path: Path) -> None:
    script = (
        f"for path in ('', 'a', 'old'):\n    print(fetch('{site}/' + path).title)\nprint(page, type(spider).__name__)\n"
    )
    done = gossamer("shell", f"{site}/", *LOOK, cwd=tmp_path, stdin=script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().splitlines() == ["Home", "A", "A", f"<Page 200 {site}/> Spider"]
    assert done.stderr == b""


@pytest.mark.parametrize("script", ["print(nothing)", "print(", "fetch('ftp://x')"])
def test_a_script_that_fails_is_a_failure(site: str, tmp_path: Path, script: str) -> None:
    assert gossamer("shell", f"{site}/", *LOOK, cwd=tmp_path, stdin=script).returncode == 1


def test_shell_is_interactive(site: str, tmp_path: Path) -> None:
    with on_terminal("shell", f"{site}/", *LOOK, cwd=tmp_path) as terminal:
        terminal.until(lambda shown: any(">>>" in line or "In [1]" in line for line in shown))
        terminal.type(b"page.title + '!'\n")
        terminal.until(lambda shown: any("'Home!'" in line for line in shown))
        # What is typed before the next prompt is not yet for the shell.
        terminal.until(lambda shown: [line for line in shown if line][-1].startswith((">>>", "In [2]")))
        terminal.type(b"\x04")
        terminal.read(0.2)
        terminal.type(b"y\n")
        assert terminal.wait() == 0


def test_shell_completes_names(site: str, tmp_path: Path) -> None:
    with on_terminal("shell", f"{site}/", *LOOK, cwd=tmp_path) as terminal:
        terminal.until(lambda shown: any(">>>" in line or "In [1]" in line for line in shown))
        terminal.type(b"page.titl\t + '!'\n")
        terminal.until(lambda shown: any("'Home!'" in line for line in shown))


def test_init_writes_a_project_that_works(site: str, tmp_path: Path) -> None:
    assert gossamer("init", "project", cwd=tmp_path).returncode == 0
    project = tmp_path / "project"
    (project / "page.html").write_text("")
    spider = (project / "spider.py").read_text()
    assert "quotes.toscrape.com" in spider
    spider = spider.replace("https://quotes.toscrape.com/", f"{site}/a").replace("div.quote", "body")
    (project / "spider.py").write_text(spider.replace(".text::text", ".quote::text").replace("li.next a", "a"))
    done = gossamer("crawl", *FAST, cwd=project)
    assert done.returncode == 3, done.stderr
    items = next(project.glob("crawls/*/items.jsonl")).read_text().splitlines()
    assert {"text": "one", "author": None} in [json.loads(line) for line in items]


def test_every_setting_in_the_written_file_exists(tmp_path: Path) -> None:
    gossamer("init", cwd=tmp_path)
    path = tmp_path / "gossamer.toml"
    path.write_text(re.sub(r"(?m)^# (?=\w+ = |\[)", "", path.read_text()))
    (tmp_path / "links.txt").write_text("")
    done = gossamer("fetch", "http://127.0.0.1:9/", cwd=tmp_path)
    assert done.returncode == 1, done.stderr


def test_init_overwrites_nothing_unless_forced(tmp_path: Path) -> None:
    (tmp_path / "spider.py").write_text("mine")
    done = gossamer("init", cwd=tmp_path)
    assert done.returncode == 2
    assert b"--force" in done.stderr
    assert (tmp_path / "spider.py").read_text() == "mine"
    assert not (tmp_path / "gossamer.toml").exists()
    assert gossamer("init", "--force", cwd=tmp_path).returncode == 0
    assert (tmp_path / "spider.py").read_text() != "mine"


def test_closed_pipe_is_not_an_error(site: str, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "gossamer", "fetch", f"{site}/a", "--quiet", *LOOK],
        cwd=tmp_path,
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
        env=environment(),
    )
    os.close(writer)
    assert done.returncode == 0
    assert done.stderr == b""


def test_failed_output_is_an_error(site: str, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gossamer", "fetch", f"{site}/a", "--quiet", *LOOK],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
            env=environment(),
        )
    assert done.returncode == 1
    assert b"error: " in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("redirection", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-", "2>/dev/full", "2>&1 | true"])
def test_crawl_works_with_closed_output(site: str, tmp_path: Path, redirection: str) -> None:
    command = f"{sys.executable} -m gossamer crawl {site}/ --job job/x --text {' '.join(FAST)} {redirection}"
    subprocess.run(["sh", "-c", command], cwd=tmp_path, timeout=60, check=False, env=environment())
    rows = [json.loads(line) for line in (tmp_path / "job/x/pages.jsonl").read_bytes().splitlines()]
    assert sorted(row["url"].removeprefix(site) for row in rows) == ["/", "/a", "/b", "/gone"]


def test_allocator_options_are_set_before_the_http_client_loads() -> None:
    """The allocator reads the environment once; set too late, each process would use a third more memory."""
    script = "import sys, gossamer.cli; print([name for name in sys.modules if name.startswith('pyreqwest')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
