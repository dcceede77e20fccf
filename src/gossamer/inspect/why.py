"""The history of one URL in a job: where it was found, which rule let it in, what it waits for, and its visits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from time import gmtime
from typing import Any

import msgspec

from gossamer import urls
from gossamer.cut import pages_cut
from gossamer.frontier import policy, recrawl
from gossamer.inspect.rules import RobotsSays, Ruling, path_ruling, scope_ruling, when
from gossamer.jobs.job import Job, State, read_state
from gossamer.model import PageRow
from gossamer.settings import Settings
from gossamer.storage.request_log import Sent, stored, walked

_ENDED = ("done", "failed", "skipped", "parked", "known")
_BY_SCRAPY = (
    "A Scrapy project made it. Which links to follow, robots.txt, redirects and retries are its affair, "
    "and its log has the visits."
)
Known = Mapping[str, Any]


async def url_history(job: Job, url: str, *, page: str = "", state: State | None = None, now: float) -> dict[str, Any]:
    """All that can be known of a URL; `page` is where a link to it stands, if somebody knows of one.

    `state` is that of the job, for those who know it."""
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
    found["attempts"] = [_attempt(one) for one in visits] or _journalled(known)
    found["site_state"] = _plain(site)
    return found


def _visits(job: Job, url: str, site: str) -> tuple[list[Sent], Sent | None]:
    """The steps of the URL, however it was spelled, and the last request to its site that met a fault."""
    found: list[Sent] = []
    same = urls.equivalent(url)
    last: Sent | None = None
    for one in walked(job.stored(), site, job.settings):
        if one.step.url == url or urls.equivalent(one.step.url) == same:
            found.append(one)
        failed = one.step.error or one.step.status in policy.RETRY_STATUSES
        if failed and (last is None or one.step.at > last.step.at):
            last = one
    return sorted(found, key=lambda one: one.step.at), last


def _rows(job: Job, url: str, visits: list[Sent]) -> list[PageRow]:
    """The stored rows of the URL, or of another spelling that was visited in its place."""
    spellings = dict.fromkeys([url, *(one.step.url for one in visits)])
    return next((rows for each in spellings if (rows := stored(job.stored(), each))), [])


def _state(known: Known | None, site: Known | None, visits: list[Sent]) -> str:
    """The frontier's word; where it keeps none of what is over, that of the last visit."""
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
    """The depth of a link on a page, as far as that is known."""
    known = await job.lookup(page)
    rows = stored(job.stored(), page) if known is not None and "depth" not in known else []
    return int((known or {}).get("depth", rows[-1].depth if rows else 0)) + 1


def _by_scrapy(times: int) -> Ruling:
    again = f" It was asked for {times} times, past the filter." if times > 1 else ""
    return Ruling(True, "scrapy", _BY_SCRAPY + again)


async def _rulings(job: Job, found: Known, site: Known | None, *, now: float) -> list[Ruling]:
    """What every rule says, in the order in which they apply."""
    settings, url = job.settings, str(found["url"])
    depth, page = int(found.get("depth", 1)), str(found.get("referrer", ""))
    rulings = []
    if found["seen"] and not depth and not page:
        rulings.append(Ruling(True, "seed", "It is a seed, or was added by hand; those are always let in."))
    else:
        year = gmtime(now).tm_year
        rulings.append(scope_ruling(url, settings, page=page or url, depth=depth, year=year))
        if not page and not found["seen"] and rulings[-1].rule == "scope":
            rulings = [await _site_ruling(job, url, site)]
    if not found["seen"] and not rulings[-1].allows:
        return rulings
    if site is not None or found["seen"]:
        origin, about = urls.origin(url), site or {}
        says = RobotsSays(about.get("robots", {}).get(origin), origin, settings)
        rulings.append(says.ruling(urls.path_query(url)))
        asleep = path_ruling(url, about.get("memo", {}), settings, now=now) if depth else None
        rulings += [asleep] if asleep is not None else []
        if about.get("closed"):
            rulings.append(_closed(about, settings))
    return rulings


