"""Sessions: cookies, proxy and headers that begin and end together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gossamer.clock import ManualClock
from gossamer.errors import ProxyFailed
from gossamer.middleware import Fetch
from gossamer.middleware.sessions import PROXY_TRIES, sessions
from gossamer.model import Request, Response
from gossamer.settings import build


def run(
    answer: Callable[[Request], Response], test: Callable[[Fetch], Awaitable[None]], **values: Any
) -> list[Request]:
    sent: list[Request] = []

    async def fetch(request: Request) -> Response:
        sent.append(request)
        return answer(request)

    async def main() -> None:
        await test(sessions(build({"sessions": 1, **values}), ManualClock())(fetch))

    asyncio.run(main())
    return sent


def said(request: Request, name: str) -> str:
    return (request.headers or {}).get(name, "")


def test_sessions_are_isolated_and_rotate() -> None:
    numbers = iter(range(100))

    def answer(request: Request) -> Response:
        own = (("set-cookie", f"id={next(numbers)}"),) if not said(request, "cookie") else ()
        return Response(url=request.url, status=200, headers=own)

    async def test(fetch: Fetch) -> None:
        for _ in range(6):
            await fetch(Request(url="http://a.test/"))
        await fetch(Request(url="http://b.test/", headers={"Accept-Language": "fr"}))

    sets = ({"Accept-Language": "de"}, {"Accept-Language": "it"})
    sent = run(answer, test, sessions=2, header_sets=sets)
    assert [said(request, "cookie") for request in sent[:6]] == ["", "", "id=0", "id=1", "id=0", "id=1"]
    assert [request.via for request in sent[:2]] * 3 == [request.via for request in sent[:6]]
    assert {said(request, "accept-language") for request in sent[:6]} == {"de", "it"}
    assert said(sent[6], "accept-language") == "fr"
    assert said(sent[6], "cookie") == ""
    assert sent[6].via not in {request.via for request in sent[:6]}


@pytest.mark.parametrize("status", [401, 403, 429])
def test_blocked_session_is_retired(status: int) -> None:
    def answer(request: Request) -> Response:
        code = status if request.url.endswith("no") else 200
        return Response(url=request.url, status=code, headers=(("set-cookie", "a=1"),))

    async def test(fetch: Fetch) -> None:
        for path in ("", "", "no", "", ""):
            await fetch(Request(url=f"http://a.test/{path}"))

    sent = run(answer, test, header_sets=({"x": "1"}, {"x": "2"}))
    assert [said(request, "cookie") for request in sent] == ["", "a=1", "a=1", "", "a=1"]
    assert sent[0].via == sent[2].via != sent[3].via == sent[4].via
    assert said(sent[0], "x") == said(sent[2], "x") != said(sent[3], "x")


def test_session_is_retired_with_its_proxy() -> None:
    dead: set[str] = set()

    def answer(request: Request) -> Response:
        if request.via in dead:
            raise ProxyFailed("gone")
        return Response(url=request.url, status=200, headers=(("set-cookie", "a=1"),))

    async def test(fetch: Fetch) -> None:
        await fetch(Request(url="http://a.test/"))
        dead.add("a.test 1")
        assert (await fetch(Request(url="http://a.test/"))).status == 200

    sent = run(answer, test)
    assert [said(request, "cookie") for request in sent] == ["", "a=1", ""]
    assert len({request.via for request in sent}) == 2


def test_error_when_no_proxy_is_left() -> None:
    def answer(request: Request) -> Response:
        raise ProxyFailed("gone", wait_seconds=7)

    async def test(fetch: Fetch) -> None:
        with pytest.raises(ProxyFailed) as caught:
            await fetch(Request(url="http://a.test/"))
        assert caught.value.wait_seconds == 7

    assert len(run(answer, test)) == PROXY_TRIES


def test_session_is_retired_after_its_maximum_uses() -> None:
    async def test(fetch: Fetch) -> None:
        for _ in range(7):
            await fetch(Request(url="http://a.test/"))

    sent = run(lambda request: Response(url=request.url, status=200), test, session_uses=3)
    assert [request.via for request in sent] == ["a.test 1"] * 3 + ["a.test 2"] * 3 + ["a.test 3"]
