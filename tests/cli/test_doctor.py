"""`gossamer doctor`: checks of a machine and of real stores."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import gossamer

from gossamer.clock import SystemClock
from gossamer.frontier.backends import check
from gossamer.inspect import doctor
from gossamer.model import Finding
from gossamer.settings import Settings
from gossamer.testing.network import FaultyProxy
from gossamer.testing.servers import PostgresServer, RedisServer, SqlServer, free_port


class Ahead(SystemClock):
    """A machine whose clock is a minute ahead."""

    def epoch(self) -> float:
        return super().epoch() + 60.0


def found(url: str, clock: SystemClock | None = None) -> dict[str, Finding]:
    async def look() -> dict[str, Finding]:
        return {one.subject: one async for one in check(url, clock=clock or SystemClock())}

    return asyncio.run(look())


def test_doctor_reports_redis_durability() -> None:
    with RedisServer() as server:
        weak = found(server.url)
        assert (weak["frontier"].state, weak["clock"].state) == ("good", "good")
        assert (weak["durability"].state, weak["durability"].mend[:26]) == ("weak", "CONFIG SET appendonly yes,")
    with RedisServer(appendonly="yes", appendfsync="always", maxmemory="64mb") as server:
        strong = found(server.url)
        assert strong["durability"].state == "good"
        assert "power cut" in strong["durability"].says
        assert (strong["memory"].state, strong["memory"].mend) == ("weak", "raise maxmemory")


def test_doctor_reports_clock_skew(redis_server: RedisServer, tmp_path: Path) -> None:
    for url in (redis_server.url, f"folder:{tmp_path}"):
        assert found(url)["clock"].state == "good"
        ahead = found(url, Ahead())["clock"]
        assert ahead.state == "weak"
        assert "s ahead of the store's" in ahead.says


def test_doctor_checks_a_database_without_a_job(postgres_server: SqlServer, maria_server: SqlServer) -> None:
    for server in (postgres_server, maria_server):
        seen = found(server.url)
        assert (seen["frontier"].state, seen["clock"].state) == ("good", "good")
        assert seen["durability"].state in ("good", "weak")
        assert found(server.url, Ahead())["clock"].state == "weak"


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_doctor_names_an_unreachable_database(scheme: str) -> None:
    with FaultyProxy(1) as proxy:
        for fault in ("refuse", "reset", "hang up"):
            proxy.fail(fault)
            url = f"{scheme}://user@127.0.0.1:{proxy.port}/name"
            frontier = found(url)["frontier"]
            assert frontier.state == "bad"
            assert f"127.0.0.1:{proxy.port}" in frontier.says
            assert frontier.mend


def test_doctor_names_unsafe_database_settings(maria_server: SqlServer, tmp_path: Path) -> None:
    """Also by `submit`, and for each of several databases."""
    with PostgresServer(fsync="off", full_page_writes="off") as postgres:
        weak = found(postgres.url)["durability"]
        assert (weak.state, weak.mend) == ("weak", "set full_page_writes = on")
        assert found(f"{postgres.url},{postgres.url.removesuffix('gossamer')}postgres")["durability"].says.startswith(
            "postgresql://127.0.0.1"
        )
        words = ("submit", "http://a.test/", "--job", "weak", "--frontier", postgres.url)
        output = gossamer(*words, "--sink", f"jsonl:{tmp_path}/results", cwd=tmp_path)
        assert b"warning: a power cut may lose what was acknowledged" in output.stderr
        assert b"hint: set fsync = on" in output.stderr
    try:
        maria_server.ask("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
        weak = found(maria_server.url)["durability"]
        assert (weak.state, weak.mend) == ("weak", "SET GLOBAL innodb_flush_log_at_trx_commit = 1")
    finally:
        maria_server.ask("SET GLOBAL innodb_flush_log_at_trx_commit = 1")


def test_doctor_suggests_fixes_without_passwords(tmp_path: Path) -> None:
    gone = f"redis://:hushhush@127.0.0.1:{free_port()}/0"
    words = ["--json", "--frontier", gone, "--nameservers", f"127.0.0.1:{free_port()}", "--host", "nowhere.test"]
    output = gossamer("doctor", *words, cwd=tmp_path)
    lines = {line["subject"]: line for line in map(json.loads, output.stdout.splitlines())}
    assert output.returncode == 1, output.stderr
    assert b"hushhush" not in output.stdout + output.stderr
    assert (lines["frontier"]["state"], lines["names"]["state"], lines["python"]["state"]) == ("bad", "bad", "good")
    assert all(lines[name]["mend"] for name in ("frontier", "names"))


def test_doctor_reports_a_low_file_limit() -> None:
    (few,) = doctor.files(Settings(concurrency=10_000_000))
    (enough,) = doctor.files(Settings(concurrency=1))
    assert (few.state, enough.state) == ("weak", "good")
    assert "--concurrency" in few.mend or "ulimit" in few.mend


def test_doctor_reports_an_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert [one.state for one in doctor.disk(tmp_path / "file" / "job")] == ["bad"]
    assert next(iter(doctor.disk(tmp_path / "a" / "b"))).state == "good"


def test_doctor_distinguishes_broken_and_missing_extras(tmp_path: Path) -> None:
    """For example pyarrow without one of its dependencies."""
    (tmp_path / "broken" / "pyarrow").mkdir(parents=True)
    (tmp_path / "broken" / "pyarrow" / "__init__.py").write_text("import a_module_that_is_not_there")
    (tmp_path / "missing.py").write_text(
        "import sys\nsys.modules['pyarrow'] = None\nfrom gossamer.__main__ import main\nmain()"
    )
    page = "http://127.0.0.1:1/"
    broken = gossamer(
        "crawl", page, "--sink", "parquet", cwd=tmp_path, PYTHONPATH=str(tmp_path / "broken")
    ).stderr.decode()
    assert "error: Parquet needs pyarrow, which cannot be imported: No module named 'a_mod" in broken
    assert "hint: pip install 'gossamer[parquet]' --upgrade --force-reinstall" in broken
    report = gossamer("doctor", cwd=tmp_path, PYTHONPATH=str(tmp_path / "broken")).stdout.decode()
    assert "weak  extras      parquet needs pyarrow, which cannot be imported" in report
    command = [sys.executable, "missing.py", "crawl", page, "--sink", "parquet"]
    missing = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False).stderr
    assert "error: Parquet needs pyarrow: not installed\nhint: pip install 'gossamer[parquet]'\n" in missing
