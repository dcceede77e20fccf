"""Deprecated alias of `gossamer.testing.network`."""

from gossamer.testing.network import ProxyServer, SocksServer

__all__ = ["ProxyServer", "SocksServer"]
