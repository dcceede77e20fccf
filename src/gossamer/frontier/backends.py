"""The registry of frontier backends: the only module that compares the schemes of addresses.

An address names its backend by its scheme, as in `redis://host:6379/0`. Installed packages register theirs in the entry
point group `gossamer.frontiers`: the name of the entry point is the scheme, its value a `FleetBackend` or an
`OwnedBackend`. Commands find the backend here and never compare schemes themselves, so a backend of another package
works everywhere. A backend's module is imported when one of its addresses is used: a local crawl loads no database
driver."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TypeVar, cast

from gossamer.clock import Clock
from gossamer.errors import ConfigError
from gossamer.frontier.base import Backend, FleetBackend, FleetFrontier, Opener, OwnedBackend
from gossamer.frontier.placement import check_region, parse_part
from gossamer.model import Finding
from gossamer.redact import masked_address
from gossamer.settings import Settings

Ability = TypeVar("Ability")
GROUP = "gossamer.frontiers"
_HERE = ("", "sqlite")
_REDIS, _EMBEDDED = "gossamer.frontier.redis:REDIS", "gossamer.frontier.embedded:EMBEDDED"
_POSTGRESQL, _MYSQL = "gossamer.frontier.sql:POSTGRESQL", "gossamer.frontier.sql:MYSQL"
_OURS = {
    "sqlite:": _EMBEDDED,
    "memory:": _EMBEDDED,
    "redis://": _REDIS,
    "rediss://": _REDIS,
    "redis+sentinel://": _REDIS,
    "rediss+sentinel://": _REDIS,
    "unix://": _REDIS,
    "postgresql://": _POSTGRESQL,
    "postgres://": _POSTGRESQL,
    "mysql://": _MYSQL,
    "mariadb://": _MYSQL,
    "folder:/": "gossamer.frontier.folder:FOLDER",
}
"""Maps the start of an address to the module and name of its backend."""


def backend_of(url: str) -> Backend:
    """Return the backend of an address; ConfigError with all forms if there is none.

    Empty means the embedded backend."""
    found = find_backend(url or "sqlite:")
    if found is None:
        raise _unknown(url)
    return found


def find_backend(url: str) -> Backend | None:
    """Return the backend of an address; None if no backend has its scheme."""
    if url == "sqlite":
        url = "sqlite:"
    code = next((code for start, code in _OURS.items() if url.startswith(start)), "")
    if code:
        return _load(code)
    scheme, colon, _ = url.partition(":")
    for point in entry_points(group=GROUP, name=scheme) if colon else ():
        return _load_point(point)
    return None


def is_address(text: str) -> bool:
    """Return whether a text is meant as a frontier's address, and not as a job's name or folder."""
    scheme, colon, _ = text.partition(":")
    known = {start.partition(":")[0] for start in _OURS}
    return "://" in text or (bool(colon) and (scheme in known or find_backend(text) is not None))


def is_fleet(url: str) -> bool:
    """Return whether workers on many machines share the frontier at an address given to a command.

    ConfigError for `sqlite:/...`: commands name an embedded job by its folder."""
    if url.startswith("sqlite:/"):
        raise ConfigError(f"{url}: not a frontier address for commands", hint=f"name the job's folder: --job {url[7:]}")
    return backend_of(url).is_shared


def is_in_memory(url: str) -> bool:
    """Return whether a job at this address ends with its process."""
    return url.startswith("memory:")


def fleet_backend(url: str) -> FleetBackend:
    """Return the backend of an address that workers share; ConfigError if its jobs have one owner."""
    found = backend_of(url)
    if not found.is_shared:
        raise ConfigError(
            f"{masked_address(url) or 'no address'}: a fleet's frontier is a server, or a folder:/path",
            hint="as in --frontier redis://host:6379/0",
        )
    return cast(FleetBackend, found)


def owned_backend(url: str) -> OwnedBackend:
    """Return the backend of an address whose jobs have one owner; ConfigError if workers share it."""
    found = backend_of(url)
    if found.is_shared:
        raise ConfigError(f"{masked_address(url)} is shared by workers and has no owner process")
    return cast(OwnedBackend, found)


def owned_url(url: str, folder: Path) -> str:
    """Return the address of an owned job's frontier: by default, the file in the job's folder."""
    return f"sqlite:{folder}" if url in _HERE else url


def is_foreign(url: str) -> bool:
    """Return whether an owned backend at this address stores jobs elsewhere than in their folders or in memory."""
    return url not in _HERE and not url.startswith(("sqlite:", "memory:")) and not backend_of(url).is_shared


async def open_fleet(url: str, job: str, *, worker: str = "", region: str = "", shards: str = "") -> FleetFrontier:
    """Join a job that workers share at this address; JobMissing if it does not exist.

    `region` and `shards` are the worker's own."""
    return await fleet_backend(url).open(url, job, _opener(worker, region, shards))


