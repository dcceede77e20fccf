"""Encodings, meta refresh, srcset, base and link extraction, against the cases of others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from score import Score, tally

from gossamer import urls
from gossamer.engine.scope import Scope
from gossamer.extract.encoding import DEFAULT, LATE_BYTES, declared, detect
from gossamer.extract.links import parse_refresh, parse_srcset
from gossamer.extract.page import Page
from gossamer.model import Request, Response
from gossamer.settings import Settings

READS = ("html-encoding-html5lib", "encoding-wpt", "html-meta-srcset-base", "html-links-scrapy")
SKIPPED = {
    "html-meta-srcset-base/html: 7 of 14 pages": "their scripts make the base, or ask what a frame or a window does",
    "html-links-scrapy/xml_attacks": "a bomb in XML: scored with the sitemaps",
}
SUITES = Path(__file__).parents[2].parent / "shared" / "suites"
BASE = "http://web-platform.test:8000/folder/page.html"

_ISO_2022_JP = "browsers do not detect ISO-2022-JP, for fear of scripts; a crawler runs none, and reads the text"
ENCODING_WPT = {
    "ja-ISO-2022-JP-late.tentative.html": _ISO_2022_JP,
    "ja-ISO-2022-JP.tentative.html": _ISO_2022_JP,
    "utf-8.html": "browsers leave undeclared UTF-8 unread to make authors declare it; a crawler wants the text",
}
LINKS_SCRAPY = {"49 test_ftp_links": "only http and https are followed"}
_EXPRESSED = {"allow", "deny", "allow_domains", "deny_domains", "deny_extensions", "restrict_css", "restrict_xpaths"}
_EXPRESSED |= {"tags", "attrs", "deny_tags", "deny_attrs", "unique", "canonicalize", "restrict_text", "process_value"}


def scores() -> list[Score]:
    """One score per suite of the extraction room."""
    return [html5lib_encodings(), wpt_encodings(), meta_refresh(), srcset(), base(), scrapy_links()]


def html5lib_encodings() -> Score:
    """What the markup declares, or the default; and one page of plain Big5 for the detector."""
    folder = SUITES / "html-encoding-html5lib"
    results = {}
    for name in ("tests1.dat", "tests2.dat", "test-yahoo-jp.dat"):
        for number, part in enumerate(re.split(rb"(?m)^#data\n", (folder / name).read_bytes())[1:]):
            body, expected = part.split(b"\n#encoding\n")
            found = declared(body, within=LATE_BYTES) or DEFAULT
            results[f"{name} {number}"] = found == expected.split(b"\n")[0].decode().lower()
    results["test_big5.txt"] = detect((folder / "chardet" / "test_big5.txt").read_bytes()) == "big5"
    return tally("html-encoding-html5lib", results)


def wpt_encodings() -> Score:
    """Pages that declare nothing."""
    folder = SUITES / "encoding-wpt" / "encoding-detection"
    results = {}
    for path in sorted(folder.glob("*.html")):
        body = path.read_bytes()
        asserted = re.search(rb'assert_(not_)?equals\([\w.()]+, "([^"]+)"', body)
        opened = re.search(rb'window\.open\("([^"]+)"', body)
        if opened is not None:
            body = (folder / opened[1].decode()).read_bytes()
        assert asserted is not None
        results[path.name] = (detect(body) == asserted[2].decode().lower()) is not bool(asserted[1])
    return tally("encoding-wpt", results, ENCODING_WPT)


def meta_refresh() -> Score:
    """The meta refresh parser; URLs count as equal if they resolve to the same."""

    def passes(case: dict[str, Any]) -> bool:
        found, expected = parse_refresh(case["input"]), case["expected"]
        if found is None or expected is None:
            return found is None and expected is None
        seconds, url = found
        target = None if url is None else urls.join(BASE, url)
        wanted = None if expected["url"] is None else urls.join(BASE, expected["url"])
        return seconds == expected["seconds"] and target == wanted

    cases = json.loads((SUITES / "html-meta-srcset-base" / "meta_refresh.json").read_text("utf-8"))
    return tally("html-meta-refresh", {repr(case["input"]): passes(case) for case in cases})


def srcset() -> Score:
    """The srcset parser: the first candidate, or none."""

    def passes(case: dict[str, Any]) -> bool:
        found = parse_srcset(case["srcset"])
        expected = case["first_candidate_url"]
        return expected in found if expected else not found

    cases = json.loads((SUITES / "html-meta-srcset-base" / "srcset.json").read_text("utf-8"))
    results = {f"{number} {case['srcset']!r:.60}": passes(case) for number, case in enumerate(cases)}
    return tally("html-srcset", results)


def base() -> Score:
    """The base-element pages whose base stands in the markup, and what their scripts assert of it."""
    folder = SUITES / "html-meta-srcset-base" / "html" / "semantics" / "document-metadata" / "the-base-element"
    expected: dict[str, str] = {
        "base-data.html": BASE,
        "base-javascript.html": BASE,
        "base_href_empty.html": BASE,
        "example.html": BASE,
        "base_href_unspecified.html": BASE,
        "base_target_does_not_affect_iframe_src_navigation.html": BASE,
        "base_target_does_not_affect_location_assignment.html": BASE,
    }
    results = {name: page((folder / name).read_bytes()).base == wanted for name, wanted in expected.items()}
    return tally("html-base", results)


def scrapy_links() -> Score:
    """Scrapy's link extractor, with its options said in our words; fragments and order do not count."""
    cases = json.loads((SUITES / "html-links-scrapy" / "cases.json").read_text("utf-8"))
    results = {f"{number} {case['test']}": _scrapy_case(case) for number, case in enumerate(cases)}
    return tally("html-links-scrapy", results, LINKS_SCRAPY)


