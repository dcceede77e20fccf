"""The inbox: rows that any program may insert, taken into the crawl."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from gossamer import urls
from gossamer.frontier.sql.call import Call
from gossamer.frontier.sql.settling import Admission, Link
from gossamer.model import Request
from gossamer.settings import Settings

_MOST = 1000
_HIGHEST = 1_000_000_000


class _Frontier(Protocol):
    secret: bytes
    settings: Settings
    forward: Callable[[Sequence[Request]], Awaitable[Sequence[Request]]] | None


def site_of(url: str, settings: Settings) -> str:
    """The site of a normal URL."""
    authority = urls.host_port(url)
    return urls.registered_domain(authority) if settings.site_by == "domain" else authority


def read(text: str, priority: int, *, secret: bytes, settings: Settings) -> Request:
    """The request that an entry asks for; ValueError says why there is none."""
    url = urls.normal(text.strip())
    if url is None:
        raise ValueError("not an http or https URL, or one with a password in it")
    if len(url) > settings.max_url_length:
        raise ValueError(f"longer than {settings.max_url_length} characters")
    if settings.clean_query:
        url = urls.clean_query(url)
    key = urls.fingerprint(secret, url)
    return Request(url, key, site_of(url, settings), max(-_HIGHEST, min(_HIGHEST, priority)))


async def drain(frontier: _Frontier, run: Callable[..., Awaitable[Any]], admission: Admission) -> int:
    """Take what is in the inbox, some at a time; how many entries were good."""

    async def work(call: Call) -> int:
        links: list[Link] = []
        good = []
        for entry, text, priority, wait in await call.db.take_inbox(_MOST):
            try:
                request = read(text, priority, secret=frontier.secret, settings=call.settings)
            except ValueError as error:
                await call.db.refuse_inbox(entry, str(error)[:200])
                continue
            good.append(entry)
            links.append((request, "", max(0, int(wait or 0))))
        if not good:
            return 0
        if frontier.forward is not None:
            # They are there before they are gone from here: a crash in between gives them twice, which is once.
            ours = {request.key for request in await frontier.forward([link[0] for link in links])}
            links = [link for link in links if link[0].key in ours]
        await admission.admit(call, links)
        await call.db.empty_inbox(good)
        await call.flush()
        return len(good)

    return int(await run(work, lock="share", rings=True))
