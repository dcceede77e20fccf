"""Finds where a job has stored what it stored: in its own folder, or where its fleet's workers write to."""

from __future__ import annotations

from gossamer import folders
from gossamer import settings as configuration
from gossamer.errors import FrontierError
from gossamer.fleet import is_fleet, open_fleet, results_folder
from gossamer.sink.segments import has_segments
from gossamer.storage.reader import StoredJob


async def place_of(name: str, frontier: str = "") -> StoredJob:
    """The folder in which what a job stored is: its own, or the one that its fleet's workers write to; and its
    settings, as they are there or as the fleet has them."""
    folder = folders.folder_of(name, ())
    is_here = has_segments(folder) and not frontier.startswith("folder:/")
    here = StoredJob.of(folder)
    if not is_fleet(frontier) or "/" in name or (is_here and here.settings):
        return here
    try:
        fleet = await open_fleet(frontier, name)
    except FrontierError:
        if is_here:
            return here
        raise
    try:
        home = folder if is_here else results_folder(frontier, name, fleet.settings, folder)
        return StoredJob.with_settings(home, configuration.dump(fleet.settings), name)
    finally:
        await fleet.aclose()
