"""The HTML report of a job: counts, charts, sites, and failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from importlib import resources
from math import cos, floor, log2, log10, pi, sin
from typing import Generic, NamedTuple, TypeVar

from gossamer import urls
from gossamer.cut import SETTINGS, UNITS, CutTally
from gossamer.model import PageRow
from gossamer.storage.reader import StoredJob

_WIDTH, _HEIGHT = 640, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 8, 10, 30
_MOST_LABELS = 8
_RING = 460


class Bar(NamedTuple):
    """One bar; `tone` is a CSS class."""

    label: str
    value: float
    about: str = ""
    tone: str = "a"


def bars(chart: Sequence[Bar], *, name: str) -> str:
    """A vertical bar chart as SVG."""
    if not chart:
        return '<p class="none">no data yet</p>'
    top = _round_up(max(bar.value for bar in chart))
    wide = (_WIDTH - _LEFT - _RIGHT) / len(chart)
    high = _HEIGHT - _TOP - _BOTTOM
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(name)}">']
    for part in range(5):
        at = _TOP + high * (1 - part / 4)
        parts.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{_short(top * part / 4)}</text>')
    step = max(1, -(-len(chart) // _MOST_LABELS))
    for number, bar in enumerate(chart):
        x, tall = _LEFT + number * wide, high * bar.value / top if top else 0.0
        if bar.value:
            tall = max(tall, 1.0)
        box = f'x="{x + wide * 0.08:.2f}" y="{_TOP + high - tall:.2f}" width="{wide * 0.84:.2f}" height="{tall:.2f}"'
        about = escape(bar.about or f"{bar.label}: {bar.value:,g}")
        parts.append(f'<rect class="{bar.tone}" {box}><title>{about}</title></rect>')
        if number % step == 0:
            middle = x + wide / 2
            parts.append(f'<text x="{middle:.1f}" y="{_HEIGHT - 10}" text-anchor="middle">{escape(bar.label)}</text>')
    return "".join(parts) + "</svg>"


def link_graph(links: Mapping[tuple[str, str], int], places: Sequence[str], *, name: str) -> str:
    """A graph as SVG: places on a circle, and arcs whose width is the number of links between two places."""
    if len(places) < 2:
        return '<p class="none">no links between different sites or sections</p>'
    centre, radius = _RING / 2, _RING / 2 - 60
    spots = {
        place: (centre + 120 + radius * cos(angle), centre + radius * sin(angle))
        for number, place in enumerate(places)
        for angle in [2 * pi * number / len(places) - pi / 2]
    }
    shown = {
        pair: count for pair, count in links.items() if pair[0] in spots and pair[1] in spots and pair[0] != pair[1]
    }
    top = max(shown.values(), default=1)
    parts = [f'<svg viewBox="0 0 {_RING + 240} {_RING}" role="img" aria-label="{escape(name)}">']
    for (source, target), count in sorted(shown.items(), key=lambda pair: pair[1]):
        (x1, y1), (x2, y2) = spots[source], spots[target]
        bend_x, bend_y = (x1 + x2) / 2 * 0.4 + (centre + 120) * 0.6, (y1 + y2) / 2 * 0.4 + centre * 0.6
        width = 0.6 + 5.0 * count / top
        parts.append(
            f'<path class="link" stroke-width="{width:.1f}" d="M{x1:.1f} {y1:.1f}Q{bend_x:.1f} {bend_y:.1f} {x2:.1f} '
            f'{y2:.1f}"><title>{escape(source)} to {escape(target)}: {count:,}</title></path>'
        )
    for place, (x, y) in spots.items():
        side = "start" if x > centre + 121 else "end" if x < centre + 119 else "middle"
        off = {"start": 9, "end": -9, "middle": 0}[side]
        lift = (-10 if y < centre else 20) if side == "middle" else 4
        label = place if len(place) <= 22 else f"{place[:21]}…"
        parts.append(f'<circle class="a" cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{escape(place)}</title></circle>')
        parts.append(f'<text x="{x + off:.1f}" y="{y + lift:.1f}" text-anchor="{side}">{escape(label)}</text>')
    return "".join(parts) + "</svg>"


def _round_up(value: float) -> float:
    """Round up to one significant digit, for even tick marks."""
    if value <= 0:
        return 1.0
    power = 10.0 ** int(log10(value)) if value >= 1 else 10.0 ** (int(log10(value)) - 1)
    return next(step * power for step in (1, 2, 4, 5, 8, 10, 20) if step * power >= value)


def _short(value: float) -> str:
    for unit in ("", "k", "M", "G"):
        if value < 1000:
            return f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g}T"


Key = TypeVar("Key", bound=Hashable)
MOST_KEYS = 100_000
MOST_DEPTH = 30
MOST_TIMES = 20_000
EXAMPLES = 3
_NODE_LENGTH = 60


class Most(Generic[Key]):
    """Counts of the most frequent keys in bounded memory: above `limit` keys, the rarer half is dropped."""

    def __init__(self, limit: int = MOST_KEYS) -> None:
        self.counts: Counter[Key] = Counter()
        self.is_exact = True
        self._limit = limit

    def add(self, key: Key, count: int = 1) -> None:
        self.counts[key] += count
        if len(self.counts) > self._limit:
            self.is_exact = False
            self.counts = Counter(dict(self.counts.most_common(self._limit // 2)))


class ReportSite:
    """Totals of one site."""

    __slots__ = ("bytes", "failed", "pages", "seconds")

    def __init__(self) -> None:
        self.pages = 0
        self.failed = 0
        self.bytes = 0
        self.seconds = 0.0


class ReportCounts:
    """Aggregates the rows of a job for the report."""

    def __init__(self) -> None:
        self.pages = 0
        self.bytes = 0
        self.failed = 0
        self.cut = CutTally()
        self.first_at = 0.0
        self.last_at = 0.0
        self.times: Counter[int] = Counter()
        """Pages by fetch time, in units of `unit_seconds`."""
        self.unit_seconds = 1
        self.statuses: Counter[int] = Counter()
        self.depths: Counter[int] = Counter()
        self.sizes: Counter[int] = Counter()
        """Pages by size in bytes, in powers of two."""
        self.latencies: Counter[int] = Counter()
        """Pages by fetch time in milliseconds, in powers of two."""
        self.errors: dict[str, list[str]] = {}
        """Kind of error -> example URLs."""
        self.error_counts: Counter[str] = Counter()
        self.sites: dict[str, ReportSite] = {}
        self.site_counts: Most[str] = Most()
        self.site_links: Most[tuple[str, str]] = Most()
        self.section_links: Most[tuple[str, str]] = Most()

    def add(self, row: PageRow) -> None:
        """Add one row."""
        self.pages += 1
        self.bytes += row.bytes
        if row.cut:
            self.cut.add(row.cut)
        self.first_at = min(self.first_at or row.fetched_at, row.fetched_at)
        self.last_at = max(self.last_at, row.fetched_at)
        self._add_time(row.fetched_at)
        self.statuses[row.status] += 1
        self.depths[min(row.depth, MOST_DEPTH)] += 1
        if row.status:
            self.sizes[floor(log2(row.bytes)) if row.bytes > 0 else 0] += 1
            self.latencies[max(0, floor(log2(max(row.elapsed * 1000.0, 1.0))))] += 1
        is_failure = bool(row.error) or row.status >= 400
        if is_failure:
            self._add_failure(row)
        site = urls.site(row.url)
        self._add_to_site(site, row, is_failure)
        if row.referrer:
            self.site_links.add((urls.site(row.referrer), site))
            self.section_links.add((_path_section(row.referrer), _path_section(row.url)))

    def _add_time(self, at: float) -> None:
        self.times[int(at // self.unit_seconds)] += 1
        if len(self.times) > MOST_TIMES:
            self.unit_seconds *= 10
            times, self.times = self.times, Counter()
            for time, count in times.items():
                self.times[time // 10] += count

    def _add_failure(self, row: PageRow) -> None:
        self.failed += 1
        kind = row.error.partition(":")[0][:80] or f"HTTP {row.status}"
        if kind not in self.errors and len(self.errors) >= MOST_KEYS // 1000:
            kind = "other"
        self.error_counts[kind] += 1
        examples = self.errors.setdefault(kind, [])
        if len(examples) < EXAMPLES:
            examples.append(row.url[:300])

    def _add_to_site(self, site: str, row: PageRow, is_failure: bool) -> None:
        self.site_counts.add(site)
        if len(self.sites) > 2 * MOST_KEYS:
            self.sites = {name: self.sites[name] for name in self.site_counts.counts if name in self.sites}
        totals = self.sites.setdefault(site, ReportSite())
        totals.pages += 1
        totals.failed += is_failure
        totals.bytes += row.bytes
        totals.seconds += row.elapsed


def _path_section(url: str) -> str:
    """The first segment of the path."""
    parts = url.split("/", 4)
    return f"/{parts[3][:_NODE_LENGTH]}/" if len(parts) == 5 else "/"


_MOST_BARS = 120
_TOP_SITES = 20
_TOP_PLACES = 14
_STEPS = (1, 2, 5, 10, 20, 60, 120, 300, 600, 1200, 3600, 7200, 21_600, 43_200, 86_400, 604_800, 2_592_000, 31_536_000)
_STYLE = resources.files("gossamer.results").joinpath("report.css").read_text("utf-8")


def render(tally: ReportCounts, *, job: str, facts: Mapping[str, str], made_at: float) -> str:
    """The HTML page; `facts` are further figures to show, label -> text."""
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
        yield '<p class="sub">No pages stored yet.</p></body></html>'
        return
    seconds = max(tally.last_at - tally.first_at, 1.0)
    yield f'<p class="sub">{_when(tally.first_at)} to {_when(tally.last_at)} UTC, based on stored pages</p>'
    yield '<div class="facts">'
    figures = {
        "pages": f"{tally.pages:,}",
        "pages per second": f"{tally.pages / seconds:,.2f}",
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
    yield _section(f"Progress: pages {step}", bars(chart, name="pages over time"))
    yield _section("Responses by status code", bars(_statuses(tally.statuses), name="pages by status"))
    yield _section("Depth: links from the nearest seed", bars(_depths(tally.depths), name="pages by depth"))
    yield _section("Body size", bars(_powers(tally.sizes, _bytes), name="pages by size"))
    yield _section("Fetch time", bars(_powers(tally.latencies, _milliseconds), name="pages by fetch time"))
    kind, picture = _graph(tally)
    yield _section(f"Links between {kind}: the most frequent ones that led to new pages", picture)
    yield "</div><br>" + _section("Busiest sites", _sites(tally)) + "<br>" + _section("Failures", _failures(tally))
    if tally.cut.pages:
        yield "<br>" + _section("Cut pages: a limit dropped a part of them", _cut(tally.cut))
    yield f"<footer>Generated by Gossamer on {_when(made_at)} UTC.</footer></body></html>"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _progress(tally: ReportCounts) -> tuple[str, list[Bar]]:
    """Pages over time as bars, and the time span of one bar."""
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
            return (f"per {name}" if step == length else f"per {step / length:g} {name}s"), chart
    raise AssertionError(step)


def _statuses(statuses: Counter[int]) -> list[Bar]:
    tones = {0: "d", 2: "a", 3: "b", 4: "c", 5: "d"}
    return [
        Bar(str(code) if code else "none", count, f"{code or 'no response'}: {count:,}", tones.get(code // 100, "c"))
        for code, count in sorted(statuses.items())[:40]
    ]


def _depths(depths: Counter[int]) -> list[Bar]:
    return [
        Bar(f"{depth}{'+' if depth == MOST_DEPTH else ''}", depths[depth])
        for depth in range(max(depths, default=0) + 1)
    ]


def _powers(counts: Counter[int], formatted: Callable[[float], str]) -> list[Bar]:
    if not counts:
        return []
    return [
        Bar(
            formatted(2**power),
            counts[power],
            f"{formatted(2**power)} to {formatted(2 ** (power + 1))}: {counts[power]:,}",
        )
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
    return kind, link_graph(links, sorted(places), name=f"links between {kind}")


def _sites(tally: ReportCounts) -> str:
    rows = []
    for site, pages in tally.site_counts.counts.most_common(_TOP_SITES):
        one = tally.sites[site]
        rows.append(
            f"<tr><td>{escape(site)}</td><td>{pages:,}</td><td>{pages / tally.pages:.1%}</td><td>{one.failed:,}</td>"
            f"<td>{_bytes(one.bytes)}</td><td>{1000 * one.seconds / max(one.pages, 1):,.0f} ms</td></tr>"
        )
    head = "<tr><th>site</th><th>pages</th><th>share</th><th>failed</th><th>bytes</th><th>mean fetch time</th></tr>"
    return f'<div class="scroll"><table>{head}{"".join(rows)}</table></div>'


def _failures(tally: ReportCounts) -> str:
    if not tally.failed:
        return '<p class="none">none</p>'
    rows = []
    for kind, count in tally.error_counts.most_common(_TOP_SITES):
        examples = "".join(f"<li><code>{escape(url)}</code></li>" for url in tally.errors[kind])
        rows.append(f"<tr><td>{escape(kind)}<ul>{examples}</ul></td><td>{count:,}</td></tr>")
    return (
        f'<div class="scroll"><table><tr><th>error, with examples</th><th>pages</th></tr>{"".join(rows)}</table></div>'
    )


def _cut(cut: CutTally) -> str:
    rows = []
    for reason, pages in cut.by_reason.most_common():
        lost, unit, setting = cut.lost.get(reason), UNITS.get(reason), SETTINGS.get(reason)
        what = f"{lost:,} {unit}{'s' * (lost != 1)}" if lost and unit else "unknown"
        rows.append(
            f"<tr><td>{escape(reason)}</td><td>{pages:,}</td><td>{what}</td><td>{escape(setting or '')}</td></tr>"
        )
    head = "<tr><th>limit</th><th>pages</th><th>lost</th><th>setting to raise</th></tr>"
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


REPORT = "report.html"
"""The name of the report in a job's folder."""


def stored_rows(job: StoredJob) -> Iterator[PageRow]:
    """The rows of a job: all stored visits. For a fleet's job only the last visit of every page, because its workers
    may have stored visits whose outcomes were not committed."""
    return (record.page for record in job.records(all_visits=not job.is_fleets))
