"""Collects and checks the settings of a command, and runs its event loop."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from gossamer import job_folder
from gossamer import settings as configuration
from gossamer.cli.console import say
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
    """Merge settings; later sources win: defaults, file, environment, the job's own settings, command line."""
    values = {**configuration.from_file(Path.cwd()), **configuration.from_environment()}
    if folder is not None:
        values.update(job_folder.stored_settings(folder))
    if options.get("spider") and options.get("extract"):
        raise ConfigError("--spider and --extract cannot be combined", hint="omit one of them")
    for chosen, other in (("spider", "extract"), ("extract", "spider")):
        if options.get(chosen):
            # An explicit --extract overrides the spider of a settings file, and the other way around.
            values.pop(other, None)
    if options.get("extract"):
        values.pop("spider_args", None)
    values.update(options)
    try:
        settings = configuration.build(values)
        if settings.spider:
            settings = configuration.build({**spider_settings(settings), **values})
    except ConfigError as error:
        error.hint = error.hint or "`gossamer crawl --help` lists all settings and their values"
        raise
    if settings.spider_args and not settings.spider:
        raise ConfigError("spider arguments (-a) without a spider", hint="name the spider: --spider FILE.py")
    _check(settings)
    return _with_whole_paths(settings)


def _with_whole_paths(settings: Settings) -> Settings:
    """Make paths absolute, so that the job can be resumed or joined from another directory."""
    spider = _whole(settings.spider)
    types = tuple(map(_whole, settings.item_types))
    ca_file = str(Path(settings.ca_file).absolute()) if settings.ca_file else ""
    cache = str(Path(settings.cache).absolute()) if settings.cache else ""
    return msgspec.structs.replace(settings, spider=spider, item_types=types, ca_file=ca_file, cache=cache)


def _whole(reference: str) -> str:
    """A reference to a class, with an absolute path."""
    file, colon, name = reference.partition(".py:")
    if reference.endswith(".py"):
        return str(Path(reference).absolute())
    return f"{Path(file).absolute()}{colon}{name}" if colon else reference


_SEEDS_SUFFIXES = (".txt", ".csv", ".list", ".lst", ".tsv", ".urls")
"""Suffixes of seeds files. None of them is a top-level domain."""


def read_seeds(texts: Sequence[str], file: IO[str] | None) -> list[str]:
    """The normalized seeds of a command: its arguments, where a path names a seeds file, and those of --seeds."""
    seeds: list[str] = []
    for text in texts:
        if _is_file_name(text):
            with _named_file(text) as named:
                seeds += read_seeds_file(named)
        else:
            seeds += job_folder.read_seeds([text])
    return seeds + (read_seeds_file(file) if file else [])


def read_seeds_file(file: IO[str]) -> list[str]:
    """The normalized URLs in a UTF-8 seeds file: one per line, without blank lines and comments."""
    name = getattr(file, "name", "seeds")
    try:
        return job_folder.read_seeds_text(file.read(), "standard input" if name == "<stdin>" else name)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: not UTF-8: {error.reason}", hint="save the file as UTF-8") from None


def _is_file_name(text: str) -> bool:
    return "://" not in text and (
        job_folder.is_path(text) or text.lower().endswith((".py", *_SEEDS_SUFFIXES)) or os.path.isfile(text)
    )


def _named_file(text: str) -> IO[str]:
    path = Path(os.path.expanduser(text))
    quoted = shlex.quote(text)
    if not path.exists():
        hint = "check the path" if job_folder.is_path(text) else f"for a host of this name, write https://{text}/"
        raise ConfigError(f"{text}: no such file", hint=f"{hint}; a seeds file has one URL per line")
    if not path.is_file():
        raise ConfigError(f"{text} is a folder, not a URL", hint=f"to resume the job in it: --job {quoted}")
    if text.endswith(".py"):
        raise ConfigError(f"{text} is a Python file, not a URL", hint=f"to run its spider: --spider {quoted}")
    say(f"note: {text} is a file; reading its URLs, as with --seeds {quoted}")
    return path.open(encoding="utf-8-sig")


def check_seeds(seeds: Sequence[str], spider: str = "") -> None:
    """Raise ConfigError without seeds."""
    if not seeds:
        hint = seed_hint(spider) or "give a URL, --seeds FILE, or --job NAME to resume a job"
        raise ConfigError("no URL to crawl", hint=hint)


def seed_hint(spider: str) -> str:
    """What to change if a spider has no start URLs; empty without a spider."""
    return f'give a URL, or add to the class in {spider}: start = ["https://example.com/"]' if spider else ""


def check_out(path: Path, option: str = "--out") -> None:
    """Raise ConfigError if no file can be written at this path, before any work is done."""
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a folder", hint="name a file in it")
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: folder {path.parent} does not exist", hint=f"mkdir -p {path.parent}")


def _check(settings: Settings) -> None:
    """Validate regular expressions, selectors, regions, and sinks before the settings are stored."""
    Scope(settings)
    check_regions(settings.regions)
    check_sinks(settings.sink)
    FieldSpider(settings.extract)
    Schemas([load_type(reference) for reference in settings.item_types])
    try:
        check(settings.links or "a")
    except ExtractError as error:
        raise ConfigError(f"links: {error}", hint="for example: --links 'main' or --links 'div.content'") from None


def refuse_windows() -> None:
    """Raise ConfigError on Windows, before a missing system call fails."""
    if sys.platform == "win32":
        raise ConfigError("Windows is not supported: crawls need POSIX locks, signals, and sockets", hint="use WSL")


def runner() -> asyncio.Runner:
    """A runner with uvloop if it is installed."""
    _allow_many_files()
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def run(main: Coroutine[Any, Any, Value]) -> Value:
    """Run a coroutine to its end."""
    with runner() as loop:
        return loop.run(main)


def _allow_many_files() -> None:
    """Raise the limit of open files as far as allowed: each connection needs one, and the usual 1,024 is low."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
