"""The commands start, crawl, and export when no optional extra is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from commands import environment, small_site

from gossamer.cli import PLACES
from gossamer.extras import MODULES

# Runs commands one after another in one process, in which the packages of the extras cannot be imported.
RUNNER = """
import json, sys, traceback
from click.testing import CliRunner

blocked, commands = json.loads(sys.argv[1])

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from gossamer.cli import gossamer

for command in commands:
    result = CliRunner().invoke(gossamer, command)
    raised = result.exception
    unexpected = raised is not None and not isinstance(raised, SystemExit)
    trace = "".join(traceback.format_exception(raised)) + getattr(raised, "hint", "") if unexpected else ""
    print(json.dumps([result.exit_code, result.stdout, result.stderr + trace]))
assert not set(blocked) & set(sys.modules)
"""


class Result(NamedTuple):
    """Outcome of a command: its exit code, its stdout, and its stderr with the traceback of an unexpected error."""

    code: int
    out: str
    errors: str


def run_without_extras(*commands: str, cwd: Path) -> dict[str, Result]:
    """Run commands in a process that cannot import the packages of any extra."""
    blocked = sorted({module.partition(".")[0] for modules in MODULES.values() for module in modules})
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, json.dumps([blocked, [command.split() for command in commands]])],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {
        command: Result(*json.loads(line)) for command, line in zip(commands, done.stdout.splitlines(), strict=True)
    }


def test_every_command_prints_its_help_without_extras(tmp_path: Path) -> None:
    results = run_without_extras(*(f"{name} --help" for name in PLACES), cwd=tmp_path)
    assert len(results) == len(PLACES)
    assert {command: result.errors for command, result in results.items() if result.code} == {}


def test_a_job_is_crawled_exported_and_deleted_without_extras(tmp_path: Path) -> None:
    with small_site() as site:
        results = run_without_extras(
            f"crawl {site}/ --job small --delay 0 --allow-private --quiet",
            "export small",
            "export small --format csv",
            "export small --format urls",
            "status small --json",
            f"why {site}/ --job small",
            f"audit {site} --job small",
            "report small",
            f"crawl {site}/ --job archived --delay 0 --allow-private --quiet --sink warc",
            "export archived --format urls",
            "doctor --host localhost",
            "delete small --results --yes",
            cwd=tmp_path,
        )
    doctor = results.pop("doctor --host localhost")
    assert "redis needs redis: not installed" in doctor.out
    assert "Traceback" not in doctor.errors
    assert {command: result.errors for command, result in results.items() if result.code} == {}
    paths = [url.removeprefix(site) for url in results["export small --format urls"].out.split()]
    assert sorted(paths) == ["/", "/a", "/b", "/gone"]
    assert not (tmp_path / "crawls" / "small").exists()


# Extra -> a command that needs it. Tracing is configured by environment variables (tests/cli/test_traces.py), Scrapy
# projects import the Scrapy extra, and WARC files are written with zlib if the extra for WARC is not installed.
NEEDS = {
    "browser": "crawl http://127.0.0.1:1/ --job new --downloader browser",
    "mysql": "status --frontier mysql://127.0.0.1:1/crawls",
    "objects": "crawl http://127.0.0.1:1/ --job new --sink s3://bucket/prefix",
    "parquet": "crawl http://127.0.0.1:1/ --job new --sink parquet",
    "postgresql": "status --frontier postgresql://127.0.0.1:1/crawls",
    "redis": "status --frontier redis://127.0.0.1:1/0",
    "service": "serve",
    "sql": "sql new",
}


def test_a_command_that_needs_an_extra_names_it(tmp_path: Path) -> None:
    assert {*NEEDS, "telemetry", "scrapy", "warc"} == MODULES.keys()
    results = run_without_extras(*NEEDS.values(), cwd=tmp_path)
    for extra, command in NEEDS.items():
        assert f"gossamer[{extra}]" in results[command].errors, (command, results[command])
        assert "not installed" in results[command].errors
