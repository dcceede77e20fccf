"""Deployment without containers: systemd units, a Slurm batch script, a Ray task, and a GitHub Actions workflow."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gossamer.lab.simweb.process import SimWeb

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").iterdir())
# Seconds of work, but a machine may be slow.
pytestmark = pytest.mark.timeout(300)
INSTALLED = "/opt/gossamer/bin/gossamer"
SRUN = """#!/bin/sh
# What srun does, for a machine: every task at once, and the worst exit code.
shift
number=0
while [ $number -lt "$SLURM_NTASKS" ]; do
    SLURM_PROCID=$number "$@" &
    tasks="${tasks:-} $!"
    number=$((number + 1))
done
worst=0
for task in $tasks; do wait "$task" || worst=$?; done
exit $worst
"""


@pytest.fixture(scope="module")
def web() -> Iterator[SimWeb]:
    with SimWeb(
        sites=3, pages_per_site=8, page_bytes=3000, links_per_page=10, kinds=("plain", "plain", "news")
    ) as running:
        yield running


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with `gossamer` installed."""
    tools = tmp_path / "tools"
    tools.mkdir()
    tool = tools / "gossamer"
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gossamer "$@"\n', "utf-8")
    tool.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GOSSAMER_", "SLURM_"))}
    return kept | {"PATH": f"{tools}:{os.environ['PATH']}"}


def run(command: list[str], environment: dict[str, str], folder: Path) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def started(unit: str, **words: str) -> str:
    """The command of a unit, with systemd's specifiers replaced."""
    reader = configparser.RawConfigParser(strict=False)
    reader.optionxform = str  # type: ignore[assignment,method-assign]
    reader.read(ROOT / "deploy" / "systemd" / unit)
    line = reader["Service"]["ExecStart"].replace("%%", "\0")
    for name, value in words.items():
        line = line.replace(f"%{name}", value)
    assert not re.search(r"%\w", line), line
    return line.replace("\0", "%").replace(INSTALLED, "gossamer")


def test_systemd_verifies_the_units(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: the units are not checked by it (scripts/services installs it)")
    files = []
    for unit in UNITS:
        text = unit.read_text("utf-8").replace(INSTALLED, "/bin/true")
        for name in {unit.name, unit.name.replace("@.", "@one.")}:
            (tmp_path / name).write_text(text, "utf-8")
            files += [str(tmp_path / name)] if "@." not in name else []
    said = run(["systemd-analyze", "verify", "--man=no", *sorted(files)], dict(os.environ), tmp_path)
    assert [line for line in said.splitlines() if str(tmp_path) in line or "gossamer" in line] == []


def test_every_unit_stops_gracefully_and_is_sandboxed() -> None:
    services = [unit for unit in UNITS if unit.suffix == ".service"]
    assert len(services) == 3
    for unit in services:
        text = unit.read_text("utf-8")
        for line in (
            "User=gossamer",
            "NoNewPrivileges=yes",
            "ProtectSystem=strict",
            "ProtectHome=yes",
            "PrivateTmp=yes",
        ):
            assert line in text.splitlines(), unit
        assert int(re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)[1]) > 10, unit  # type: ignore[index]
        assert INSTALLED in text


def test_worker_unit_becomes_ready_and_stops_on_sigterm(environment: dict[str, str], tmp_path: Path) -> None:
    environment |= {"GOSSAMER_FRONTIER": f"folder:{tmp_path / 'frontier'}"}
    environment |= {"CRAWL_JOB": "crawl", "RUNTIME_DIRECTORY": str(tmp_path)}
    line = started("gossamer-worker@.service", i="7", H="machine")
    for name in ("CRAWL_JOB", "RUNTIME_DIRECTORY"):
        line = line.replace(f"${{{name}}}", environment[name])
    assert "$" not in line, "a variable that nobody sets"
    (tmp_path / "frontier").mkdir()
    worker = subprocess.Popen(shlex.split(line), cwd=tmp_path, env=environment)
    try:
        health = tmp_path / "health"
        until = time.monotonic() + 200
        while not (health.exists() and health.read_text("utf-8").strip() == "ready"):
            assert worker.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(90) == 0
    finally:
        worker.kill()
        worker.wait()


def test_crawl_unit_creates_a_job_per_day(environment: dict[str, str], web: SimWeb, tmp_path: Path) -> None:
    (tmp_path / "seeds.txt").write_text(web.seeds[0] + "\n", "utf-8")
    (tmp_path / "gossamer.toml").write_text("delay = 0\nallow_private = true\nmax_pages = 3\n", "utf-8")
    state = tmp_path / "state"
    state.mkdir()
    line = started("gossamer-crawl@.service", i="news")
    run(shlex.split(line), environment | {"STATE_DIRECTORY": str(state)}, tmp_path)
    (job,) = state.iterdir()
    assert re.fullmatch(r"news-\d{4}-\d\d-\d\d", job.name)
    assert len((job / "pages.jsonl").read_text("utf-8").splitlines()) == 3


