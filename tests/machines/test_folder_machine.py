from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from hypothesis import settings

from gossamer.settings import Settings
from gossamer.testing import folder
from gossamer.testing.harness import Harness
from gossamer.testing.machine import FrontierMachine


class FolderMachine(FrontierMachine):
    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return folder.folder(settings, shards=3)


class TestFolder(FolderMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=30, stateful_step_count=50, deadline=None)
