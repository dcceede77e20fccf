"""Verdicts: what a response or an error means for its request and its site. Pure rules, no I/O."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, NamedTuple

from gossamer import urls
from gossamer.errors import ConnectFailed, FetchError, NameUnknown, NameUnresolved, TimedOut, TransientError
from gossamer.frontier import policy
from gossamer.model import REDIRECTS, Request, Response, Status
from gossamer.settings import Settings

CHAIN, COOKIES = ":chain", ":cookies"
"""Keys in a request's meta that no spider sees: the redirect chain, and cookies from another host."""
_SET = "+"
"""Prefix of the mark of a URL whose answer set a cookie."""
_ALIKE = "~"
"""Prefix of the mark of a URL's normalized spelling, where that differs."""


def url_mark(url: str) -> str:
    """Return a short digest of a URL for the redirect chain."""
    return blake2b(url.encode(), digest_size=6).hexdigest()


def times_in_chain(request: Request, target: str) -> int:
    """Return how often the redirect chain of a request contains `target`, the request itself not counted."""
    sign = url_mark(target)
    return sum(met.removeprefix(_SET) == sign for met in _chain(request))


def is_in_chain(request: Request, target: str) -> bool:
    """Return whether the redirect chain contains `target`, or another spelling of it with the same key."""
    signs = {url_mark(target), url_mark(urls.equivalent(target))}
    return any(met.lstrip(_SET + _ALIKE) in signs for met in _chain(request))


def hop_key(request: Request, target: str) -> bytes:
    """Return the part of the next hop's key that keeps a redirect back into its own chain from counting as known."""
    if times_in_chain(request, target):
        return b"again"
    is_spelling = request.url != target and urls.equivalent(request.url) == urls.equivalent(target)
    return b"spelled " + target.encode() if is_spelling or is_in_chain(request, target) else b""


def sets_cookies(request: Request, response: Response) -> bool:
    """Return whether this answer, or an earlier one of the chain, has set a cookie: only then can another try help."""
    return bool(response.header("set-cookie")) or any(met.startswith(_SET) for met in _chain(request))


def next_hop_meta(request: Request, response: Response) -> dict[str, Any]:
    """Return the meta of the next hop: the chain with this request's own URL."""
    own = [(_SET if response.header("set-cookie") else "") + url_mark(request.url)]
    if (alike := urls.equivalent(request.url)) != request.url:
        own.append(_ALIKE + url_mark(alike))
    kept = {name: value for name, value in (request.meta or {}).items() if name != COOKIES}
    return {**kept, CHAIN: [*_chain(request), *own]}


def _chain(request: Request) -> list[str]:
    found = (request.meta or {}).get(CHAIN)
    return [str(met) for met in found] if isinstance(found, list | tuple) else []


MAX_HOPS = 10
_RETRIED_CUTS = frozenset(("disconnect", "content_length", "transfer_encoding", "fetch_seconds"))
"""Parts of an answer that may be missing by chance: the page is retried, and what the last try brings is kept."""
_RETRIED_ONCE = frozenset(("content_length", "transfer_encoding"))
"""Cases in which the server closed the connection properly: after a second time, the page is not retried."""


class Verdict(NamedTuple):
    """The outcome of the request, and the changes to its site's state."""

    status: Status
    reason: str = ""
    again_in: float | None = None
    hold: float | None = None
    """Seconds during which nobody fetches from the site."""
    memo: dict[str, Any] | None = None
    close: str | None = None
    target: str = ""
    """The target of a redirect."""


def classify_response(
    request: Request, response: Response, memo: dict[str, Any], settings: Settings, *, now: float
) -> Verdict:
    """Return the verdict about a response."""
    reset = {"failures": 0} if memo.get("failures") else None
    status = response.status
    if status in REDIRECTS and (location := response.header("location")):
        return _redirect(request, response, location, settings, reset)
    if 200 <= status < 400:
        reasons = {part.partition(":")[0] for part in response.cut.split()}
        if reasons & _RETRIED_CUTS and not (request.tries and reasons & _RETRIED_ONCE):
            again = _page_failure(request, "cut", settings, memo=reset)
            if again.status == "retry":
                return again
        return Verdict("done", memo=reset)
    if status not in policy.RETRY_STATUSES:
        return Verdict("failed", f"http-{status}", memo=reset)
    if status not in policy.HOLD_STATUSES:
        return _page_failure(request, f"http-{status}", settings, memo=reset)
    asked = policy.retry_after(response.header("retry-after"), now=now)
    return _site_failure(request, f"http-{status}", memo, settings, now=now, asked=asked)


