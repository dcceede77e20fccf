"""A report as one page of HTML that needs nothing else: no script, no font, no file beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from html import escape
from importlib import resources

from gossamer.cut import SETTINGS, UNITS, CutTally
from gossamer.report.charts import Bar, bars, ring
from gossamer.report.tally import MOST_DEPTH, ReportCounts

_MOST_BARS = 120
_TOP_SITES = 20
_TOP_PLACES = 14
_STEPS = (1, 2, 5, 10, 20, 60, 120, 300, 600, 1200, 3600, 7200, 21_600, 43_200, 86_400, 604_800, 2_592_000, 31_536_000)
_STYLE = resources.files("gossamer.report").joinpath("style.css").read_text("utf-8")


def render(tally: ReportCounts, *, job: str, facts: Mapping[str, str], made_at: float) -> str:
    """The whole page; `facts` are further words about the job, shown as they are."""
    return "".join(_parts(tally, job, facts, made_at))


def _parts(tally: ReportCounts, job: str, facts: Mapping[str, str], made_at: float) -> Iterator[str]:
    yield (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        'content="width=device-width,initial-scale=1"><meta http-equiv="Content-Security-Policy" '
        'content="default-src \'none\'; style-src \'unsafe-inline\'"><meta name="referrer" content="no-referrer">'
        f"<title>{escape(job)}: crawl report</title><style>{_STYLE}</style></head><body>"
    )
    yield f"<h1>{escape(job)}</h1>"
    if not tally.pages:
        yield '<p class="sub">Nothing has been stored yet.</p></body></html>'
        return
    seconds = max(tally.last_at - tally.first_at, 1.0)
    yield f'<p class="sub">{_when(tally.first_at)} to {_when(tally.last_at)} UTC, by the pages that were stored</p>'
    yield '<div class="facts">'
    figures = {
        "pages": f"{tally.pages:,}",
        "pages a second": f"{tally.pages / seconds:,.2f}",
        "sites": f"{len(tally.site_counts.counts):,}{'' if tally.site_counts.is_exact else '+'}",
        "bytes": _bytes(tally.bytes),
        "failed": f"{tally.failed:,} ({tally.failed / tally.pages:.1%})",
        **({"cut": f"{tally.cut.pages:,} ({tally.cut.pages / tally.pages:.1%})"} if tally.cut.pages else {}),
        **facts,
    }
    for label, text in figures.items():
        yield f"<div><b>{escape(text)}</b><span>{escape(label)}</span></div>"
    yield '</div><div class="grid2">'
    step, chart = _progress(tally)
    yield _section(f"Progress: pages, {step}", bars(chart, name="pages over time"))
    yield _section("Answers by status", bars(_statuses(tally.statuses), name="pages by status"))
    yield _section("Depth: links from the nearest seed", bars(_depths(tally.depths), name="pages by depth"))
    yield _section("Size of bodies", bars(_powers(tally.sizes, _bytes), name="pages by size"))
    yield _section("Time of a fetch", bars(_powers(tally.latencies, _milliseconds), name="pages by latency"))
    kind, picture = _graph(tally)
    yield _section(f"Links between {kind}: the busiest of those by which pages were found", picture)
    yield "</div><br>" + _section("Busiest sites", _sites(tally)) + "<br>" + _section("Failures", _failures(tally))
    if tally.cut.pages:
        yield "<br>" + _section("Pages that were cut: something of them was dropped", _cut(tally.cut))
    yield f"<footer>Written by Gossamer on {_when(made_at)} UTC.</footer></body></html>"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _progress(tally: ReportCounts) -> tuple[str, list[Bar]]:
    """Pages over time, in as many bars as can be told apart, and the length of one."""
    unit, first, last = tally.unit_seconds, min(tally.times), max(tally.times)
    seconds = (last - first) * unit
    step = next((step for step in _STEPS if step >= unit and seconds // step < _MOST_BARS), _STEPS[-1])
    counts: Counter[int] = Counter()
    for time, count in tally.times.items():
        counts[time * unit // step] += count
    chart = []
    for number in range(first * unit // step, last * unit // step + 1):
        begin = datetime.fromtimestamp(number * step, UTC).strftime("%Y-%m-%d %H:%M:%S")
        label = begin[11:] if step < 60 else begin[11:16] if step < 86_400 else begin[5:10]
        chart.append(Bar(label, counts[number], f"{begin}: {counts[number]:,} pages"))
    for name, length in (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1)):
        if step >= length:
            return (f"each {name}" if step == length else f"{step / length:g} {name}s"), chart
    raise AssertionError(step)


def _statuses(statuses: Counter[int]) -> list[Bar]:
    tones = {0: "d", 2: "a", 3: "b", 4: "c", 5: "d"}
    return [
        Bar(str(code) if code else "none", count, f"{code or 'no answer'}: {count:,}", tones.get(code // 100, "c"))
        for code, count in sorted(statuses.items())[:40]
    ]


def _depths(depths: Counter[int]) -> list[Bar]:
    return [
        Bar(f"{depth}{'+' if depth == MOST_DEPTH else ''}", depths[depth])
        for depth in range(max(depths, default=0) + 1)
    ]


def _powers(counts: Counter[int], worded: Callable[[float], str]) -> list[Bar]:
    if not counts:
        return []
    return [
        Bar(worded(2**power), counts[power], f"{worded(2**power)} to {worded(2 ** (power + 1))}: {counts[power]:,}")
        for power in range(min(counts), max(counts) + 1)
    ]


def _graph(tally: ReportCounts) -> tuple[str, str]:
    between = Counter({pair: count for pair, count in tally.site_links.counts.items() if pair[0] != pair[1]})
    kind, links = ("sites", between) if between else ("sections of the site", tally.section_links.counts)
    weight: Counter[str] = Counter()
    for (source, target), count in links.items():
        if source != target:
            weight[source] += count
            weight[target] += count
    places = [place for place, _ in weight.most_common(_TOP_PLACES)]
    return kind, ring(links, sorted(places), name=f"links between {kind}")


def _sites(tally: ReportCounts) -> str:
    rows = []
    for site, pages in tally.site_counts.counts.most_common(_TOP_SITES):
        one = tally.sites[site]
        rows.append(
            f"<tr><td>{escape(site)}</td><td>{pages:,}</td><td>{pages / tally.pages:.1%}</td><td>{one.failed:,}</td>"
            f"<td>{_bytes(one.bytes)}</td><td>{1000 * one.seconds / max(one.pages, 1):,.0f} ms</td></tr>"
        )
    head = "<tr><th>site</th><th>pages</th><th>share</th><th>failed</th><th>bytes</th><th>mean time</th></tr>"
    return f'<div class="scroll"><table>{head}{"".join(rows)}</table></div>'


def _failures(tally: ReportCounts) -> str:
    if not tally.failed:
        return '<p class="none">none</p>'
    rows = []
    for kind, count in tally.error_counts.most_common(_TOP_SITES):
        examples = "".join(f"<li><code>{escape(url)}</code></li>" for url in tally.errors[kind])
        rows.append(f"<tr><td>{escape(kind)}<ul>{examples}</ul></td><td>{count:,}</td></tr>")
    return (
        f'<div class="scroll"><table><tr><th>kind, with examples</th><th>pages</th></tr>{"".join(rows)}</table></div>'
    )


def _cut(cut: CutTally) -> str:
    rows = []
    for reason, pages in cut.by_reason.most_common():
        lost, unit, setting = cut.lost.get(reason), UNITS.get(reason), SETTINGS.get(reason)
        what = f"{lost:,} {unit}{'s' * (lost != 1)}" if lost and unit else "unknown"
        rows.append(
            f"<tr><td>{escape(reason)}</td><td>{pages:,}</td><td>{what}</td><td>{escape(setting or '')}</td></tr>"
        )
    head = "<tr><th>limit</th><th>pages</th><th>lost</th><th>setting that keeps more</th></tr>"
    return f'<div class="scroll"><table>{head}{"".join(rows)}</table></div>'


def _when(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")


def _milliseconds(value: float) -> str:
    return f"{value:g} ms" if value < 1000 else f"{value / 1000:.3g} s"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} PB"
