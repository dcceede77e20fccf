"""Measured figures: what `gossamer bench` finds on a machine, and those that come with this version."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import msgspec

from gossamer.errors import ConfigError

SMALL_BYTES, LARGE_BYTES = 10_000, 40_000
"""The pages that crawls are measured with."""


class StoreCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a frontier costs: CPU of one page with its links, and bytes of a URL."""

    client_cpu_seconds: float
    server_cpu_seconds: float
    queued_bytes: float
    done_bytes: float
    again_bytes: float
    """Of one that is done and waits for its next visit."""
    in_memory: bool
    """Whether these bytes are of memory, or of a disk."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """CPU is user and system time of our processes, in seconds of one core."""

    measured_on: str
    machine: str
    version: str
    small_page_cpu_seconds: float
    """The whole crawl of one page of 10 kB, with the embedded frontier, without TLS and without an archive."""
    large_page_cpu_seconds: float
    """The same with 40 kB."""
    host_cpu_seconds: float
    """What the first page of a host takes more: its name, its connection, its robots.txt."""
    tls_cpu_seconds: float
    """What a new connection takes more with TLS."""
    warc_cpu_seconds: float
    """Writing 40 kB into an archive."""
    warc_ratio: float
    """Bytes of the archive for a byte of a page."""
    frontiers: dict[str, StoreCost]

    def page_cpu_seconds(self, page_bytes: float) -> float:
        """CPU of a page of this size, on the line through the two that were measured."""
        slope = max(0.0, self.large_page_cpu_seconds - self.small_page_cpu_seconds) / (LARGE_BYTES - SMALL_BYTES)
        return max(self.small_page_cpu_seconds + slope * (page_bytes - SMALL_BYTES), 0.2 * self.small_page_cpu_seconds)

    def archive_cpu_seconds(self, page_bytes: float) -> float:
        """CPU of keeping a page of this size."""
        return self.warc_cpu_seconds * page_bytes / LARGE_BYTES


def reference() -> Figures:
    """The figures that come with this version; their own words say when and where they were measured."""
    return msgspec.json.decode(resources.files("gossamer.plan").joinpath("reference.json").read_bytes(), type=Figures)


def read_figures(path: Path) -> Figures:
    """What `gossamer bench` has written."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Figures)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="gossamer bench --quick --out FILE writes it") from None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}: {error}", hint="measure again: gossamer bench --quick --out FILE") from None


def write_figures(path: Path, figures: Figures) -> None:
    """Write them, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
    temporary.replace(path)
