"""The browser downloader, and the automatic choice: rendered pages, limits, and isolation."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from processes import command, environment, rows
from rawweb import Asked, RawWeb, page, redirect, reply

from gossamer.clock import SystemClock
from gossamer.download.auto import AutoDownloader, compare
from gossamer.download.browser import BrowserDownloader, screenshot_path
from gossamer.errors import FetchError, RenderFailed, TooLarge
from gossamer.model import Request, Response
from gossamer.settings import build

pytestmark = pytest.mark.usefixtures("chromium")


def script(text: str) -> bytes:
    return typed(text, "text/javascript")


def typed(body: str, kind: str, *headers: str) -> bytes:
    return reply(body, headers=headers).replace(b"text/html; charset=utf-8", kind.encode(), 1)


def run(
    test: Callable[[Any], Awaitable[None]], kind: type[BrowserDownloader] = BrowserDownloader, **settings: Any
) -> None:
    values = {"allow_private": True, "resolve": ["*.test=127.0.0.1"], "fetch_seconds": 60, **settings}

    async def main() -> None:
        downloader = kind(build(values), SystemClock())
        try:
            await test(downloader)
        finally:
            await downloader.aclose()

    asyncio.run(main())


def children() -> set[str]:
    return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())


def test_the_body_is_the_page_after_its_scripts(tmp_path: Path) -> None:
    with RawWeb() as web:
        web.answers["/"] = typed(
            """<!doctype html><title>gr\xfcn</title><img src=/picture.png><iframe src=/frame></iframe>
            <div style="height:3000px"></div><script src=/app.js></script>""",
            "text/html; charset=utf-8",
            "X-Own: 1",
            "Set-Cookie: server=1",
        )
        web.answers["/app.js"] = script(
            """fetch('/data.json').then(answer => answer.json()).then(data => {
              document.body.insertAdjacentHTML('beforeend', `<a href="${data.next}">next ${document.cookie}</a>`);
              document.cookie = 'script=2; path=/';
            });
            localStorage.seen = (localStorage.seen || 0) + 1;
            document.title += ' ' + localStorage.seen + ' ' + navigator.userAgent + ' ' + typeof RTCPeerConnection;
            addEventListener('scroll', () => document.body.append('scrolled'), {once: true});"""
        )
        web.answers["/data.json"] = typed('{"next": "/n"}', "application/json")
        web.answers["/old"] = reply("<p>gr\xfcn".encode("latin-1")).replace(b"utf-8", b"latin1")
        web.answers["/wait"] = reply("<script>setTimeout(() => document.body.innerHTML = '<b>late</b>', 900)</script>")
        web.answers["/file"] = reply("<p>x", headers=["Content-Disposition: attachment"])
        web.answers["/gone"] = reply("<p>x<script>document.write('no')</script>", status="404 Not Found")
        web.answers["/there"] = redirect("/")
        web.answers["/leads"] = reply("<p>here<script>location.href = '/target?a=1&b=2'</script>")
        found: dict[str, Response] = {}

        async def test(downloader: BrowserDownloader) -> None:
            for path in ("/", "/old", "/file", "/gone", "/there", "/leads"):
                found[path] = await downloader.fetch(Request(web.url(path), headers={"Cookie": "given=0"}))
            found["again"] = await downloader.fetch(Request(web.url("/"), headers={"If-None-Match": "x"}))

        run(test, browser_scroll=2, cookies=True, screenshots=str(tmp_path), user_agent="Tester/1")
        shown = found["/"]
        text = shown.body.decode()
        assert (shown.status, shown.header("x-own")) == (200, "1")
        assert shown.header("content-type") == "text/html; charset=utf-8"
        assert "<title>gr\xfcn 1 Tester/1 undefined</title>" in text
        assert 'href="/n">next given=0; server=1' in text
        assert "scrolled" in text
        cookies = [value.partition(";")[0] for name, value in shown.headers if name == "set-cookie"]
        assert {"server=1", "script=2"} <= set(cookies)
        assert "given=0" not in cookies
        assert " 1 Tester/1" in found["again"].body.decode(), "the storage of an earlier page is not kept"
        assert "gr\xfcn" in found["/old"].body.decode()
        assert (found["/file"].body, found["/gone"].status, found["/there"].status) == (b"<p>x", 404, 302)
        assert b"<script>document.write" in found["/gone"].body
        assert b'content="0; url=' + web.url("/target?a=1&amp;b=2").encode() in found["/leads"].body
        asked = web.targets()
        assert asked.count("/app.js") == 1, "pages share scripts"
        assert not {"/picture.png", "/frame", "/target?a=1&b=2", "/favicon.ico"} & set(asked)
        assert {each.headers["user-agent"] for each in web.log} == {"Tester/1"}
        assert not any("if-none-match" in each.headers for each in web.log)
        data = next(each for each in web.log if each.target == "/data.json")
        assert data.headers["cookie"] == "given=0; server=1"
        assert screenshot_path(str(tmp_path), web.url("/")).read_bytes().startswith(b"\x89PNG")

        async def waiting(downloader: BrowserDownloader) -> None:
            assert b"<b>late</b>" in (await downloader.fetch(Request(web.url("/wait")))).body

        run(waiting, browser_wait="body > b", browser_wait_seconds=60)


REACHING = """<!doctype html><body><script>
const inside = 'http://INSIDE', socket = 'ws://INSIDE';
const tries = {
  fetch: () => fetch(inside + '/fetch'),
  named: () => fetch('http://inner.test:PORT/named'),
  local: () => fetch('http://localhost:PORT/local'),
  post: () => fetch(inside + '/post', {method: 'POST', mode: 'no-cors', body: 'x'}),
  redirected: () => fetch('http://public.test/redirected'),
  file: () => fetch('file:///etc/passwd'),
  beacon: () => navigator.sendBeacon(inside + '/beacon', 'x'),
  socket: () => new Promise((good, bad) => { const s = new WebSocket(socket); s.onopen = good; s.onerror = bad; }),
  events: () => new Promise((good, bad) => {
    const s = new EventSource(inside + '/events'); s.onopen = good; s.onerror = bad; }),
  worker: () => new Promise((good, bad) => {
    const code = `fetch('${inside}/worker').then(() => postMessage(1), () => postMessage(0))`;
    const w = new Worker(URL.createObjectURL(new Blob([code], {type: 'text/javascript'})));
    w.onmessage = message => message.data ? good() : bad(); w.onerror = bad; }),
  rtc: async () => {
    const turn = {urls: 'turn:INSIDE?transport=tcp', username: 'a', credential: 'b'};
    const p = new RTCPeerConnection({iceServers: [{urls: 'stun:INSIDE'}, turn]});
    p.createDataChannel('x'); await p.setLocalDescription(await p.createOffer());
    await new Promise(after => setTimeout(after, 300)); throw 'no'; },
};
const tags = [['object', 'data']];
for (const tag of ['img', 'script', 'iframe', 'video', 'embed']) tags.push([tag, 'src']);
for (const rel of ['stylesheet', 'prefetch', 'preconnect', 'dns-prefetch', 'icon', 'preload', 'prerender'])
  tags.push(['link', 'href', rel]);
