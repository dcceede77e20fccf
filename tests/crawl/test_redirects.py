"""Redirects: allowed targets, loops, and credentials (H08, H09, H11, H12, and H13 of the faults list)."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trustme
from processes import command, environment, rows
from rawweb import Answer as Given
from rawweb import Asked, RawWeb, page, redirect, reply

from gossamer.clock import Clock
from gossamer.download.client import HttpDownloader
from gossamer.download.connections import Connection, Connections, Target
from gossamer.download.dns import ResolvedName
from gossamer.errors import ConnectFailed
from gossamer.jobs.local_run import LocalRun, RunSummary
from gossamer.settings import Settings, build

METADATA = [
    "http://169.254.169.254/latest/meta-data/",
    "http://[::ffff:169.254.169.254]/",
    "http://2852039166/",
    "http://metadata.google.internal/computeMetadata/v1/",
    "http://inside.test/",
]
PUBLIC = "93.184.216.34"


def run(folder: Path, seeds: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    """A crawl of its own process, without robots.txt and delay."""
    return subprocess.run(
        command(folder, seeds, "--delay", "0", "--no-robots", "--quiet", "--tries", "1", *options),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(),
    )


def by_path(folder: Path) -> dict[str, dict[str, Any]]:
    """The rows of pages.jsonl by the path of their URL; each URL stands there once."""
    found = {"/" + row["url"].split("/", 3)[3]: row for row in rows(folder / "pages.jsonl")}
    assert len(found) == len(rows(folder / "pages.jsonl"))
    return found


class Loopback(Connections):
    """Connects to this machine whatever the address is, and to nothing that a guard would not let through."""

    def __init__(self, names: dict[str, tuple[str, ...]], reached: set[str]) -> None:
        super().__init__(allow_private=True, connect_seconds=10.0, proxy_tls=ssl.create_default_context)
        self._names, self._reached = names, reached

    async def open(self, target: Target, addresses: Sequence[str]) -> Connection:
        self._reached.update((target.host, *addresses))
        if target.host not in self._names and target.host != "127.0.0.1":
            raise ConnectFailed("a guard that lets this through must not cost anybody else")
        return await super().open(target, ("127.0.0.1",))


class Diverted(HttpDownloader):
    """Notes what it would connect to, and connects to this machine instead: our part of the internet."""

    def __init__(self, settings: Settings, clock: Clock, names: dict[str, tuple[str, ...]], reached: set[str]) -> None:
        self._names, self._reached = names, reached
        super().__init__(settings, clock, self)
        self._connections = Loopback(names, reached)

    async def resolve(self, host: str) -> ResolvedName:
        return ResolvedName(self._names[host], self._clock.monotonic() + 60)

    async def aclose(self) -> None:
        self._resolver = Nobody()
        await super().aclose()


class Nobody:
    async def resolve(self, host: str) -> ResolvedName:
        raise AssertionError(host)

    async def aclose(self) -> None: ...


def crawl_diverted(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    seeds: list[str],
    names: dict[str, tuple[str, ...]],
    **settings: Any,
) -> tuple[RunSummary, set[str]]:
    """A whole crawl in this process; how it ended, and every name and address that was reached for."""
    reached: set[str] = set()
    monkeypatch.setattr(
        "gossamer.jobs.worker.open_downloader",
        lambda settings, *, clock, resolver: Diverted(settings, clock, names, reached),
    )
    values = {"delay": 0, "tries": 1, "commit_seconds": 0.02, "backoff_seconds": 0.1, "site_failures": 1, **settings}
    return asyncio.run(LocalRun(folder, build(values), seeds).run()), reached


def test_h08_a_redirect_to_a_metadata_service_is_never_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RawWeb() as web:
        seeds = []
        for number, target in enumerate(METADATA):
            web.answers[f"/{number}"] = redirect(target)
            seeds.append(web.url(f"/{number}"))
        names: dict[str, tuple[str, ...]] = {"inside.test": ("169.254.169.254",)}
        # Even with private addresses allowed.
        summary, reached = crawl_diverted(monkeypatch, tmp_path, seeds, names, allow_private=True, robots=False)
    assert reached == {"127.0.0.1"}
    assert sorted(web.targets()) == [f"/{number}" for number in range(len(METADATA))]
    refused = [row for row in rows(tmp_path / "pages.jsonl") if row["error"]]
    assert len(refused) == len({row["url"] for row in refused}) == len(METADATA)
    assert all(row["error"].startswith("forbidden: ") for row in refused)
    assert summary.counts.finished


@pytest.mark.parametrize("way", ["redirect", "link", "refresh", "canonical", "frame"])
def test_h08_nothing_on_the_internet_leads_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    with RawWeb() as web:
        inside = [
            web.url("/secret"),
            f"http://localhost:{web.port}/secret",
            f"http://[::1]:{web.port}/secret",
            f"http://2130706433:{web.port}/secret",
            "http://10.0.0.1/secret",
            "http://192.168.1.1/secret",
            f"http://inside.test:{web.port}/secret",
            f"http://both.test:{web.port}/secret",
        ]
        markup = {
            "link": '<a href="{}">x</a>',
            "refresh": '<meta http-equiv="refresh" content="0; url={}">',
            "canonical": '<link rel="canonical" href="{}">',
            "frame": '<iframe src="{}"></iframe>',
        }
        seeds = []
        for number, target in enumerate(inside):
            web.answers[f"/{number}"] = (
                redirect(target) if way == "redirect" else reply("<title>t</title>" + markup[way].format(target))
            )
            seeds.append(f"http://public.test:{web.port}/{number}")
        names = {
            "public.test": (PUBLIC,),
            "inside.test": ("10.1.2.3",),
            "both.test": (PUBLIC, "127.0.0.1"),
            "localhost": ("127.0.0.1", "::1"),
        }
        summary, reached = crawl_diverted(monkeypatch, tmp_path, seeds, names, robots=False, scope="any")
    assert reached == {"public.test", PUBLIC}
    assert sorted(web.targets()) == [f"/{number}" for number in range(len(inside))]
    refused = [row for row in rows(tmp_path / "pages.jsonl") if row["error"]]
    assert len(refused) == len({row["url"] for row in refused}) == 7  # one address in two spellings
    assert all(row["error"].startswith("forbidden: ") for row in refused)
    assert summary.counts.failed == 7


def test_h11_a_robots_txt_that_redirects_inside_closes_its_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RawWeb() as web:
        web.answers["/robots.txt"] = redirect(web.url("/secret"))
        web.answers["/"] = page()
        seeds = [f"http://public.test:{web.port}/"]
        summary, reached = crawl_diverted(monkeypatch, tmp_path, seeds, {"public.test": (PUBLIC,)})
    assert reached == {"public.test", PUBLIC}
    assert [asked.target for asked in web.log] == ["/robots.txt"]
    assert summary.counts.failed == 1


@pytest.mark.parametrize(
    "location",
    [
        *("file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1:70/x", "dict://127.0.0.1:11211/stat"),
        *("data:text/html,<a href=/x>x</a>", "javascript:alert(1)", "jar:http://127.0.0.1/x!/y", "mailto:a@b.test"),
        *("http://user:secret@127.0.0.1/", "http://", "//", "http://a b/", "ws://127.0.0.1/", "FILE:/etc/passwd"),
    ],
)
def test_h09_other_schemes_are_not_followed(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "job"
    with RawWeb() as web:
        web.answers["/"] = redirect(location)
        done = run(folder, [web.url()])
    assert done.returncode == 3, done.stderr
    assert web.targets() == ["/"]
    assert [(row["status"], row["error"], row["location"]) for row in rows(folder / "pages.jsonl")] == [
        (302, "redirect-refused", "")
    ]


def test_h12_loops_and_long_chains_end(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with RawWeb() as web:
        web.answers["/self"] = redirect("/self")
        web.answers["/a"] = redirect("/b")
        web.answers["/b"] = redirect("/a")
        for number in range(50):
            web.answers[f"/chain/{number}"] = redirect(f"{number + 1}", status="301 Moved Permanently")
        web.answers["/short/0"] = redirect("/short/1")
        web.answers["/short/1"] = page(title="there")
        done = run(folder, [web.url(path) for path in ("/self", "/a", "/chain/0", "/short/0")])
    assert done.returncode == 3, done.stderr
    chain = [f"/chain/{number}" for number in range(11)]
    assert sorted(web.targets()) == sorted(["/self", "/a", "/b", *chain, "/short/0", "/short/1"])
    found = by_path(folder)
    assert {path: row["error"] for path, row in found.items() if row["error"]} == {
        "/self": "redirects",
        "/b": "redirects",
        "/chain/10": "redirects",
    }
    assert found["/short/1"]["title"] == "there"
    assert {row["depth"] for row in found.values()} == {0}


def wall(asked: Asked) -> bytes:
    """A page that is shown to those who come back with its cookie."""
    if "passed=yes" in asked.headers.get("cookie", ""):
        return page("/next", title="behind the wall")
    return redirect(asked.target, "Set-Cookie: passed=yes; Path=/")


def test_h12_a_cookie_wall_is_passed_with_cookies_only(tmp_path: Path) -> None:
    for options, titles, fetches in (((), {""}, ["/"]), (("--cookies",), {"behind the wall"}, ["/", "/", "/next"])):
        folder = tmp_path / f"job{len(options)}"
        with RawWeb() as web:
            web.answers["/"] = web.answers["/next"] = wall
            done = run(folder, [web.url()], *options)
        assert done.returncode == (0 if options else 3), done.stderr
        assert web.targets() == fetches
        assert {row["title"] for row in rows(folder / "pages.jsonl")} == titles
        assert set(by_path(folder)) == ({"/", "/next"} if options else {"/"})


def test_h12_a_wall_that_never_opens_ends_after_ten_hops(tmp_path: Path) -> None:
    with RawWeb() as web:
        web.answers["/"] = lambda asked: redirect("/", f"Set-Cookie: n={len(web.log)}")
        done = run(tmp_path / "job", [web.url()], "--cookies")
    assert done.returncode == 3, done.stderr
    assert web.targets() == ["/"] * 11
    assert [row["error"] for row in rows(tmp_path / "job" / "pages.jsonl")] == ["redirects"]


def wall_of(*others: str) -> dict[str, Given]:
    """A page that is shown with a cookie only; it is set on a way round by other URLs, the last of which leads back."""

    def first(asked: Asked) -> bytes:
        passed = "passed=yes" in asked.headers.get("cookie", "")
        return page("/beside", title="behind") if passed else redirect(others[0])

    def step(number: int) -> bytes:
        return redirect(others[number + 1], "Set-Cookie: passed=yes; Path=/")

    last = redirect("http://a.walls.test:PORT/page", "Set-Cookie: passed=yes; Path=/; Domain=walls.test")
    answers: dict[str, Given] = {"a.walls.test:PORT/page": first, "/beside": page(title="beside")}
    answers |= {name.removeprefix("http://"): step(number) for number, name in enumerate(others[:-1])}
    return {**answers, others[-1].removeprefix("http://"): last}


@pytest.mark.parametrize(
    "steps", [("a.walls.test:PORT/one",), ("a.walls.test:PORT/one", "b.walls.test:PORT/two", "b.walls.test:PORT/three")]
)
def test_h12_a_wall_of_several_urls_is_passed_with_cookies_only(tmp_path: Path, steps: tuple[str, ...]) -> None:
    """The first URL has two lines then, the redirect and the page; the page's own is for a second answer."""
    for options in ((), ("--cookies",), ("--cookies", "--workers", "2")):
        folder = tmp_path / f"job{len(options)}"
        with RawWeb() as web:
            for place, answer in wall_of(*(f"http://{step}" for step in steps)).items():
                web.answers[place.replace("PORT", str(web.port))] = with_port(answer, web.port)
            seed = f"http://a.walls.test:{web.port}/page"
            done = run(folder, [seed], *options, "--resolve", "*.test=127.0.0.1", "--scope", "domain")
        way = ["/page", *("/" + step.rpartition("/")[2] for step in steps)]
        found = [(row["title"], row["error"]) for row in rows(folder / "pages.jsonl") if row["status"] == 200]
        if options:
            assert done.returncode == 0, done.stderr
            assert web.targets() == [*way, "/page", "/beside"]
            assert found == [("behind", ""), ("beside", "")]
        else:
            assert done.returncode == 3, done.stderr
            assert web.targets() == way
            assert [row["error"] for row in rows(folder / "pages.jsonl")] == [*[""] * len(steps), "redirects"]


