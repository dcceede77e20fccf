from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from hypothesis import settings

from gossamer.settings import Settings
from gossamer.testing import harnesses
from gossamer.testing.frontier_machine import FrontierMachine
from gossamer.testing.harness import Harness


class FolderMachine(FrontierMachine):
    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return harnesses.folder(settings, shards=3)


class TestFolder(FolderMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=30, stateful_step_count=50, deadline=None)