for (const [tag, name, kind] of tags) {
  const element = document.createElement(tag);
  if (kind) { element.rel = kind; element.as = 'script'; }
  element[name] = inside + '/' + tag + (kind || '');
  document.body.append(element);
}
document.body.insertAdjacentHTML('beforeend', '<iframe src="file:///etc/passwd"></iframe>');
const rules = document.createElement('script');
rules.type = 'speculationrules'; rules.text = JSON.stringify({prerender: [{urls: [inside + '/speculate']}]});
document.body.append(rules);
window.open(inside + '/open');
Promise.allSettled(Object.values(tries).map(each => each())).then(all => {
  document.title = Object.keys(tries).filter((name, n) => all[n].status == 'fulfilled').join();
  const form = document.createElement('form'); form.action = inside + '/form'; form.method = 'post';
  document.body.append(form); form.submit(); setTimeout(() => location = inside + '/location', 100);
});
</script>"""


def test_h08_nothing_that_a_page_does_reaches_a_private_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """H08: by no way that scripts have. With private addresses allowed, only what our own client fetches arrives."""
    # So that the browser's own options are what is tested.
    monkeypatch.setattr("gossamer.download.chromium.REMOVED_APIS", "")
    with RawWeb() as web, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as packets:
        packets.bind(("127.0.0.1", web.port))
        packets.setblocking(False)
        inside = f"127.0.0.1:{web.port}"
        markup = REACHING.replace("INSIDE", inside).replace("PORT", str(web.port))
        open_headers = ("Access-Control-Allow-Origin: *",)
        for name in ("fetch", "named", "local", "worker"):
            web.answers[f"/{name}"] = reply("x", headers=open_headers)
        document = Response(url="http://public.test/", status=200, headers=(("content-type", "text/html"),))

        def shown(allow_private: bool) -> tuple[str, set[str]]:
            titles: list[str] = []

            async def test(downloader: BrowserDownloader) -> None:
                found = Response(url=document.url, status=200, headers=document.headers, body=markup.encode())
                response = await downloader.render(Request(document.url), found)
                titles.append(response.body.decode().split("<title>")[1].split("</title>")[0])

            web.log.clear()
            loads = ["image", "font", "media", "frame"]
            run(test, allow_private=allow_private, browser_loads=loads, browser_wait="title", browser_wait_seconds=60)
            return titles[0], {asked.target for asked in web.log}

        assert shown(allow_private=False) == ("beacon", set())
        said, reached = shown(allow_private=True)
        assert said == "fetch,named,local,post,beacon,worker"
        assert {"/fetch", "/named", "/local", "/post", "/worker", "/img", "/script"} <= reached
        assert not reached & {"/beacon", "/events", "/form", "/location", "/open", "/speculate", "/"}
        with pytest.raises(BlockingIOError):
            packets.recv(1)


def test_headers_of_the_job_stay_with_the_pages_own_site() -> None:
    with RawWeb() as web:
        other = f"http://other.test:{web.port}"
        web.answers["/"] = reply(
            f"<script src={other}/a.js></script><script src=/b.js></script><script src=/c.js></script>"
        )
        web.answers["/a.js"] = web.answers["/b.js"] = script("1")
        web.answers["/c.js"] = redirect(f"{other}/d.js")
        headers = {"Authorization": "secret"}

        async def test(downloader: BrowserDownloader) -> None:
            await downloader.fetch(Request(web.url("/")))

        run(test, headers=headers, sites={f"other.test:{web.port}": {"headers": {"X-Key": "secret"}}})
        sent = {each.target: "secret" in each.headers.values() for each in web.log}
        assert sent == {"/": True, "/a.js": False, "/b.js": True, "/c.js": True, "/d.js": False}


def test_pages_that_never_end_or_kill_the_browser_cost_only_themselves() -> None:
    before = children()
    with RawWeb() as web:
        web.answers["/loop"] = reply("<script>while (true) {}</script>")
        web.answers["/huge"] = reply("<script>document.write('x'.repeat(300000))</script>")
        web.answers["/many"] = reply("<script>for (let i = 0; i < 50; i++) fetch('/load?' + i)</script>")
        web.answers["/plain"] = reply("<p>x<script>document.write('shown')</script>")
        web.answers["/killed"] = reply("<script src=/killer.js></script>")

        async def test(downloader: BrowserDownloader) -> None:
            running = asyncio.get_running_loop()
            killed: list[int] = []

            def killer(_: Asked) -> bytes:
                if not killed:
                    browser = next(iter(downloader.browsers._all))
                    killed.append(browser.pid)
                    running.call_soon_threadsafe(browser.kill)
                return script("document.write('shown again')")

            web.answers["/killer.js"] = killer

            async def end(path: str) -> Response | FetchError:
                try:
                    return await downloader.fetch(Request(web.url(path)))
                except FetchError as error:
                    return error

            good = await end("/plain")
            assert isinstance(good, Response)
            assert b"shown" in good.body
            again = await end("/killed")
            assert isinstance(again, Response)
            assert b"shown again" in again.body
            assert web.targets().count("/killed") == 1, "a dead browser is no reason to ask the site again"
            assert len(downloader.browsers.replaced) == 1
            ended = await asyncio.gather(*(end(path) for path in ("/plain", "/huge", "/many", "/plain")))
            assert [type(each) for each in ended] == [Response, TooLarge, Response, Response]
            assert sum(target.startswith("/load") for target in web.targets()) == 7
            assert len(downloader.browsers.replaced) >= 2, "it is replaced after so many pages"
            processes, size = downloader.browsers.memory_usage()
            assert 0 < processes < 30
            assert size > 0

        async def loop(downloader: BrowserDownloader) -> None:
            with pytest.raises(RenderFailed):
                await downloader.fetch(Request(web.url("/loop")))

        run(test, max_decoded_bytes=200_000, browser_requests=7, browser_pages=4)
        run(loop, fetch_seconds=1.5)
    assert children() == before


def test_a_worker_that_is_killed_leaves_no_browser_behind(tmp_path: Path) -> None:
    program = """
