"""All hostile answers on loopback: recorded and live replies, bad certificates, and malicious pages."""

from __future__ import annotations

import gzip
import json
import random
import re
import socket
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import brotli
from rawweb import RawWeb, redirect, reply

from gossamer.compression import zstd

_CASES_NEED_TIME = 5


class Wild(NamedTuple):
    """The hostile URLs, each on a host of its own but for the large pages, and what is known of some."""

    urls: list[str]
    broken: set[str]
    """Their answers are not whole."""
    dark: set[str]
    """Their robots.txt cannot be had, so that nobody may ask for the page."""
    authority: Path


@contextmanager
def hostile_web(tools: Path, folder: Path, *, size: int) -> Iterator[Wild]:
    """All of it, while the block lasts; `size` is how long the large pages are."""
    with raw_replies(tools) as (port, paths), bad_certificates(tools, folder) as cases, RawWeb() as pages:
        urls, broken, dark = [], set(), set()
        for number, path in enumerate(paths):
            answer = b"" if path.startswith("/live/") else as_served(port, path)
            if b"\nretry-after:" in answer.lower():
                # A crawl obeys Retry-After, and would wait for half a minute.
                continue
            urls.append(f"http://r{number}.wild:{port}{path}")
            if answer and is_broken(answer):
                broken.add(urls[-1])
        broken |= {url for url in urls if url.endswith(BROKEN_LIVE)}
        urls += [case["url"] for case in cases]
        broken |= {case["url"] for case in cases if not case["strict_accepts"]}
        dark |= {case["url"] for case in cases if case["name"] in DARK_TLS}
        for name, answer in hostile_pages(size).items():
            host = f"{'p' if name.startswith('large') else name.split(' ')[0].lower()}.wild:{pages.port}"
            path = f"/{name.replace(' ', '-')}"
            pages.answers[host + path] = answer
            urls.append(f"http://{host}{path}")
        for number, (name, file) in enumerate(hostile_robots(size).items()):
            host = f"robots{number}.wild:{pages.port}"
            pages.answers[host + "/robots.txt"] = file
            pages.answers[host + "/"] = reply("<title>behind robots</title>")
            urls.append(f"http://{host}/")
            if name.startswith("dark"):
                dark.add(urls[-1])
        for number, file in enumerate(hostile_sitemaps(size).values()):
            host = f"sitemap{number}.wild:{pages.port}"
            pages.answers[host + "/robots.txt"] = reply(
                f"Sitemap: http://{host}/map\nSitemap: http://169.254.169.254/map"
            )
            pages.answers[host + "/map"] = file
            pages.answers[host + "/"] = reply("<title>beside a sitemap</title>")
            urls.append(f"http://{host}/")
        yield Wild(urls, broken, dark, folder / "trusted-ca.pem")


DARK_TLS = ("tls10-only", "client-cert-required", "handshake-hangs")
BROKEN_LIVE = tuple(
    f"/live/{name}"
    for name in (
        *("drip-headers", "drip-body", "silent", "endless-body", "endless-chunks", "endless-header", "many-headers"),
        *(
            "endless-100",
            "big-chunk-size",
            "huge-length",
            "short-body",
            "gzip-bomb",
            "reset",
            "half-then-reset",
            "http09",
        ),
        *("nul-header", "two-lengths", "redirect-longurl"),
    )
)


