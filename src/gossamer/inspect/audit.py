"""The audit of a site: every request with its gap and robots.txt rule, as values and as an SVG chart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from math import ceil, floor, log10
from statistics import median
from typing import Any

import msgspec

from gossamer import urls
from gossamer.inspect.rules import RobotsRules, when
from gossamer.jobs.job import Job
from gossamer.storage.request_log import Sent, gap_before, has_request_log, is_too_short


def site_audit(job: Job, name: str, site: Mapping[str, Any], steps: Iterable[Sent]) -> dict[str, Any]:
    """Summarize the requests `steps` to a site, in chronological order.

    `site` is the frontier's record of the site: its delay, and the last fetched robots.txt."""
    steps = sorted(steps, key=lambda one: one.step.at)
    says: dict[str, RobotsRules] = {}
    requests: list[dict[str, Any]] = []
    before: Sent | None = None
    for one in steps:
        if one.step.skipped:
            continue
        origin = urls.origin(one.step.url)
        if origin not in says:
            says[origin] = RobotsRules(site["robots"].get(origin), origin, job.settings)
        requests.append(_request(one, before, says[origin]))
        before = one if one.was_sent else before
    gaps = [request["gap"] for request in requests if request["gap"] is not None]
    sent = [request for request in requests if request["sent"]]
    return {
        "site": name,
        "job": job.name,
        "complete": has_request_log(job.folder),
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


def _request(one: Sent, before: Sent | None, says: RobotsRules) -> dict[str, Any]:
    step = one.step
    gap = rest = None
    if before is not None and one.was_sent:
        gap = round(step.at - before.step.at, 3)
        rest = gap_before(step, before.step)
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


_WIDTH, _HEIGHT = 1000, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 60, 40
_MOST_DOTS = 20_000
_COLORS = {"good": "#2a7de1", "redirect": "#8a63d2", "refused": "#e08a00", "failed": "#d03030"}
_STYLE = (
    "text{font:13px sans-serif;fill:currentColor}.t{font-size:16px;font-weight:bold}.g{stroke:currentColor;"
    "stroke-opacity:.15}.d{stroke:#1a9850;stroke-width:1.5;stroke-dasharray:6 4;fill:none}"
    "svg{background:#fff;color:#222}@media(prefers-color-scheme:dark){svg{background:#16181d;color:#ddd}}"
)


def gap_chart(found: Mapping[str, Any]) -> str:
    """The gaps of an audit as an SVG chart."""
    return "\n".join(_parts(found)) + "\n"


def _parts(found: Mapping[str, Any]) -> Iterator[str]:
    requests = [one for one in found["requests"] if one["gap"] is not None]
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="gaps between requests to {escape(found["site"])}"><style>{_STYLE}</style>'
    )
    title = f"{found['site']}: {found['sent']:,} requests, {found['too_short']:,} violated the delay"
    yield f'<text class="t" x="{_LEFT}" y="24">{escape(title)}</text>'
    yield f'<text x="{_LEFT}" y="44">seconds since the previous request; dashed: the delay in force</text>'
    if not requests:
        yield f'<text x="{_LEFT}" y="{_HEIGHT // 2}">fewer than two requests</text></svg>'
        return
    begin: float = requests[0]["at"]
    end: float = max(requests[-1]["at"], begin + 1.0)
    values = [max(one["gap"], 0.001) for one in requests] + [one.get("delay") or 0.1 for one in requests]
    low = floor(log10(0.5 * min(values)))
    high = max(ceil(log10(max(values))), low + 1)

    def x(at: float) -> float:
        return _LEFT + (at - begin) / (end - begin) * (_WIDTH - _LEFT - _RIGHT)

    def y(seconds: float) -> float:
        share = (log10(max(seconds, 0.001)) - low) / (high - low)
        return _HEIGHT - _BOTTOM - min(max(share, 0.0), 1.0) * (_HEIGHT - _TOP - _BOTTOM)

    for power in range(low, high + 1):
        at = y(10.0**power)
        yield f'<path class="g" d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}"/>'
        yield f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{10.0**power:g} s</text>'
    delays = "".join(f"{'L' if n else 'M'}{x(o['at']):.1f} {y(o.get('delay', 0.0)):.1f}" for n, o in _thin(requests))
    yield f'<path class="d" d="{delays}"/>'
    for _, one in _thin(requests):
        about = escape(f"{when(one['at'])}  {one['gap']:.3f} s  {one['status'] or one['error']}  {one['url']}")
        color, radius = _color(one), 4 if one["too_short"] else 2.5
        center = f'cx="{x(one["at"]):.1f}" cy="{y(one["gap"]):.1f}" r="{radius}"'
        yield f'<circle {center} fill="{color}" fill-opacity=".7"><title>{about}</title></circle>'
    yield f'<text x="{_LEFT}" y="{_HEIGHT - 12}">{when(begin)}</text>'
    yield f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 12}" text-anchor="end">{when(end)}</text>'
    for number, (word, color) in enumerate(_COLORS.items()):
        place = 380 + 90 * number
        yield f'<circle cx="{place}" cy="{_HEIGHT - 16}" r="4" fill="{color}"/>'
        yield f'<text x="{place + 9}" y="{_HEIGHT - 12}">{word}</text>'
    yield "</svg>"


def _thin(requests: list[Any]) -> list[tuple[int, Any]]:
    """A number of dots that a browser can display: all that violated the delay, and a sample of the others."""
    step = max(1, len(requests) // _MOST_DOTS)
    return list(enumerate(one for n, one in enumerate(requests) if n % step == 0 or one["too_short"]))


def _color(request: Mapping[str, Any]) -> str:
    status = request["status"]
    if not status or status >= 500:
        return _COLORS["failed"]
    return _COLORS["good" if status < 300 else "redirect" if status < 400 else "refused"]
