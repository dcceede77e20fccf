"""docs/explanation/trillion.md shows the output of the command."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import ModuleType

from click.testing import CliRunner

from gossamer.cli import named

ROOT = Path(__file__).parents[2]


def script() -> ModuleType:
    path = ROOT / "scripts" / "trillion"
    module = ModuleType("trillion")
    module.__file__ = str(path)
    exec(compile(path.read_text("utf-8"), path, "exec"), vars(module))
    return module


def test_the_page_shows_what_the_command_prints() -> None:
    made = script()
    assert made.PAGE.read_text("utf-8") == made.page(), "run scripts/trillion"
    (shown,) = made.BLOCK.findall(made.page())
    command, _, text = shown.partition("\n")
    words = shlex.split(command)
    assert words[:3] == ["$", "gossamer", "plan"]
    done = CliRunner().invoke(named("plan"), words[3:])
    assert done.output == text
    for figure in ("1.65 M pages/s", "10 PB a pass", "bottleneck  politeness"):
        assert figure in text
