"""Middleware: the one shape that wraps fetching and parsing, and how several are composed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from gossamer.errors import FetchError, MiddlewareFailed
from gossamer.model import Request, Response

Layer = TypeVar("Layer")
Fetch = Callable[[Request], Awaitable[Response]]
Middleware = Callable[[Fetch], Fetch]


def guarded(fetch: Fetch) -> Fetch:
    """`fetch`, with whatever middleware of the user's raises made the failure of its page, and of that alone."""

    async def fetch_or_fail(request: Request) -> Response:
        try:
            return await fetch(request)
        except FetchError:
            raise
        except Exception as error:  # a page's fate is decided here: user's code may raise anything
            raise MiddlewareFailed(f"{type(error).__name__}: {error}") from error

    return fetch_or_fail


def compose(middlewares: Sequence[Callable[[Layer], Layer]], inner: Layer) -> Layer:
    """`inner` with the middlewares around it; the first of the list is the outermost, seeing a request first."""
    for middleware in reversed(middlewares):
        inner = middleware(inner)
    return inner
