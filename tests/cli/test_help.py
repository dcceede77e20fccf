"""The help and the man pages: complete, readable on a narrow terminal, and correct."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import click
import pytest

from gossamer.cli import LINES, PLACES, gossamer, named
from gossamer.cli.options import SECTIONS
from gossamer.settings import FIELDS

ROOT = Path(__file__).parents[2]


def shown(command: click.Command, name: str) -> str:
    context = click.Context(command, info_name=name, terminal_width=80, max_content_width=80)
    return command.get_help(context)


@pytest.mark.parametrize("name", ["", *PLACES])
def test_help_fits_a_terminal_and_is_complete(name: str) -> None:
    command = named(name) if name else gossamer
    text = shown(command, f"gossamer {name}".strip())
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert [line for line in text.splitlines() if re.search(r"\w\.\.\.$", line) and "Usage" not in line] == []
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            assert option.opts[0] in text


def test_help_lists_every_command_and_settings_group() -> None:
    text = shown(gossamer, "gossamer")
    assert [line for line in LINES.values() if line not in text] == []
    crawl = shown(named("crawl"), "gossamer crawl")
    places = [crawl.index(f"\n{heading}:\n") for heading in SECTIONS.values()]
    assert places == sorted(places)
    assert set(SECTIONS) <= set(FIELDS)


def test_examples_in_the_help_are_valid_commands() -> None:
    found = 0
    for owner in (gossamer, *map(named, PLACES)):
        for name, rest in re.findall(r"^ *gossamer ([a-z]+)(.*)$", owner.help or "", re.MULTILINE):
            flags = {flag for option in named(name).params for flag in option.opts}
            assert set(re.findall(r"(?<= )--[a-z-]+", rest)) <= flags
            found += 1
    assert found > 25


def test_the_manual_is_up_to_date() -> None:
    path = ROOT / "scripts" / "manual"
    module = ModuleType("manual")
    module.__file__ = str(path)
    exec(compile(path.read_text("utf-8"), path, "exec"), vars(module))
    assert (ROOT / "man" / "gossamer.1").read_text("utf-8") == module.page(), "run `make reference`"
