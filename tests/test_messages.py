"""scripts/messages lists known texts of each kind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gossamer.cli import LINES
from gossamer.errors import advice_for_kind
from gossamer.settings import FIELDS

ROOT = Path(__file__).parents[1]


def listed(*arguments: str) -> str:
    script = ROOT / "scripts" / "messages"
    return subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def everything() -> str:
    return listed()


@pytest.mark.parametrize("kind", ["timeout", "robots", "http-429"])
def test_advice_is_listed(everything: str, kind: str) -> None:
    assert advice_for_kind(kind).split(";")[0] in everything


def test_help_of_commands_and_settings_is_listed(everything: str) -> None:
    assert [line for line in LINES.values() if f"help: {line}" not in everything] == []
    said = [meta.description for field in FIELDS.values() for meta in field.type.__metadata__ if meta.description]
    assert [text for text in said if text not in everything] == []


@pytest.mark.parametrize(
    ("place", "kind", "words"),
    [
        ("jobs/worker.py", "log", "waiting for the frontier: %s"),
        ("job_folder.py", "hint", "a seed looks like https://example.com/"),
        ("api.py", "hint", "a URL looks like https://example.com/page"),
        ("service/static/views/overview.js", "text", ""),
        ("service/pages.py", "error", ""),
    ],
)
def test_messages_of_each_kind_have_file_and_line(everything: str, place: str, kind: str, words: str) -> None:
    lines = [line for line in everything.splitlines() if line.startswith(f"src/gossamer/{place}:")]
    assert [line for line in lines if f": {kind}: " in line and words in line]


def test_only_one_package_or_kind_is_listed_on_request() -> None:
    lines = [line for line in listed("jobs", "--kind", "hint").splitlines() if line]
    assert lines[0] == "== jobs"
    assert all(line.startswith("src/gossamer/jobs/") and ": hint: " in line for line in lines[1:])
