"""The API conforms to its OpenAPI document: Schemathesis finds no failures."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from service_process import WRITE, Served, serving

# Crawls of what is asked for there would go out into the network: whatever name it has, it leads to nobody.
NOWHERE = ("--resolve", "*=127.0.0.1", "--most", "2", "--rate", "100000", "--max-pages", "1", "--fetch-seconds", "1")


def examine(served: Served, folder: Path, *options: str) -> str:
    """Run Schemathesis on all endpoints except the event stream; returns its output."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{served.address}openapi.json", *options]
    command += ["--header", f"Authorization: Bearer {WRITE}", "--exclude-path", "/api/events", "--seed", "1"]
    command += ["--request-timeout", "30", "--no-color", "--generation-database", "none"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, re.sub(r"(.{300}).+", r"\1", done.stdout)[-6000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.long
@pytest.mark.timeout(900)
def test_schema_based_fuzzing_finds_no_failures(tmp_path: Path) -> None:
    with serving(tmp_path, *NOWHERE) as served:
        said = examine(served, tmp_path, "--phases", "coverage,fuzzing", "-n", "20")
        assert re.search(r"\d+ generated, \d+ passed", said)
