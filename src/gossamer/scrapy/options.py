"""Reads the GOSSAMER_* settings of a Scrapy project, and opens its frontier."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scrapy.settings import BaseSettings

from gossamer import settings as configuration
from gossamer.clock import SystemClock
from gossamer.errors import ConfigError, Held, JobMissing
from gossamer.frontier.backends import backend_of, create_fleet, open_fleet, owned_backend
from gossamer.frontier.base import FleetFrontier, OwnedFrontier
from gossamer.redact import masked_address
from gossamer.settings import Settings

Opened = FleetFrontier | OwnedFrontier


@dataclass(frozen=True, slots=True)
class ScrapyOptions:
    """Frontier address, job name, worker name, and settings for a new job."""

    url: str
    job: str
    worker: str
    named: bool
    """Whether GOSSAMER_WORKER sets the name; then leases of an earlier worker with this name can be taken over."""
    settings: Settings
    concurrency: int

    @property
    def shown(self) -> str:
        """The frontier's address with its password masked."""
        return masked_address(self.url)


def read_options(settings: BaseSettings, spider: str) -> ScrapyOptions:
    """Read the project's settings; ConfigError for missing or invalid ones."""
    url = settings.get("GOSSAMER_FRONTIER") or ""
    if not url:
        raise ConfigError(
            "gossamer.scrapy.Scheduler has no frontier",
            hint='set GOSSAMER_FRONTIER = "redis://localhost:6379/0", or "sqlite:crawls/NAME" for one process',
        )
    worker = settings.get("GOSSAMER_WORKER") or ""
    return ScrapyOptions(
        url=url,
        job=settings.get("GOSSAMER_JOB") or spider,
        worker=worker or f"{os.uname().nodename}-{os.getpid()}",
        named=bool(worker),
        settings=job_settings(settings),
        concurrency=settings.getint("CONCURRENT_REQUESTS") or 1000,
    )


def job_settings(settings: BaseSettings) -> Settings:
    """Settings of a new job: the project's DOWNLOAD_DELAY, or its CONCURRENT_REQUESTS_PER_DOMAIN as lanes per site.

    Scrapy itself obeys robots.txt. `GOSSAMER_SETTINGS` overrides everything."""
    delay = settings.getfloat("DOWNLOAD_DELAY")
    first_in = "Fifo" in str(settings.get("SCHEDULER_MEMORY_QUEUE"))
    values: dict[str, Any] = {
        "delay": delay,
        "per_site": 1 if delay else max(1, settings.getint("CONCURRENT_REQUESTS_PER_DOMAIN")),
        "strategy": "bfs" if first_in else "dfs",
        "robots": False,
        "scope": "any",
        **settings.getdict("GOSSAMER_SETTINGS"),
    }
    return configuration.build(values, source="GOSSAMER_SETTINGS")


async def open_frontier(options: ScrapyOptions, changes: Mapping[str, Any] | None = None) -> Opened:
    """Join the job, or create it; `changes` override settings of an existing job."""
    url = options.url
    backend = backend_of(url)
    settings = await _settings(options, changes)
    if backend.is_shared:
        return await create_fleet(url, options.job, settings, worker=options.worker)
    try:
        return await owned_backend(url).create(url, options.job, settings, clock=SystemClock())
    except Held as error:
        raise Held(
            str(error),
            hint="for several processes, set GOSSAMER_FRONTIER to redis://... or an SQL server; a file has one owner",
        ) from None


async def _settings(options: ScrapyOptions, changes: Mapping[str, Any] | None) -> Settings:
    """The settings of the job: those it was created with, not those of this process's project."""
    known = await _known(options)
    if known is None:
        return options.settings
    return configuration.build({**configuration.dump(known), **changes}) if changes else known


async def _known(options: ScrapyOptions) -> Settings | None:
    if not backend_of(options.url).is_shared:
        return owned_backend(options.url).settings(options.url, options.job)
    try:
        fleet = await open_fleet(options.url, options.job)
    except JobMissing:
        return None
    try:
        return fleet.settings
    finally:
        await fleet.aclose()
