"""The Helm chart: passes Helm's linter and the Kubernetes schemas, and renders the expected objects."""

from __future__ import annotations

import copy
import ipaddress
import json
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml
from manifests import CASES, CHART, DEPLOY, one, rendered, script

OLDEST, NEWEST = "1.27.0", "1.37.0"
SECRETS = {"redis": {"password": "p"}, "tokens": {"read": "r", "write": "w"}}
OWN_KINDS = ("keda.sh/", "monitoring.coreos.com/")
"""Kinds without a Kubernetes schema; those of KEDA are checked in tests/suites."""


def pod(objects: list[dict[str, Any]], kind: str = "Deployment", name: str = "-worker") -> dict[str, Any]:
    found: dict[str, Any] = one(objects, kind, name)["spec"]["template"]["spec"]
    return found


def test_helm_lint_passes() -> None:
    for values in CASES.values():
        report = helm_python.lint(CHART, values, strict=True)
        assert report["errors"] == []
        assert [each for each in report["messages"] if each["severity"] > 1] == []


def test_manifests_match_the_kubernetes_schemas() -> None:
    distinct = {json.dumps(found): found for values in CASES.values() for found in rendered({**SECRETS, **values})}
    core = [found for found in distinct.values() if not found["apiVersion"].startswith(OWN_KINDS)]
    assert {found["kind"] for found in core} >= {"HorizontalPodAutoscaler", "StatefulSet", "NetworkPolicy"}
    for found in core:
        kubernetes_validate.validate(found, NEWEST, strict=True)
    for found in rendered({}):
        kubernetes_validate.validate(found, OLDEST, strict=True)


def test_the_cron_job_of_the_documents_matches_the_kubernetes_schemas() -> None:
    page = (DEPLOY.parent / "docs" / "howto" / "schedule-crawls.md").read_text("utf-8")
    manifest = yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])
    assert manifest["kind"] == "CronJob"
    for version in (OLDEST, NEWEST):
        kubernetes_validate.validate(manifest, version, strict=True)


