"""Run the conformance suite of Gossamer's frontiers: `pip install . pytest && pytest`."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from gossamer.frontier.backends import owned_backend
from gossamer.settings import Settings
from gossamer.testing.frontier import FrontierSuite
from gossamer.testing.harness import Harness
from gossamer.testing.harnesses import owned

URL = "lmdb:{folder}"


class TestLmdb(FrontierSuite):
    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        # By its URL, as the commands open it: the package must be installed.
        return owned(owned_backend(URL), settings, url=URL)
