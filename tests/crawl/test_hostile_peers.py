"""Garbage on the owner's socket (H57), and answers that name code (H59): the crawl goes on, and no code runs."""

from __future__ import annotations

import os
import random
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from processes import command, environment, kill_tree, rows, start, stored, until
from rawweb import RawWeb, page, reply

from gossamer.engine import remote
from gossamer.lab.simweb.log import fetched
from gossamer.lab.simweb.process import SimWeb

chance = random.Random(57)
DEEP = b"\x91" * 100_000
GARBAGE = {
    "random bytes": chance.randbytes(5000),
    "a length beyond all bounds": struct.pack(">I", 2**32 - 1) + b"x",
    "a length that never comes": struct.pack(">I", 100_000) + b"x" * 10,
    "half a length": b"\0\0",
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
}
CALLS: dict[str, Any] = {
    "nothing": b"",
    "random bytes in a frame": chance.randbytes(500),
    "a frame of arrays in arrays": DEEP,
    "an unknown call": [1, {"type": "explode"}],
    "a call without its fields": [1, {"type": "take"}],
    "fields of the wrong type": [1, {"type": "take", "limit": "all", "batch": None, "seconds": []}],
    "a number that is no number": ["one", {"type": "ask", "what": "counts"}],
    "another protocol": [1, {"type": "hello", "worker": "old", "pid": 1, "protocol": 99}],
    "a question that nobody knows": [1, {"type": "ask", "what": "__class__"}],
    "results without their records": [1, remote.Commit([], [None], [])],
    "a request that no frontier can hold": [1, {"type": "add", "requests": [{"url": "x", "key": 2**64 - 1}]}],
    "a request that is none": [1, {"type": "add", "requests": [{"url": 5}]}],
    "leases for nobody": [1, remote.Take(100, 100, 1e300)],
    "leases that nobody has": [1, remote.Extend([2**63, -1], 1e300)],
    "a name that is a path": [1, remote.Hello("../frontier.db", 1)],
    "the owner's name": [1, remote.Hello("owner", 1)],
}


def connect(folder: Path) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(10)
    peer.connect((folder / "socket").read_text())
    return peer


def answer(peer: socket.socket) -> remote.WireReply | None:
    """What the owner says; None if it hangs up."""
    received = b""
    while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
        part = peer.recv(65536)
        if not part:
            return None
        received += part
    return remote.decode_answer(received[4:])


def ask(folder: Path, call: remote.Call) -> Any:
    with connect(folder) as peer:
        peer.sendall(remote.frame(remote.encode(remote.Frame(7, call))))
        found = answer(peer)
        assert found is not None
        assert found.number == 7
        assert not found.error
        return msgspec.msgpack.decode(found.value)


def take_and_leave(folder: Path) -> None:
    """Join as a worker, lease everything with endless leases, and disconnect without a word."""
    with connect(folder) as peer:
        peer.sendall(remote.frame(remote.encode(remote.Frame(1, remote.Hello("thief", 1)))))
        welcome = answer(peer)
        assert welcome is not None
        assert not welcome.error
        for seconds in (1e300, float("nan")):
            peer.sendall(remote.frame(remote.encode(remote.Frame(2, remote.Take(100, 100, seconds)))))
            taken = answer(peer)
            assert taken is not None
            assert not taken.error


