"""The interface of a sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from gossamer.model import Record


class Sink(Protocol):
    """Keeps records. What `write` has returned for is durable."""

    async def write(self, records: Sequence[Record]) -> Mapping[str, int]:
        """Store all of them; the marks (file -> length) up to which the output is good.

        If it raises, nothing of the call counts: what it wrote is cut off again, and the call may be repeated."""
        ...

    async def rewind(self, marks: Mapping[str, int]) -> None:
        """Go back to marks of an earlier moment, because what was written since then did not come to count."""
        ...

    async def aclose(self) -> None:
        """Let go of files and connections."""
        ...
