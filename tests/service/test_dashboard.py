"""The dashboard in a real browser: start, inspect, pause, resume, and stop a crawl."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from service_process import READ, WRITE, Served, serving

from gossamer.lab.simweb.process import SimWeb

SETTINGS = ("--allow-private", "--delay", "0.3", "--sink", "jsonl", "--sink", "warc")
# Milliseconds, however busy the machine is.
TIMEOUT = 60_000
expect.set_options(timeout=TIMEOUT)
EVIL = '<img src=x onerror="window.obeyed=1"><script>window.obeyed=1</script>'


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()


@contextmanager
def opened(browser: Browser, served: Served, *, token: str = WRITE, **options: object) -> Iterator[Page]:
    """Open the dashboard in a new browser, logged in; fails on blocked resources or JavaScript errors."""
    context = browser.new_context(**options)  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(TIMEOUT)
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda said: troubles.append(said.text) if said.type == "error" else None)
    page.on("request", lambda asked: troubles.append(asked.url) if not asked.url.startswith(served.address) else None)
    traffic: list[str] = []
    page.on("response", lambda answer: traffic.append(f"{answer.status} {answer.url}"))
    page.on("requestfailed", lambda asked: traffic.append(f"{asked.failure} {asked.url}"))
    page.on("crash", lambda _: traffic.append("the page crashed"))
    try:
        page.goto(served.address)
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    except Exception as error:
        heard = "\n".join((*traffic, *troubles, f"the log: {served.log.read_text()}"))
        raise AssertionError(f"{error}\nthe browser's side:\n{heard}") from error
    yield page
    context.close()
    # A browser reports every refusal: that a token is needed, and what a job that nobody runs cannot tell.
    assert [trouble for trouble in troubles if not re.search(r"status of 4(01|09)", trouble)] == []


class Hostile(BaseHTTPRequestHandler):
    """A site whose titles, paths, and types attack the dashboard."""

    def do_GET(self) -> None:
        body = f"<title>{EVIL.replace('<', '&lt;')}</title><a href='/{EVIL}'>x</a>".encode()
        self.send_response(404 if self.path == "/robots.txt" else 200 if self.path == "/" else 410)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def test_dashboard_starts_pauses_and_stops_a_crawl(browser: Browser, tmp_path: Path) -> None:
    with (
        SimWeb(sites=4, pages_per_site=400, page_bytes=2000) as web,
        serving(tmp_path, *SETTINGS) as served,
    ):
        with opened(browser, served) as page:
            page.get_by_role("button", name="New crawl").click()
            page.get_by_label("Start URLs, one per line").fill("\n".join(web.seeds))
            page.get_by_label("Job name").fill("shop")
            page.get_by_role("button", name="Start").click()
            state = page.locator(".state").first
            expect(state).to_have_text("running")
            pages = page.locator(".facts div", has_text=re.compile("^pages[0-9]")).locator("dd")
            expect(pages).not_to_have_text(re.compile("^[0–]$"))
            expect(page.get_by_role("img", name="Pages per second")).to_be_visible()

            squares = page.get_by_role("group", name="sites of all regions, by queued").locator("a")
            expect(squares).to_have_count(4)
            squares.first.focus()
            page.keyboard.press("End")
            chosen = page.evaluate("document.activeElement.getAttribute('aria-label')").split(": ")[0]
            expect(page.locator(".map .readout")).to_contain_text(chosen)
            page.keyboard.press("Enter")
            expect(page.get_by_role("heading", name=chosen)).to_be_visible()

            page.keyboard.press("2")
            first = page.get_by_role("table", name="sites").locator("tbody a").first
            site = first.inner_text()
            first.click()
            expect(page.get_by_role("heading", name=site)).to_be_visible()
            expect(page.get_by_role("heading", name="Why it waits")).to_be_visible()
            page.locator("td a").first.click()
            expect(page.get_by_role("heading", name="URL history")).to_be_visible()
            expect(page.locator("main .facts").first).to_contain_text("done")
            expect(page.locator(".rules li").first).to_contain_text("allows")

            page.keyboard.press("1")
            for action, words in (("Pause", "paused"), ("Resume", "running"), ("Stop", "resting")):
                page.get_by_role("button", name=action, exact=True).click()
                page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
                expect(state).not_to_have_text(words)
                page.get_by_role("button", name=action, exact=True).click()
                page.get_by_role("dialog").get_by_role("button", name=action).click()
                expect(state).to_have_text(re.compile(f"{words}|finished"))
            for key, heading in (("3", "Errors"), ("4", "Politeness"), ("5", "Workers"), ("6", "Pages"), ("j", "Jobs")):
                page.keyboard.press(key)
                expect(page.get_by_role("heading", name=heading, exact=True).first).to_be_visible()
            served._remember()
        assert served.get("/api/jobs/shop")["counts"]["stored"] > 0


def test_dashboard_escapes_text_from_crawled_pages(browser: Browser, tmp_path: Path) -> None:
    """H60: external titles, paths, and errors are text, also on a phone; the read role has no action buttons."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server, serving(tmp_path, *SETTINGS) as served:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        served.post("/api/jobs", {"job": "evil", "urls": [url], "scope": "site"}, 201)
        served.state("evil", "finished", "resting")
        phone = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}
        with opened(browser, served, token=READ, **phone) as page:
            for place in ("", "/sites", "/errors", "/politeness", "/fleet", "/pages", "/url?u=" + url):
                page.goto(f"{served.address}#/job/evil{place}")
                expect(page.locator("main h1, main .state").first).to_be_visible()
                assert page.evaluate("document.documentElement.scrollWidth") <= 390, place
                assert page.get_by_role("button", name="Stop").count() == 0
                # No label of a chart is cut off at its edge.
                assert (
                    page.evaluate(
                        "Math.min(0, ...[...document.querySelectorAll('.chart text')].map((t) => t.getBBox().x))"
                    )
                    == 0
                )
            page.goto(f"{served.address}#/job/evil/pages")
            expect(page.get_by_role("table", name="pages")).to_contain_text("<img src=x onerror")
            assert page.evaluate("window.obeyed") is None
        server.shutdown()
