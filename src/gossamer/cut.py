"""What was dropped of a page, and by which limit: the field `cut`, as a mapping and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

UNITS: Mapping[str, str] = {
    "max_links": "link",
    "links_length": "link",
    "long_links": "link",
    "max_body_bytes": "byte",
    "max_decoded_bytes": "byte",
    "max_file_bytes": "byte",
    "content_length": "byte",
    "disconnect": "byte",
    "fetch_seconds": "byte",
    "headers": "header line",
    "formatting": "tag",
}
"""The unit of each reason's number. For other reasons the amount is unknown."""
SETTINGS: Mapping[str, str] = {
    "links_length": "max_links",
    **{name: name for name in ("max_links", "max_body_bytes", "max_decoded_bytes", "max_file_bytes", "fetch_seconds")},
}
"""The setting that raises the limit, by reason."""

_MOST_DIGITS = 18


def format_cut(parts: Mapping[str, int | None]) -> str:
    """Format the losses of a page: `reason:lost`, separated by spaces and sorted; empty for a whole page.

    `lost` is a number in the reason's unit, or `?` if the amount is unknown (None in the mapping)."""
    if not parts:
        return ""
    return " ".join(f"{reason}:{'?' if lost is None else lost}" for reason, lost in sorted(parts.items()))


def parse_cut(text: str) -> dict[str, int | None]:
    """Parse the text that `format_cut` made. An invalid number counts as unknown."""
    parts: dict[str, int | None] = {}
    for part in text.split():
        reason, _, lost = part.partition(":")
        is_number = lost.isascii() and lost.isdecimal() and len(lost) <= _MOST_DIGITS
        parts[reason] = int(lost) if is_number else None
    return parts


_BESIDE_TEXT = frozenset(("max_links", "links_length", "long_links", "headers", "formatting"))
CUT = "cut."
"""Prefix of the keys of a site's memo that count its cut pages by reason, one key for each lane."""
MOST_REASONS = 32
OTHER = "other"
REASONS = frozenset((*UNITS, *SETTINGS, "encoding", "transfer_encoding", "tree_depth", "truncated"))
"""The reasons of this version; records of other versions may have more."""


def drops_text(parts: Mapping[str, int | None]) -> bool:
    """Return whether a page's text is incomplete, so that it is compared neither with other pages nor with earlier
    visits."""
    return not _BESIDE_TEXT.issuperset(parts)


def counted(before: Mapping[str, int], text: str) -> dict[str, int]:
    """Return the number of pages by reason after one more cut page."""
    counts = Counter(before)
    for reason in parse_cut(text):
        counts[reason if reason in counts or len(counts) < MOST_REASONS else OTHER] += 1
    return dict(counts)


def pages_cut(memo: Mapping[str, Any]) -> Counter[str]:
    """Return how many pages of a site were cut by each limit, from the site's memo."""
    counts: Counter[str] = Counter()
    for name, lane in memo.items():
        if name.startswith(CUT) and isinstance(lane, dict):
            counts.update(lane)
    return counts


def by_known_reason(counts: Mapping[str, int]) -> Counter[str]:
    """Return the counts with all unknown reasons combined: metrics must have few labels."""
    known: Counter[str] = Counter()
    for reason, count in counts.items():
        known[reason if reason in REASONS else OTHER] += count
    return known


class CutTally:
    """Number of cut pages by reason, and how much they lost; bounded, whatever texts are added."""

    def __init__(self) -> None:
        self.pages = 0
        self.by_reason: Counter[str] = Counter()
        """Pages that each limit cut; a page cut by two limits counts for both."""
        self.lost: Counter[str] = Counter()
        """The known amounts that these pages lost, in the unit of the reason."""

    def add(self, text: str) -> None:
        """Count the `cut` of one page."""
        parts = parse_cut(text)
        self.pages += bool(parts)
        for reason, lost in parts.items():
            if reason not in self.by_reason and len(self.by_reason) >= MOST_REASONS:
                reason = OTHER
            self.by_reason[reason] += 1
            if lost is not None:
                self.lost[reason] += lost

    def plain(self) -> dict[str, Any]:
        """Return the tally for JSON."""
        return {
            "pages": self.pages,
            "reasons": {
                reason: {"pages": pages, "lost": self.lost.get(reason), "setting": SETTINGS.get(reason)}
                for reason, pages in sorted(self.by_reason.items())
            },
        }

    def words(self) -> str:
        """Describe which limits cut how many pages, most frequent first, and the setting that raises each."""
        ordered = sorted(self.by_reason.items(), key=lambda item: (-item[1], item[0]))
        return "; ".join(_words(reason, pages, self.lost.get(reason)) for reason, pages in ordered)


def describe_cut(text: str) -> str:
    """Describe what was dropped of one page."""
    return "; ".join(_words(reason, 0, lost) for reason, lost in parse_cut(text).items())


def _words(reason: str, pages: int, lost: int | None) -> str:
    on = f" on {pages:,} page{'s' * (pages != 1)}" if pages else ""
    unit = UNITS.get(reason)
    dropped = f" dropped {lost:,} {unit}{'s' * (lost != 1)}" if lost and unit else ""
    setting = SETTINGS.get(reason)
    raised = f" (raise --{setting.replace('_', '-')})" if setting else ""
    return f"{reason}{dropped}{on}{raised}"