def with_port(answer: Given, port: int) -> Given:
    if isinstance(answer, bytes):
        return answer.replace(b"PORT", str(port).encode())
    return lambda asked: answer(asked).replace(b"PORT", str(port).encode())


def test_h12_a_cookie_wall_of_two_urls_that_never_opens_ends_soon(tmp_path: Path) -> None:
    with RawWeb() as web:
        web.answers["/a"] = lambda asked: redirect("/b", f"Set-Cookie: a={len(web.log)}")
        web.answers["/b"] = lambda asked: redirect("/a", f"Set-Cookie: b={len(web.log)}")
        done = run(tmp_path / "job", [web.url("/a")], "--cookies")
    assert done.returncode == 3, done.stderr
    assert web.targets() == ["/a", "/b", "/a", "/b"]
    assert [row["error"] for row in rows(tmp_path / "job" / "pages.jsonl")] == ["", "", "", "redirects"]


def test_h12_hostile_locations_end_and_the_rest_is_crawled(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    hostile = {
        "/megabyte": redirect("/" + "x" * 1_000_000),
        "/folded": redirect("/a\r\n b"),
        "/return": redirect("/a\rb"),
        "/feed": redirect("/a\nb"),
        "/nul": redirect("/a\0b"),
        "/split": redirect("/after\r\nSet-Cookie: injected=1\r\nX-More: y"),
        "/escaped": redirect("/after%0d%0aGET%20/smuggled%20HTTP/1.1%0d%0a"),
        "/empty": redirect(""),
        "/none": reply(status="302 Found"),
        "/twice": redirect("/first", "Location: /second"),
        "/latin": reply(status="302 Found", headers=()).replace(b"\r\n\r\n", b"\r\nLocation: /caf\xe9\r\n\r\n"),
    }
    with RawWeb() as web:
        web.answers.update(hostile)
        web.answers["/"] = page(*hostile, "/last", title="start")
        for path in ("/after", "/first", "/second", "/caf%C3%A9", "/last", "/a%20b", "/a"):
            web.answers[path] = page(title=path)
        done = run(folder, [web.url()], "--cookies")
        assert done.returncode == 3, done.stderr
    escaped = "/after%0d%0aGET%20/smuggled%20HTTP/1.1%0d%0a"
    # A value in two lines is one with a space (RFC 9112, 5.2); one that ends at a line feed has a line without a name
    # behind it, which is skipped; and what ends a line in another way is no value.
    folded = "/a%20b"
    assert sorted(web.targets()) == sorted([*hostile, "/", "/last", "/after", "/caf%C3%A9", escaped, folded, "/a"])
    found = by_path(folder)
    assert {path: row["error"].partition(":")[0] for path, row in found.items() if row["error"]} == {
        "/megabyte": "too-large",
        "/return": "protocol",
        "/nul": "protocol",
        "/twice": "protocol",
    }
    assert {path: row["location"].removeprefix(web.url("")) for path, row in found.items() if row["location"]} == {
        "/folded": folded,
        "/feed": "/a",
        "/split": "/after",
        "/escaped": escaped,
        "/latin": "/caf%C3%A9",
    }
    assert found["/last"]["title"] == "/last"


def tls_context(folder: Path) -> ssl.SSLContext:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


SPIDER = """
import gossamer

class Login(gossamer.Spider):
    def parse(self, page):
        headers = {"Authorization": "Bearer mine", "Cookie": "session=mine", "X-Mine": "mine"}
        for number in range(%d):
            yield page.follow(f"/{number}", headers=headers)
"""


def test_h13_credentials_stay_with_their_origin(tmp_path: Path) -> None:
    """Those of a spider's request and those of a site, on the way to another host, port and scheme, and back."""
    folder = tmp_path / "job"
    spider = tmp_path / "spider.py"
    with (
        RawWeb() as web,
        RawWeb(address="127.0.0.2") as host,
        RawWeb() as port,
        RawWeb(tls=tls_context(tmp_path)) as tls,
    ):
        elsewhere = [
            host.url("/got"),
            port.url("/got"),
            tls.url("/got", scheme="https"),
            f"http://x.test:{web.port}/got",
        ]
        targets = [*elsewhere, web.url("/same")]
        web.answers["/"] = page()
        for number, target in enumerate(targets):
            web.answers[f"/{number}"] = redirect(target, status="307 Temporary Redirect")
        web.answers["/same"] = web.answers["/back"] = page()
        for other in (web, host, port, tls):
            other.answers["/got"] = redirect(web.url("/back"))
        spider.write_text(SPIDER % len(targets))
        (tmp_path / "gossamer.toml").write_text(
            "[sites]\n" + f'"{web.site}" = {{headers = {{X-Site = "mine", Authorization = "Basic site"}}}}\n'
        )
        lines = command(folder, [web.url()], "--delay", "0", "--no-robots", "--scope", "any", "--spider", str(spider))
        done = subprocess.run(
            [*lines, "--resolve", "x.test=127.0.0.1", "--ca-file", str(tmp_path / "ca.pem")],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=environment(),
            cwd=tmp_path,
        )
    assert done.returncode == 0, done.stderr
    abroad = [*host.log, *port.log, *tls.log, *(asked for asked in web.log if asked.headers["host"] != web.site)]
    assert [asked.target for asked in abroad] == ["/got"] * 4
    secrets = {"authorization", "cookie", "x-mine", "x-site"}
    assert [secrets & set(asked.headers) for asked in abroad] == [set()] * 4
    assert "mine" not in json.dumps([asked.headers for asked in abroad])
    home = {asked.target: asked.headers for asked in web.log if asked.headers["host"] == web.site}
    for number in range(len(targets)):
        assert home[f"/{number}"]["authorization"] == "Bearer mine"
        assert home[f"/{number}"]["cookie"] == "session=mine"
    assert home["/same"]["authorization"] == "Bearer mine"
    # What was dropped on the way is not picked up again; the site's own headers are for the site.
    assert home["/back"]["authorization"] == "Basic site"
    assert not {"cookie", "x-mine"} & set(home["/back"])
    assert home["/"]["x-site"] == "mine"


def test_h13_a_robots_txt_elsewhere_does_not_get_the_sites_headers(tmp_path: Path) -> None:
    with RawWeb() as web, RawWeb(address="127.0.0.2") as other:
        web.answers["/robots.txt"] = redirect(other.url("/robots.txt"))
        web.answers["/"] = page()
        other.answers["/robots.txt"] = reply("User-agent: *\nAllow: /\n")
        (tmp_path / "gossamer.toml").write_text(f'[sites."{web.site}".headers]\nAuthorization = "Basic site"\n')
        lines = command(tmp_path / "job", [web.url()], "--delay", "0")
        subprocess.run(lines, check=True, capture_output=True, timeout=60, env=environment(), cwd=tmp_path)
    assert [(asked.target, asked.headers.get("authorization")) for asked in web.log] == [
        ("/robots.txt", "Basic site"),
        ("/", "Basic site"),
    ]
    assert [(asked.target, asked.headers.get("authorization")) for asked in other.log] == [("/robots.txt", None)]


POSTING = """
import gossamer

class Form(gossamer.Spider):
    def parse(self, page):
        if page.url.endswith("/"):
            for status in (301, 302, 303, 307, 308):
                yield page.follow(f"/{status}", method="POST", body=b"a=1")
"""


def test_a_redirect_repeats_a_post_only_for_307_and_308(tmp_path: Path) -> None:
    spider = tmp_path / "spider.py"
    spider.write_text(POSTING)
    with RawWeb() as web:
        web.answers["/"] = page()
        for status in (301, 302, 303, 307, 308):
            web.answers[f"/{status}"] = redirect(f"/to/{status}", status=f"{status} Moved")
            web.answers[f"/to/{status}"] = page()
        done = run(tmp_path / "job", [web.url()], "--spider", str(spider))
    assert done.returncode == 0, done.stderr
    sent = {asked.target: (asked.method, asked.body) for asked in web.log}
    assert {sent[f"/{status}"] for status in (301, 302, 303, 307, 308)} == {("POST", b"a=1")}
    assert {sent[f"/to/{status}"] for status in (301, 302, 303)} == {("GET", b"")}
    assert {sent[f"/to/{status}"] for status in (307, 308)} == {("POST", b"a=1")}


def test_a_seed_is_followed_to_another_site(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with RawWeb() as web:
        web.answers[f"x.test:{web.port}/"] = redirect(f"http://www.x.test:{web.port}/")
        web.answers[f"www.x.test:{web.port}/"] = page("/a", f"http://x.test:{web.port}/b", "http://other.test/")
        web.answers["/a"] = web.answers["/b"] = page()
        web.answers["/moved"] = redirect(f"http://new.test:{web.port}/home")
        web.answers[f"new.test:{web.port}/home"] = page("/a")
        done = run(
            folder, [f"http://x.test:{web.port}/", f"http://x.test:{web.port}/moved"], "--resolve", "*.test=127.0.0.1"
        )
    assert done.returncode == 0, done.stderr
    assert sorted(asked.url.replace(f":{web.port}", "") for asked in web.log) == [
        "http://new.test/a",
        "http://new.test/home",
        "http://www.x.test/",
        "http://www.x.test/a",
        "http://x.test/",
        "http://x.test/b",
        "http://x.test/moved",
    ]


def test_a_page_is_not_followed_off_its_site(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with RawWeb() as web, RawWeb(address="127.0.0.2") as other:
        web.answers["/"] = page("/out", "/in", "/deep/out")
        web.answers["/out"] = redirect(other.url("/"))
        web.answers["/deep/out"] = redirect(other.url("/"), status="308 Permanent Redirect")
        web.answers["/in"] = redirect("/there")
        web.answers["/there"] = page()
        other.answers["/"] = page()
        done = run(folder, [web.url()])
        assert done.returncode == 0, done.stderr
        assert sorted(web.targets()) == ["/", "/deep/out", "/in", "/out", "/there"]
        assert other.log == []
        found = by_path(folder)
        assert found["/out"]["location"] == other.url("/")
        assert found["/there"]["depth"] == found["/in"]["depth"] == 1
        # With a wider scope the same redirect is followed.
        done = run(tmp_path / "wide", [web.url()], "--scope", "any")
        assert other.targets() == ["/"]


def test_a_page_is_fetched_once_however_its_escapes_are_spelled(tmp_path: Path) -> None:
    with RawWeb() as web:
        web.answers["/"] = page(
            "/caf%c3%a9", "/caf%C3%A9", "/caf\u00e9", "/%7Eu", "/~u", "/a?b=%7e", "/a?b=~", "/x%2Fy", "/x/y"
        )
        for path in ("/caf%c3%a9", "/%7Eu", "/a?b=%7e", "/x%2Fy", "/x/y"):
            web.answers[path] = page(path.replace("%7E", "~").replace("%7e", "~"))
        done = run(tmp_path / "job", [web.url()])
        assert done.returncode == 0, done.stderr
        # As they were found first.
        assert sorted(web.targets()) == sorted(["/", "/caf%c3%a9", "/%7Eu", "/a?b=%7e", "/x%2Fy", "/x/y"])
        assert set(by_path(tmp_path / "job")) == set(web.targets())


def test_a_redirect_to_another_spelling_leads_there(tmp_path: Path) -> None:
    with RawWeb() as web:
        web.answers["/"] = page("/%7e1", "/%7e2", "/~3", "/%7E4")
        web.answers["/%7e1"] = redirect("/~1")
        web.answers["/~1"] = page(title="one")
        # In two steps, and one that leads on.
        web.answers["/%7e2"] = redirect("/%7E2")
        web.answers["/%7E2"] = redirect("/~2")
        web.answers["/~2"] = page(title="two")
        web.answers["/~3"] = redirect("/%7E3")
        web.answers["/%7E3"] = page("/~3", title="three")
        # A loop is still one.
        web.answers["/%7E4"] = redirect("/~4")
        web.answers["/~4"] = redirect("/%7E4")
        done = run(tmp_path / "job", [web.url()])
        found = by_path(tmp_path / "job")
        titles = {path: row["title"] for path, row in found.items() if row.get("title")}
        assert titles == {"/~1": "one", "/~2": "two", "/%7E3": "three"}, done.stderr
        assert len(web.targets()) == len(set(web.targets())) == 10


@pytest.mark.parametrize("asked", ["/%7eu", "/~u", "/%7Eu"])
def test_why_finds_a_page_by_any_spelling(tmp_path: Path, asked: str) -> None:
    with RawWeb() as web:
        web.answers["/"] = page("/%7Eu")
        web.answers["/%7Eu"] = page(title="found")
        assert run(tmp_path / "job", [web.url()]).returncode == 0
        said = subprocess.run(
            [sys.executable, "-m", "gossamer", "why", web.url(asked), "--job", str(tmp_path / "job"), "--json"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env=environment(),
        )
    story = json.loads(said.stdout)
    assert (story["state"], story["seen"], story["depth"]) == ("done", True, 1)
    assert len(story["attempts"]) == 1