def page(body: bytes, url: str = BASE, encoding: str = "utf-8") -> Page:
    """A page as if it had been fetched."""
    headers = (("content-type", f"text/html; charset={encoding}"),)
    return Page(Response(url=url, status=200, headers=headers, body=body), Request(url=url))


def _scrapy_case(case: dict[str, Any]) -> bool:
    options = case["kwargs"]
    if set(options) - _EXPRESSED:
        return False
    charset = {"cp1252": "windows-1252", "iso8859-15": "iso-8859-15"}.get(case["encoding"], case["encoding"])
    fetched = page(case["body_latin1"].encode("latin-1"), urls.normal(case["url"]) or "", charset)
    allow, deny = [*_many(options.get("allow"))], [*_many(options.get("deny"))]
    allow += [rf"^https?://([^/]*\.)?{re.escape(name)}[/:]" for name in _many(options.get("allow_domains"))]
    deny += [rf"^https?://([^/]*\.)?{re.escape(name)}[/:]" for name in _many(options.get("deny_domains"))]
    if "deny_extensions" in options:
        deny += [rf"\.{extension}$" for extension in options["deny_extensions"]]
        allow = allow or ["."]
    scope = Scope(Settings(scope="any", allow=tuple(allow), deny=tuple(deny)))
    found = {url for url in _followed(fetched, options) if scope.refuse(url, fetched.url, 1) is None}
    expected = {urls.normal(link["url"]) or link["url"] for link in case["links"]}
    if options.get("canonicalize"):
        found = {urls.clean_query(url) for url in found}
    return found == expected


def _followed(fetched: Page, options: Mapping[str, Any]) -> Iterable[str]:
    """What a spider says for the options of Scrapy's extractor."""
    if "process_value" in options:
        # The suite names the function, which takes the page out of a call: in our words, a regular expression.
        targets = fetched.css("a::attr(href)").re(r"javascript:goToPage\('(.*?)'")
        return [request.url for request in fetched.follow_all(targets)]
    if "restrict_text" in options:
        wanted = [re.compile(pattern) for pattern in _many(options["restrict_text"])]
        chosen = [
            link for link in fetched.css("a, area") if any(one.search(link.css("::text").get("")) for one in wanted)
        ]
        return [request.url for request in fetched.follow_all(chosen)]
    if "tags" in options or "attrs" in options:
        return [request.url for request in fetched.follow_all(xpath=path)] if (path := _path(options)) else []
    if "restrict_css" not in options and "restrict_xpaths" not in options:
        return fetched.links(nofollow=False)
    found: list[str] = []
    for region in _many(options.get("restrict_css")):
        found += fetched.links(region, nofollow=False)
    for path in _many(options.get("restrict_xpaths")):
        found += [request.url for request in fetched.follow_all(fetched.xpath(path).css("a, area"))]
    return found


def _path(options: Mapping[str, Any]) -> str:
    """The XPath expression for tags and attributes; empty if there are none."""
    tags, attributes = _many(options.get("tags", ["a", "area"])), _many(options.get("attrs", "href"))
    without = "".join(f"[not(self::{tag})]" for tag in _many(options.get("deny_tags")))
    but = "".join(f"[name() != '{name}']" for name in _many(options.get("deny_attrs")))
    return " | ".join(f"//{tag}{without}/@{name}{but}" for tag in tags for name in attributes)


def _many(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


EXPLAINED: dict[str, Mapping[str, str]] = {"encoding-wpt": ENCODING_WPT, "html-links-scrapy": LINKS_SCRAPY}
