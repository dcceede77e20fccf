"""The history of a URL in a job: where it was found, which rules apply, what it is waiting for, and its visits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from time import gmtime
from typing import Any

import msgspec

from gossamer import urls
from gossamer.cut import pages_cut
from gossamer.frontier import policy, recrawl
from gossamer.inspect.rules import RobotsRules, Ruling, path_ruling, scope_ruling, when
from gossamer.jobs.job import Job, State, read_state
from gossamer.model import PageRow
from gossamer.settings import Settings
from gossamer.storage.request_log import Sent, requests_to, stored_rows

_ENDED = ("done", "failed", "skipped", "parked", "known")
_BY_SCRAPY = (
    "It belongs to a Scrapy project, which handles links, robots.txt, redirects, and retries itself, and logs the "
    "visits."
)
Known = Mapping[str, Any]


async def url_history(job: Job, url: str, *, page: str = "", state: State | None = None, now: float) -> dict[str, Any]:
    """Everything that is known about a URL. `page` is a page with a link to it, if you know one.

    `state` is the state of the job, if the caller has it."""
    state = state or await read_state(job)
    settings, looked_for = job.settings, url
    known = await job.lookup(url)
    if known is None and page:
        known = await job.lookup(url, page=page)
    if known is None and settings.clean_query and urls.clean_query(url) != url:
        url = urls.clean_query(url)
        known = await job.lookup(url)
    name = urls.site(url, by=settings.site_by)
    site = await job.site(name)
    visits, last = await asyncio.to_thread(_visits, job, url, name)
    rows = await asyncio.to_thread(_rows, job, url, visits) if known is not None else []
    found: dict[str, Any] = {
        "url": url,
        "asked_for": looked_for,
        "job": job.name,
        "job_state": state,
        "site": name,
        "seen": known is not None,
        "state": _state(known, site, visits),
    }
    if known is not None:
        found |= {name: known[name] for name in ("depth", "priority", "tries", "reason", "code") if name in known}
        page = _referrer(known, rows, visits) or (page if known.get("by") else "")
        found["referrer"] = page
        if "depth" not in found and rows:
            found["depth"] = rows[-1].depth
    elif page:
        found["referrer"], found["depth"] = page, await _depth_below(job, page)
    times = known.get("times", 0) if known is not None else 0
    rulings = [_by_scrapy(times)] if times else await _rulings(job, found, site, now=now)
    if known is None and rulings[-1].allows and settings.nofollow:
        rulings.append(await asyncio.to_thread(_nofollow_ruling, job, page))
    if known is None and rulings[-1].allows:
        rulings += await asyncio.to_thread(_cut_rulings, job, page, site)
    found["cut"] = next((each for each in (_cut_of(rows), _last_cut(visits)) if each), "")
    found["rules"] = [ruling._asdict() for ruling in rulings]
    found["waits"] = waits(known, site, job, state, rulings, last) if known is not None else None
    found["next"] = next_visit(known, settings, now=now) if known is not None else None
    found["attempts"] = [_attempt(one) for one in visits] or _frontier_attempts(known)
    found["site_state"] = _plain(site)
    return found


def _visits(job: Job, url: str, site: str) -> tuple[list[Sent], Sent | None]:
    """The requests for the URL, in any spelling, and the last request to its site that failed."""
    found: list[Sent] = []
    same = urls.equivalent(url)
    last: Sent | None = None
    for one in requests_to(job.stored(), site, job.settings):
        if one.step.url == url or urls.equivalent(one.step.url) == same:
            found.append(one)
        failed = one.step.error or one.step.status in policy.RETRY_STATUSES
        if failed and (last is None or one.step.at > last.step.at):
            last = one
    return sorted(found, key=lambda one: one.step.at), last


def _rows(job: Job, url: str, visits: list[Sent]) -> list[PageRow]:
    """The stored rows of the URL, or of the spelling that was fetched instead."""
    spellings = dict.fromkeys([url, *(one.step.url for one in visits)])
    return next((rows for each in spellings if (rows := stored_rows(job.stored(), each))), [])


def _state(known: Known | None, site: Known | None, visits: list[Sent]) -> str:
    """The state in the frontier. If the frontier keeps no state of finished URLs, the result of the last visit."""
    if known is None:
        return "unknown"
    state = str(known["state"])
    if state != "known":
        return "queued" if state == "suspect" else state
    if visits:
        step = visits[-1].step
        return "skipped" if step.skipped else "failed" if step.error or step.status >= 400 else "done"
    return "failed" if site is not None and site["closed"] else "known"


def _referrer(known: Known, rows: list[PageRow], visits: list[Sent]) -> str:
    if known.get("referrer"):
        return str(known["referrer"])
    if rows:
        return rows[-1].referrer
    return next((one.step.referrer for one in visits if one.step.referrer), "")


async def _depth_below(job: Job, page: str) -> int:
    """The depth of a link on a page; 1 if the depth of the page is unknown."""
    known = await job.lookup(page)
    rows = stored_rows(job.stored(), page) if known is not None and "depth" not in known else []
    return int((known or {}).get("depth", rows[-1].depth if rows else 0)) + 1


def _by_scrapy(times: int) -> Ruling:
    again = f" It was requested {times} times, with dont_filter." if times > 1 else ""
    return Ruling(True, "scrapy", _BY_SCRAPY + again)


async def _rulings(job: Job, found: Known, site: Known | None, *, now: float) -> list[Ruling]:
    """Evaluate all rules, in the order in which they apply."""
    settings, url = job.settings, str(found["url"])
    depth, page = int(found.get("depth", 1)), str(found.get("referrer", ""))
    rulings = []
    if found["seen"] and not depth and not page:
        rulings.append(Ruling(True, "seed", "It is a seed or was added manually, which is always allowed."))
    else:
        year = gmtime(now).tm_year
        rulings.append(scope_ruling(url, settings, page=page or url, depth=depth, year=year))
        if not page and not found["seen"] and rulings[-1].rule == "scope":
            rulings = [await _site_ruling(job, url, site)]
    if not found["seen"] and not rulings[-1].allows:
        return rulings
    if site is not None or found["seen"]:
        origin, about = urls.origin(url), site or {}
        robots = RobotsRules(about.get("robots", {}).get(origin), origin, settings)
        rulings.append(robots.ruling(urls.path_query(url)))
        asleep = path_ruling(url, about.get("memo", {}), settings, now=now) if depth else None
        rulings += [asleep] if asleep is not None else []
        if about.get("closed"):
            rulings.append(_closed(about, settings))
    return rulings


async def _site_ruling(job: Job, url: str, site: Known | None) -> Ruling:
    """Whether an unknown URL can be in scope: whether the job has pages on its site."""
    settings, name = job.settings, urls.site(url, by=job.settings.site_by)
    setting = f"scope = {settings.scope}"
    if settings.scope == "any" or site is not None:
        return Ruling(True, "scope", "No rule excludes it, but no page fetched so far links to it.", setting)
    bare = name.removeprefix("www.")
    others = [bare, f"www.{bare}"]
    if settings.scope == "domain":
        domain = urls.registered_domain(urls.host_port(url))
        others += [domain, f"www.{domain}"]
    for other in dict.fromkeys(others):
        if other != name and await job.site(other) is not None:
            words = f"No rule excludes it, because the job crawls {other}, but no page fetched so far links to it."
            return Ruling(True, "scope", words, setting)
    return Ruling(False, "scope", f"The job has no page on {name} and does not follow links to other sites.", setting)


def _nofollow_ruling(job: Job, page: str) -> Ruling:
    """Whether a nofollow directive may have excluded a link; links with nofollow are not recorded."""
    setting = "nofollow = true"
    rows = stored_rows(job.stored(), page) if page else []
    robots = next((str(row.robots) for row in reversed(rows) if row.robots), "")
    if "nofollow" in robots or "none" in robots:
        return Ruling(
            False, "nofollow", f"{page} has a robots directive against following its links ({robots}).", setting
        )
    if page:
        words = f"A link on {page} with rel=nofollow is not followed, and not recorded."
    else:
        words = "Links with rel=nofollow, and links of pages with a robots nofollow directive, are not recorded."
    return Ruling(True, "nofollow", words, setting)


def _cut_rulings(job: Job, page: str, site: Known | None) -> list[Ruling]:
    """Whether a limit may have dropped a link to the URL, on that page or on any page of its site."""
    setting = f"max_links = {job.settings.max_links}"
    if page:
        cut = _cut_of(stored_rows(job.stored(), page))
        words = f"{page} was cut by a limit ({cut}), which may have dropped a link to this URL."
        return [Ruling(True, "cut", words, setting)] if cut else []
    counts = pages_cut((site or {}).get("memo", {}))
    if site is None or not counts:
        return []
    parts = []
    for reason, pages in counts.most_common():
        what = "had more links than max_links" if reason == "max_links" else f"exceeded {reason}"
        parts.append(f"{pages:,} page{'s' * (pages != 1)} {what}")
    words = f"On {site['site']}, {', '.join(parts)}: a link to this URL may have been dropped."
    return [Ruling(True, "cut", words, setting)]


def _cut_of(rows: Sequence[PageRow]) -> str:
    """What a limit dropped from a page at its last visit with a body."""
    return next((row.cut or "" for row in reversed(rows) if row.status not in (0, 304)), "")


def _last_cut(visits: Sequence[Sent]) -> str:
    return next((one.step.cut for one in reversed(visits) if one.step.status not in (0, 304)), "")


def _closed(site: Known, settings: Settings) -> Ruling:
    name, reason, failures = site["site"], site["closed"], site.get("memo", {}).get("failures", 0)
    if reason == "budget":
        return Ruling(False, "budget", f"{name} has reached its limit of pages.", f"budget = {site.get('budget')}")
    row = f" after {failures} consecutive errors" if failures > 1 else ""
    return Ruling(False, "closed", f"{name} was closed{row}: {reason}.", f"site_failures = {settings.site_failures}")


def waits(
    known: Known, site: Known | None, job: Job, job_state: State, rulings: list[Ruling], last: Sent | None
) -> dict[str, Any] | None:
    """What a URL is waiting for; None if it is finished."""
    state, site = known["state"], site or {}
    if state in _ENDED:
        return None
    if state == "leased":
        who, ends = known.get("worker") or "the crawl's own worker", known.get("lease_ends_in", 0.0)
        return _wait(
            "lease", ends, f"{who} has leased it; the lease expires in {ends:.0f} s at the latest.", worker=who
        )
    if job_state in ("paused", "stopping", "resting", "finished"):
        words = {
            "paused": f"The job is paused; resume it with `gossamer resume {job.name}`.",
            "stopping": "The job is stopping.",
            "resting": "No worker is running; the next run, or the next worker, continues the job.",
            "finished": "The job has reached its limit of pages.",
        }[job_state]
        return _wait({"finished": "max_pages"}.get(job_state, job_state), None, words)
    hold = site.get("hold", 0.0)
    if hold > 0:
        return _held(site, rulings, hold, last)
    if state == "delayed":
        due = known.get("due_in", 0.0)
        after = f" after {_failure(last)}" if last is not None and last.step.url == known["url"] else ""
        return _wait("retry", due, f"Retry in {_span(due)}{after}; that will be attempt {known.get('tries', 0) + 1}.")
    return _turn(known, site)


def _held(site: Known, rulings: list[Ruling], hold: float, last: Sent | None) -> dict[str, Any]:
    if any(ruling.rule == "robots-unreachable" for ruling in rulings):
        return _wait("robots", hold, f"Its site is held for {_span(hold)} more, because robots.txt is unreachable.")
    failures = site.get("memo", {}).get("failures", 0)
    row = f" It was consecutive error {failures}." if failures > 1 else ""
    why = f" after {_failure(last)}" if last is not None else ""
    return _wait("back-off", hold, f"Its site is held for {_span(hold)} more{why}.{row}")


def _turn(known: Known, site: Known) -> dict[str, Any]:
    """What a URL that is ready is waiting for: its site, or a worker."""
    queued, delay = site.get("queued", 0), site.get("delay", 0.0)
    line = f" Its site has {queued:,} queued URLs, and a delay of {_span(delay)}." if queued else ""
    if known.get("shard_worker"):
        worker = known["shard_worker"]
        words = f"{worker} owns its shard and may have leased it; other processes cannot see that.{line}"
        return _wait("turn", None, words, worker=worker)
    if site.get("workers"):
        worker = site["workers"][0] or "the crawl's own worker"
        return _wait("lease", None, f"{worker} has leased its site, with other URLs.{line}", worker=worker)
    ready = site.get("ready_in") or 0.0
    if ready > 0:
        return _wait("delay", ready, f"The delay of its site ends in {_span(ready)}.{line}")
    if site.get("share_left") == 0:
        words = f"Its site has used its share of recent fetches, and waits while other sites are ready.{line}"
        return _wait("quota", None, words)
    return _wait("turn", None, f"It is ready, and waits for a free worker.{line}")


def _wait(kind: str, seconds: float | None, words: str, **more: Any) -> dict[str, Any]:
    return {"for": kind, "seconds": None if seconds is None else round(seconds, 3), "words": words, **more}


def _failure(one: Sent) -> str:
    what = f"status {one.step.status}" if one.step.status else f"an error ({one.step.error})"
    return f"{what} at {when(one.step.at)}"


def next_visit(known: Known, settings: Settings, *, now: float) -> dict[str, Any] | None:
    """When a finished page is visited again, and why; None if it is not finished."""
    if known["state"] not in _ENDED:
        return None
    if known.get("due_in") is None:
        words = "None: each page is visited once." if not settings.recrawl else "None scheduled."
        return {"at": None, "words": words, "setting": f"recrawl = {settings.recrawl or 'no'}"}
    due, visited = known["due_in"], recrawl.read(known.get("visit"))
    rule = recrawl.parse_rule(settings.recrawl)
    if known["state"] != "done":
        count = f"consecutive failure {visited.failures}" if visited.failures else "a failure"
        reason = f"after {count}" if known["state"] == "failed" else "because skipped URLs are checked again"
    elif rule.kind == "table":
        reason = f"{_span(settings.revisit_seconds)} after a success"
    elif rule.kind == "adaptive":
        reason = "based on its observed change rate"
        if visited.looks:
            reason += f" ({visited.changes:g} of {visited.looks:g} visits found a change)"
    else:
        reason = "based on its share of the visit budget"
    at = now + due
    words = f"{when(at)}, in {_span(due)}, {reason}." if due else f"Due now, {reason}."
    return {"at": round(at, 3), "words": words, "setting": f"recrawl = {settings.recrawl or 'no'}"}


def _attempt(one: Sent) -> dict[str, Any]:
    return {**msgspec.structs.asdict(one.step), "worker": one.worker}


def _frontier_attempts(known: Known | None) -> list[dict[str, Any]]:
    """The visits that the frontier recorded, for jobs without a request log."""
    return [
        {"at": one["at"], "status": one["code"], "error": "" if one["code"] else one["reason"]}
        for one in (known or {}).get("attempts", ())
    ]


def _plain(site: Known | None) -> dict[str, Any] | None:
    """A site without its binary robots.txt records."""
    return None if site is None else {name: value for name, value in site.items() if name != "robots"}


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 and seconds % 1 else f"{seconds:.0f} s"
    for unit, size in (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}".replace(".0 ", " ")
    return f"{seconds:.0f} s"
