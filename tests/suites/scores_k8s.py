"""The chart's manifests against the schemas of KEDA's kinds; those of Kubernetes itself are in tests/deploy."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from score import Score, tally

sys.path.insert(0, str(Path(__file__).parents[1] / "deploy"))
from manifests import CASES, rendered

FOLDER = Path(__file__).parents[2].parent / "shared" / "suites" / "k8s-schemas"
READS = ("k8s-schemas",)
SKIPPED = {"k8s-schemas/keda-crds/eventing.*, ScaledJob, Cluster*": "kinds that the chart does not make"}
_CRDS = {"ScaledObject": "scaledobjects", "TriggerAuthentication": "triggerauthentications"}


def scores() -> Score:
    """Every KEDA object of every case passes both forms of its schema, and is refused with a field too many."""
    results = {}
    for case, values in CASES.items():
        for found in rendered(values):
            if not found["apiVersion"].startswith("keda.sh/"):
                continue
            kind = found["kind"]
            spoilt = copy.deepcopy(found)
            spoilt["spec"]["noSuchField"] = 1
            plain = json.loads((FOLDER / "keda.sh" / f"{kind.lower()}_v1alpha1.json").read_text("utf-8"))
            results[f"{case} {kind}: schema"] = _passes(found, plain)
            results[f"{case} {kind}: a field too many"] = not _passes(spoilt, plain)
            results[f"{case} {kind}: definition"] = _passes(found, _definition(kind))
    return tally("k8s-keda", results)


def _definition(kind: str) -> dict[str, Any]:
    path = FOLDER / "keda-crds" / f"keda.sh_{_CRDS[kind]}.yaml"
    found: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def _passes(manifest: dict[str, Any], schema: dict[str, Any]) -> bool:
    return not list(jsonschema.Draft7Validator(schema).iter_errors(manifest))