async def create_fleet(
    url: str, job: str, settings: Settings, *, worker: str = "", region: str = "", shards: str = ""
) -> FleetFrontier:
    """Join a job, created with these settings if it does not exist; an existing job gets these settings.

    The number of `shards` is fixed when a job is created."""
    return await fleet_backend(url).create(url, job, settings, _opener(worker, region, shards))


async def list_jobs(url: str) -> list[str]:
    """Return the names of at most a thousand jobs at this address, sorted."""
    return await backend_of(url).list_jobs(url)


async def remove_job(url: str, job: str) -> bool:
    """Delete a job that no worker uses any more; return whether it existed. Results are not deleted.

    This cannot be undone."""
    return await backend_of(url).remove(url, job)


def check(url: str, *, clock: Clock, forget_seconds: float = Settings().forget_seconds) -> AsyncIterator[Finding]:
    """Check the stores at this address before a job uses them; yield good, weak, and bad findings."""
    return backend_of(url).check(url, clock=clock, forget_seconds=forget_seconds)


def ability(url: str, kind: type[Ability], verb: str) -> Ability:
    """Return a backend that implements an optional protocol; ConfigError that names the backends that do."""
    found = backend_of(url)
    if isinstance(found, kind):
        return found
    able = [backend for backend in _all() if isinstance(backend, kind)]
    names = " or ".join(dict.fromkeys(backend.name for backend in able))
    raise ConfigError(
        f"only jobs in {names} can be {verb}", hint=f"as in --frontier {able[0].forms[0]}" if able else ""
    )


def _opener(worker: str, region: str, shards: str) -> Opener:
    if region:
        check_region(region)
    return Opener(worker, region, str(parse_part(shards)) if shards else "")


def _load(code: str) -> Backend:
    module, _, name = code.partition(":")
    return cast(Backend, getattr(import_module(module), name))


def _load_point(point: EntryPoint) -> Backend:
    try:
        return cast(Backend, point.load())
    except (ImportError, AttributeError) as error:
        package = point.dist.name if point.dist is not None else point.value
        raise ConfigError(
            f"the frontier {point.name}: cannot be loaded: {error}", hint=f"install {package} again, with what it needs"
        ) from error


def _all() -> Iterator[Backend]:
    yield from map(_load, dict.fromkeys(_OURS.values()))
    yield from map(_load_point, entry_points(group=GROUP))


def _unknown(url: str) -> ConfigError:
    offered = [f"{point.name}:" for point in entry_points(group=GROUP)]
    starts = {start.partition(":")[0]: start for start in (*offered, *_OURS)}
    close = get_close_matches(url.partition(":")[0].lower(), starts, n=1)
    meant = f"did you mean {starts[close[0]]}? " if close else ""
    forms = ["sqlite", *dict.fromkeys(form for code in dict.fromkeys(_OURS.values()) for form in _load(code).forms)]
    return ConfigError(
        f"{masked_address(url)}: unknown frontier", hint=f"{meant}there are {', '.join([*forms, *offered])}"
    )
