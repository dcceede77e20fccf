"""Runs a command: gathers its settings and starts the event loop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from gossamer import job_folder
from gossamer import settings as configuration
from gossamer.engine.scope import Scope
from gossamer.errors import ConfigError, ExtractError
from gossamer.extract.items import Schemas
from gossamer.extract.selectors import check
from gossamer.extract.spider import FieldSpider, load_type, spider_settings
from gossamer.frontier.placement import check_regions
from gossamer.settings import Settings
from gossamer.storage.registry import check_sinks

Value = TypeVar("Value")


def read_settings(folder: Path | None, options: Mapping[str, Any]) -> Settings:
    """Defaults, then file, then environment, then what the job had, then the command line."""
    values = {**configuration.from_file(Path.cwd()), **configuration.from_environment()}
    if folder is not None:
        values.update(job_folder.stored_settings(folder))
    if options.get("spider") and options.get("extract"):
        raise ConfigError("--spider and --extract: only one of them takes pages apart", hint="leave one of them away")
    for chosen, other in (("spider", "extract"), ("extract", "spider")):
        if options.get(chosen):
            # The spider of a settings file must not stand in the way of the fields that were asked for now.
            values.pop(other, None)
    values.update(options)
    try:
        settings = configuration.build(values)
        if settings.spider:
            settings = configuration.build({**spider_settings(settings), **values})
    except ConfigError as error:
        error.hint = error.hint or "`gossamer crawl --help` lists all settings with their values"
        raise
    _check(settings)
    return _with_whole_paths(settings)


def _with_whole_paths(settings: Settings) -> Settings:
    """Paths that hold wherever the job is gone on with, or joined from."""
    spider = _whole(settings.spider)
    types = tuple(map(_whole, settings.item_types))
    ca_file = str(Path(settings.ca_file).absolute()) if settings.ca_file else ""
    cache = str(Path(settings.cache).absolute()) if settings.cache else ""
    return msgspec.structs.replace(settings, spider=spider, item_types=types, ca_file=ca_file, cache=cache)


def _whole(reference: str) -> str:
    """A reference to a class, the path in it made absolute."""
    file, colon, name = reference.partition(".py:")
    if reference.endswith(".py"):
        return str(Path(reference).absolute())
    return f"{Path(file).absolute()}{colon}{name}" if colon else reference


def read_lines(file: IO[str]) -> list[str]:
    """The lines of a text file that the user named."""
    try:
        return file.read().splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file.name}: not UTF-8: {error.reason}", hint="write non-ASCII URLs in UTF-8") from None


def check_seeds(seeds: Sequence[str]) -> None:
    """Refuse to begin with nothing."""
    if not seeds:
        raise ConfigError("nothing to crawl", hint="give a URL, --seeds FILE, or --job NAME to go on with a job")


def check_out(path: Path, option: str = "--out") -> None:
    """Refuse a place where no file can be written, before any work is done for it."""
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a folder", hint="name a file in it")
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {path.parent}", hint="make it first, or name another")


def _check(settings: Settings) -> None:
    """Find what is wrong before anything of it is kept: expressions and selectors."""
    Scope(settings)
    check_regions(settings.regions)
    check_sinks(settings.sink)
    FieldSpider(settings.extract)
    Schemas([load_type(reference) for reference in settings.item_types])
    try:
        check(settings.links or "a")
    except ExtractError as error:
        raise ConfigError(f"links: {error}", hint="as in --links 'main' or 'div.content'") from None


def refuse_windows() -> None:
    """Say what is wrong before the first call fails that Windows does not have."""
    if sys.platform == "win32":
        raise ConfigError("crawls need the locks, signals and local sockets of POSIX", hint="on Windows run it in WSL")


def runner() -> asyncio.Runner:
    """A loop to run on: uvloop's where there is one."""
    _allow_many_files()
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def run(main: Coroutine[Any, Any, Value]) -> Value:
    """Run to the end."""
    with runner() as loop:
        return loop.run(main)


def _allow_many_files() -> None:
    """Lift the limit of open files as far as the system lets us: each connection is one, and the usual 1,024 is low."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