async def _site_ruling(job: Job, url: str, site: Known | None) -> Ruling:
    """Whether a URL that nobody has seen is in scope at all: whether the job has pages on its site."""
    settings, name = job.settings, urls.site(url, by=job.settings.site_by)
    setting = f"scope = {settings.scope}"
    if settings.scope == "any" or site is not None:
        return Ruling(True, "scope", "No rule keeps it out; no page that was fetched so far links to it.", setting)
    bare = name.removeprefix("www.")
    others = [bare, f"www.{bare}"]
    if settings.scope == "domain":
        domain = urls.registered_domain(urls.host_port(url))
        others += [domain, f"www.{domain}"]
    for other in dict.fromkeys(others):
        if other != name and await job.site(other) is not None:
            words = f"No rule keeps it out, as {other} is in the job; no page that was fetched so far links to it."
            return Ruling(True, "scope", words, setting)
    return Ruling(False, "scope", f"The job has no page on {name}, and follows no links to other sites.", setting)


def _nofollow_ruling(job: Job, page: str) -> Ruling:
    """Whether a link may have been passed over because somebody wished it: such links are not kept."""
    setting = "nofollow = true"
    wish = next((str(row.robots) for row in reversed(stored(job.stored(), page)) if row.robots), "") if page else ""
    if "nofollow" in wish or "none" in wish:
        return Ruling(False, "nofollow", f"{page} asks robots to follow none of its links ({wish}).", setting)
    where = f"on {page}" if page else "on some page"
    words = f"A link {where} with rel=nofollow would have been passed over; such links are not kept"
    others = "" if page else ", nor are those of pages that ask robots to follow none"
    return Ruling(True, "nofollow", f"{words}{others}.", setting)


def _cut_rulings(job: Job, page: str, site: Known | None) -> list[Ruling]:
    """Whether a link to the URL may have been dropped: from that page, or from some page of its site."""
    setting = f"max_links = {job.settings.max_links}"
    if page:
        cut = _cut_of(stored(job.stored(), page))
        words = f"{page} was cut when it was fetched ({cut}), so a link may have been dropped."
        return [Ruling(True, "cut", words, setting)] if cut else []
    counts = pages_cut((site or {}).get("memo", {}))
    if site is None or not counts:
        return []
    told = []
    for reason, pages in counts.most_common():
        what = "had more links than max_links" if reason == "max_links" else f"lost something to {reason}"
        told.append(f"{pages:,} page{'s' * (pages != 1)} {what}")
    words = f"Of {site['site']}, {', '.join(told)}: a link to this URL may have been dropped."
    return [Ruling(True, "cut", words, setting)]


def _cut_of(rows: Sequence[PageRow]) -> str:
    """What was dropped of a page at its last visit that brought it."""
    return next((row.cut or "" for row in reversed(rows) if row.status not in (0, 304)), "")


def _last_cut(visits: Sequence[Sent]) -> str:
    return next((one.step.cut for one in reversed(visits) if one.step.status not in (0, 304)), "")


def _closed(site: Known, settings: Settings) -> Ruling:
    name, reason, failures = site["site"], site["closed"], site.get("memo", {}).get("failures", 0)
    if reason == "budget":
        return Ruling(False, "budget", f"{name} has given all the pages that it may.", f"budget = {site.get('budget')}")
    row = f" after {failures} faults in a row" if failures > 1 else ""
    return Ruling(False, "closed", f"{name} was given up{row}: {reason}.", f"site_failures = {settings.site_failures}")


def waits(
    known: Known, site: Known | None, job: Job, job_state: State, rulings: list[Ruling], last: Sent | None
) -> dict[str, Any] | None:
    """What a URL waits for; None if it waits for nothing."""
    state, site = known["state"], site or {}
    if state in _ENDED:
        return None
    if state == "leased":
        who, ends = known.get("worker") or "the crawl's own worker", known.get("lease_ends_in", 0.0)
        return _wait(
            "lease", ends, f"{who} has it in hand, and holds its site for {ends:.0f} s more at most.", worker=who
        )
    if job_state in ("paused", "stopping", "resting", "finished"):
        words = {
            "paused": f"The job is paused; `gossamer resume {job.name}` lets it go on.",
            "stopping": "The job is being stopped.",
            "resting": "Nobody works on the job now; the next run, or the next worker, goes on with it.",
            "finished": "The job has stored the pages that it may, and takes no more.",
        }[job_state]
        return _wait({"finished": "max_pages"}.get(job_state, job_state), None, words)
    hold = site.get("hold", 0.0)
    if hold > 0:
        return _held(site, rulings, hold, last)
    if state == "delayed":
        due = known.get("due_in", 0.0)
        after = f" after {_fault(last)}" if last is not None and last.step.url == known["url"] else ""
        return _wait(
            "retry", due, f"It is tried again in {_span(due)}{after}; that will be try {known.get('tries', 0) + 1}."
        )
    return _turn(known, site)


