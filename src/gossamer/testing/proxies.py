"""Alias of `gossamer.testing.network`, kept for tests that start proxies by this name."""

from gossamer.testing.network import ProxyServer, SocksServer

__all__ = ["ProxyServer", "SocksServer"]
