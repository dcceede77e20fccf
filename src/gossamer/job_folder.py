"""A job's folder: its path, its file names, and the settings stored in job.toml.

The standard library reads TOML but does not write it. Settings are flat, so ten lines here write them without another
dependency."""

from __future__ import annotations

import json
import logging
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gossamer import urls
from gossamer.errors import ConfigError
from gossamer.redact import has_credentials, has_secrets, header_sets, masked_address
from gossamer.settings import Settings

log = logging.getLogger("gossamer.job")
FRONTIER, SETTINGS = "frontier.db", "job.toml"
ADDRESS = "frontier.url"
"""File with the address of a frontier that is not in the folder, but in the backend of another package."""
OWNER = "owner"
"""The name of the worker in the process that owns a job."""


def folder_of(name: str, seeds: Sequence[str]) -> Path:
    """The folder of a job: a path as it is, a plain name under `crawls/`; by default the host of the first seed."""
    if name:
        path = Path(name)
        return path if "/" in name or path.is_dir() else Path("crawls") / name
    if not seeds:
        raise ConfigError("no job given", hint="name a job; `gossamer status` lists them")
    return Path("crawls") / re.sub(r"[^A-Za-z0-9._-]+", "_", urls.host_port(seeds[0]))


_SEED_HINT = "a seed looks like https://example.com/ (http or https, without user name or password)"
_PATH_HINT = "give a URL; the command crawl reads a seeds file with --seeds FILE"
_PATH = re.compile(r"\.{1,2}(?:/|$)|~|/(?!/)")
_MISTYPED_SCHEME = re.compile(r"(https?)(?::/(?!/)|;?//|[:;]?\\+|:(?![/\\]|\d+(?:/|$)))(.+)", re.IGNORECASE | re.DOTALL)


def is_path(text: str) -> bool:
    """Whether the text begins like a path (./x, ../x, ~/x, /x), which no seed URL does."""
    return _PATH.match(text) is not None


def read_seeds(given: Sequence[str]) -> list[str]:
    """Normalize seed URLs; a missing scheme becomes https://, and an invalid URL raises ConfigError."""
    seeds = []
    for text in given:
        text = _decoded(text.strip())
        if not text:
            continue
        url = None if is_path(text) else urls.normal(text if "://" in text else f"https://{text}")
        mistyped = _MISTYPED_SCHEME.match(text)
        if url is None or mistyped:
            meant = urls.normal(f"{mistyped[1].lower()}://{mistyped[2]}") if mistyped else None
            raise ConfigError(
                f"{masked_address(text)!r} is {'a path' if is_path(text) else 'not a valid seed URL'}",
                hint=f"did you mean {meant}" if meant else _PATH_HINT if is_path(text) else _SEED_HINT,
            )
        seeds.append(url)
    return seeds


def _decoded(text: str) -> str:
    """The text of an argument as UTF-8: in another locale, Python passes its bytes as surrogates."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError:
        return text


def seed_lines(text: str) -> list[str]:
    """The seeds in the text of a seeds file: one per line, without blank lines and comments.

    A comment begins with `#` at the start of a line or after whitespace; elsewhere `#` begins a URL's fragment."""
    return [line for _, line in _numbered_lines(text)]


def read_seeds_text(text: str, name: str) -> list[str]:
    """Normalize the seeds in the text of the seeds file `name`; ConfigError names the line of an invalid one."""
    seeds = []
    for number, line in _numbered_lines(text):
        try:
            seeds += read_seeds([line])
        except ConfigError as error:
            raise ConfigError(f"{name}, line {number}: {error}", hint=error.hint) from None
    return seeds


def _numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        seed = re.split(r"(?:^|\s)#", line, maxsplit=1)[0].strip()
        if seed:
            yield number, seed


def collect_seeds(given: Iterable[str | Path | Iterable[str]]) -> list[str]:
    """Flatten and normalize seeds: URLs, paths of seeds files, and iterables of URLs, such as a DataFrame column."""
    return read_seeds([text for each in given for text in _seed_texts(each)])


