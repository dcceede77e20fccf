"""What an answer, or the lack of one, means for its request and its site: pure decisions, no I/O."""

from __future__ import annotations

from typing import Any, NamedTuple

from gossamer import urls
from gossamer.errors import ConnectFailed, FetchError, NameUnresolved, TimedOut, TransientError
from gossamer.frontier import policy
from gossamer.model import Request, Response, Status
from gossamer.settings import Settings

MAX_HOPS = 10
REDIRECTS = frozenset((301, 302, 303, 307, 308))


class Verdict(NamedTuple):
    """What becomes of the request, and what its site must know."""

    status: Status
    reason: str = ""
    again_in: float | None = None
    hold: float | None = None
    """Seconds during which the site is left alone."""
    memo: dict[str, Any] | None = None
    close: str | None = None
    target: str = ""
    """Where a redirect leads."""


def judge_response(
    request: Request, response: Response, memo: dict[str, Any], settings: Settings, *, now: float
) -> Verdict:
    """An answer came."""
    healed = {"failures": 0} if memo.get("failures") else None
    status = response.status
    if status in REDIRECTS and (location := response.header("location")):
        return _redirect(request, location, healed)
    if 200 <= status < 400:
        return Verdict("done", memo=healed)
    if status not in policy.RETRY_STATUSES:
        return Verdict("failed", f"http-{status}", memo=healed)
    tried = request.tries + 1
    last = tried >= settings.tries
    if status not in policy.HOLD_STATUSES:
        wait = policy.backoff(tried, base=settings.backoff_seconds, cap=settings.backoff_max_seconds)
        return Verdict("failed" if last else "retry", f"http-{status}", None if last else wait, memo=healed)
    failures = int(memo.get("failures", 0)) + 1
    asked = policy.retry_after(response.header("retry-after"), now=now)
    hold = _site_backoff(failures, settings) if asked is None else asked
    close = f"http-{status}" if failures >= settings.site_failures and asked is None else None
    return Verdict(
        "failed" if last else "retry", f"http-{status}", None if last else hold, hold, {"failures": failures}, close
    )


def asks_again(request: Request, response: Response) -> bool:
    """Whether a redirect leads to its own URL and sets a cookie: asked with that, the next answer may be the page."""
    if response.status not in REDIRECTS or request.method not in ("GET", "HEAD"):
        return False
    to_itself = urls.join(request.url, response.header("location")) == request.url
    return to_itself and bool(response.header("set-cookie"))


def judge_error(request: Request, error: FetchError, memo: dict[str, Any], settings: Settings) -> Verdict:
    """No answer came. A host that cannot be reached is a fault of the site, and is charged to it."""
    if not isinstance(error, TransientError):
        return Verdict("failed", error.kind)
    tried = request.tries + 1
    last = tried >= settings.tries
    if not isinstance(error, ConnectFailed | NameUnresolved | TimedOut):
        wait = policy.backoff(tried, base=settings.backoff_seconds, cap=settings.backoff_max_seconds)
        return Verdict("failed" if last else "retry", error.kind, None if last else wait)
    failures = int(memo.get("failures", 0)) + 1
    hold = _site_backoff(failures, settings)
    close = error.kind if failures >= settings.site_failures else None
    return Verdict(
        "failed" if last else "retry", error.kind, None if last else hold, hold, {"failures": failures}, close
    )


def _redirect(request: Request, location: str, healed: dict[str, Any] | None) -> Verdict:
    target = urls.join(request.url, location)
    if target is None:
        return Verdict("failed", "redirect-refused", memo=healed)
    if target == request.url or request.hops >= MAX_HOPS:
        return Verdict("failed", "redirects", memo=healed, target=target)
    return Verdict("done", memo=healed, target=target)


def _site_backoff(failures: int, settings: Settings) -> float:
    return policy.backoff(failures, base=settings.backoff_seconds, cap=settings.backoff_max_seconds)
