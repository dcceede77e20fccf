"""Places of the simulated web, requested with a plain HTTP client."""

from __future__ import annotations

import http.client
import re
from urllib.parse import urlencode

import pytest

import gossamer
from gossamer.errors import ConfigError
from gossamer.lab.simweb import features
from gossamer.lab.simweb.features import PASSWORD, USER
from gossamer.lab.simweb.process import SimWeb


def ask(
    web: SimWeb, target: str, *, method: str = "GET", body: str = "", cookie: str = "", pieces: int = 1
) -> tuple[int, dict[str, str], str]:
    """Send one request; the body can arrive in several parts."""
    connection = http.client.HTTPConnection("127.0.0.1", web.plan.port, timeout=20)
    try:
        connection.putrequest(method, target)
        connection.putheader("Cookie", cookie)
        if body:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders()
        for start in range(0, len(body), -(-len(body) // pieces) or 1):
            connection.send(body[start : start + -(-len(body) // pieces)].encode())
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def test_every_page_of_a_place_is_linked_to_and_found_by_a_crawl() -> None:

    with SimWeb(sites=1, pages_per_site=3, kinds=("news+shop+blog",), page_bytes=2000, links_per_page=4) as web:
        pages = {page.url for page in gossamer.crawl(web.seeds[0], delay=0, allow_private=True)}
        assert pages == web.reachable()
        assert len(pages) == 3 + 18 + 18 + 6
        assert not web.judge().unknown


def test_members_pages_need_the_cookie_of_a_log_in() -> None:
    with SimWeb(sites=1, pages_per_site=1, kinds=("members",)) as web:
        status, headers, _ = ask(web, "/members/1")
        assert (status, headers["Location"]) == (302, "/login")
        token = re.search(r'name="token" value="(\w+)"', ask(web, "/login")[2])[1]  # type: ignore[index]
        form = {"token": token, "user": USER, "password": PASSWORD}
        for wrong in ("token", "user", "password"):
            assert ask(web, "/login", method="POST", body=urlencode(form | {wrong: "x"}))[0] == 403
        status, headers, _ = ask(web, "/login", method="POST", body=urlencode(form), pieces=3)
        assert (status, headers["Location"]) == (303, "/members/")
        cookie = headers["Set-Cookie"].partition(";")[0]
        assert ask(web, "/members/1", cookie=f"a=b; {cookie}")[2].count("Letter about") == 2
        assert ask(web, "/members/9", cookie=cookie)[0] == 404
        assert ask(web, "/members/1", cookie="session=0")[0] == 302
        assert "Max-Age=0" in ask(web, "/logout", cookie=cookie)[1]["Set-Cookie"]
        assert ask(web, "/", method="POST", body="a=b")[0] == 405


def test_notices_change_after_the_first_visit() -> None:
    with SimWeb(sites=1, pages_per_site=1, kinds=("notices",)) as web:
        board = ("/notices/", "/notices/1", "/notices/2", "/notices/3")
        first, second, third = ([ask(web, target)[::2] for target in board] for _ in range(3))
        assert second == third
        assert [old == new for old, new in zip(first, second, strict=True)] == [False, True, False, False]
        assert (first[3][0], second[3][0]) == (200, 404)
        assert "/notices/4" in second[0][1]


def test_places_are_for_examples_and_not_part_of_all() -> None:
    assert not set(features.expand(["all"])) & set(features.PLACES)
    assert set(features.expand(["places"])) == set(features.PLACES)
    with pytest.raises(ConfigError, match="newz"):
        features.features_of("newz")
