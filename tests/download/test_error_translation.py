"""Translation of HTTP client exceptions to FetchErrors."""

from __future__ import annotations

from gossamer.download.http2 import translate
from gossamer.errors import OutOfMemory


def test_out_of_memory_is_not_blamed_on_the_server() -> None:
    output = translate(MemoryError(), "a.example")
    assert isinstance(output, OutOfMemory)
    assert (output.kind, str(output)) == ("memory", "a.example: out of memory while reading the response")