def _seed_texts(given: str | Path | Iterable[str]) -> Iterable[str]:
    if isinstance(given, str):
        return (given,)
    if isinstance(given, Path):
        try:
            return read_seeds_text(given.read_text("utf-8-sig"), str(given))
        except UnicodeDecodeError as error:
            raise ConfigError(f"seeds file {given}: not UTF-8: {error.reason}", hint="save the file as UTF-8") from None
        except OSError as error:
            raise ConfigError(
                f"seeds file {given}: {error.strerror or error}", hint="pass a URL as a string, a seeds file as a Path"
            ) from None
    if hasattr(given, "columns") and hasattr(given, "iloc"):
        raise ConfigError("a DataFrame is not a list of seeds", hint="pass one of its columns: crawl(frame['url'])")
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise ConfigError(f"{given!r:.80} is not a seed", hint=_SEED_KINDS)
    texts = list(given)
    for text in texts:
        if not isinstance(text, str):
            raise ConfigError(f"{text!r:.80} is not a seed URL: it is not a string", hint=_SEED_KINDS)
    return texts


_SEED_KINDS = "pass a URL, a Path of a seeds file, or strings; frame['url'].dropna() drops missing values of a column"


def stored_settings(folder: Path) -> dict[str, Any]:
    """The settings in the folder's job.toml; empty if the job is new."""
    path = folder / SETTINGS
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}", hint="fix the TOML syntax, or start a new job with --job NAME") from None


def is_begun(folder: Path) -> bool:
    """Whether the folder contains a job: its frontier, or the address of its frontier."""
    return (folder / FRONTIER).exists() or (folder / ADDRESS).exists()


def job_folders(place: Path) -> list[Path]:
    """The job folders in a folder."""
    return sorted({path.parent for name in (FRONTIER, ADDRESS) for path in place.glob(f"*/{name}")})


def stored_address(folder: Path) -> str:
    """The address of the job's frontier; empty if the frontier is in the folder."""
    if (folder / FRONTIER).exists():
        return ""
    try:
        return (folder / ADDRESS).read_text("utf-8").strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{folder / ADDRESS}: {error}", hint="write the frontier's address into this file") from None


def save_address(folder: Path, url: str) -> None:
    """Store the address of the job's frontier, atomically. The file's modification time is that of the last run."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{ADDRESS}.new"
    temporary.unlink(missing_ok=True)
    # An address may contain a password: no other user of this machine may read it.
    temporary.touch(0o600)
    temporary.write_text(f"{url}\n", "utf-8")
    temporary.replace(folder / ADDRESS)


def save_settings(folder: Path, settings: Settings) -> None:
    """Write job.toml atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["# Settings of this crawl. Changes take effect with the next run.\n"]
    # All settings: an explicit default must not be overridden by a settings file when the job is resumed.
    values = {name: value for name, value in msgspec.to_builtins(settings).items() if value is not None}
    # A time limit applies to one run.
    values.pop("max_seconds", None)
    lines += [f"{name} = {_toml(value)}\n" for name, value in values.items()]
    temporary = folder / f"{SETTINGS}.new"
    temporary.unlink(missing_ok=True)
    # It may contain passwords, which no other user of this machine may read.
    temporary.touch(0o600 if _has_secrets(settings) else 0o666)
    temporary.write_text("".join(lines), "utf-8")
    temporary.replace(folder / SETTINGS)


def _has_secrets(settings: Settings) -> bool:
    """Whether the settings contain secrets; logs a warning for credentials that are written out."""
    sets = header_sets(settings)
    if named := sorted({name for some in sets for name, value in some.items() if has_credentials(((name, value),))}):
        log.warning("%s: stored in plain text with the job's settings; use ${NAME} instead", ", ".join(named))
    return has_secrets(settings)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, float):
        return repr(value)
    # Strings, integers, and booleans have the same form in JSON and TOML, except for the control character DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
