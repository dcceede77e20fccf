"""The inbox: rows that any program may insert, taken into the crawl."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from gossamer import urls
from gossamer.frontier.sql.call import Transaction
from gossamer.frontier.sql.settling import Admission, Link
from gossamer.model import Request
from gossamer.settings import Settings

_MOST = 1000
_HIGHEST = 1_000_000_000


Forward = Callable[[Sequence[Link]], Awaitable[tuple[set[int], set[int]]]]
"""Delivers those of these links that belong to other shards: the keys that are ours, and those that the other shards
have now. Links in neither stay in the inbox."""


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
    key = urls.key_of(secret, url)
    return Request(url, key, site_of(url, settings), max(-_HIGHEST, min(_HIGHEST, priority)))


async def drain(
    run: Callable[..., Awaitable[Any]], admission: Admission, *, secret: bytes, forward: Forward | None
) -> int:
    """Take what is in the inbox, some at a time; how many entries were good."""

    async def look(call: Transaction) -> dict[int, Link]:
        found: dict[int, Link] = {}
        for entry, text, priority, wait in await call.db.take_inbox(_MOST):
            try:
                request = read(text, priority, secret=secret, settings=call.settings)
            except ValueError as error:
                await call.db.refuse_inbox(entry, str(error)[:200])
            else:
                found[entry] = request, "", max(0, int(wait or 0))
        return found

    ours: set[int] | None = None
    theirs: set[int] = set()
    if forward is not None:
        # They are there before they are gone from here: a crash in between gives them twice, which is once.
        ours, theirs = await forward(list((await run(look)).values()))

    async def work(call: Transaction) -> int:
        found = await look(call)
        if ours is not None:
            found = {entry: link for entry, link in found.items() if link[0].key in ours | theirs}
        await admission.admit(call, [link for link in found.values() if link[0].key not in theirs])
        if found:
            await call.db.empty_inbox(list(found))
        await call.flush()
        return len(found)

    return int(await run(work, lock="share", rings=True))
