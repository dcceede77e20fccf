"""A crawl that is submitted and controlled over the API, checked against the web server's log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from service_process import Served, serving

from gossamer.lab.simweb.log import fetched
from gossamer.lab.simweb.process import SimWeb
from gossamer.service.metrics import METRICS
from gossamer.settings import VERSION


@pytest.fixture
def web() -> Iterator[SimWeb]:
    with SimWeb(sites=3, pages_per_site=60, page_bytes=2000) as running:
        yield running


@pytest.fixture
def served(tmp_path: Path, web: SimWeb) -> Iterator[Served]:
    # Small batches: what is in hand keeps the delay that it was handed out with.
    settings = ("--allow-private", "--delay", "0.02", "--batch", "4", "--sink", "jsonl", "--sink", "warc")
    with serving(tmp_path, *settings, "--notify", f"exec:tee -a {tmp_path}/sent") as running:
        yield running


def events(served: Served, most: int) -> list[tuple[str, dict[str, object]]]:
    """The first live events of the job."""
    found: list[tuple[str, dict[str, object]]] = []
    with served.client.stream("GET", "/api/events", params={"job": "shop"}) as stream:
        kind = ""
        for line in stream.iter_lines():
            if line.startswith("event: "):
                kind = line[7:]
            elif line.startswith("data: "):
                found.append((kind, json.loads(line[6:])))
            if len(found) >= most:
                return found
    return found


def all_sites(served: Served, job: str) -> set[str]:
    """All sites of a job, one by one."""
    found: list[Any] = []
    cursor: dict[str, Any] = {}
    while True:
        page = served.get(f"/api/jobs/{job}/sites", sort="site", order="asc", limit=1, **cursor)
        found += [row["site"] for row in page["sites"]]
        if page["next"] is None:
            assert len(found) == len(set(found))
            return set(found)
        cursor = {"cursor": page["next"]}


def test_api_submits_controls_and_inspects_a_crawl(served: Served, web: SimWeb) -> None:
    """Also after its end; its metrics have job labels, but no site labels (H67, H68)."""
    made = served.post(
        "/api/jobs", {"job": "shop", "urls": web.seeds, "delay": 0.4, "deny": ["*/walks/*"], "max_pages": 150}, 201
    )
    assert (made["name"], made["state"]) == ("shop", "starting")
    served.state("shop", "running")
    assert "sample" in [kind for kind, _ in events(served, 2)]

    paused = served.post("/api/jobs/shop/pause")
    assert paused["state"] == "paused"
    # What workers have in hand is not taken from them.
    in_hand = paused["counts"]["stored"] + paused["counts"]["leased"]
    site = web.seeds[0].split("/")[2]
    changed = {"delay": 0.03, "site_delays": {site: 0.05}, "max_pages": 120}
    limits = served.ask("PATCH", "/api/jobs/shop/limits", json=changed)
    assert (limits["max_pages"], limits["delay"], limits["in_force"]) == (120, 0.03, "now")
    added = served.post("/api/jobs/shop/urls", {"urls": [web.seeds[0], web.seeds[1] + "more", "no url"]})
    assert added == {"added": 1, "known": 1, "refused": ["no url"]}
    assert served.get("/api/jobs/shop/site", site=site)["row"]["delay"] == 0.05

    assert all_sites(served, "shop") == {seed.split("/")[2] for seed in web.seeds}

    assert served.post("/api/jobs/shop/resume")["state"] == "running"
    ended = served.until(lambda: (job := served.get("/api/jobs/shop"))["state"] == "finished" and job)
    assert 120 <= ended["counts"]["stored"] <= max(120, in_hand)
    assert ended["settings"]["delay"] == 0.03
    output = served.log.parent / "sent"
    served.until(lambda: output.exists() and '"event": "finished"' in output.read_text())
    log = web.log()
    assert len(fetched(log)) >= 120
    assert not [entry for entry in log if "/walks/" in entry.url]

    # The limit is lifted while nobody runs it, and the next run goes on to the end.
    served.until(lambda: not (served.log.parent / "crawls/shop/socket").exists())
    assert all_sites(served, "shop") == {seed.split("/")[2] for seed in web.seeds}
    assert served.ask("PATCH", "/api/jobs/shop/limits", json={"max_pages": None})["in_force"] == "next run"
    served.until(lambda: served.client.post("/api/jobs/shop/resume").status_code == 200)
    served.until(lambda: served.get("/api/jobs/shop")["counts"]["stored"] > ended["counts"]["stored"])
    served.until(lambda: served.get("/api/jobs/shop")["state"] == "finished")
    assert served.get("/api/jobs", state="finished")["jobs"][0]["name"] == "shop"
    check_history(served, web)
    check_errors(served)
    check_metric_labels(served, web)


def check_history(served: Served, web: SimWeb) -> None:
    seed = web.seeds[0]
    site = seed.split("/")[2]
    pages = served.get("/api/jobs/shop/pages", site=site, limit=2)
    assert len(pages["pages"]) == 2
    more = served.get("/api/jobs/shop/pages", site=site, limit=1000, cursor=pages["next"])
    found = [page["url"] for page in (*pages["pages"], *more["pages"])]
    rows = [json.loads(line) for line in (served.log.parent / "crawls/shop/pages.jsonl").read_text().splitlines()]
    assert found == [row["url"] for row in reversed(rows) if row["url"].startswith(f"http://{site}/")]
    missing = served.get("/api/jobs/shop/pages", status=404)["pages"]
    assert [page["url"] for page in missing] == [web.seeds[1] + "more"]

    assert served.get("/api/jobs/shop/page", url=seed)["status"] == 200
    assert served.get("/api/jobs/shop/page", url=seed, at=1)["has_body"]
    assert len(served.get("/api/jobs/shop/versions", url=seed)["versions"]) == 1
    body = served.client.get("/api/jobs/shop/body", params={"url": seed})
    assert body.status_code == 200
    assert len(body.content) == served.get("/api/jobs/shop/page", url=seed)["bytes"]
    assert body.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in body.headers["content-security-policy"]

    advice = served.get("/api/scale", job="shop")
    assert (advice["workers"], advice["due_in"]) == (0, None)
    story = served.get("/api/jobs/shop/why", url=seed)
    assert story["job_state"] == "finished"
    assert (story["seen"], story["state"], len(story["attempts"])) == (True, "done", 1)
    output = served.get("/api/jobs/shop/audit", site=site, limit=5)
    assert (len(output["requests"]), output["too_short"]) == (5, 0)
    assert output["all_requests"] == sum(entry.url.startswith(f"http://{site}/") for entry in web.log())

    rests = served.get("/api/jobs/shop/politeness")
    assert rests["counted"] == sum(gap["count"] for gap in rests["gaps"]) > 0
    assert rests["too_short"] == 0
    listed = served.get("/api/jobs/shop/sites", sort="requests", limit=2)
    assert listed["total"] == 3
    assert [one["site"] for one in listed["sites"]] != []
    past = served.get("/api/jobs/shop/history", step=1, steps=600)["series"]
    assert sum(value or 0 for value in past["pages"]) >= 120
    assert max(value or 0 for value in past["known"]) >= 120


def check_errors(served: Served) -> None:
    assert served.get("/api/jobs/nobody", 404)["error"] == "not-found"
    assert served.post("/api/jobs/shop/pause", status=409)["hint"]
    assert served.post("/api/jobs", {"job": "shop", "urls": ["http://a.example/"]}, 409)["error"] == "conflict"
    assert served.post("/api/jobs", {"job": "quick", "urls": ["http://a.example/"], "delay": 0.001}, 403)["hint"]
    failed = served.post("/api/jobs", {"job": "bad", "urls": ["http://a.example/"], "extract": {"x": "y"}}, 400)
    assert "extract" in failed["message"]
    answer = served.client.request("DELETE", "/api/jobs")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST")


def check_metric_labels(served: Served, web: SimWeb) -> None:
    text = served.get("/metrics")
    assert served.metric("gossamer_jobs", state="finished") == 1
    assert (served.metric("gossamer_requests_total", job="shop", answer="ok") or 0) > 0
    assert served.metric("gossamer_info", version=VERSION) == 1
    assert not [seed for seed in web.seeds if seed.split("/")[2].split(":")[0] in text]
    assert sum(not line.startswith("#") for line in text.splitlines()) < 1000
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {name.removesuffix("_total") for name in METRICS} == families.keys()
    for metric in METRICS.values():
        family = families[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        assert all((one.name, set(one.labels)) == (metric.name, set(metric.labels)) for one in family.samples)


def test_only_option_serves_one_part(tmp_path: Path) -> None:
    with serving(tmp_path, "--only", "pages", tokens=False) as part:
        paths = part.get("/openapi.json")["paths"]
        assert "/api/jobs/{job}/pages" in paths
        assert "/api/jobs/{job}/why" not in paths
        assert part.client.post("/api/jobs", json={}).status_code == 405
        assert part.client.get("/api/jobs/x/why", params={"url": "a"}).status_code == 404
