"""Logs: machine-readable lines without secrets or control sequences; a failing log does not affect a crawl."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import environment, gossamer, small_site

from gossamer.errors import ConfigError
from gossamer.lab.simweb.process import SimWeb
from gossamer.logs import LogFormatter, check

FAST = ("--allow-private", "--delay", "0", "--quiet")
SECRETS = [
    ("redis://:hushhush@h:6379/0", "redis://:***@h:6379/0"),
    ("postgresql://me:hushhush@h/db failed", "postgresql://me:***@h/db failed"),
    ("GET https://a.example/x?token=hushhush&page=2", "GET https://a.example/x?token=***&page=2"),
    ("https://a.example/?api_key=hushhush", "https://a.example/?api_key=***"),
    ("Authorization: Bearer hushhush", "Authorization: ***"),
    ("{'Set-Cookie': 'sid=hushhush; Path=/'}", "{'Set-Cookie': '***'}"),
]


def record(message: str, **extra: object) -> logging.LogRecord:
    found = logging.LogRecord("gossamer.fetch", logging.WARNING, "", 0, message, (), None)
    vars(found).update(extra)
    return found


@pytest.mark.parametrize("form", ["text", "kv", "json"])
@pytest.mark.parametrize(("text", "shown"), SECRETS, ids=[shown[:12] for _, shown in SECRETS])
def test_h66_no_log_format_contains_secrets(form: str, text: str, shown: str) -> None:
    line = LogFormatter(form).format(record(f"lost: {text}", url=text))
    assert "hushhush" not in line
    if form == "json":
        output = json.loads(line)
        assert (output["event"], output["url"]) == (f"lost: {shown}", shown)


@pytest.mark.parametrize("form", ["text", "kv", "json"])
def test_h65_external_text_is_escaped_in_log_lines(form: str) -> None:
    line = LogFormatter(form).format(record("title \x1b[2J\r\nERROR fake\u2028x", url='a b="c"\n\x07'))
    assert line.isprintable()
    if form == "json":
        assert json.loads(line)["level"] == "warning"
    if form == "kv":
        assert r'event="title \\x1b[2J\\r\\nERROR fake\\u2028x"' in line


def test_unknown_log_levels_and_formats_are_rejected() -> None:
    check("kv", "warning,fetch=info, frontier=debug")
    for form, levels in (("xml", ""), ("json", "loud"), ("json", "fetch=")):
        with pytest.raises(ConfigError, match=r"unknown (format|level)"):
            check(form, levels)


def test_f63_every_request_is_logged_across_rotation(tmp_path: Path) -> None:
    with SimWeb(sites=3, pages_per_site=40, page_bytes=2000) as web:
        (tmp_path / "seeds").write_text("\n".join(web.seeds))
        logging_words = ("--log-format", "json", "--log-file", "log", "--log-level", "fetch=info")
        words = ("--seeds", "seeds", "--job", "one", "--workers", "2", "--scope", "any", *FAST, "--delay", "0.02")
        crawl = subprocess.Popen(
            [sys.executable, "-m", "gossamer", *logging_words, "crawl", *words],
            cwd=tmp_path,
            env=environment(),
        )
        log, old = tmp_path / "log", tmp_path / "log.1"
        while not (log.exists() and log.stat().st_size > 2000):
            assert crawl.poll() is None
            time.sleep(0.01)
        log.rename(old)
        assert crawl.wait(60) == 0
    lines = [json.loads(line) for path in (old, log) for line in path.read_text().splitlines()]
    requests = [line for line in lines if line["room"] == "fetch"]
    pages = [json.loads(line) for line in (tmp_path / "crawls/one/pages.jsonl").read_text().splitlines()]
    asked = [line["url"] for line in requests if not line["url"].endswith("/robots.txt")]
    assert sorted(asked) == sorted(page["url"] for page in pages)
    assert len({line["request"] for line in requests}) >= len(pages)
    # On a busy machine the second worker may come when all is done.
    assert len({line["pid"] for line in requests} - {crawl.pid}) in (1, 2)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here: a full disk is not checked")
def test_f63_full_log_disk_only_loses_log_lines(tmp_path: Path) -> None:
    with small_site() as url:
        full = ("--log-file", "/dev/full", "--log-level", "debug")
        done = gossamer(*full, "crawl", url, "--job", "one", *FAST, cwd=tmp_path)
        assert done.returncode in (0, 3), done.stderr
        assert (tmp_path / "crawls/one/pages.jsonl").read_text()
        output = gossamer("--log-file", "/no/such/folder/log", "crawl", url, *FAST, cwd=tmp_path)
        assert (output.returncode, b"--log-file" in output.stderr) == (2, True)
