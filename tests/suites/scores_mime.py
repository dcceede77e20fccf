"""MIME types as browsers read them, and the encodings that they name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from score import Score, tally

from gossamer.extract import mime
from gossamer.extract.encoding import NAMES
from gossamer.extract.mime import computed_type

FOLDER = Path(__file__).parents[2].parent / "shared" / "suites" / "http-wpt" / "mimesniff"
READS = ("http-wpt",)
SKIPPED = {"http-wpt/mimesniff/mime-types/resources/mime-types-minimized.json": "types are made few for timing reports"}


def scores() -> list[Score]:
    """Parsing and writing, groups, and what bodies without a type are taken for."""
    return [parsing(), groups(), sniffing()]


def parsing() -> Score:
    """The type is read and written as the standard says, and names the encoding that it should."""
    results = {}
    for file in ("mime-types", "generated-mime-types"):
        for case in _cases(file):
            found = mime.parse(case["input"])
            good = (None if found is None else str(found)) == case["output"]
            if "encoding" in case and found is not None:
                label = found.parameters.get("charset", "").strip("\t\n\f\r ").lower()
                good = good and NAMES.get(label) == (case["encoding"] and case["encoding"].lower())
            results[f"{file} {case['input']!r}"] = good
    return tally("http-wpt-mime", results)


def groups() -> Score:
    """The groups that a type belongs to."""
    results = {}
    for case in _cases("mime-groups"):
        found = mime.parse(case["input"])
        results[case["input"]] = found is not None and found.groups == set(case["groups"])
    return tally("http-wpt-mime-groups", results)


def sniffing() -> Score:
    """The files of the suite without a type: the types that browsers sniff."""
    expected = {
        "resources/html-content.html": "text/html",
        "resources/png-image.png": "image/png",
        "resources/test-file.zip": "application/x-gzip",
        "resources/binary-data.bin": "application/zip",
        "support/html-comment": "text/html",
    }
    bodies = {name: (FOLDER / "sniffing" / name).read_bytes() for name in expected}
    return tally("http-wpt-sniffing", {name: computed_type(bodies[name]) == expected[name] for name in expected})


def _cases(file: str) -> list[dict[str, Any]]:
    found = json.loads((FOLDER / "mime-types" / "resources" / f"{file}.json").read_text("utf-8"))
    return [case for case in found if isinstance(case, dict)]
