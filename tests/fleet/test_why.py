"""`gossamer why` and `gossamer audit`: the same results on every backend, verified by the web server's log."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner

from gossamer import urls
from gossamer.cli import gossamer as command_line
from gossamer.cli.inspect import audit_lines
from gossamer.clock import SystemClock
from gossamer.engine.robots_txt import settle
from gossamer.errors import ConfigError
from gossamer.frontier.backends import create_fleet, open_fleet
from gossamer.frontier.embedded.sqlite import open_sqlite
from gossamer.frontier.embedded.sqlite_reader import SqliteLookup
from gossamer.inspect.audit import site_audit
from gossamer.inspect.why import url_history
from gossamer.job_folder import folder_of, save_settings
from gossamer.jobs.find import open_job
from gossamer.jobs.job import Known, State, read_state
from gossamer.jobs.local import StoppedJob
from gossamer.jobs.local_run import LocalRun
from gossamer.jobs.seeding import begin
from gossamer.jobs.worker import join_fleet
from gossamer.lab.simweb.process import SimWeb
from gossamer.model import Outcome, Request, SiteNote
from gossamer.settings import Settings, SiteSettings
from gossamer.storage.reader import StoredJob
from gossamer.storage.request_log import RequestLog, SentRequest, logged_requests, requests_to

FOUND_ON = "http://a.example/list"
SERVERS = {"redis": "redis_server", "postgresql": "postgres_server", "mariadb": "maria_server"}


@pytest.fixture(scope="session", params=["sqlite", "folder", *SERVERS])
def backend(request: pytest.FixtureRequest) -> str:
    """The address of a server, or the name of a frontier that needs none."""
    kind = str(request.param)
    return str(request.getfixturevalue(SERVERS[kind]).url) if kind in SERVERS else kind


@pytest.fixture
def place(backend: str, tmp_path: Path) -> str:
    """The address of a frontier; empty for the embedded one."""
    return {"sqlite": "", "folder": f"folder:{tmp_path}/share?shards=2"}.get(backend, backend)


async def crawled(place: str, job: str, folder: Path, settings: Settings, seeds: list[str]) -> str:
    """A crawl to its end in this process; what to ask for it by."""
    if not place:
        save_settings(folder, settings)
        await LocalRun(folder, settings, seeds).run()
        return str(folder)
    fleet = await create_fleet(place, job, settings)
    await begin(fleet, settings, seeds)
    await fleet.aclose()
    await join_fleet(place, job, folder, name="w1")
    return job


def rule(story: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in story["rules"] if one["rule"] == name)


def test_why_and_audit_cover_every_url_and_request(place: str, tmp_path: Path) -> None:
    """A crawl with a trap, rules and faults; what the audits list is what the server saw, robots.txt and all."""
    job, folder = f"why-{uuid4().hex[:8]}", tmp_path / "job"
    settings = Settings(
        allow_private=True, delay=0.02, alike_pages=6, backoff_seconds=0.2, deny=("/archive/",), commit_seconds=0.02,
        sink=(f"jsonl:{folder}",) if place else ("jsonl",),
    )  # fmt: skip

    async def ask(web: SimWeb) -> dict[str, Any]:
        name = await crawled(place, job, folder, settings, web.seeds)
        log = web.log()
        async with open_job(name, place) as asked:
            steps = list(requests_to(StoredJob.of(folder), urls.host_port(calendar), settings))
            wanted = {
                "done": next(
                    entry.url for entry in log
                    if entry.url.startswith(private) and entry.target not in ("/", "/robots.txt")
                ),
                "seed": private,
                "robots": f"{private}private/secret-0",
                "broken": next(entry.url for entry in log if not entry.status),
                "asleep": next(one.step.url for one in steps if one.step.skipped),
                "deny": f"{private}archive/1",
                "scope": "http://127.9.9.9/",
                "never": f"{private}never",
            }  # fmt: skip
            found: dict[str, Any] = {
                name: await url_history(asked, url, now=time.time()) for name, url in wanted.items()
            }
            found["from"] = await url_history(asked, f"{private}x", page=calendar, now=time.time())
            for name in {entry.site for entry in log}:
                site = await asked.site(name)
                assert site is not None
                found[name] = site_audit(asked, name, site, list(requests_to(asked.stored(), name, asked.settings)))
            return {**found, "log": log}

    kinds = ("calendar", "robots-part", "resets")
    with SimWeb(sites=3, pages_per_site=6, kinds=kinds, page_bytes=1500) as web:
        calendar, private, _ = web.seeds
        output = asyncio.run(ask(web))
    log = output["log"]
    done, seed = output["done"], output["seed"]
    assert (done["state"], done["depth"] > 0, done["waits"]) == ("done", True, None)
    assert done["referrer"].startswith(private)
    assert [(one["status"], bool(one["worker"])) for one in done["attempts"]] == [(200, True)]
    assert rule(done, "scope")["allows"]
    assert "each page is visited once" in done["next"]["words"]
    assert rule(seed, "seed")["allows"]

    assert output["robots"]["state"] == "skipped"
    assert "Disallow: /private/" in rule(output["robots"], "robots")["words"]
    assert not rule(output["robots"], "robots")["allows"]
    assert output["robots"]["referrer"] == private

    failed, came = output["broken"]["attempts"]
    assert failed["error"] in ("connect", "protocol"), "failed tries are listed too"
    assert came["status"] == 200

    assert output["asleep"]["state"] == "skipped"
    asleep = rule(output["asleep"], "asleep")
    assert asleep["evidence"]["copies"] == 6
    assert asleep["evidence"]["since"] != asleep["evidence"]["example"]
    assert {urls.origin(asleep["evidence"][name]) + "/" for name in ("since", "example")} == {calendar}

    for name, reason in (("deny", "deny"), ("scope", "scope"), ("from", "scope")):
        assert (output[name]["seen"], rule(output[name], reason)["allows"]) == (False, False), name
    assert not output["never"]["seen"]
    assert all(one["allows"] for one in output["never"]["rules"])

    seen = Counter(entry.url for entry in log)
    listed = [one for site in {entry.site for entry in log} for one in output[site]["requests"]]
    assert Counter(one["url"] for one in listed) == seen
    assert sum(urls.path_query(url) == "/robots.txt" for url in seen) == 3
    for site in {entry.site for entry in log}:
        entries = sorted((entry for entry in log if entry.site == site), key=lambda entry: entry.arrived_at)
        for entry, one in zip(entries, output[site]["requests"], strict=True):
            assert (entry.url, entry.status) == (one["url"], one["status"])
            assert one["at"] - 0.005 <= entry.arrived_at
            assert entry.headers_at <= one["at"] + one["latency"] + 0.005 or not entry.status
            assert one["rule"] in ("robots.txt itself", "no matching rule") or one["rule"].startswith("Allow: /")
        at = [one["at"] for one in output[site]["requests"]]
        gaps = [one["gap"] for one in output[site]["requests"]]
        assert gaps == [None, *(pytest.approx(later - earlier, abs=0.001) for earlier, later in pairwise(at))]
        assert output[site]["too_short"] == 0
    assert output[urls.host_port(private)]["kept_back"]["robots"] > 0


@dataclass
class Looking:
    """A job of which only the frontier is there."""

    name: str
    settings: Settings
    folder: Path
    frontier: Any

    async def lookup(self, url: str, *, page: str = "") -> Known | None:
        found: Known | None = await self.frontier.lookup(url)
        return found

    async def site(self, name: str) -> Known | None:
        found: Known | None = await self.frontier.site(name)
        return found

    def stored(self) -> StoredJob:
        return StoredJob.of(self.folder)


def test_why_reports_what_a_url_waits_for(place: str, tmp_path: Path) -> None:
    """Lease, delay, back-off, try, quota; and the evidence of a sleeping path is there for who opens the job next."""
    job = f"waits-{uuid4().hex[:8]}"
    week = 7 * 86_400.0
    settings = Settings(
        delay=0.0, sites={"a.example": SiteSettings(delay=40.0)}, site_share=0.1, share_window=100, recrawl="table"
    )
    path = tmp_path / "frontier.db"
    packed = settle(None, 200, b"User-agent: *\nDisallow: /no/", agent="x", now=time.time(), ttl=9e9).pack()
    memo = {"failures": 2, "paths.0": {"/trap/": {
        "pages": 9, "asleep_until": time.time() + 9e5, "copies": 7, "since": "http://a.example/trap/1", "example": "x",
    }}}  # fmt: skip

    async def play() -> None:
        frontier: Any
        if place:
            frontier = await create_fleet(place, job, settings, worker="w1")
        else:
            frontier = open_sqlite(path, settings, clock=SystemClock())
        named = {} if place else {"worker": "w1"}

        async def story(url: str, looking: Any = frontier, state: State = "running") -> dict[str, Any]:
            asked: Any = Looking(job, settings, tmp_path, looking)
            return await url_history(asked, url, state=state, now=time.time())

        def request(url: str, **more: Any) -> Request:
            return Request(url, urls.fingerprint(frontier.secret, url), urls.host_port(url), **more)

        pages = [request(f"http://a.example/{number}", depth=1, referrer=FOUND_ON) for number in range(3)]
        trap = request("http://a.example/trap/5", depth=2)
        assert (await story(pages[0].url))["state"] == "unknown"
        await frontier.add([*pages, trap])
        waiting = await story(pages[0].url)
        assert (waiting["state"], waiting["referrer"], waiting["depth"]) == ("queued", FOUND_ON, 1)
        assert waiting["waits"]["for"] == "turn"
        assert (await story(pages[0].url, state="paused"))["waits"]["for"] == "paused"
        (lease,) = (await frontier.lease(1, batch=1, seconds=60, **named)).leases
        held, other = await story(pages[0].url), await story(pages[1].url)
        assert (held["state"], held["waits"]["for"], held["waits"]["worker"]) == ("leased", "lease", "w1")
        assert 50 < held["waits"]["seconds"] <= 60
        assert (other["state"], other["waits"]["for"], other["waits"]["worker"]) == ("queued", "lease", "w1")
        outcome = Outcome(
            site="a.example", lane=0, token=lease.token, key=pages[0].key, status="retry", again_in=3000.0
        )
        await frontier.complete([outcome])
        retry, delayed = await story(pages[0].url), await story(pages[1].url)
        assert (retry["state"], retry["waits"]["for"]) == ("delayed", "retry")
        assert 2900 < retry["waits"]["seconds"] <= 3000
        assert (delayed["waits"]["for"], 30 < delayed["waits"]["seconds"] <= 40) == ("delay", True)

        busy = [request(f"http://b.example/{number}") for number in range(30)]
        await frontier.add(busy)
        (lease,) = (await frontier.lease(1, batch=10, seconds=900, **named)).leases
        note = SiteNote(site="b.example", lane=0, token=lease.token, hold=700.0, memo=memo,
                        robots={"http://b.example": packed})  # fmt: skip
        done = [
            Outcome(
                site="b.example",
                lane=0,
                token=lease.token,
                key=one.key,
                status="done",
                again_in=week,
                state={"seen_at": time.time()},
            )
            for one in lease.requests
        ]
        assert (await frontier.complete(done, notes=[note])).accepted == 10
        site = await frontier.site("b.example")
        assert (site["share_left"], site["memo"], site["robots"]) == (0, memo, {"http://b.example": packed})
        assert (await story(busy[-1].url))["waits"]["for"] == "back-off"
        quota = await story(busy[-1].url, _Ready(frontier))
        assert quota["waits"]["for"] == "quota"
        await frontier.aclose()

        later: Any = await open_fleet(place, job) if place else SqliteLookup(path, settings, clock=SystemClock())
        try:
            kept = await story("http://b.example/trap/5", later)
            assert rule(kept, "asleep")["evidence"]["copies"] == 7
            assert not rule(await story("http://b.example/no/1", later), "robots")["allows"]
            assert 600 < (await later.site("b.example"))["hold"] <= 700
            still = await story(pages[0].url, later)
            assert (still["state"], still["waits"]["for"]) == ("delayed", "retry")
            again = await story(busy[0].url, later)
            assert (again["state"], again["waits"]) == ("done", None)
            # Redis lets far visits wait in lists, each for some hours.
            assert week - 600 < again["next"]["at"] - time.time() < week + 17_000
            assert "7 days after a success" in again["next"]["words"]
        finally:
            if place:
                await later.aclose()

    asyncio.run(play())


class _Ready:
    """The same frontier, at a moment when its sites are neither held nor inside their delay."""

    def __init__(self, frontier: Any) -> None:
        self.lookup = frontier.lookup
        self._site = frontier.site

    async def site(self, name: str) -> dict[str, Any]:
        return {**await self._site(name), "hold": 0.0, "ready_in": 0.0}


def test_the_commands_speak_to_people_and_to_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with SimWeb(sites=1, pages_per_site=6, page_bytes=1500) as web:
        seed, host = web.seeds[0], urls.host_port(web.seeds[0])
        folder = tmp_path / folder_of("", [seed])
        asyncio.run(crawled("", "", folder, Settings(allow_private=True, delay=0.01), [seed]))

    def gossamer(*words: str) -> str:
        done = CliRunner().invoke(command_line, words, catch_exceptions=False, standalone_mode=False)
        return done.stdout

    said = gossamer("why", seed)
    assert said.startswith(seed)
    assert "As a seed." in said
    output = json.loads(gossamer("why", seed, "--json"))
    assert (output["state"], output["job_state"]) == ("done", "finished"), "the word of the dashboard"
    assert json.loads(gossamer("why", host, "--json"))["url"] == seed, "http is thought of too"
    listed = gossamer("audit", host).splitlines()
    assert "7 requests" in listed[0]
    assert sum(seed in line for line in listed) == 7
    assert json.loads(gossamer("audit", host, "--json", "--since", "1h"))["sent"] == 7
    assert json.loads(gossamer("audit", host, "--json", "--until", "1h"))["sent"] == 0
    gossamer("audit", seed, "--plot", "gaps.svg")
    assert len(ElementTree.parse(tmp_path / "gaps.svg").findall(".//{*}circle/{*}title")) == 6
    for words, message in (
        (("why", "mailto:me"), "is not a valid"),
        (("why", seed, "--job", "nobody"), "no job 'nobody'"),
        (("audit", "elsewhere.example"), "has no site elsewhere.example"),
        (("audit", host, "--until", "soon"), "is not a valid time"),
    ):
        with pytest.raises(ConfigError, match=message) as raised:
            gossamer(*words)
        assert raised.value.hint


def test_why_names_the_rule_that_skipped_a_link(tmp_path: Path) -> None:
    pages = {
        "/": "<a href=/quiet>q</a><a rel=nofollow href=/marked>m</a>",
        "/quiet": "<meta name=robots content='noindex, nofollow'><a href=/beyond>b</a>",
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in pages else 404)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(pages.get(self.path, "").encode())

        def log_message(self, *_: Any) -> None:
            pass

    async def ask(root: str) -> list[dict[str, Any]]:
        settings = Settings(allow_private=True, delay=0.0, commit_seconds=0.01)
        await crawled("", "", tmp_path, settings, [f"{root}/"])
        async with open_job(str(tmp_path)) as asked:
            return [
                await url_history(asked, f"{root}/marked", now=time.time()),
                await url_history(asked, f"{root}/beyond", page=f"{root}/quiet", now=time.time()),
                await url_history(asked, f"{root}/quiet", now=time.time()),
            ]

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        marked, beyond, quiet = asyncio.run(ask(f"http://127.0.0.1:{server.server_port}"))
    finally:
        server.shutdown()
        server.server_close()
    assert (marked["state"], rule(marked, "nofollow")["allows"]) == ("unknown", True)
    assert "rel=nofollow" in rule(marked, "nofollow")["words"]
    assert (beyond["state"], rule(beyond, "nofollow")["allows"]) == ("unknown", False)
    assert "noindex, nofollow" in rule(beyond, "nofollow")["words"]
    assert (quiet["state"], [one["rule"] for one in quiet["rules"]]) == ("done", ["scope", "robots"])


def test_a_running_crawl_is_asked_through_its_owner(tmp_path: Path) -> None:
    async def play(web: SimWeb) -> list[dict[str, Any]]:
        crawl = LocalRun(tmp_path, Settings(allow_private=True, robots=False, delay=30.0), web.seeds)
        running = asyncio.create_task(crawl.run())
        while (await crawl.counts()).done < 1:
            await asyncio.sleep(0.02)
        async with open_job(str(tmp_path)) as asked:
            assert await read_state(asked) == "running"
            waiting = web.url(0, web.plan.path(0, 1))
            output = [await url_history(asked, url, now=time.time()) for url in (web.seeds[0], waiting)]
        crawl.stop("test")
        await running
        return output

    with SimWeb(sites=1, pages_per_site=20, links_per_page=30, page_bytes=1500) as web:
        seed, waiting = asyncio.run(play(web))
    assert (seed["state"], [one["status"] for one in seed["attempts"]]) == ("done", [200])
    assert (waiting["state"], waiting["referrer"]) in (("queued", web.seeds[0]), ("leased", web.seeds[0]))
    assert waiting["waits"]["for"] in ("delay", "lease")
    assert waiting["site_state"]["queued"] > 0


def test_without_a_request_log_audit_lists_stored_pages(tmp_path: Path) -> None:
    with SimWeb(sites=1, pages_per_site=4, page_bytes=1500) as web:
        site = urls.host_port(web.seeds[0])
        settings = Settings(allow_private=True, delay=0.01, trail=False)
        asyncio.run(crawled("", "", tmp_path, settings, web.seeds))
    found = list(requests_to(StoredJob.of(tmp_path), site, settings))
    assert (len(found), {one.step.status for one in found}) == (4, {200})
    about = {"delay": 0.01, "robots": {}}
    audited = site_audit(StoppedJob(tmp_path), site, about, found)
    assert any("there is no request log" in line for line in audit_lines(audited))


def test_the_request_log_survives_kills_and_full_disks(tmp_path: Path) -> None:
    """A torn line costs nobody else a line, and what the disk did not take is written when it does."""

    async def play() -> None:
        trail = RequestLog(tmp_path, "w/1")
        trail.note(SentRequest(url="http://a.example/1", at=1.0, status=200))
        await trail.aclose()
        (path,) = (tmp_path / "trail").iterdir()
        with path.open("ab") as file:
            file.write(b'{"url":"http://a.example/2","at":2.0,"sta')
        path.chmod(0o444)
        path.rename(tmp_path / "kept")
        path.mkdir()
        trail = RequestLog(tmp_path, "w/1")
        trail.note(SentRequest(url="http://a.example/3", at=3.0, status=200))
        await trail.flush()
        path.rmdir()
        (tmp_path / "kept").rename(path)
        path.chmod(0o644)
        trail.note(SentRequest(url="http://b.example/4", at=4.0, skipped="robots"))
        await trail.aclose()

    asyncio.run(play())
    assert [(worker, step.at) for worker, step in logged_requests(tmp_path, "http://a.example/")] == [
        ("w/1", 1.0),
        ("w/1", 3.0),
    ]
    assert [step.skipped for _, step in logged_requests(tmp_path, "http://b")] == ["robots"]
