"""URLs against the cases of others: the standard's own, internationalised names, encoded queries, and w3lib's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlunparse

import ada_url
from score import Score, tally

from gossamer import urls
from gossamer.extract.links import encode_query

READS = ("url-wpt", "url-w3lib")
SKIPPED = {
    "url-wpt/setters_tests.json": "URLs are values here: nothing sets a part of one",
    "url-w3lib url_query_cleaner, url_query_parameter": "page.with_query and clean_query do it, otherwise",
    "url-w3lib file_uri_to_path, any_to_uri": "files are not crawled",
}
SUITES = Path(__file__).parents[2].parent / "shared" / "suites"

_AS_WRITTEN = "escapes stay as the page wrote them: the URL is what is asked for, not only what it is compared by"
_BLANK = "parameters without a value are kept, and as they are: they can change the answer"
_CREDENTIALS = "URLs with a user name or password are not followed"
_FRAGMENT = "a fragment never reaches a server: it is always dropped"
_WHOLE = "only whole URLs, of http or https, are made normal; others are joined to their page first"
_HOST = "names are written as the URL standard writes them"
_STANDARD = "the URL standard leaves these characters as they are, and so does a browser"
W3LIB_CANONICAL = {
    5: "only & separates parameters",
    9: _BLANK,
    11: _BLANK,
    12: _BLANK,
    13: _AS_WRITTEN,
    14: _AS_WRITTEN,
    16: _AS_WRITTEN,
    21: "ISO-8859-1 is read as windows-1252, which has the sign",
    22: "what an encoding lacks is written as a character reference, as a browser does",
    23: _AS_WRITTEN,
    24: _AS_WRITTEN,
    25: _AS_WRITTEN,
    26: _AS_WRITTEN,
    27: _AS_WRITTEN,
    28: _AS_WRITTEN,
    35: _AS_WRITTEN,
    36: _CREDENTIALS,
    37: _CREDENTIALS,
    38: _CREDENTIALS,
    40: _FRAGMENT,
    41: _WHOLE,
    42: _WHOLE,
    43: _WHOLE,
    44: _WHOLE,
    48: _WHOLE,
    52: _CREDENTIALS,
    53: _CREDENTIALS,
    54: _AS_WRITTEN,
    57: _AS_WRITTEN,
    58: _AS_WRITTEN,
    60: _AS_WRITTEN,
    61: _AS_WRITTEN,
    67: _AS_WRITTEN,
    68: _HOST,
    69: _HOST,
    72: _FRAGMENT,
    75: _FRAGMENT,
}
W3LIB_SAFE = {
    "http://[v6a.ip]": "what stands in brackets must be an IPv6 address",
    "https://example.com\\a?b\\c": _STANDARD,
    "https://example.com\\a?b\\c#d\\e": _STANDARD,
    'https://example.com/"%<>[]^`{|}\x7f': _STANDARD,
    "http://example.com?\"%'<>[\\]^`{|}\x7f": _STANDARD,
    "https://example.com?\"%'<>[\\]^`{|}\x7f": _STANDARD,
    "https://example.com/[x]": _STANDARD,
    "https://example.com/a]b": _STANDARD,
    "http://example.com/search?tags[]=a": _STANDARD,
    "http://[::1]:8080/p?q=[1]": _STANDARD,
    "http://www.example.org/\u00a3?\u00a3": "a path is written in UTF-8, whatever the encoding of its page",
}


def scores() -> list[Score]:
    """One score per suite of URLs."""
    return [parsing(), crawlable(), names(), encoded_queries(), w3lib_canonical(), w3lib_safe()]


def parsing() -> Score:
    """The standard's cases by the calls of the parser that everything here rests on, and by `urls.resolve`."""

    def parsed(case: dict[str, Any]) -> str | None:
        if case["base"] is not None:
            return urls.resolve(case["base"], case["input"])
        try:
            return str(ada_url.normalize_url(case["input"]))
        except ValueError:
            return urls.normal(case["input"])

    results = {name: parsed(case) == case.get("href") for name, case in _standard_cases()}
    return tally("url-wpt", results)


