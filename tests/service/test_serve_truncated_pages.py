"""Truncated pages in the job, its metrics, and the history of a URL, over the API."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import run

from service_process import serving

from gossamer.lab.simweb.process import SimWeb


def test_truncated_pages_are_counted_by_limit(tmp_path: Path) -> None:
    with SimWeb(sites=1, pages_per_site=12, seed=3) as web:
        (seed,) = web.seeds
        command = [sys.executable, "-m", "gossamer", "crawl", seed, "--job", str(tmp_path / "crawls/shop")]
        run([*command, "--delay", "0", "--allow-private", "--max-links", "1", "--quiet"], check=True, timeout=60)
    with serving(tmp_path) as served:
        job = served.get("/api/jobs/shop")
        (limit, pages) = job["cut"].popitem()
        assert limit == "max_links"
        assert pages > 0
        assert served.metric("gossamer_cut_pages_total", job="shop", reason="max_links") == pages
        story = served.get("/api/jobs/shop/why", url=seed)
        assert story["cut"].startswith("max_links:")
        listed = served.get("/api/jobs/shop/pages", limit=100)["pages"]
        assert sum(page["cut"].startswith("max_links:") for page in listed) == pages
