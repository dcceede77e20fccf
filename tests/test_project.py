"""Project files: consistent version, valid workflows, and no package index addresses."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import gates
import pytest
import yaml

from gossamer.settings import VERSION

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
REGISTRIES = re.compile(r"pypi|pythonhosted|npmjs|anaconda\.org|index-url|ghcr\.io|docker\.io", re.IGNORECASE)


def version(*options: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(root / "scripts" / "version"), *options], capture_output=True, text=True, check=False
    )


def copy(to: Path) -> Path:
    """The sources without a git repository, as in an image or an archive."""
    names = "scripts/version src/gossamer/settings.py CHANGELOG.md man/gossamer.1"
    for name in [
        *names.split(),
        *(f"deploy/{one}" for one in ("helm/gossamer/Chart.yaml", "compose.yaml", "Dockerfile")),
    ]:
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        (to / name).write_bytes((ROOT / name).read_bytes())
    return to


def test_the_version_is_the_same_everywhere() -> None:
    assert version().stdout.strip() == VERSION
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert "version" not in project["project"]
    assert (ROOT / project["tool"]["hatch"]["version"]["path"]).is_file()


def test_a_tag_must_be_that_of_the_version_and_of_a_dated_section(tmp_path: Path) -> None:
    assert version("--tag", f"v{VERSION}").returncode == 0
    other = version("--tag", "v99.0")
    assert other.returncode == 1
    assert f"must be v{VERSION}" in other.stderr
    changed = copy(tmp_path)
    changes = changed / "CHANGELOG.md"
    changes.write_text(re.sub(r"^## [0-9.]+ \(.*\)$", "## Next", changes.read_text("utf-8"), flags=re.MULTILINE))
    assert version(root=changed).returncode == 0
    assert "no section" in version("--tag", f"v{VERSION}", root=changed).stderr


def test_file_with_a_different_version_is_named(tmp_path: Path) -> None:
    changed = copy(tmp_path)
    chart = changed / "deploy" / "helm" / "gossamer" / "Chart.yaml"
    chart.write_text(chart.read_text("utf-8").replace(VERSION, "98.7"))
    assert "Chart.yaml has 98.7" in version(root=changed).stderr


def test_workflows_are_valid_and_test_every_python_that_the_package_names() -> None:
    checker = Path(sys.executable).with_name("check-jsonschema")
    schema = ["--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run([str(checker), *schema, *map(str, WORKFLOWS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.stem for path in WORKFLOWS} == {"docs", "tests", "wheels"}
    matrix = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text("utf-8"))["jobs"]["test"]["strategy"]
    named = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text("utf-8"))
    assert matrix["matrix"]["python"] == named


CONFIGURED = [*WORKFLOWS, ROOT / ".pre-commit-config.yaml", ROOT / "pyproject.toml"]


@pytest.mark.parametrize("path", CONFIGURED, ids=lambda path: path.name)
def test_no_registry_is_named(path: Path) -> None:
    assert not REGISTRIES.search(path.read_text("utf-8"))


def test_hooks_run_installed_programs() -> None:
    for repository in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]:
        assert repository["repo"] == "local"
        for hook in repository["hooks"]:
            assert (ROOT / hook["entry"].split()[0]).is_file(), hook["id"]


@pytest.mark.parametrize("gate", gates.NAMED)
def test_gates_name_tests_that_exist(gate: str) -> None:
    """One file that is missing would keep all gates from running."""
    for name in gates.NAMED[gate]:
        file, _, test = name.partition("::")
        assert f"def {test.rpartition('::')[2]}(" in (ROOT / "tests" / file).read_text("utf-8")