def _held(site: Known, rulings: list[Ruling], hold: float, last: Sent | None) -> dict[str, Any]:
    if any(ruling.rule == "robots-unreachable" for ruling in rulings):
        return _wait("robots", hold, f"Its site is left alone for {_span(hold)} more, as robots.txt cannot be had.")
    failures = site.get("memo", {}).get("failures", 0)
    row = f" It was fault {failures} in a row." if failures > 1 else ""
    why = f" after {_fault(last)}" if last is not None else ""
    return _wait("back-off", hold, f"Its site is left alone for {_span(hold)} more{why}.{row}")


def _turn(known: Known, site: Known) -> dict[str, Any]:
    """What a URL waits for that could go out as far as it is concerned."""
    queued, delay = site.get("queued", 0), site.get("delay", 0.0)
    line = f" {queued:,} wait there in all, and {_span(delay)} pass between two." if queued else ""
    if known.get("shard_worker"):
        worker = known["shard_worker"]
        words = f"{worker} works on its part of the sites, and may have it in hand; only {worker} knows.{line}"
        return _wait("turn", None, words, worker=worker)
    if site.get("workers"):
        worker = site["workers"][0] or "the crawl's own worker"
        return _wait("lease", None, f"{worker} has its site in hand, with others of its URLs.{line}", worker=worker)
    ready = site.get("ready_in") or 0.0
    if ready > 0:
        return _wait("delay", ready, f"Its site may be asked again in {_span(ready)}.{line}")
    if site.get("share_left") == 0:
        words = f"Its site has had its share of the last fetches, and waits while other sites are ready.{line}"
        return _wait("quota", None, words)
    return _wait("turn", None, f"It could go out now, and waits for a worker to have time.{line}")


def _wait(kind: str, seconds: float | None, words: str, **more: Any) -> dict[str, Any]:
    return {"for": kind, "seconds": None if seconds is None else round(seconds, 3), "words": words, **more}


def _fault(one: Sent) -> str:
    said = f"status {one.step.status}" if one.step.status else f"a fault ({one.step.error})"
    return f"{said} at {when(one.step.at)}"


def next_visit(known: Known, settings: Settings, *, now: float) -> dict[str, Any] | None:
    """When a page that had its visit comes again, and why then; None while that is not the question."""
    if known["state"] not in _ENDED:
        return None
    if known.get("due_in") is None:
        words = "None: each page is visited once." if not settings.recrawl else "None is planned."
        return {"at": None, "words": words, "setting": f"recrawl = {settings.recrawl or 'no'}"}
    due, visited = known["due_in"], recrawl.read(known.get("visit"))
    rule = recrawl.rule_of(settings.recrawl)
    if known["state"] != "done":
        count = f"failure {visited.failures} in a row" if visited.failures else "a failure"
        reason = f"after {count}" if known["state"] == "failed" else "as what was skipped is looked at again"
    elif rule.kind == "table":
        reason = f"{_span(settings.revisit_seconds)} after a success"
    elif rule.kind == "adaptive":
        reason = "by how often it was seen to change"
        if visited.looks:
            reason += f" ({visited.changes:g} of {visited.looks:g} looks found a change)"
    else:
        reason = "by its share of the budget of visits"
    at = now + due
    words = f"{when(at)}, in {_span(due)}, {reason}." if due else f"Now: it is due, {reason}."
    return {"at": round(at, 3), "words": words, "setting": f"recrawl = {settings.recrawl or 'no'}"}


def _attempt(one: Sent) -> dict[str, Any]:
    return {**msgspec.structs.asdict(one.step), "worker": one.worker}


def _journalled(known: Known | None) -> list[dict[str, Any]]:
    """What the frontier itself kept of the visits, where there are no files of them."""
    return [
        {"at": one["at"], "status": one["code"], "error": "" if one["code"] else one["reason"]}
        for one in (known or {}).get("attempts", ())
    ]


def _plain(site: Known | None) -> dict[str, Any] | None:
    """A site without what only programs read."""
    return None if site is None else {name: value for name, value in site.items() if name != "robots"}


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 and seconds % 1 else f"{seconds:.0f} s"
    for unit, size in (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}".replace(".0 ", " ")
    return f"{seconds:.0f} s"
