"""Robots meta directives of pages in a whole crawl (H47)."""

from __future__ import annotations

import subprocess
from pathlib import Path

from processes import command, environment, rows
from rawweb import RawWeb, reply


def test_h47_noindex_is_recorded_and_nofollow_is_obeyed(tmp_path: Path) -> None:
    """H47: a page that says noindex is crawled, stored and marked; links that say nofollow are not followed."""
    with RawWeb() as web:
        web.answers = {
            "/robots.txt": reply(status="404 Not Found"),
            "/": reply('<a href=/noindex></a><a href=/nofollow></a><a href=/mine></a><a href=/1 rel="ugc"></a>'),
            "/noindex": reply("<a href=/2>", headers=("X-Robots-Tag: noindex, otherbot: nofollow",)),
            "/nofollow": reply("<meta name=robots content=nofollow><a href=/3>"),
            "/mine": reply("<a href=/4>", headers=("X-Robots-Tag: noarchive", "X-Robots-Tag: mybot: none")),
            "/2": reply("<p>", headers=("Link: </5>; rel=next",)),
            "/5": reply("<p>"),
        }
        options = ("--delay", "0", "--user-agent", "MyBot/2.0 (me@my.site)")
        words = command(tmp_path / "job", [web.url()], *options)
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=environment())
        assert done.returncode == 0, done.stderr
        assert set(web.targets()) == {"/", "/noindex", "/nofollow", "/mine", "/2", "/5"}
        again = command(tmp_path / "again", [web.url()], *options, "--no-nofollow")
        subprocess.run(again, capture_output=True, timeout=60, check=False, env=environment())
        assert {f"/{number}" for number in range(1, 6)} <= set(web.targets())
    said = {"/" + row["url"].split("/", 3)[3]: row.get("robots") for row in rows(tmp_path / "job" / "pages.jsonl")}
    assert said == {
        "/": None,
        "/noindex": "noindex",
        "/nofollow": "nofollow",
        "/mine": "noarchive, noindex, nofollow",
        "/2": None,
        "/5": None,
    }
