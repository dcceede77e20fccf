from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from click.testing import CliRunner

from gossamer.cli.lab import simweb
from gossamer.lab.simweb import log


@contextmanager
def running(*options: str) -> Iterator[tuple[subprocess.Popen[str], IO[str], IO[str]]]:
    command = [sys.executable, "-c", "from gossamer.cli.lab import simweb; simweb()", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stderr
    try:
        yield process, process.stdout, process.stderr
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def test_seeds_go_to_stdout_and_advice_to_stderr(tmp_path: Path) -> None:
    path = tmp_path / "requests.log"
    options = ["--sites", "3", "--pages", "2", "--bytes", "3000", "--links", "5", "--log", str(path), "--addresses"]
    with running(*options) as (process, stdout, stderr):
        seeds = [stdout.readline().strip() for _ in range(3)]
        with urllib.request.urlopen(seeds[2], timeout=60) as answer:
            assert len(answer.read()) == 3000
        # The advice follows the seeds; once it is read to its last line the command is waiting.
        advice = "".join(iter(stderr.readline, "Press Ctrl-C to stop.\n"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert stdout.read() == ""
    assert f"gossamer crawl {seeds[0]} --allow-private" in advice
    assert [entry.url for entry in log.read(path)] == [seeds[2]]


def test_a_reader_that_leaves_does_not_end_the_web() -> None:
    with running("--sites", "5000", "--pages", "1", "--addresses") as (process, stdout, stderr):
        seed = stdout.readline().strip()
        stdout.close()
        assert "".join(iter(stderr.readline, "Press Ctrl-C to stop.\n")).startswith("A simulated web")
        with urllib.request.urlopen(seed, timeout=60) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert stderr.read() == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--sites", "0"], "--sites"),
        (["--pages", "-1"], "--pages"),
        (["--bytes", "x"], "--bytes"),
        (["--latency", "-1"], "--latency"),
        (["--port", "70000"], "--port"),
        (["--kinds", "calender"], "did you mean calendar?"),
        (["--kinds", ","], "at least one kind"),
        (["--log", "/nowhere/at/all.log"], "/nowhere/at/all.log"),
    ],
)
def test_invalid_input_is_a_usage_error(options: list[str], words: str) -> None:
    result = CliRunner().invoke(simweb, options)
    assert result.exit_code == 2
    assert words in result.output


def test_help_lists_every_kind() -> None:
    text = CliRunner().invoke(simweb, ["--help"]).output
    assert "robots-wildcards" in text
    assert "spellings" in text
