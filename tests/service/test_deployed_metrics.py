"""The Grafana dashboard and the alert rules in deploy/ use existing metrics and labels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gossamer.service import metrics
from gossamer.service.metrics import METRICS

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
ERROR_CODES = {
    ("gossamer_urls", "state"): metrics._URLS,
    ("gossamer_sites_by_state", "state"): metrics._SITES,
    ("gossamer_jobs", "state"): metrics._STATES,
    ("gossamer_requests_total", "answer"): metrics._CLASSES,
}
USE = re.compile(r"\b(gossamer_[a-z_]+)(?:\{([^}]*)\})?")
MATCH = re.compile(r'([a-z_]+)\s*(=~|!~|!=|=)\s*"([^"]*)"')


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    for rule in rules():
        yield f"alert {rule['alert']}", rule["expr"]
    for panel in json.loads((DEPLOY / "grafana/gossamer.json").read_text("utf-8"))["panels"]:
        for target in panel["targets"]:
            yield f"panel {panel['title']} {target['refId']}", target["expr"]


@pytest.mark.parametrize("expression", [pytest.param(text, id=name) for name, text in expressions()])
def test_alerts_and_dashboards_use_existing_metrics(expression: str) -> None:
    used = USE.findall(expression)
    assert used or expression.startswith("up{")
    for name, inside in used:
        metric = METRICS[name]
        for label, how, value in MATCH.findall(inside):
            assert label in metric.labels, f"{name} has no label {label}"
            if value != "$job" and (name, label) in ERROR_CODES:
                wanted = value.split("|") if how == "=~" else [value]
                assert set(wanted) <= set(ERROR_CODES[name, label]), f"{name}: no {label} is {value}"
        if metric.kind == "counter":
            assert re.search(rf"(rate|increase)\({name}", expression), f"{name} only ever grows"
    for labels in re.findall(r"(?:by|on) \(([^)]*)\)", expression):
        assert {label.strip() for label in labels.split(",")} <= {
            one for metric in METRICS.values() for one in metric.labels
        }


def test_every_alert_has_an_action() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["annotations"]["action"]


def test_most_metrics_are_used_by_an_alert_or_dashboard() -> None:
    seen = {name for _, text in expressions() for name, _ in USE.findall(text)}
    assert METRICS.keys() - seen <= {"gossamer_info"}
