"""What the HTTP client raises, in our words."""

from __future__ import annotations

from gossamer.download.http2 import translate
from gossamer.errors import OutOfMemory


def test_too_little_memory_for_an_answer_is_not_the_servers_fault() -> None:
    told = translate(MemoryError(), "a.example")
    assert isinstance(told, OutOfMemory)
    assert (told.kind, str(told)) == ("memory", "a.example: out of memory while reading the response")
