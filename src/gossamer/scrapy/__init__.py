"""Scrapy projects on a Gossamer frontier: `SCHEDULER = "gossamer.scrapy.Scheduler"` and `GOSSAMER_FRONTIER`."""

from __future__ import annotations

try:
    import scrapy as _scrapy  # noqa: F401
except ImportError as missing:
    from gossamer.extras import unusable

    raise unusable("scrapy", "gossamer.scrapy", missing) from missing

from gossamer.scrapy.requests import ScrapyRedisFingerprinter, Unstorable
from gossamer.scrapy.scheduler import Scheduler

__all__ = ["Scheduler", "ScrapyRedisFingerprinter", "Unstorable"]
