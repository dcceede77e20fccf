"""The folder of a job: where it is, what its files are called, and the settings kept in job.toml.

The standard library reads TOML but does not write it. Ten lines here write flat settings, so that the core needs no
package for that."""

from __future__ import annotations

import json
import logging
import re
import tomllib
from collections.abc import Mapping, Sequence
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
"""Names the frontier of a job whose queue is in the store of another package, and not in the folder."""
OWNER = "owner"
"""The name of the worker in the process that owns a job."""


def folder_of(name: str, seeds: Sequence[str]) -> Path:
    """Where a job lives: a path as it is, a plain name under `crawls/`, and without either the first seed's host."""
    if name:
        path = Path(name)
        return path if "/" in name or path.is_dir() else Path("crawls") / name
    if not seeds:
        raise ConfigError("which job?", hint="name it; gossamer status lists those that there are")
    return Path("crawls") / re.sub(r"[^A-Za-z0-9._-]+", "_", urls.host_port(seeds[0]))


def read_seeds(given: Sequence[str]) -> list[str]:
    """Seeds as normal URLs; https:// is taken for granted, and anything else wrong is a ConfigError."""
    seeds = []
    for text in given:
        text = text.strip()
        if not text:
            continue
        url = urls.normal(text if "://" in text else f"https://{text}")
        if url is None:
            raise ConfigError(
                f"{masked_address(text)!r} is not a URL that can be crawled",
                hint="a seed looks like https://example.com/ (http or https, without user name or password)",
            )
        seeds.append(url)
    return seeds


def stored_settings(folder: Path) -> dict[str, Any]:
    """What job.toml in the folder says; nothing if the job is new."""
    path = folder / SETTINGS
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}", hint="mend the file, or start a new job with --job NAME") from None


def is_begun(folder: Path) -> bool:
    """Whether a job of this machine lives in the folder: its frontier is there, or the address of it."""
    return (folder / FRONTIER).exists() or (folder / ADDRESS).exists()


def job_folders(place: Path) -> list[Path]:
    """The folders of jobs in a folder."""
    return sorted({path.parent for name in (FRONTIER, ADDRESS) for path in place.glob(f"*/{name}")})


def stored_address(folder: Path) -> str:
    """The address of the job's frontier, where that is not in the folder; else empty."""
    if (folder / FRONTIER).exists():
        return ""
    try:
        return (folder / ADDRESS).read_text("utf-8").strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{folder / ADDRESS}: {error}", hint="write the frontier's address into it") from None


def save_address(folder: Path, url: str) -> None:
    """Write down where the job's frontier is, whole or not at all. The file's time is that of the last run."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{ADDRESS}.new"
    temporary.unlink(missing_ok=True)
    # An address may have a password, which is for nobody else on this machine.
    temporary.touch(0o600)
    temporary.write_text(f"{url}\n", "utf-8")
    temporary.replace(folder / ADDRESS)


def save_settings(folder: Path, settings: Settings) -> None:
    """Write job.toml, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["# Settings of this crawl. What is changed here counts from the next run on.\n"]
    # All of them: a default that was asked for must not give way to a settings file when the job is gone on with.
    values = {name: value for name, value in msgspec.to_builtins(settings).items() if value is not None}
    # A time limit is for one run; the next one has its own.
    values.pop("max_seconds", None)
    lines += [f"{name} = {_toml(value)}\n" for name, value in values.items()]
    temporary = folder / f"{SETTINGS}.new"
    temporary.unlink(missing_ok=True)
    # Passwords in it are for nobody else on this machine.
    temporary.touch(0o600 if _has_secrets(settings) else 0o666)
    temporary.write_text("".join(lines), "utf-8")
    temporary.replace(folder / SETTINGS)


def _has_secrets(settings: Settings) -> bool:
    """Whether the settings are for nobody else to read; who writes a password into them is told."""
    sets = header_sets(settings)
    if named := sorted({name for some in sets for name, value in some.items() if has_credentials(((name, value),))}):
        log.warning("%s: written out, it is kept with the job's settings; ${NAME} is not", ", ".join(named))
    return has_secrets(settings)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, float):
        return repr(value)
    # JSON's strings, whole numbers and booleans are TOML's, but for the control character that JSON leaves as it is.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
