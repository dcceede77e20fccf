"""Whole crawls behind proxies: a failing proxy costs time, and no page."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from rawweb import RawWeb, page, reply

from gossamer.download import proxies
from gossamer.errors import GossamerError
from gossamer.jobs.local_run import LocalRun
from gossamer.settings import build
from gossamer.testing.network import ProxyServer

VALUES = {"allow_private": True, "delay": 0, "tries": 1, "site_failures": 1, "connect_seconds": 3, "scope": "any"}


def test_a_failing_proxy_costs_no_page_a_try_and_no_site_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One try for a page and one fault for a site, and yet the crawl that began without its proxy ends whole."""
    monkeypatch.setattr(proxies, "BACKOFF_SECONDS", 0.2)

    async def main(web: RawWeb) -> None:
        async with ProxyServer() as proxy:
            pass
        settings = build({**VALUES, "proxy": [proxy.url]})
        crawl = LocalRun(tmp_path, settings, [f"http://{number}.test:{web.port}/" for number in range(5)])
        running = asyncio.create_task(crawl.run())
        await asyncio.sleep(1.5)
        assert not running.done()
        assert not web.log
        async with ProxyServer(port=proxy.port):
            summary = await asyncio.wait_for(running, 30)
        assert (summary.counts.done, summary.counts.failed) == (10, 0)

    with RawWeb() as web:
        web.answers = {"/robots.txt": reply("User-agent: *\nDisallow: /no"), "/": page("/next", "/no"), "/next": page()}
        asyncio.run(main(web))
    fetched = [asked.url for asked in web.log]
    assert len(fetched) == len(set(fetched)) == 15


def test_sessions_keep_their_own_proxy_and_cookies(tmp_path: Path) -> None:
    async def main(web: RawWeb, folder: Path) -> tuple[ProxyServer, ...]:
        async with ProxyServer() as one, ProxyServer() as two:
            values = {**VALUES, "proxy": [one.url, two.url], "sessions": 4, "robots": False}
            try:
                summary = await LocalRun(folder, build(values), [f"http://a.test:{web.port}/"]).run()
            except GossamerError as error:
                raise AssertionError(error) from error
            assert summary.counts.done == 21
        return one, two

    # Ports decide which session uses which proxy; sometimes all four use the same one.
    for number in range(8):
        with RawWeb() as web:
            web.answers = {"/": page(*(f"/{number}" for number in range(20)))}
            for place in range(20):
                web.answers[f"/{place}"] = reply("x", headers=(f"Set-Cookie: id={place}; Path=/",))
            by = asyncio.run(main(web, tmp_path / str(number)))
        if all(proxy.asked for proxy in by):
            break
    assert all(proxy.asked for proxy in by)
    sent = [asked.headers.get("cookie", "") for asked in web.log]
    # The front page sets none, so each of the four sessions begins without a cookie.
    assert sent.count("") == 5
    assert all(cookie.count("id=") == 1 for cookie in sent if cookie)
