"""The benchmarks measure all processes of a command, including orphans."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TALLY = Path(__file__).resolve().parent.parent / "benchmarks" / "_tally.py"
BURN = "import time\nwhile time.process_time() < 0.4: pass"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")


def orphan(code: str) -> str:
    """A program that exits at once and leaves an orphan that runs this code."""
    lines = (
        "import os",
        "if os.fork() == 0:",
        "    os.setsid()",
        f"    if not os.fork(): exec({code!r})",
        "    os._exit(0)",
    )
    return "\n".join(lines)


def test_the_cpu_of_an_orphan_counts(tmp_path: Path) -> None:
    result = tmp_path / "cost.json"
    subprocess.run([sys.executable, TALLY, result, sys.executable, "-c", orphan(BURN)], check=True, timeout=120)
    cpu_seconds, _, peak_bytes, code = json.loads(result.read_text())
    assert cpu_seconds >= 0.4
    assert peak_bytes > 0
    assert code == 0


def test_a_kill_leaves_no_descendant(tmp_path: Path) -> None:
    result, output = tmp_path / "cost.json", tmp_path / "pid"
    code = f"import os, time, pathlib; pathlib.Path({str(output)!r}).write_text(str(os.getpid())); time.sleep(600)"
    command = [
        sys.executable,
        str(TALLY),
        str(result),
        sys.executable,
        "-c",
        f"{orphan(code)}\nimport time\ntime.sleep(600)",
    ]
    with subprocess.Popen(command) as process:
        try:
            while not output.exists() or not output.read_text():
                assert process.poll() is None
                time.sleep(0.02)
            process.send_signal(signal.SIGUSR1)
            assert process.wait(120) == 0
        finally:
            process.kill()
    assert not Path(f"/proc/{output.read_text()}").exists()
    assert json.loads(result.read_text())[3] == -signal.SIGKILL
