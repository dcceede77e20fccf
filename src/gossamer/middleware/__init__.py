"""Middleware: functions that wrap fetching, and how they are composed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from gossamer.errors import FetchError, MiddlewareFailed
from gossamer.model import Request, Response

Layer = TypeVar("Layer")
Fetch = Callable[[Request], Awaitable[Response]]
Middleware = Callable[[Fetch], Fetch]


def guarded(fetch: Fetch) -> Fetch:
    """Wrap `fetch` so that any exception of the user's middleware fails only the page at hand."""

    async def fetch_or_fail(request: Request) -> Response:
        try:
            return await fetch(request)
        except FetchError:
            raise
        except Exception as error:  # the user's code may raise anything, and its page fails
            raise MiddlewareFailed(f"{type(error).__name__}: {error}") from error

    return fetch_or_fail


def compose(middlewares: Sequence[Callable[[Layer], Layer]], inner: Layer) -> Layer:
    """Wrap `inner` in the middlewares; the first of the list is the outermost and sees a request first."""
    for middleware in reversed(middlewares):
        inner = middleware(inner)
    return inner