def sets_cookie_and_returns(request: Request, response: Response) -> bool:
    """Return whether a redirect leads to its own URL and sets a cookie: with the cookie, the next answer may be the
    page."""
    if response.status not in REDIRECTS or request.method not in ("GET", "HEAD"):
        return False
    location = response.header("location")
    to_itself = bool(location) and urls.join(request.url, location) == request.url
    return to_itself and bool(response.header("set-cookie"))


def classify_error(
    request: Request,
    error: FetchError,
    memo: dict[str, Any],
    settings: Settings,
    *,
    now: float,
    was_there: bool = False,
) -> Verdict:
    """Return the verdict about an error. A host that cannot be reached is a failure of the site, and counts against it.

    A name that does not exist is final. If the site `was_there` before, it is tried once more, then given up."""
    if isinstance(error, NameUnknown) and was_there:
        looked_again = memo.get("failures") and request.tries
        return _site_failure(request, error.kind, memo, settings, now=now, is_final=bool(looked_again))
    if not isinstance(error, TransientError):
        return Verdict("failed", error.kind)
    if not isinstance(error, ConnectFailed | NameUnresolved | TimedOut):
        return _page_failure(request, error.kind, settings)
    if isinstance(error, ConnectFailed) and error.was_open and not memo.get("failures"):
        # The server closed the connection on this page; the next request shows whether it does so for others.
        return _page_failure(request, error.kind, settings, memo={"failures": 1})
    return _site_failure(request, error.kind, memo, settings, now=now)


def _page_failure(request: Request, reason: str, settings: Settings, *, memo: dict[str, Any] | None = None) -> Verdict:
    """Return the verdict for a server error or a broken answer: other pages of the site may be fine."""
    tried = request.tries + 1
    if tried >= settings.tries:
        return Verdict("failed", reason, memo=memo)
    wait = policy.backoff(tried, base=settings.backoff_seconds, cap=settings.backoff_max_seconds)
    return Verdict("retry", reason, wait, memo=memo)


def _site_failure(
    request: Request,
    reason: str,
    memo: dict[str, Any],
    settings: Settings,
    *,
    now: float,
    asked: float | None = None,
    is_final: bool = False,
) -> Verdict:
    """Return the verdict for a site that is unreachable or overloaded: nobody fetches from it for a while.

    `asked` is the Retry-After of the site. A site that stays unreachable is given up, so that crawls end; a continuous
    crawl does not end, and retries once a day."""
    failures = int(memo.get("failures", 0)) + 1
    incidents = policy.incidents(
        int(memo.get("incidents", 0)),
        quiet_from=memo.get("quiet_from", 0.0),
        now=now,
        forgive_seconds=settings.forgive_seconds,
    )
    hold = asked
    if hold is None:
        hold = policy.backoff(incidents, base=settings.backoff_seconds, cap=settings.backoff_max_seconds)
    given_up = (failures >= settings.site_failures and asked is None) or is_final
    last = request.tries + 1 >= settings.tries or is_final
    return Verdict(
        "failed" if last else "retry",
        reason,
        None if last else hold,
        hold,
        {"failures": failures, "incidents": incidents, "quiet_from": round(now + hold, 3)},
        reason if given_up and not settings.recrawl else None,
    )


def _redirect(
    request: Request, response: Response, location: str, settings: Settings, reset: dict[str, Any] | None
) -> Verdict:
    """Return the verdict about a redirect.

    A redirect back to a URL of its own chain is a loop, unless a cookie was set on the way: then the next answer may be
    the page, and the URL is fetched once more."""
    target = urls.join(request.url, location)
    if target is None:
        return Verdict("failed", "redirect-refused", memo=reset)
    is_over = target == request.url or request.hops >= MAX_HOPS
    if not is_over and (times := times_in_chain(request, target)):
        is_over = times > 1 or not settings.cookies or not sets_cookies(request, response)
    if is_over:
        return Verdict("failed", "redirects", memo=reset, target=target)
    return Verdict("done", memo=reset, target=target)
