"""The audit of a site: every request to it with its gap, and the rule of robots.txt that allowed it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

import msgspec

from gossamer import urls
from gossamer.explain import RobotsSays
from gossamer.jobs.job import Job
from gossamer.storage.request_log import Sent, has_trail, is_too_short, rested


def site_audit(job: Job, name: str, site: Mapping[str, Any], steps: Iterable[Sent]) -> dict[str, Any]:
    """The requests `steps` to the site of this name in the order of time, and what they add up to.

    `site` is what the frontier knows of it: its delay, and robots.txt as it was last fetched."""
    steps = sorted(steps, key=lambda one: one.step.at)
    says: dict[str, RobotsSays] = {}
    requests: list[dict[str, Any]] = []
    before: Sent | None = None
    for one in steps:
        if one.step.skipped:
            continue
        origin = urls.origin(one.step.url)
        if origin not in says:
            says[origin] = RobotsSays(site["robots"].get(origin), origin, job.settings)
        requests.append(_request(one, before, says[origin]))
        before = one if one.was_sent else before
    gaps = [request["gap"] for request in requests if request["gap"] is not None]
    sent = [request for request in requests if request["sent"]]
    return {
        "site": name,
        "job": job.name,
        "complete": has_trail(job.folder),
        "user_agent": job.settings.user_agent,
        "delay": site["delay"],
        "setting_delay": job.settings.for_site(name).delay,
        "crawl_delay": max((one.known.rules.crawl_delay or 0.0 for one in says.values() if one.known), default=0.0),
        "requests": requests,
        "sent": len(sent),
        "bytes": sum(request["bytes"] for request in sent),
        "gaps": {"shortest": min(gaps), "median": median(gaps)} if gaps else None,
        "too_short": sum(request["too_short"] for request in requests),
        "answers": dict(Counter(str(request["status"] or request["error"]) for request in sent)),
        "kept_back": dict(Counter(one.step.skipped for one in steps if one.step.skipped)),
        "workers": sorted({request["worker"] for request in requests}),
        "missing": sum(one.step.missing for one in steps),
    }


def _request(one: Sent, before: Sent | None, says: RobotsSays) -> dict[str, Any]:
    step = one.step
    gap = rest = None
    if before is not None and one.was_sent:
        gap = round(step.at - before.step.at, 3)
        rest = rested(step, before.step)
    rule = says.rule_for(urls.path_query(step.url))
    if says.known is not None and says.known.fetched_at > step.at + step.latency and rule != "robots.txt itself":
        rule += " (by a later robots.txt)"
    return {
        **msgspec.structs.asdict(step),
        "gap": gap,
        "rest": None if rest is None else round(rest, 3),
        "rule": rule,
        "sent": one.was_sent,
        "too_short": rest is not None and is_too_short(step, rest),
        "worker": one.worker,
    }
