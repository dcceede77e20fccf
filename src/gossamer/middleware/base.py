"""The one shape of all middleware: a function that takes the next layer and returns a layer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from gossamer.model import Request, Response

Layer = TypeVar("Layer")
Fetch = Callable[[Request], Awaitable[Response]]
Middleware = Callable[[Fetch], Fetch]


def compose(middlewares: Sequence[Callable[[Layer], Layer]], inner: Layer) -> Layer:
    """`inner` with the middlewares around it; the first of the list is the outermost, seeing a request first."""
    for middleware in reversed(middlewares):
        inner = middleware(inner)
    return inner
