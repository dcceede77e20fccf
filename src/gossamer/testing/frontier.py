"""The conformance suite of frontiers: subclass `FrontierSuite`, say how to open the backend, and run pytest."""

from __future__ import annotations

from gossamer.testing.copies import Copies
from gossamer.testing.forgetting import Forgetting
from gossamer.testing.harness import Harness
from gossamer.testing.order import LimitsTests, OrderTests, Steering
from gossamer.testing.pace import Endings, PolitenessTests
from gossamer.testing.promises import Keys, Outcomes
from gossamer.testing.recovery import Poison, Recovery

__all__ = ["FrontierSuite", "Harness"]


class FrontierSuite(
    Keys, Outcomes, PolitenessTests, Endings, Recovery, Poison, Forgetting, OrderTests, LimitsTests, Steering, Copies
):
    """All that a frontier promises, each test with the number of its promise.

    A backend gives `open`, an async context manager that yields a `Harness`:

        class TestMyFrontier(FrontierSuite):
            def open(self, settings):
                return my_harness(settings)
    """
