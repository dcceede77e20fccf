"""Public alias of the simulated web, for tests of spiders."""

from gossamer.lab.simweb.process import SimWeb

__all__ = ["SimWeb"]
