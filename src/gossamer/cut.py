"""What of a page was dropped, and by which limit: the field `cut`, as a mapping and as one text."""

from __future__ import annotations

from collections.abc import Mapping

UNITS: Mapping[str, str] = {
    "max_links": "link",
    "links_length": "link",
    "long_links": "link",
    "max_body_bytes": "byte",
    "max_decoded_bytes": "byte",
    "max_file_bytes": "byte",
    "content_length": "byte",
    "headers": "header line",
}
"""What a reason's number counts. Of reasons that are not listed nobody knows how much they cost a page."""
SETTINGS: Mapping[str, str] = {
    "links_length": "max_links",
    **{name: name for name in ("max_links", "max_body_bytes", "max_decoded_bytes", "max_file_bytes")},
}
"""The setting that keeps more of a page, by reason."""


def format_cut(parts: Mapping[str, int | None]) -> str:
    """One text for what was lost, by reason: `reason:lost`, separated by spaces and sorted; empty for a whole page.

    `lost` is a number in the reason's own unit, or `?` where nobody knows it (None in the mapping)."""
    if not parts:
        return ""
    return " ".join(f"{reason}:{'?' if lost is None else lost}" for reason, lost in sorted(parts.items()))


def parse_cut(text: str) -> dict[str, int | None]:
    """The mapping that `format_cut` made the text of. A number that cannot be read counts as unknown."""
    parts: dict[str, int | None] = {}
    for part in text.split():
        reason, _, lost = part.partition(":")
        parts[reason] = int(lost) if lost.isascii() and lost.isdecimal() else None
    return parts
