"""The simulated web by the name that tests of spiders import."""

from gossamer.lab.simweb.process import SimWeb

__all__ = ["SimWeb"]