@contextmanager
def raw_replies(tools: Path) -> Iterator[tuple[int, list[str]]]:
    """The server of recorded and live replies: its port, and all its paths."""
    process = subprocess.Popen([sys.executable, tools / "rawserver.py", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        port = int(process.stdout.readline().rsplit(":", 1)[1])
        yield port, json.loads(as_served(port, "/index.json").partition(b"\r\n\r\n")[2])
    finally:
        process.kill()
        process.communicate()


def as_served(port: int, path: str) -> bytes:
    """The bytes that the server sends for a path."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        received = bytearray()
        while part := connection.recv(65536):
            received += part
    return bytes(received)


@contextmanager
def bad_certificates(tools: Path, folder: Path) -> Iterator[list[dict[str, Any]]]:
    """The servers with certificates good and bad: for each, its URL and whether to accept it."""
    for _ in range(_CASES_NEED_TIME):
        port = random.SystemRandom().randrange(20_000, 30_000)
        command = [sys.executable, str(tools / "tls_cases.py"), str(folder), str(port)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout
        if process.stdout.readline().startswith("ready"):
            break
        process.communicate()
    try:
        yield json.loads((folder / "index.json").read_text())
    finally:
        process.kill()
        process.communicate()


def is_broken(answer: bytes) -> bool:
    """Whether an answer says 200 and is incomplete or contradictory, by a strict parser of the test."""
    answer = re.sub(rb"\A(?:HTTP/1\.[01] 1\d\d.*?\r?\n\r?\n)+", b"", answer.lstrip(b"\r\n"), flags=re.DOTALL)
    head, *rest = re.split(rb"(?<=\n)\r?\n", answer, maxsplit=1)
    body = rest[0] if rest else b""
    # RFC 9112, 4: who is lenient parts the words of a status line at any white space.
    status = re.match(rb"HTTP/1\.[01][ \t]+200[ \t\r\n]", head)
    if status is None:
        return not re.match(rb"HTTP/1\.[01][ \t]+\d{3}[ \t\r\n]", head)
    fields = [line.partition(b":")[::2] for line in head.splitlines()[1:]]
    values = {
        name: [value.strip().lower() for key, value in fields if key.strip().lower() == name]
        for name in (b"content-length", b"transfer-encoding", b"content-encoding")
    }
    if values[b"transfer-encoding"]:
        whole = _dechunked(body) if values[b"transfer-encoding"][-1].endswith(b"chunked") else body
        if whole is None:
            return True
        body = whole
    elif values[b"content-length"]:
        parts = [part.strip() for value in values[b"content-length"] for part in value.split(b",")]
        lengths = {int(part) if part.isdigit() else -1 for part in parts}
        if len(lengths) > 1 or not 0 <= max(lengths) <= len(body):
            return True
        body = body[: max(lengths)]
    coding = values[b"content-encoding"][0] if len(values[b"content-encoding"]) == 1 else b""
    return bool(body) and not _decodes(body, coding)


def _dechunked(body: bytes) -> bytes | None:
    found = b""
    while match := re.match(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n]*)?\r?\n", body):
        size = int(match[1], 16)
        if not size:
            return found
        found += body[match.end() : match.end() + size]
        end = re.match(rb"\r?\n", body[match.end() + size :])
        if end is None:
            return None
        body = body[match.end() + size + end.end() :]
    return None


def _decodes(body: bytes, coding: bytes) -> bool:
    try:
        if coding in (b"gzip", b"x-gzip"):
            stream = zlib.decompressobj(31)
            stream.decompress(body, 100_000_000)
            return stream.eof
        if coding == b"br":
            brotli.decompress(body)
        elif coding == b"zstd":
            zstd.ZstdDecompressor().decompress(body)
    except (zlib.error, brotli.error, zstd.ZstdError):
        return False
    return True


def _fill(unit: bytes, size: int) -> bytes:
    return unit * (size // len(unit))


def hostile_pages(size: int) -> dict[str, bytes]:
    """Answers by name; those that are large are asked for one after another, the others each have a host."""
    far = b"<a href=http://elsewhere.invalid/%d>x</a>"
    attributes = b" ".join(b"a%d" % number for number in range(300))
    hidden = (
        b"<div "
        + b"".join(b"%b='>' " % b" ".join(b"b%x" % (n * 900 + k) for k in range(900)) for n in range(40))
        + b">"
    )
    large = {
        "H29 zeros as a page": b"\0" * size,
        "H31 nested": _fill(b"<div>", size),
        "H31 attributes": _fill(b"<p " + attributes + b">", size),
        "H31 hidden ends": hidden,
        "H31 one line": b"<p>" + b"x " * (size // 2 - 10),
        "H31 unclosed comment": b"<p>x<!--" + _fill(b"-x", size - 20),
        "H31 unclosed script": b"<p>x<script>" + _fill(b"</scrip", size - 20),
        "H31 title": b"<title>" + _fill(b"ab ", size - 20),
        "H31 comments": _fill(b"x<!---->", size),
        "H32 links": b"".join(far % number for number in range(size // 50)),
        "H32 a long base": b"<base href='http://elsewhere.invalid/%b/'>" % (b"x" * (size // 4))
        + _fill(b"<a href=a>", size // 2),
        "H32 srcset": b"<img srcset='" + _fill(b"a.png 1x,", size - 40) + b"'>",
        "H32 one href": b"<a href='http://elsewhere.invalid/" + b"x" * (size - 60) + b"'>x</a>",
        "H35 refresh": b"<meta http-equiv=refresh content='" + b"1" * (size - 60) + b"x'>",
        "H35 less-than": b"<" * size,
        "H35 quotes": b"<p>url(" + b'"' * (size - 20),
        "H38 half characters": b"<meta charset=gb18030><p>" + _fill(b"\x81\x30\x81", size - 40),
    }
    lies = {
        f"H38-{number} charset": _typed(
            f"text/html; charset={name}", b'<meta charset=gbk><title>\xe9</title><a href="/x?\xe9">'
        )
        for number, name in enumerate(("utf-7", "utf-16", "x-user-defined", "none", '"', "gb18030", "iso-2022-kr"))
    }
    foreign = {
        f"H40-{number} foreign": reply(head + b"<a href=/never>x</a>" * 9)
        for number, head in enumerate(
            (b"%PDF-1.7\n", b"PK\x03\x04", b"\x7fELF", b"GIF89a<html>", b"\0\0\0\x18ftypmp42", b"MZ\0\0")
        )
    }
    cookies = [f"Set-Cookie: c{number}={'x' * 50}; Path=/" for number in range(1000)]
    odd = [
        "javascript:1",
        "data:,1",
        "/\0",
        "\t/ta\nb",
        "//[::1",
        "http://a b/",
        "\\\\x.invalid",
        "/%00",
        "/%2e%2e/",
        "&#0;",
        "/%0d%0aX: y",
    ]
    return {
        **{
            f"large {name}": reply(gzip.compress(body, 1), headers=("Content-Encoding: gzip",))
            for name, body in large.items()
        },
        **lies,
        **foreign,
        "H08-1 metadata": redirect("http://169.254.169.254/latest/meta-data/"),
        "H08-2 refresh inside": reply("<title>t</title>", headers=("Refresh: 0;url=http://169.254.169.254/",)),
        "H09 file": redirect("file:///etc/passwd"),
        "H12 a wall": redirect("/H12-a-wall", "Set-Cookie: a=b"),
        "H14-1 cookies": reply("<title>t</title>", headers=cookies[:90]),
        "H14-2 cookies": reply(
            "<title>t</title>",
            headers=(
                "Set-Cookie: a=b; Max-Age=--5",
                "Set-Cookie: b=" + "\\" * 20_000,
                "Set-Cookie: c=d; Domain=.com; Expires=Mon, 99 Foo 99999 99:99:99",
                "Set-Cookie: =; =; ;;",
            ),
        ),
        "H23 headers": reply("<title>t</title>", headers=("X-Odd: gr\u00fcn\u2028", "X-Empty:", "X-Tab: \t a \t")),
        "H29 no type": reply("<title>t</title>").replace(b"Content-Type: text/html; charset=utf-8\r\n", b""),
        "H33 bases": reply("<base href='javascript:1'><base href='data:,x'><a href=http://elsewhere.invalid/>x</a>"),
        "H34 hrefs": reply("".join(f'<a href="{href}">x</a>' for href in odd)),
        "H39 title": reply("<title>\u202eabc\u200b\U0001f600&#xd800;\ufffe</title>"),
        "H46 retry": reply("later", status="503 No", headers=("Retry-After: -1",)),
        "H47 robots": reply(
            "<a href=/never>x</a>", headers=("X-Robots-Tag: ,,:;none, unavailable_after: x", "Link: <<>;rel=;")
        ),
    }


def _typed(content_type: str, body: bytes) -> bytes:
    return reply(body).replace(b"text/html; charset=utf-8", content_type.encode())


def hostile_robots(size: int) -> dict[str, bytes]:
    """H45, H46: files that a site's page is behind; none of them forbids it."""
    everyone = b"User-agent: *\n"
    return {
        "rules": reply(everyone + b"".join(b"Disallow: /x%d\n" % number for number in range(100_000))),
        "stars": reply(everyone + b"Disallow: /" + b"*a" * 10_000 + b"b\n"),
        "line": reply(everyone + b"Disallow: /x" + b"y" * 1_000_000),
        "utf-16": reply("User-agent: *\nDisallow: /x\n".encode("utf-16")),
        "nul": reply(b"User-agent\0: *\0\nDisallow: /x\0\n\0"),
        "html": reply("<html><body>not found</body></html>"),
        "delay": reply(everyone + b"Crawl-delay: nan\nCrawl-delay: -1\nCrawl-delay: 1e-9\nCrawl-delay: 9e999x\n"),
        "dark, large": reply(b"#" + b"x" * (size + 2_000_000)),
        "dark, a bomb": reply(
            gzip.compress(b"#" * (8 * size), 1), headers=("Content-Encoding: gzip",), status="404 Not Found"
        ),
    }


def hostile_sitemaps(size: int) -> dict[str, bytes]:
    """H36, H37: files that a site's robots.txt names."""
    laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
    bomb = f'<!DOCTYPE x [<!ENTITY l0 "lol">{laughs}<!ENTITY e SYSTEM "file:///etc/passwd">]>'
    return {
        "laughs": reply(f"{bomb}<urlset><url><loc>http://elsewhere.invalid/&l11;&e;</loc></url></urlset>"),
        "gzip": reply(gzip.compress(b"<urlset>" + b" " * 60_000_000, 9)),
        "garbage": reply(_fill(b"<url><loc><![CDATA[<!DOCTYPE [", size)),
        "lines": reply(_fill(b"http://elsewhere.invalid/x\n", size)),
    }
