"""Endless hosts and endless sites: they stay within their budget, and the others are crawled."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from processes import command, environment, rows
from rawweb import Asked, RawWeb, page, reply

GOOD = 30


def more(asked: Asked) -> bytes:
    """A page for whatever is asked for, with links to ten others that nobody has seen."""
    chance = random.Random(asked.url)
    host = asked.headers["host"].partition(":")[0].rpartition("any")[0]
    names = [chance.randbytes(6).hex() for _ in range(10)]
    if host or asked.headers["host"].startswith("any"):
        return page(*(f"http://{name}.any.test:{asked.port}/" for name in names), title=names[0])
    return page(*(f"/{name}" for name in names), title=names[0])


@pytest.mark.parametrize(
    ("start", "options"), [("any.test", ("--site-by", "domain", "--scope", "domain")), ("soft.test", ())]
)
def test_h42_h43_what_has_no_end_stops_at_its_budget(tmp_path: Path, start: str, options: tuple[str, ...]) -> None:
    """H42: a name for every page, which count as one site where sites go by domain. H43: a page for every path."""
    folder = tmp_path / "job"

    class Endless(dict[str, object]):
        def get(self, key: str, default: object = None) -> object:
            known = super().get(key, default)
            return known if known is not None or key.startswith("/") else self.other(key)

        def other(self, key: str) -> object:
            is_robots = key.endswith("/robots.txt")
            return (
                reply(status="404 Not Found")
                if is_robots
                else more
                if ("any.test" in key or "soft.test" in key)
                else None
            )

    with RawWeb() as web:
        web.answers = Endless()  # type: ignore[assignment]
        web.answers[f"good.test:{web.port}/"] = page(*(f"/{number}" for number in range(GOOD)))
        for number in range(GOOD):
            web.answers[f"good.test:{web.port}/{number}"] = page(title=str(number))
        seeds = [f"http://{start}:{web.port}/", f"http://good.test:{web.port}/"]
        limits = ("--site-budget", "50", "--delay", "0", "--resolve", "*.test=127.0.0.1", "--max-seconds", "60")
        line = command(folder, seeds, *limits, *options)
        done = subprocess.run(line, capture_output=True, text=True, timeout=100, check=False, env=environment())
    assert done.returncode in (0, 3), done.stderr
    found = Counter("good" if "//good.test" in row["url"] else "endless" for row in rows(folder / "pages.jsonl"))
    assert found["good"] == GOOD + 1
    # Before that, pages that are all alike put their part of a site to sleep.
    assert 20 <= found["endless"] <= 50


class Busy(RawWeb):
    """Knows how many requests it had at once."""

    def __init__(self, hosts: int, *, address: str) -> None:
        super().__init__(address=address)
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()
        self.seeds = [f"http://n{number}.{address.rpartition('.')[2]}.test:{self.port}/" for number in range(hosts)]
        self.answers = dict.fromkeys(("/", "/robots.txt"), self.answer)

    def answer(self, asked: Asked) -> bytes:
        with self._lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        time.sleep(0.02)
        with self._lock:
            self.at_once -= 1
        return reply("User-agent: *\n")


def test_h42_many_names_of_one_address_share_its_places(tmp_path: Path) -> None:
    """robots.txt counts as all else; who waits for a place keeps nobody else from another address."""
    with Busy(40, address="127.0.0.1") as crowded, Busy(8, address="127.0.0.2") as other:
        options = ("--per-address", "3", "--delay", "0", "--resolve", "*.1.test=127.0.0.1")
        line = command(tmp_path / "job", crowded.seeds + other.seeds, *options, "--resolve", "*.2.test=127.0.0.2")
        done = subprocess.run(line, capture_output=True, text=True, timeout=100, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    assert {row["url"] for row in rows(tmp_path / "job" / "pages.jsonl")} == {*crowded.seeds, *other.seeds}
    assert crowded.most_at_once <= 3
    assert other.most_at_once <= 3