def crawlable() -> Score:
    """The same cases by `urls.join` and `urls.normal`: the standard's href where it can be crawled, else nothing."""

    def passes(case: dict[str, Any]) -> bool:
        base, reference = case["base"], case["input"]
        found = urls.normal(reference) if base is None else urls.join(base, reference)
        fit = case.get("protocol") in ("http:", "https:") and not case["username"] and not case["password"]
        return found == (case["href"].partition("#")[0] if fit else None)

    return tally("url-wpt-crawlable", {name: passes(case) for name, case in _standard_cases()})


def names() -> Score:
    """Internationalised names by the host of a URL; the empty one cannot be written in a URL."""
    results = {}
    for file in ("toascii", "IdnaTestV2", "IdnaTestV2-removed"):
        for case in _cases(f"url-wpt/{file}.json"):
            if case["input"]:
                wanted = None if case["output"] is None else f"https://{case['output']}/x"
                results[f"{file} {case['input']!r}"] = urls.normal(f"https://{case['input']}/x") == wanted
    return tally("url-wpt-names", results)


def encoded_queries() -> Score:
    """The query of a link on a page in some encoding; path and fragment are in UTF-8 all the same."""
    results = {}
    for case in _cases("url-wpt/percent-encoding.json"):
        for encoding, wanted in case["output"].items():
            letters = case["input"]
            found = urls.resolve("http://x/", encode_query(f"?{letters}#{letters}", encoding))
            results[f"{letters!r} {encoding}"] = found == f"http://x/?{wanted}#{case['output']['utf-8']}"
    return tally("url-wpt-percent", results)


def w3lib_canonical() -> Score:
    """w3lib's canonical form by the normal form and `clean_query`."""
    cases = [case for case in _cases("url-w3lib/cases.json") if case["func"] == "canonicalize_url"]
    results, explained = {}, {}
    for number, case in enumerate(cases):
        name = f"{number} {_text(case)!r:.70}"
        explained[name] = W3LIB_CANONICAL.get(number, "not explained")
        url = urls.normal(_written(case))
        results[name] = (url and urls.clean_query(url)) == case["expected"]
    return tally("url-w3lib-canonical", results, explained)


def w3lib_safe() -> Score:
    """w3lib's safe URL and its input normalize to the same URL, or both are invalid."""
    chosen = ("safe_url_string", "safe_download_url")
    cases = [case for case in _cases("url-w3lib/cases.json") if case["func"] in chosen]
    results, explained = {}, {}
    for number, case in enumerate(cases):
        if isinstance(case["args"][0], int):
            continue
        name, expected = f"{number} {_text(case)!r}", case["expected"]
        explained[name] = W3LIB_SAFE.get(_text(case), "not explained")
        results[name] = urls.normal(_written(case)) == (urls.normal(expected) if isinstance(expected, str) else None)
    return tally("url-w3lib-safe", results, explained)


def _standard_cases() -> Iterator[tuple[str, dict[str, Any]]]:
    cases = [*_cases("url-wpt/urltestdata.json"), *_cases("url-wpt/urltestdata-javascript-only.json")]
    for number, case in enumerate(cases):
        yield f"{number} {case['input']!r} {case['base']!r}", case


def _cases(name: str) -> list[dict[str, Any]]:
    """The cases of a file, without the comments between them."""
    return [case for case in json.loads((SUITES / name).read_text("utf-8")) if isinstance(case, dict)]


def _written(case: dict[str, Any]) -> str:
    """The URL of a w3lib case, as a page in the case's encoding would have it."""
    encoding = case["kwargs"].get("encoding") or (case["args"][1] if len(case["args"]) > 1 else "utf-8")
    return encode_query(_text(case, encoding), encoding)


def _text(case: dict[str, Any], encoding: str = "utf-8") -> str:
    value = case["args"][0]
    if isinstance(value, list):
        return str(urlunparse(value))
    return str(value) if isinstance(value, str) else value["bytes_latin1"].encode("latin-1").decode(encoding, "replace")