@pytest.mark.parametrize("workers", [1, 2])
def test_h57_garbage_on_the_owners_socket_harms_nobody(tmp_path: Path, workers: int) -> None:
    folder = tmp_path / "job"
    with SimWeb(sites=4, pages_per_site=50, page_bytes=2000, latency_seconds=0.02) as web:
        process = start(
            folder, web, "--delay", "0.03", "--workers", str(workers), "--batch", "5", "--max-seconds", "60"
        )
        try:
            until(lambda: stored_bytes(folder) > 2000 or process.poll() is not None)
            known = ask(folder, remote.Ask("counts"))["known"]
            for data in GARBAGE.values():
                with connect(folder) as peer:
                    peer.sendall(data)
            said = {}
            for name, call in CALLS.items():
                with connect(folder) as peer:
                    peer.sendall(remote.frame(call if isinstance(call, bytes) else remote.encode(call)))
                    found = answer(peer)
                    said[name] = found.error if found is not None else "hung up"
            take_and_leave(folder)
            assert process.poll() is None
            assert ask(folder, remote.Ask("counts"))["known"] >= known
            assert process.wait(60) == 0
        finally:
            error = process.stderr.read() if process.poll() is not None and process.stderr is not None else ""
            kill_tree(process)
        assert not web.judge().missed
        assert set(fetched(web.log()).values()) == {1}
    assert {name for name, words in said.items() if not words} == {"leases that nobody has"}
    assert said["another protocol"].startswith("ConfigError\nthis worker speaks protocol 99")
    assert said["an unknown call"].startswith("ConfigError\ncannot decode a call")
    assert set(stored(folder).values()) == {1}
    assert len(stored(folder)) == 200
    assert "Traceback" not in error


def stored_bytes(folder: Path) -> int:
    path = folder / "pages.jsonl"
    return path.stat().st_size if path.exists() else 0


CANARY = "import os\nopen(os.environ['CANARY'], 'a').write(__name__)\n\ndef policy(*_): pass\n"
NAMING = [
    "Referrer-Policy: canary.policy",
    "Content-Type: text/html; charset=canary",
    "Content-Encoding: canary",
    "X-Spider: canary:Spider",
    "Link: <canary.policy>; rel=canonical",
    "Set-Cookie: canary=canary.policy; Path=/; Expires=canary.policy",
    "Refresh: canary.policy",
    "Server: ${jndi:canary} {{canary.policy()}} %(canary)s __import__('canary')",
    "Retry-After: canary.policy()",
    "Crawl-delay: canary.policy()",
]
CODECS = [
    "canary",
    "zlib_codec",
    "rot13",
    "unicode_escape",
    "idna",
    "punycode",
    "undefined",
    "../canary",
    "utf-7",
    "hex",
]


def test_h59_answers_that_name_code_run_none(tmp_path: Path) -> None:
    (tmp_path / "canary.py").write_text(CANARY)
    folder, canary = tmp_path / "job", tmp_path / "canary-was-here"
    with RawWeb() as web:
        hrefs = [f"/header/{number}" for number in range(len(NAMING))]
        for href, header in zip(hrefs, NAMING, strict=True):
            web.answers[href] = reply("<title>t</title>", headers=(header,))
        for number, name in enumerate(CODECS):
            hrefs += [f"/charset/{number}", f"/meta/{number}"]
            web.answers[hrefs[-2]] = typed(f"text/html; charset={name}", "<title>\u00e9</title>")
            web.answers[hrefs[-1]] = typed("text/html", f'<meta charset="{name}"><title>t</title><a href="/x?\u00e9">')
        web.answers["/robots.txt"] = reply("User-agent: canary.policy()\nDisallow: canary\nCrawl-delay: canary\n")
        web.answers["/"] = page(*hrefs)
        paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(
            command(folder, [web.url()], "--delay", "0", "--cookies", "--text", "--max-seconds", "60"),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=tmp_path,
            env={**environment(), "PYTHONPATH": paths, "CANARY": str(canary)},
        )
    assert done.returncode == 3, done.stderr  # there is no /x
    found = {"/" + row["url"].split("/", 3)[3]: row for row in rows(folder / "pages.jsonl")}
    assert set(hrefs) <= set(found)
    assert [row["error"] for row in found.values() if row["error"]] == []
    assert not canary.exists()
    # The canary does sing, where somebody lets it.
    subprocess.run([sys.executable, "-c", "import canary"], check=True, cwd=tmp_path, env={"CANARY": str(canary)})
    assert canary.exists()


def typed(content_type: str, body: str) -> bytes:
    return reply(body).replace(b"text/html; charset=utf-8", content_type.encode())