def test_unknown_kubernetes_field_is_detected() -> None:
    found = copy.deepcopy(one(rendered({}), "Deployment", "-worker"))
    found["spec"]["template"]["spec"]["containers"][0]["livenessProbes"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(found, NEWEST, strict=True)


def test_plain_manifests_match_the_chart_without_secrets() -> None:
    made = script().pages()
    assert {path.name: path.read_text("utf-8") for path in (DEPLOY / "kubernetes").iterdir()} == made, (
        "run scripts/manifests"
    )
    assert not any("kind: Secret" in text for text in made.values())


def test_worker_replicas_and_resources_follow_the_values() -> None:
    objects = rendered({})
    deployment = one(objects, "Deployment", "-worker")
    (container,) = pod(objects)["containers"]
    assert deployment["spec"]["replicas"] == 10
    assert container["resources"] == {
        "requests": {"memory": "256Mi", "cpu": "250m"},
        "limits": {"memory": "512Mi", "cpu": "500m"},
    }
    for case in ("keda", "hpa"):
        # Else each upgrade of the release would undo what the autoscaler did.
        assert "replicas" not in one(rendered(CASES[case]), "Deployment", "-worker")["spec"]


def test_every_pod_is_restricted_without_cluster_permissions() -> None:
    for found in rendered({}):
        if found["kind"] in ("Deployment", "StatefulSet"):
            spec = found["spec"]["template"]["spec"]
            assert spec["automountServiceAccountToken"] is False
            assert spec["securityContext"]["runAsNonRoot"] is True
            for container in spec["containers"]:
                assert container["securityContext"]["readOnlyRootFilesystem"] is True
                assert container["securityContext"]["allowPrivilegeEscalation"] is False
                assert {"startupProbe", "livenessProbe", "readinessProbe", "resources"} <= set(container)


def test_pods_contain_no_secrets() -> None:
    values = {"redis": {"password": "hush-1"}, "tokens": {"read": "hush-2", "write": "hush-3"}}
    for found in rendered(values):
        assert found["kind"] == "Secret" or "hush" not in str(found)
    secret = one(rendered(values), "Secret", "-frontier")
    assert secret["stringData"]["frontier-url"] == "redis://:hush-1@gossamer-redis:6379/0"


def test_generated_secrets_are_long_and_unique() -> None:
    tokens = [one(script().documents({}), "Secret", "-tokens")["stringData"] for _ in range(2)]
    assert len({token for each in tokens for token in each.values()}) == 4
    assert all(len(token) >= 32 for each in tokens for token in each.values())


def test_workers_reach_the_web_but_not_the_cluster() -> None:
    policy = one(rendered({}), "NetworkPolicy", "-worker")["spec"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    assert policy["ingress"] == []
    names, frontier, web = policy["egress"]
    assert {port["port"] for port in names["ports"]} == {53}
    assert [port["port"] for port in frontier["ports"]] == [6379]
    blocks = [peer["ipBlock"] for peer in web["to"]]
    assert all(set(peer) == {"ipBlock"} for peer in web["to"])

    def is_open(address: str) -> bool:
        number = ipaddress.ip_address(address)
        return any(
            number in ipaddress.ip_network(block["cidr"])
            and not any(number in ipaddress.ip_network(part) for part in block["except"])
            for block in blocks
        )

    assert all(map(is_open, ("93.184.215.14", "1.1.1.1", "172.32.0.1", "2606:4700::1111")))
    inside = "10.96.0.1 10.244.3.9 172.20.0.1 192.168.1.1 100.64.0.9 169.254.169.254 127.0.0.1 fd00::1 fe80::1 ::1"
    assert not any(map(is_open, inside.split()))
    # The API server takes such parts for IPv4, finds them in no block of IPv6, and refuses the whole policy.
    parts = [ipaddress.ip_network(part) for block in blocks for part in block["except"]]
    assert not any(isinstance(part, ipaddress.IPv6Network) and part[0].ipv4_mapped for part in parts)


def test_grace_period_must_exceed_the_drain() -> None:
    assert pod(rendered({}))["terminationGracePeriodSeconds"] >= 10 + 15
    with pytest.raises(helm_python.HelmRenderError, match="terminationGracePeriodSeconds"):
        rendered({"worker": {"drainSeconds": 50}})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"redis": {"enabled": False}}, "no frontier is set"),
        ({"frontier": {"url": "redis://r:6379/0"}}, "two frontiers"),
        ({"worker": {"pinned": True}, "autoscaling": {"kind": "keda"}}, "fixed number"),
        ({"worker": {"pinned": True, "replicas": 9, "shards": 4}}, "more workers than shards"),
        ({"autoscaling": {"kind": "keda"}, "service": {"enabled": False}}, "KEDA needs the service"),
        ({"autoscaling": {"kind": "magic"}}, "kind"),
        ({"workers": {"replicas": 3}}, "workers"),
    ],
)
def test_invalid_values_are_rejected(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm_python.HelmError, match=said):
        rendered(values)


def test_keda_scales_by_the_service_down_to_zero() -> None:
    """F66: the number of workers comes from the service, which also runs without workers."""
    scaled = one(rendered(CASES["keda"]), "ScaledObject")["spec"]
    (trigger,) = scaled["triggers"]
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (0, 50)
    assert trigger["metadata"]["url"] == "http://gossamer-service.gossamer.svc:8090/api/scale?job=crawl"
    assert trigger["metadata"]["valueLocation"] == "workers"
    assert one(rendered(CASES["region"]), "ScaledObject")["spec"]["triggers"][0]["metadata"]["valueLocation"] == (
        "regions.eu.workers"
    )


def test_hpa_targets_a_thousand_queued_urls_per_worker() -> None:
    scaler = one(rendered(CASES["hpa"]), "HorizontalPodAutoscaler")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 50)
    (metric,) = scaler["metrics"]
    assert metric["external"]["metric"]["name"] == "gossamer_urls"
    assert metric["external"]["metric"]["selector"]["matchLabels"] == {"job": "crawl", "state": "queued"}
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "1000"}


def test_a_release_of_a_region_has_its_own_workers_and_no_second_frontier() -> None:
    objects = rendered(CASES["region"], release="eu")
    assert {"name": "GOSSAMER_REGION", "value": "eu"} in pod(objects)["containers"][0]["env"]
    assert [each for each in objects if each["kind"] in ("StatefulSet", "Secret")] == []
    assert all(each["metadata"]["name"].startswith("eu-gossamer") for each in objects)


def test_service_monitor_selects_the_metrics() -> None:
    objects = rendered(CASES["keda"])
    monitor, service = one(objects, "ServiceMonitor")["spec"], one(objects, "Service", "-service")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    assert endpoint["honorLabels"] is True
    assert endpoint["authorization"]["credentials"]["key"] in one(objects, "Secret", "-tokens")["stringData"]
