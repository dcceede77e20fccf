"""Fixtures of the crawl tests: one worker in the owner's process, and four worker processes."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["1", "4"], ids=["1 worker", "4 workers"])
def workers(request: pytest.FixtureRequest) -> str:
    """How many workers the crawl has."""
    return str(request.param)