def test_slurm_tasks_share_a_crawl(environment: dict[str, str], tmp_path: Path) -> None:
    srun = tmp_path / "tools" / "srun"
    srun.write_text(SRUN, "utf-8")
    srun.chmod(0o755)
    frontier = f"folder:{tmp_path / 'frontier'}"
    with SimWeb(sites=4, pages_per_site=6, page_bytes=3000, links_per_page=8) as web:
        options = ["--job", "shop", "--frontier", frontier, "--delay", "0.02", "--allow-private"]
        run(["gossamer", "submit", *web.seeds, *options], environment, tmp_path)
        environment |= {"CRAWL_JOB": "shop", "GOSSAMER_FRONTIER": frontier}
        environment |= {"SLURM_JOB_ID": "4711", "SLURM_NTASKS": "2"}
        run([str(ROOT / "deploy" / "slurm" / "workers.sbatch")], environment, tmp_path)
        verdict = web.judge()
    assert not verdict.missed
    assert not verdict.repeated
    stored = [path.name for path in (tmp_path / "frontier" / "results" / "shop" / "segments").iterdir()]
    assert any(name.startswith(("pages-slurm-4711-", "slurm-4711-")) for name in stored), stored


APT = """#!/bin/sh
case "$*" in *fish*) exit 100 ;; esac
echo "$*" >>asked
"""


def test_unavailable_package_does_not_block_others(tmp_path: Path) -> None:
    """On a machine without any of the packages, and without fish in its package lists."""
    for name, text in (("apt-get", APT), ("id", "#!/bin/sh\necho 0\n"), ("ls", "#!/bin/sh\nexit 1\n")):
        (tmp_path / name).write_text(text, "utf-8")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", ROOT / "scripts" / "services"],
        cwd=tmp_path, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0
    assert re.findall(r"could not install (\S+);", done.stderr) == ["fish"]
    asked = (tmp_path / "asked").read_text("utf-8").splitlines()
    assert {"zsh", "chromium", "redis-server"} <= {line.split()[-1] for line in asked if line.startswith("install")}


def test_shellcheck_passes() -> None:
    """The Slurm script, and the scripts of the project."""
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed: shell scripts are not checked (scripts/services installs it)")
    found = [ROOT / ".ci" / "run", *(ROOT / "deploy" / "slurm").iterdir(), *(ROOT / "scripts").iterdir()]
    scripts = [path for path in found if path.is_file() and re.match(rb"#!.*\b(ba)?sh\n", path.read_bytes()[:40])]
    assert len(scripts) >= 8
    done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout


def test_batch_script_requires_the_frontier(environment: dict[str, str], tmp_path: Path) -> None:
    script = ROOT / "deploy" / "slurm" / "workers.sbatch"
    done = subprocess.run([script], env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode != 0
    assert "GOSSAMER_FRONTIER" in done.stderr


def block(page: str, title: str) -> str:
    text = (ROOT / "docs" / "howto" / page).read_text("utf-8")
    found = re.search(rf'^```\w+ title="{re.escape(title)}"\n(.*?)^```$', text, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def test_workflow_steps_run_a_crawl(environment: dict[str, str], web: SimWeb, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "news.py").write_text(
        block("run-in-github-actions.md", "news.py").replace("http://127.0.0.1:8000/", web.seeds[2]), "utf-8"
    )
    workflow = yaml.safe_load(block("run-in-github-actions.md", ".github/workflows/crawl.yml"))
    (tmp_path / "crawl.yml").write_text(block("run-in-github-actions.md", ".github/workflows/crawl.yml"), "utf-8")
    checker = str(Path(sys.executable).parent / "check-jsonschema")
    run([checker, "--builtin-schema", "vendor.github-workflows", str(tmp_path / "crawl.yml")], environment, tmp_path)
    # The word `on` is a truth value to YAML 1.1, and a key to GitHub.
    assert set(workflow) == {"name", True, "permissions", "concurrency", "jobs"}
    (job,) = workflow["jobs"].values()
    assert workflow["permissions"] == {"contents": "read"}
    for step in job["steps"]:
        assert ("run" in step) != ("uses" in step)
        assert re.fullmatch(r"actions/[\w-]+@v\d+", step.get("uses", "actions/x@v1"))
    summary = tmp_path / "summary"
    environment |= {"GITHUB_STEP_SUMMARY": str(summary), "GOSSAMER_DELAY": "0.05"}
    steps = {step["name"]: step["run"] for step in job["steps"] if "run" in step}
    assert steps.pop("Install") == "pip install gossamer"
    for script in steps.values():
        run(["bash", "-e", "-o", "pipefail", "-c", script], environment, work)
    assert "15 crawls/news/items.jsonl" in summary.read_text("utf-8")
    kept = next(step["with"]["path"] for step in job["steps"] if "upload-artifact" in step.get("uses", ""))
    assert (work / kept).is_file()
    seconds = int(re.search(r"--max-seconds (\d+)", steps["Crawl"])[1])  # type: ignore[index]
    assert seconds + 300 <= 60 * job["timeout-minutes"]


def test_ray_task_starts_a_worker() -> None:
    code = block("run-on-ray.md", "ray_workers.py")
    compile(code, "ray_workers.py", "exec")
    assert '"-m", "gossamer", "worker", frontier, "--job", job, "--name"' in code
