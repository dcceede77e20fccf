"""A crawl behind a login, which survives kill -9 and stays secret."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec
from processes import command, environment, rows
from rawweb import Asked, RawWeb, page, redirect, reply

from gossamer.clock import ManualClock
from gossamer.engine.links import Linker, RecentKeys
from gossamer.engine.visit import SiteCookies
from gossamer.middleware.cookies import CookieJar
from gossamer.model import Lease, Request, Response, secret
from gossamer.redact import masked_memo
from gossamer.settings import build

PASSWORD = "p&ss w=rd ü"
SPIDER = """
from gossamer import Spider, secret

class Members(Spider):
    settings = {"cookies": True, "secrets": ["LOGIN_PASSWORD"]}

    def parse(self, page):
        yield page.form(fields={"user": "me", "word": secret("LOGIN_PASSWORD")}, label="inside")

    def parse_inside(self, page):
        yield {"title": page.title}
        yield from page.follow_all(label="inside")
"""
FORM = (
    "<form action=/in method=post><input type=hidden name=csrf value=7><input name=user><input type=password name=word>"
)


class Members(RawWeb):
    """Lets in who has the password; everything inside is 403 without the cookie."""

    def __init__(self, pages: int) -> None:
        super().__init__()
        self.answers = {"/": reply(FORM), "/in": self.enter, "/home": self.inside(*(f"/{n}" for n in range(pages)))}
        for number in range(pages):
            self.answers[f"/{number}"] = self.inside()

    def enter(self, asked: Asked) -> bytes:
        good = asked.body == b"csrf=7&user=me&word=p%26ss+w%3Drd+%C3%BC" and asked.method == "POST"
        cookie = "Set-Cookie: member=yes; Path=/; HttpOnly"
        return redirect("/home", cookie, status="303 See Other") if good else reply("no", status="401 No")

    def inside(self, *links: str):  # type: ignore[no-untyped-def]
        def answer(asked: Asked) -> bytes:
            if asked.headers.get("cookie") != "member=yes":
                return reply("no", status="403 No")
            time.sleep(0.03)
            return page(*links, title="inside")

        return answer


def test_a_login_survives_kill_and_resume_and_the_password_is_nowhere(tmp_path: Path) -> None:
    spider, folder = tmp_path / "members.py", tmp_path / "job"
    spider.write_text(SPIDER)
    with Members(60) as web:
        words = command(
            folder, [f"http://127.0.0.1:{web.port}/"], "--delay", "0", "--no-robots", "--spider", str(spider)
        )
        known = {**environment(), "LOGIN_PASSWORD": PASSWORD}
        first = subprocess.Popen(words, env=known, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while sum(asked.target[1:].isdecimal() for asked in web.log) < 10:
            assert first.poll() is None
            time.sleep(0.01)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        before = len(web.log)
        again = subprocess.run(words, env=known, capture_output=True, timeout=60, check=False)
        assert again.returncode == 0, again.stderr
    assert before < len(web.log)
    assert [asked.target for asked in web.log].count("/in") == 1
    found = rows(folder / "pages.jsonl")
    assert sorted(row["status"] for row in found) == [200] * 62 + [303]
    assert len(rows(folder / "items.jsonl")) == 61
    kept = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert b"LOGIN_PASSWORD" in kept
    assert not [form for form in (PASSWORD.encode(), b"p%26ss", b"p&ss") if form in kept + again.stderr]


def test_a_crawl_without_its_secret_variable_does_not_start(tmp_path: Path) -> None:
    spider = tmp_path / "members.py"
    spider.write_text(SPIDER)
    with Members(1) as web:
        words = command(tmp_path / "job", [f"http://127.0.0.1:{web.port}/"], "--no-robots", "--spider", str(spider))
        ended = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2, ended.stderr
    assert "LOGIN_PASSWORD" in ended.stderr
    assert not web.log


def test_a_secret_is_not_posted_again_somewhere_else() -> None:
    """H13: a redirect that repeats a body on another host does not send its secret."""

    def answer(status: int) -> Response:
        return Response(url=posted.url, status=status)

    linker = Linker(build({"scope": "any"}), b"k" * 16, RecentKeys())
    kind = {"content-type": "application/x-www-form-urlencoded", "x": "y"}
    posted = Request("https://a.test/in", method="POST", body=f"w={secret('WORD')}".encode(), headers=kind)
    (home,) = linker.hop(posted, "https://a.test/other", answer(307))
    assert (home.method, home.body, home.headers) == ("POST", posted.body, kind)
    for target in ("https://b.test/in", "http://a.test/in", "https://a.test:444/in"):
        (away,) = linker.hop(posted, target, answer(307))
        assert (away.method, away.body, away.headers) == ("GET", b"", None)
    (after,) = linker.hop(posted, "https://a.test/home", answer(303))
    assert (after.method, after.body, after.headers) == ("GET", b"", {"x": "y"})


def test_login_cookies_reach_other_hosts_of_the_domain() -> None:
    """Whichever worker has them: with every redirect, and with the link that goes there first."""
    clock = ManualClock()
    jar = CookieJar(clock)
    home = SiteCookies(jar, lease("login.shop.test"))
    values = ("member=yes; Domain=shop.test; Path=/", "own=1; Path=/")
    jar.store(
        Response(url="http://login.shop.test/in", status=303, headers=tuple(("set-cookie", one) for one in values))
    )
    assert [row[0] for row in home.news()["cookies"][1]] == ["own", "member"]
    assert home.news() == {}
    links = [Request(f"http://{site}/{n}", site=site, priority=n) for site in SITES for n in (0, 5, 3)]
    sent = home.attach(links)
    (first,) = [link for link in sent if link.meta is not None]
    assert first.url == "http://www.shop.test/5"
    assert first.given is None
    # What is known there already does not travel with every page; a redirect is sure to be asked for.
    assert not [link for link in home.attach(links) if link.meta]
    assert len([link for link in home.attach(links[3:6], always=True) if link.meta]) == 1
    other = CookieJar(clock)
    there = SiteCookies(other, lease("www.shop.test"))
    there.take(links[3])
    assert other.header(first.url) == ""
    there.take(first)
    assert other.header(first.url) == "member=yes"
    assert [row[0] for row in there.news()["cookies"][1]] == ["member"]
    apart = CookieJar(clock, per_host=True)
    apart.store(Response(url="http://login.shop.test/in", status=303, headers=(("set-cookie", values[0]),)))
    assert not [link for link in SiteCookies(apart, lease("login.shop.test")).attach(links, always=True) if link.meta]


def test_a_worker_without_the_login_does_not_overwrite_its_cookies() -> None:
    """Two lanes of a site, two workers: one logs in, the other, leased before, gets a cookie of its own meanwhile."""
    clock = ManualClock()
    memo: dict[str, Any] = {}
    workers = [CookieJar(clock), CookieJar(clock)]
    lanes = [SiteCookies(jar, lease("shop.test", lane)) for lane, jar in enumerate(workers)]
    for jar, lane, value in zip(workers, lanes, ("member=yes; Path=/", "seen=1; Path=/"), strict=True):
        clock.advance(1)
        jar.store(Response(url="http://shop.test/in", status=200, headers=(("set-cookie", value),)))
        memo |= msgspec.json.decode(msgspec.json.encode(lane.news()))
    for number in (0, 1, 2):
        third = CookieJar(clock)
        held = SiteCookies(third, lease("shop.test", number, memo))
        assert set(third.header("http://shop.test/home").split("; ")) == {"member=yes", "seen=1"}
        # All that it knows is known there, but for what its own place does not say yet.
        memo |= held.news()
        assert SiteCookies(third, lease("shop.test", number, memo)).news() == {}
    assert "yes" not in str(masked_memo(memo))


SITES = ("login.shop.test", "www.shop.test", "www.other.test")


def lease(site: str, lane: int = 0, memo: dict[str, Any] | None = None) -> Lease:
    return Lease(site=site, lane=lane, token=1, requests=(), ttl=60.0, delay=0.0, memo=memo or {})
