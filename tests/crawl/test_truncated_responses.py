"""Truncated responses: retried where that may help, then stored, marked, and parsed."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

from processes import command, environment, rows
from rawweb import RawWeb, page, reply
from warcio.archiveiterator import WARCIterator

STALLS = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 1000\r\n\r\n<a href=/found>x</a>"
CHECKERS = [str(Path(sys.executable).with_name(name)) for name in ("warcio", "fastwarc")]
OPTIONS = ("--fetch-seconds", "1", "--tries", "2", "--backoff-seconds", "0.1", "--max-body-bytes", "5000")


def run(folder: Path, seed: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, [seed], "--delay", "0", "--no-robots", *OPTIONS, *words),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(),
    )


def web_of_parts(web: RawWeb) -> None:
    damaged = bytearray(gzip.compress(b"<title>damaged</title><a href=/also>x</a>"))
    damaged[-6] ^= 1
    web.answers.update(
        {
            "/": page("/stalls", "/damaged", "/large", "/odd", title="start"),
            "/stalls": STALLS,
            "/damaged": reply(bytes(damaged), headers=("Content-Encoding: gzip",)),
            "/large": reply("<title>large</title><a href=/found>x</a>" + "x" * 9000),
            "/odd": page(title="odd").replace(b"\r\n", b"\r\nno header\r\nX-Value: caf\xe9\r\n", 1),
            "/found": page(title="found"),
            "/also": page(title="also"),
        }
    )


def test_truncated_responses_are_stored_marked_and_parsed(tmp_path: Path) -> None:
    with RawWeb() as web:
        web_of_parts(web)
        done = run(tmp_path / "job", web.url(), "--sink", "jsonl", "--sink", "warc")
        assert done.returncode == 0, done.stderr
        asked = web.targets()
    # What may have broken off by chance is asked for again, the rest is not.
    assert sorted(asked) == sorted(["/", "/stalls", "/stalls", "/damaged", "/large", "/odd", "/found", "/also"])
    found = {"/" + row["url"].split("/", 3)[3]: row for row in rows(tmp_path / "job" / "pages.jsonl")}
    assert {row["status"] for row in found.values()} == {200}
    assert {row["error"] for row in found.values()} == {""}
    assert (found["/large"]["bytes"], found["/large"]["title"]) == (5000, "large")
    truncated = {}
    (archive,) = (tmp_path / "job").rglob("*.warc.gz")
    with archive.open("rb") as file:
        for record in WARCIterator(file, check_digests="raise"):
            if record.rec_type == "response":
                path = "/" + record.rec_headers.get_header("WARC-Target-URI").split("/", 3)[3]
                truncated[path] = record.rec_headers.get_header("WARC-Truncated")
                if path == "/odd":
                    assert record.http_headers.get_header("X-Value") == "caf\xe9"
                    assert "Content-Type" in [name for name, _ in record.http_headers.headers], "as they came"
            record.content_stream().read()
    reasons = {"/stalls": "time", "/damaged": "unspecified", "/large": "length"}
    assert truncated == {path: reasons.get(path) for path in found}
    checked = [subprocess.run([tool, "check", str(archive)], check=False).returncode for tool in CHECKERS]
    assert checked == [0, 0]


def test_truncated_responses_fail_if_the_setting_requires_it(tmp_path: Path) -> None:
    with RawWeb() as web:
        web_of_parts(web)
        run(tmp_path / "job", web.url(), "--partial", "refuse")
    found = {"/" + row["url"].split("/", 3)[3]: row for row in rows(tmp_path / "job" / "pages.jsonl")}
    assert {path: row["error"].partition(":")[0] for path, row in found.items() if row["error"]} == {
        "/stalls": "timeout",
        "/damaged": "encoding",
        "/large": "too-large",
        "/odd": "protocol",
    }


def test_a_wrong_content_length_is_retried_once(tmp_path: Path) -> None:
    with RawWeb() as web:
        web.answers["/"] = STALLS.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        done = run(tmp_path / "job", web.url(), "--tries", "5")
        asked = web.targets()
    assert "content_length" in done.stderr
    assert asked.count("/") == 2
