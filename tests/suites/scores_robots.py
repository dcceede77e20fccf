"""Google's robots.txt test cases; those beyond the standard are scored separately."""

from __future__ import annotations

import json
from pathlib import Path

from score import UNEXPLAINED, Score, tally

from gossamer import urls
from gossamer.engine.robots_txt import Matcher, parse, product_token

READS = ("robots-google",)
SKIPPED = {"robots-google path_params_query: 13 of 19": "no whole URLs: nothing else comes to the matcher"}
SUITE = Path(__file__).parents[2].parent / "shared" / "suites" / "robots-google"
GOOGLE_ONLY = {
    "GoogleOnly_AcceptUserAgentUpToFirstSpace": "our own User-Agent is cut to its product token too, as in RFC 9309",
    "GoogleOnly_IndexHTMLisDirectory": "a rule for /x/index.html does not speak for /x/: RFC 9309 has no such rule",
    "GoogleOnly_LineTooLong": "a line of over 16,664 bytes is read whole, not cut into a broader rule",
}


def passes(case: dict[str, str | bool]) -> bool:
    """Whether one case comes out as Google expects."""
    rules = parse(str(case["robotstxt"]).encode(), str(case["user_agent"]))
    path = "/" + str(case["url"]).removeprefix("http://").partition("/")[2]
    return Matcher(rules).allowed(path) == case["allowed"]


def scores() -> list[Score]:
    """The standard cases, and the Google-only ones with the reasons of those that differ."""
    cases = json.loads((SUITE / "robots_test_cc.json").read_text("utf-8"))
    found = []
    for name, google_only in (("robots-google", False), ("robots-google-only", True)):
        chosen = [case for case in cases if case["google_only"] is google_only]
        failed = [case["test"] for case in chosen if not passes(case)]
        deviations = {test: GOOGLE_ONLY.get(test, UNEXPLAINED) for test in failed}
        found.append(Score(name, len(chosen) - len(failed), len(chosen), deviations))
    return [*found, details()]


def details() -> Score:
    """Names of agents, the part of a URL that rules are about, and escapes in rules."""
    extra = json.loads((SUITE / "robots_test_cc_extra.json").read_text("utf-8"))
    results: dict[str, bool] = {}
    for agent, good in extra["valid_user_agents"]:
        results[f"agent {agent!r} {len(results)}"] = (bool(agent) and product_token(agent) == agent.lower()) is good
    for url, path in extra["path_params_query"]:
        if (whole := urls.normal(url)) is not None:
            results[f"path of {url}"] = urls.path_query(whole) == path
    for written, pattern in extra["escape_pattern"]:
        rules = parse(f"user-agent: *\ndisallow: /{written}".encode(), "x")
        results[f"escapes in {written}"] = list(rules.lines()) == [(f"/{pattern}", False)]
    return tally("robots-google-details", results)
