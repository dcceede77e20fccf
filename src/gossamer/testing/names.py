"""A name server on loopback, over UDP, that knows what it is told."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Self

_TYPES = {1: 4, 28: 6}
"""A and AAAA, and the version of the addresses they give."""


class NameServer(asyncio.DatagramProtocol):
    """Knows the addresses it is given, of both kinds; `dead*` gets no answer, `broken*` SERVFAIL, the rest NXDOMAIN.

    `asked` counts the questions for A records by name; `busy` is set once twenty names were asked for."""

    def __init__(self, records: Mapping[str, Sequence[str]], ttl: int = 300) -> None:
        self.records, self.ttl = records, ttl
        self.asked: Counter[str] = Counter()
        self.busy = asyncio.Event()
        self._transport: Any = None

    @property
    def address(self) -> str:
        """Where it listens, as in 127.0.0.1:5353."""
        return "{}:{}".format(*self._transport.get_extra_info("sockname"))

    async def __aenter__(self) -> Self:
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, ("127.0.0.1", 0))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._transport.close()

    def connection_made(self, transport: Any) -> None:
        """Keep the socket."""
        self._transport = transport

    def datagram_received(self, data: bytes, peer: Any) -> None:
        """Answer one question."""
        labels, at = [], 12
        while data[at]:
            labels.append(data[at + 1 : at + 1 + data[at]].decode("ascii", "replace"))
            at += data[at] + 1
        name, kind, question = ".".join(labels), int.from_bytes(data[at + 1 : at + 3], "big"), data[12 : at + 5]
        self.asked[name] += kind == 1
        if len(self.asked) >= 20:
            self.busy.set()
        if name.startswith("dead"):
            return
        code = 2 if name.startswith("broken") else 0 if name in self.records else 3
        known = [ip_address(text) for text in self.records.get(name, ())]
        found = [ip.packed for ip in known if ip.version == _TYPES.get(kind)]
        answers = b"".join(
            b"\xc0\x0c" + question[-4:] + self.ttl.to_bytes(4, "big") + len(ip).to_bytes(2, "big") + ip for ip in found
        )
        head = data[:2] + bytes((0x81, 0x80 | code)) + b"\0\1" + len(found).to_bytes(2, "big") + b"\0\0\0\0"
        self._transport.sendto(head + question + answers, peer)
