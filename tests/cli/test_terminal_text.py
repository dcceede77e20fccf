from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.cli import console
from gossamer.logs import LogFormatter, plain


@given(st.text())
def test_terminal_control_sequences_are_removed(text: str) -> None:
    shown = plain(text)
    assert shown.isprintable()
    assert len(shown.splitlines()) <= 1


@given(st.text(st.characters(categories=("L", "N", "P", "S", "Mn"))))
def test_text_in_any_script_is_unchanged(text: str) -> None:
    assert plain(text) == text


def test_escapes_are_shown_as_text() -> None:
    assert plain("a\x1b]0;x\x07b\r\nERROR \u202e\x9b2J") == r"a\x1b]0;x\x07b\r\nERROR \u202e\x9b2J"


def test_long_text_is_truncated() -> None:
    assert plain("x" * 100, 10) == "xxxxxxxxx…"


def test_a_log_record_is_one_line() -> None:
    record = logging.LogRecord("gossamer", logging.WARNING, "", 0, "title %s", ("\x1b[2J\nERROR fake",), None)
    assert LogFormatter("text").format(record) == r"WARNING gossamer: title \x1b[2J\nERROR fake"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (59.4, "59 s"),
        (61, "1:01"),
        (3600, "1:00:00"),
        (90_061, "1 d 01:01"),
        (-1, "0.0 s"),
    ],
)
def test_times_are_readable(seconds: float, text: str) -> None:
    assert console.span(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (123_456, "123 kB"), (5.2e9, "5.2 GB"), (2e15, "2.0 PB")],
)
def test_sizes_are_readable(count: float, text: str) -> None:
    assert console.size(count) == text


def test_sparkline_spans_zero_to_maximum() -> None:
    assert console.sparkline([0, 50, 100]) == "▁▄█"
    assert console.sparkline([0, 0]) == "▁▁"
    assert console.sparkline([]) == ""
