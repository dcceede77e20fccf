"""Renders the chart with Helm, for the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "gossamer"

CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "keda": {"autoscaling": {"kind": "keda"}, "serviceMonitor": {"enabled": True}},
    "hpa": {"autoscaling": {"kind": "hpa"}},
    "pinned": {"worker": {"pinned": True, "replicas": 3, "shards": 16}},
    "region": {
        "region": "eu",
        "service": {"enabled": False, "address": "http://main-gossamer-service.crawl.svc:8090"},
        "autoscaling": {"kind": "keda"},
        "redis": {"enabled": False},
        "frontier": {"existingSecret": "shared", "cidrs": ["10.1.2.3/32"]},
        "tokens": {"existingSecret": "shared"},
    },
    "outside": {
        "redis": {"enabled": False},
        "frontier": {"url": "postgresql://u:p@db.internal/x", "cidrs": ["10.9.0.0/24"], "ports": [5432]},
        "storage": {"enabled": False},
        "networkPolicy": {"ports": [80, 443], "serviceFrom": [{"podSelector": {"matchLabels": {"a": "b"}}}]},
        "image": {"repository": "crawler", "digest": "sha256:" + "0" * 64},
        "imagePullSecrets": [{"name": "pull"}],
        "worker": {
            "podAnnotations": {"a": "b"},
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "env": [{"name": "SSL_CERT_FILE", "value": "/etc/ca.pem"}],
            "extraArgs": ["--out", "/run/gossamer/out"],
        },
        "podDisruptionBudget": {"enabled": False},
    },
}
"""Values that together enable every part of the chart."""


def script() -> ModuleType:
    """Import scripts/manifests as a module."""
    path = ROOT / "scripts" / "manifests"
    module = ModuleType("manifests_script")
    module.__file__ = str(path)
    exec(compile(path.read_text("utf-8"), path, "exec"), vars(module))
    return module


def rendered(values: dict[str, Any], release: str = "gossamer") -> list[dict[str, Any]]:
    """The objects of the chart with these values."""
    found: list[dict[str, Any]] = json.loads(_rendered(json.dumps(values), release))
    return found


@cache
def _rendered(values: str, release: str) -> str:
    return json.dumps(script().documents(json.loads(values), release=release))


def one(objects: Iterable[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    """The only object of this kind whose name has this suffix."""
    (found,) = [each for each in objects if each["kind"] == kind and each["metadata"]["name"].endswith(name)]
    return found
