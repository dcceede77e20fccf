"""How commands start: their settings gathered from everywhere, and the loop that they run on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from gossamer import job as jobs
from gossamer import settings as configuration
from gossamer.errors import ConfigError, ExtractError
from gossamer.extract.scope import Scope
from gossamer.extract.selectors import check
from gossamer.extract.spider import FieldSpider
from gossamer.settings import Settings

Value = TypeVar("Value")


def read_settings(folder: Path | None, options: Mapping[str, Any]) -> Settings:
    """Defaults, then file, then environment, then what the job had, then the command line."""
    values = {**configuration.from_file(Path.cwd()), **configuration.from_environment()}
    if folder is not None:
        values.update(jobs.stored_settings(folder))
    values.update(options)
    settings = configuration.build(values)
    if settings.spider:
        settings = configuration.build({**jobs.spider_settings(settings), **values})
    _check(settings)
    return settings


def _check(settings: Settings) -> None:
    """Find what is wrong before anything of it is kept: expressions and selectors."""
    Scope(settings)
    FieldSpider(settings.extract)
    try:
        check(settings.links or "a")
    except ExtractError as error:
        raise ConfigError(f"links: {error}", hint="as in --links 'main' or 'div.content'") from None


def runner() -> asyncio.Runner:
    """A loop to run on: uvloop's where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def run(main: Coroutine[Any, Any, Value]) -> Value:
    """Run to the end."""
    with runner() as loop:
        return loop.run(main)
