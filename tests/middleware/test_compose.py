from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from gossamer.middleware import Fetch, Middleware, compose
from gossamer.model import Request, Response


def test_first_middleware_is_the_outermost() -> None:
    seen: list[str] = []

    def noting(name: str) -> Middleware:
        def wrap(fetch: Fetch) -> Fetch:
            async def noted(request: Request) -> Response:
                seen.append(f"{name} in")
                response = await fetch(request)
                seen.append(f"{name} out")
                return response

            return noted

        return wrap

    async def fetch(request: Request) -> Response:
        seen.append("fetch")
        return Response(url=request.url, status=200)

    composed = compose([noting("a"), noting("b")], fetch)  # type: ignore[list-item]
    assert asyncio.run(composed(Request(url="http://a.test/"))).status == 200
    assert seen == ["a in", "b in", "fetch", "b out", "a out"]


def test_compose_also_wraps_parsers() -> None:
    Parse = Callable[[str], Iterator[str]]

    def shout(parse: Parse) -> Parse:
        return lambda page: (item.upper() for item in parse(page))

    parse = compose([shout], lambda page: iter(page.split()))
    assert list(parse("two words")) == ["TWO", "WORDS"]  # type: ignore[no-untyped-call]


def test_compose_without_middleware_returns_inner() -> None:
    assert compose([], 7) == 7
