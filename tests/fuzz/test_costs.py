"""A minute of the cost fuzzer with fixed cases; `make fuzz` runs it with random ones."""

from __future__ import annotations

import os

import costs
import fuzz_texts
import pytest

SEED = int(os.environ.get("COST_SEED", "1"))
SECONDS = float(os.environ.get("COST_SECONDS", "1.5"))


@pytest.mark.parametrize("name", costs.PARSERS)
def test_every_parser_takes_linear_time(name: str) -> None:
    found, cases = costs.run(name, SEED, SECONDS)
    assert cases
    assert not found, "\n".join(f"{one['why']}: {one['case']} {one['of']}" for one in found)


def test_quadratic_parser_is_found_and_its_case_minimized(monkeypatch: pytest.MonkeyPatch) -> None:
    def quadratic(text: str) -> None:
        for _ in range(text.count("(")):
            text.count(")")

    monkeypatch.setitem(costs.PARSERS, "quadratic", (lambda chance: quadratic, ("(", "a", ")")))
    found, _ = costs.run("quadratic", 1, 2.0)
    assert found
    assert all(" + " not in one["case"] and one["case"].count("(") == 1 for one in found)


def test_quadratic_work_is_not_taken_for_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_texts, "QUICK_SECONDS", 0.02)

    def quadratic(text: str) -> None:
        for start in range(0, len(text), 4):
            text.find("b", start)

    with pytest.raises(AssertionError, match="for four times as many"):
        fuzz_texts.takes_linear_work(quadratic, lambda size: "a" * size, size=100_000)
    fuzz_texts.takes_linear_work(
        lambda text: [letter for letter in text for _ in range(2)], lambda size: "a" * 20 * size
    )


def test_parser_that_hangs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(text: str) -> None:
        if "b" in text:
            sum(iter(int, 1))

    monkeypatch.setattr(costs, "KILL_SECONDS", 0.5)
    monkeypatch.setitem(costs.PARSERS, "hangs", (lambda chance: hangs, ("a", "b")))
    [found], _ = costs.run("hangs", 1, 2.0)
    assert "did not end" in found["why"]