import asyncio, sys
from gossamer.clock import SystemClock
from gossamer.download.browser import BrowserDownloader
from gossamer.model import Request, Response
from gossamer.settings import build
async def main():
    downloader = BrowserDownloader(build({}), SystemClock())
    document = Response(url="http://a.test/", status=200, body=b"<p>x", headers=(("content-type", "text/html"),))
    await downloader.render(Request(document.url), document)
    print(next(iter(downloader.browsers._all)).pid, flush=True)
    await asyncio.sleep(3600)
asyncio.run(main())
"""
    worker = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    browser = int(worker.stdout.readline())
    watched = os.pidfd_open(browser)
    worker.kill()
    worker.communicate()

    async def gone() -> None:
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(watched, ended.set)
        async with asyncio.timeout(60):
            await ended.wait()

    asyncio.run(gone())
    os.close(watched)


def test_words_and_links_decide_whether_a_page_needs_the_browser() -> None:
    words = b"<p>" + b"word " * 200
    links = b"".join(b'<a href="/%d">x</a>' % n for n in range(9))
    hidden = b"<script>" + b"var x; " * 500 + b"</script><style>a b c</style>"
    assert compare(words + hidden, words + b"<p>a few more")[0] == "http"
    assert compare(b"<div id=app></div>" + hidden, words)[0] == "browser"
    assert compare(words, words + links)[0] == "browser"
    assert compare(words + links, links + words)[0] == "http"
    assert "0 words and 0 links by HTTP, 200 and 0 by browser" in compare(b"", words)[1]


def test_a_site_that_needs_scripts_is_detected_and_stored(tmp_path: Path) -> None:
    with RawWeb() as web:
        app = "<div id=app></div><script src=/app.js></script>"
        for path in ("/", *(f"/{n}" for n in range(1, 6))):
            web.answers[f"app.test:{web.port}{path}"] = reply(app)
            web.answers[f"text.test:{web.port}{path}"] = page(*(f"/{n}" for n in range(1, 6)))
        web.answers["/app.js"] = script(
            "for (let n = 1; n < 6; n++) document.getElementById('app').innerHTML += `<a href=/${n}>page ${n}</a>`"
        )
        seeds = [f"http://{name}.test:{web.port}/" for name in ("app", "text")]
        options = ("--downloader", "auto", "--resolve", "*.test=127.0.0.1", "--delay", "0", "--no-robots", "--quiet")
        done = subprocess.run(
            command(tmp_path / "job", seeds, *options, "--fetch-seconds", "60"),
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
            env=environment(),
        )
        assert done.returncode == 0, done.stderr
        stored = rows(tmp_path / "job" / "pages.jsonl")
        assert {row["url"] for row in stored} == {seed + path for seed in seeds for path in ("", *"12345")}
        status = subprocess.run(
            [sys.executable, "-m", "gossamer", "status", str(tmp_path / "job"), "--json"],
            capture_output=True,
            check=True,
            env=environment(),
        )
        memos = {site["site"].partition(".")[0]: site["memo"]["browser"] for site in json.loads(status.stdout)["sites"]}
        assert (memos["app"]["use"], memos["text"]["use"]) == ("browser", "http")
        assert memos["app"]["why"] == "0 words and 0 links by HTTP, 10 and 5 by browser"
        assert memos["text"]["why"] == "no scripts"

        async def test(downloader: AutoDownloader) -> None:
            site = f"app.test:{web.port}"
            downloader.recall(site, {"browser": memos["text"]})
            plain = await downloader.fetch(Request(seeds[0], site=site))
            downloader.recall(site, {"browser": {**memos["app"], "at": memos["text"]["at"] + 99}})
            shown = await downloader.fetch(Request(seeds[0], site=site))
            assert (plain.body.count(b"<a "), shown.body.count(b"<a ")) == (0, 5)
            assert downloader.learned(site) is None

        run(test, AutoDownloader)


def test_robots_txt_holds_for_what_a_page_loads_at_every_host(tmp_path: Path) -> None:
    """I5: also behind a browser nothing is asked for that robots.txt forbids, though it be served as HTML."""
    with RawWeb() as web:
        sources = ["own.test/free", "own.test/shut/x", "other.test/free", "other.test/shut/y", "dark.test/z"]
        tags = "".join(
            f"<script src=http://{source.replace('/', f':{web.port}/', 1)}.js></script>" for source in sources
        )
        web.answers = {f"own.test:{web.port}{path}": reply(f"{tags}<a href=/second>") for path in ("/", "/second")}
        rules = reply("User-agent: *\nDisallow: /shut/")
        for host, answer in ("own", rules), ("other", rules), ("dark", reply(status="503 Busy")):
            web.answers[f"{host}.test:{web.port}/robots.txt"] = answer
        web.answers |= {
            path: script("document.title += 'x'") for path in ("/free.js", "/shut/x.js", "/shut/y.js", "/z.js")
        }
        options = ("--downloader", "browser", "--resolve", "*.test=127.0.0.1", "--delay", "0", "--fetch-seconds", "60")
        done = subprocess.run(
            command(tmp_path / "job", [f"http://own.test:{web.port}/"], *options),
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
            env=environment(),
        )
        assert done.returncode == 0, done.stderr
        asked = Counter(f"{each.headers['host'].partition(':')[0]}{each.target}" for each in web.log)
    assert {row["title"] for row in rows(tmp_path / "job" / "pages.jsonl")} == {"xx"}
    assert set(asked) == {
        *("own.test/", "own.test/second", "own.test/free.js", "other.test/free.js"),
        *(f"{host}.test/robots.txt" for host in ("own", "other", "dark")),
    }
    assert asked["own.test/robots.txt"] == asked["other.test/robots.txt"] == 1


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_processes_and_memory_stay_bounded_over_a_thousand_pages() -> None:
    before = children()
    with RawWeb() as web:
        app = "<p id=app></p><script>kept = Array(1e5).fill(0).map(Math.random)</script><script src=/app.js></script>"
        web.answers["/app.js"] = script(
            "document.getElementById('app').append('shown'); setInterval(() => kept.push(1), 5)"
        )
        for number in range(1000):
            web.answers[f"/{number}"] = reply(app)
        weights: list[tuple[int, int]] = []

        async def test(downloader: BrowserDownloader) -> None:
            numbers = iter(range(1000))

            async def tab() -> None:
                for number in numbers:
                    response = await downloader.fetch(Request(web.url(f"/{number}")))
                    assert b">shown</p>" in response.body
                    if number % 20 == 0:
                        weights.append(await asyncio.to_thread(downloader.browsers.memory_usage))

            await asyncio.gather(*(tab() for _ in range(8)))
            assert downloader.browsers.started >= 4

        run(test, browser_pages=250)
    assert max(processes for processes, _ in weights) <= 40
    assert max(size for _, size in weights) < 2 << 30
    assert children() == before
