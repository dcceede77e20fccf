"""What the head of an answer says of its body."""

from __future__ import annotations

from gossamer.download.faults import check_head
from gossamer.errors import TooLarge
from gossamer.model import Headers


def body_bytes(method: str, status: int, headers: Headers, max_bytes: int, *, may_be_cut: bool = False) -> int | None:
    """How long the body will be, if that is certain; TooLarge if that is over the limit, unless it `may_be_cut`."""
    check_head(headers)
    if method == "HEAD" or status in (204, 304):
        return 0
    length: int | None = None
    for name, value in headers:
        if name == "transfer-encoding":
            return None
        if name == "content-length":
            length = int(value) if value.isdecimal() else None
    if length is not None and length > max_bytes:
        if may_be_cut:
            return None
        raise too_large(max_bytes)
    return length


def too_large(max_bytes: int) -> TooLarge:
    """The error for a body over its limit."""
    return TooLarge(f"body of more than {max_bytes} bytes")
