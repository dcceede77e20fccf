from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gossamer.clock import ManualClock
from gossamer.errors import ConnectFailed
from gossamer.middleware import Fetch
from gossamer.middleware.cache import cache
from gossamer.model import Request, Response


def counting(status: int = 200) -> tuple[Fetch, list[Request]]:
    fetched: list[Request] = []

    async def fetch(request: Request) -> Response:
        fetched.append(request)
        if status == 0:
            raise ConnectFailed("no")
        return Response(
            url=request.url, status=status, headers=(("x", "ü"),), body=b"\0\xff", headers_at=1.0, elapsed=2.0
        )

    return fetch, fetched


def test_cached_response_is_not_fetched_again(tmp_path: Path) -> None:
    fetch, fetched = counting()
    clock = ManualClock()

    async def main() -> None:
        request = Request(url="http://a.test/")
        first = await cache(tmp_path, clock)(fetch)(request)
        again = await cache(tmp_path, clock)(fetch)(request)
        assert not first.from_cache
        assert again.from_cache
        assert (again.status, again.headers, again.body) == (200, (("x", "ü"),), b"\0\xff")
        assert again.headers_at == clock.monotonic()

    asyncio.run(main())
    assert len(fetched) == 1


def test_cache_key_is_method_url_and_body(tmp_path: Path) -> None:
    fetch, fetched = counting()
    requests = [
        Request(url="http://a.test/"),
        Request(url="http://a.test/b"),
        Request(url="http://a.test/", method="POST"),
        Request(url="http://a.test/", method="POST", body=b"1"),
    ]

    async def main() -> None:
        layer = cache(tmp_path, ManualClock())(fetch)
        for request in requests * 2:
            await layer(request)

    asyncio.run(main())
    assert fetched == requests


@pytest.mark.parametrize("status", [206, 304, 429, 500, 503, 0])
def test_temporary_errors_are_not_cached(tmp_path: Path, status: int) -> None:
    fetch, fetched = counting(status)

    async def main() -> None:
        layer = cache(tmp_path, ManualClock())(fetch)
        for _ in range(2):
            try:
                await layer(Request(url="http://a.test/"))
            except ConnectFailed:
                pass

    asyncio.run(main())
    assert len(fetched) == 2
    assert list(tmp_path.rglob("*.msgpack")) == []


def test_corrupt_cache_file_is_fetched_again(tmp_path: Path) -> None:
    fetch, fetched = counting()
    layer = cache(tmp_path, ManualClock())(fetch)

    def is_kept() -> bool:
        async def main() -> bool:
            return (await layer(Request(url="http://a.test/"))).from_cache

        return asyncio.run(main())

    assert not is_kept()
    (kept,) = tmp_path.rglob("*.msgpack")
    for damage in (b"", b"\xc1", kept.read_bytes()[:-3], b"\x01"):
        kept.write_bytes(damage)
        assert not is_kept()
    assert is_kept()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [kept.name]
    assert len(fetched) == 5
