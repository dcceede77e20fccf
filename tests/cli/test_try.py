from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from commands import environment, gossamer, small_site

from gossamer.cli.trial import SelectorSurvey
from gossamer.extract.page import Page
from gossamer.lab.simweb.process import SimWeb
from gossamer.model import Request, Response

LOOK = ("--allow-private", "--delay", "0.01")


def page(html: str) -> Page:
    response = Response(url="http://x/", status=200, headers=(("content-type", "text/html"),), body=html.encode())
    return Page(response, Request("http://x/"))


def test_repeated_elements_are_suggested_as_selectors() -> None:
    survey = SelectorSurvey()
    for turn in range(3):
        things = "".join(
            f'<li class="product odd"><h3>Thing {turn}{number}</h3><b class="price">{number}.50</b></li>'
            for number in range(5)
        )
        menu = "".join(f'<li class="entry"><a class="to">m{number}</a><i class="x">y</i></li>' for number in range(9))
        survey.read(page(f"<title>T{turn}</title><nav><ul>{menu}</ul></nav><h1>H</h1><ul>{things}</ul>"))
    found = {suggestion.selector: suggestion for suggestion in survey.suggestions()}
    assert list(found) == ["title::text", "h1::text", "li.product b.price::text", "li.product h3::text"]
    assert found["li.product b.price::text"].name == "price"
    assert found["li.product h3::text"].samples == ("Thing 00", "Thing 01", "Thing 02")
    assert found["title::text"].pages == 3
    assert len({suggestion.name for suggestion in found.values()}) == 4


def test_suggested_selectors_select(tmp_path: Path) -> None:
    html = "".join(f'<div class="a-b c_d"><span class="n">{n}</span><a href=/>x{n}</a></div>' for n in range(4))
    survey = SelectorSurvey()
    survey.read(page(html))
    for suggestion in survey.suggestions():
        assert page(html).css(suggestion.selector).getall()[:3] == list(suggestion.samples)


@pytest.mark.parametrize("html", ["", "<p>nothing</p>", "<div class='\x1b[2J a'>x</div>" * 3, "<div class=x>" * 3000])
def test_unusual_pages_give_no_wrong_suggestions(html: str) -> None:
    survey = SelectorSurvey()
    survey.read(page(html))
    for suggestion in survey.suggestions():
        page(html).css(suggestion.selector)


def test_try_reports_scope_robots_selectors_and_estimate(tmp_path: Path) -> None:
    with SimWeb(sites=2, pages_per_site=60, page_bytes=3000, kinds=("robots-part+outside",)) as web:
        done = gossamer("try", web.url(0), "--json", *LOOK, cwd=tmp_path)
        fetched = [entry for entry in web.log() if entry.target != "/robots.txt"]
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["pages"] == len(fetched) == 20
    assert report["robots"][0]["kind"] == "rules"
    assert ["disallow", "/private/"] in report["robots"][0]["rules"]
    assert report["scope"]["refused"]["scope"]["links"] > 0
    assert report["scope"]["refused"]["robots"]["links"] > 0
    assert all(url.startswith(web.url(0)) for url in report["scope"]["examples"])
    selectors = {found["name"]: found["selector"] for found in report["selectors"]}
    assert selectors["price"] == "div.item span.price::text"
    assert report["estimate"]["pages"] >= 20
    assert report["delay"] == 0.01
    assert list(tmp_path.iterdir()) == []


def test_try_crawls_a_small_site_completely(tmp_path: Path) -> None:
    with SimWeb(sites=1, pages_per_site=8, page_bytes=3000) as web:
        report = json.loads(gossamer("try", web.url(0), "--json", *LOOK, cwd=tmp_path).stdout)
    assert report["estimate"]["pages"] == 8
    assert report["estimate"]["queued"] == 0


def test_command_suggested_by_try_runs(tmp_path: Path) -> None:
    with SimWeb(sites=1, pages_per_site=8, page_bytes=3000) as web:
        long = ("--deny", "a b", "--deny", f"{'x' * 400}'y")
        done = gossamer("try", web.url(0), *long, *LOOK, cwd=tmp_path)
        output = done.stdout.decode()
        command = output.strip().splitlines()[-1].removeprefix("next: gossamer ")
        assert "--deny 'a b'" in command
        again = subprocess.run(
            ["sh", "-c", f"{Path(__import__('sys').executable)} -m gossamer {command}"],
            cwd=tmp_path,
            capture_output=True,
            timeout=60,
            check=False,
            env=environment(),
        )
    assert again.returncode == 0, again.stderr
    items = next(tmp_path.glob("crawls/*/items.jsonl")).read_text().splitlines()
    assert len(items) == 8
    assert all(json.loads(line)["heading"] for line in items)


def test_try_reports_a_fully_disallowed_site_quickly(tmp_path: Path) -> None:
    with SimWeb(sites=2, pages_per_site=5, kinds=("robots-all", "robots-500")) as web:
        for site, words in ((0, "robots.txt disallows"), (1, "could not be fetched")):
            done = gossamer("try", web.url(site), *LOOK, cwd=tmp_path)
            assert done.returncode == 3
            assert words in done.stdout.decode()


def test_hostile_titles_are_escaped(tmp_path: Path) -> None:
    with small_site() as site:
        done = gossamer("try", f"{site}/b", *LOOK, cwd=tmp_path)
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout
    assert "\u202e" not in done.stdout.decode()
    assert not [line for line in done.stdout.splitlines() if line.startswith(b"ERROR")]
