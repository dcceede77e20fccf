"""Where the sinks of a job put what they stored, as its settings have it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gossamer.masks import masked_address
from gossamer.sink.sqlite import FILE

_SQLITE = "sqlite:/"


def sinks_of(folder: Path) -> Sequence[str]:
    """The sinks that a job was started with; none if the folder is no job's."""
    # A process of a replay reads parts only, and need not load what a job is.
    from gossamer.job import stored_settings

    named = stored_settings(folder).get("sink", ())
    return [name for name in named if isinstance(name, str)] if isinstance(named, list | tuple) else ()


def elsewhere(sinks: Sequence[str]) -> list[str]:
    """Those that write to a place outside of the job's folder, as they may be shown."""
    return [masked_address(name) for name in sinks if ":/" in name]


def sqlite_file(folder: Path) -> Path | None:
    """The file of the sink `sqlite`, in the folder or where `sqlite:/path` says; None if there is none."""
    named = [Path(name.removeprefix("sqlite:")) for name in sinks_of(folder) if name.startswith(_SQLITE)]
    return next((path for path in (folder / FILE, *named) if path.exists()), None)
