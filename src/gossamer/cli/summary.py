"""The summary of a crawl: the outcome, its figures, where the files are, and what to do next."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from gossamer.cli import console
from gossamer.errors import advice_for_kind
from gossamer.jobs.local_run import RunSummary
from gossamer.logs import plain
from gossamer.results.report import REPORT
from gossamer.settings import Settings, introduces_itself
from gossamer.storage import csv as csv_files
from gossamer.storage.base import TABLES
from gossamer.storage.jsonl import ITEMS, PAGES, REJECTED, SUFFIXES
from gossamer.storage.reader import elsewhere
from gossamer.storage.sqlite import FILE as SQLITE_FILE
from gossamer.storage.warc.records import FOLDER as ARCHIVE

REFUSED = {
    "scope": "on another site",
    "depth": "over --max-depth",
    "allow": "not matched by --allow",
    "deny": "matched by --deny",
    "extension": "files, not pages",
    "length": "over --max-url-length",
    "segments": "over --max-segments",
    "repeats": "over --max-repeats",
    "calendar": "with a date out of range",
    "asleep": "in path prefixes full of near-duplicates",
    "prefix-budget": "over --prefix-budget",
    "score": "whose score() raised",
    "sitemap-host": "in a sitemap of another host",
    "sitemap-depth": "in nested sitemap indexes",
    "sitemap-files": "sitemaps over --max-sitemaps",
    "sitemap-broken": "invalid in sitemaps",
}
_STOPPED = {"SIGINT": "stopped by Ctrl-C", "SIGTERM": "stopped by SIGTERM", "seconds": "stopped after --max-seconds"}
_FEW = 3


def summary_lines(summary: RunSummary, folder: Path | None, settings: Settings, *, job: str = "") -> list[str]:
    """The summary as lines; `job` is the value of `--job` that resumes the job, by default its folder."""
    rows = [("", _ending(summary, settings)), *_figures(summary), *_files(summary, folder, settings)]
    lines = [f"{label:<9} {text}".rstrip() if label else text for label, text in rows]
    steps = _next_steps(summary, folder, settings, job or shlex.quote(str(folder)))
    return [*lines, *(f"hint: {step}" for step in steps)]


def _ending(summary: RunSummary, settings: Settings) -> str:
    counts, stats = summary.counts, summary.stats
    left = counts.queued + counts.delayed + counts.leased
    if settings.max_pages is not None and counts.stored >= settings.max_pages:
        how = f"reached --max-pages {settings.max_pages:,}"
    elif counts.finished:
        how = "finished: nothing is left to fetch" if stats.pages or not counts.done else "finished before this run"
    else:
        how = _STOPPED.get(summary.stopped_by) or {"stopping": "stopped", "paused": "paused"}.get(
            summary.state, summary.state
        )
    waiting = f"; {console.many(left, 'URL')} {'waits' if left == 1 else 'wait'} in the queue" if left else ""
    return f"{how}, after {console.span(stats.seconds)}{waiting}"


def _figures(summary: RunSummary) -> list[tuple[str, str]]:
    counts, stats = summary.counts, summary.stats
    # Workers of a fleet do not report bytes.
    size = f", {console.size(stats.bytes)}" if stats.bytes else ""
    rows = [
        (
            "pages",
            f"{stats.pages:,} ({console.rate(stats.mean_rate)}{size})"
            + (f"; {counts.stored:,} including earlier runs" if counts.stored > stats.pages else ""),
        )
    ]
    if stats.items:
        rows.append(("items", f"{stats.items:,}"))
    if stats.rejected:
        kinds = _listed({f"for {field}": count for field, count in stats.rejected.items()})
        rows.append(("rejected", f"{console.many(stats.rejected.total(), 'item')} that match no item type: {kinds}"))
    if stats.dropped:
        rows.append(("dropped", f"{console.many(stats.dropped, 'item')} by pipelines"))
    if stats.copies:
        rows.append(("copies", f"{console.many(stats.copies, 'near-duplicate')} of stored pages"))
    if stats.cut.pages:
        rows.append(("cut", f"{console.many(stats.cut.pages, 'page')}: {stats.cut.words()}"))
    if stats.sitemaps:
        rows.append(("sitemaps", f"{stats.sitemaps:,} read, listing {console.many(stats.listed, 'page')}"))
    if counts.freshness is not None:
        rows.append(("fresh", f"{counts.freshness:.1%} of the stored pages, predicted from their observed changes"))
    if stats.codes:
        rows.append(("answers", ", ".join(f"{code}: {count:,}" for code, count in console.most(stats.codes, 8))))
    rows += _troubles(summary)
    if summary.refused:
        rows.append(("links", "not followed: " + _listed(_described(summary.refused))))
    return rows


def _troubles(summary: RunSummary) -> list[tuple[str, str]]:
    counts, stats = summary.counts, summary.stats
    failed, skipped = stats.by_status["failed"], stats.by_status["skipped"]
    rows: list[tuple[str, str]] = []
    for kind, count in console.most(failed, 6):
        url = stats.examples.get(kind, "")
        example = f", as {plain(url, 200)}" if url else ""
        rows.append(("failed" if not rows else "", f"{count:,} {plain(kind, 40)}{example}"))
    if len(failed) > 6:
        rows.append(("", f"{sum(failed.values()) - sum(count for _, count in console.most(failed, 6)):,} otherwise"))
    listed = sum(failed.values())
    if stats.failures > listed:
        # Workers of a fleet do not report the kinds of their failures.
        rows.append(("" if rows else "failed", console.many(stats.failures - listed, "URL")))
    earlier = counts.failed - max(listed, stats.failures)
    if earlier > 0:
        rows.append(("" if rows else "failed", f"{earlier:,} in earlier runs, or because their site was closed"))
    if counts.parked:
        rows.append(("parked", f"{counts.parked:,} that crashed their workers repeatedly"))
    if skipped:
        rows.append(("skipped", _listed(skipped)))
    return [(label or " ", text) for label, text in rows]


_OUTPUT = (
    *((PAGES + suffix, ITEMS + suffix) for suffix in SUFFIXES.values()),
    (csv_files.PAGES, csv_files.ITEMS),
)


def _files(summary: RunSummary, folder: Path | None, settings: Settings) -> list[tuple[str, str]]:
    if folder is None:
        return [("files", "none: the crawl was in memory")]
    items = [item for _, item in _OUTPUT] if summary.stats.items else []
    items += [REJECTED] if summary.stats.rejected else []
    names = (*(page for page, _ in _OUTPUT), SQLITE_FILE, *items, ARCHIVE, TABLES, REPORT)
    there = [folder / name for name in names if (folder / name).exists()]
    away = elsewhere(settings.sink)
    return [("files", ", ".join(map(str, there or [folder]))), *([("and in", ", ".join(away))] if away else [])]


def _next_steps(summary: RunSummary, folder: Path | None, settings: Settings, job: str) -> list[str]:
    counts, stats = summary.counts, summary.stats
    steps: list[str] = []
    good = stats.pages - stats.failures
    reasons = stats.by_status["failed"] + stats.by_status["retry"] + stats.by_status["skipped"]
    reasons.update(Counter(hold.reason for hold in stats.held.values() if hold.reason == "robots-unreachable"))
    if good <= 0 and counts.finished and counts.done + counts.failed and not reasons:
        failed = ", and failed pages are not retried" if counts.failed else ""
        finished = f"this job was already finished{failed}; start a new one with --job NAME"
        steps.append(finished if folder else "nothing was left to fetch")
    elif good <= 0 and (counts.finished or reasons):
        steps += _why_nothing(reasons)
        if counts.finished and stats.failures and folder:
            steps.append("failed pages are not retried in this job; start a new one with --job NAME")
    elif good > 0:
        kinds = [kind for kind, _ in console.most(reasons, _FEW) if kind != "robots"]
        steps += [text for kind in kinds if (text := advice_for_kind(kind))]
        if stats.pages <= _FEW and summary.refused.get("scope", 0) > counts.known and settings.scope != "any":
            wider = "domain" if settings.scope == "site" else "any"
            steps.append(f"most links lead to other sites; follow them with --scope {wider}")
    if folder is not None and not counts.finished:
        steps.append(f"resume with: gossamer crawl --job {job}")
    elif folder is not None and counts.queued + counts.delayed:
        steps.append(f"continue with: gossamer crawl --job {job} --max-pages N")
    if folder is not None and stats.failures and (folder / PAGES).exists():
        steps.append(f'list failed pages: grep -E \'"status":[045]|"error":"[^"]\' {shlex.quote(str(folder / PAGES))}')
    if good > 0 and not introduces_itself(settings):
        steps.append("identify your crawler: --user-agent 'NAME/1.0 (+https://your.site; you@your.site)'")
    return steps


def _why_nothing(reasons: Counter[str]) -> list[str]:
    steps = [f"{plain(kind, 40)}: {text}" for kind, _ in console.most(reasons, _FEW) if (text := advice_for_kind(kind))]
    if not steps:
        steps.append("no page was fetched; see the site's response with `gossamer fetch URL`")
    return steps


def _described(refused: Mapping[str, int]) -> dict[str, int]:
    return {REFUSED.get(reason, reason): count for reason, count in refused.items()}


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {plain(word, 60)}" for word, count in console.most(counts, 8))
