"""Access control and input validation of the service: H60 to H68."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from service_process import READ, WRITE, Served, serving

from gossamer.clock import ManualClock
from gossamer.errors import ConfigError
from gossamer.service.security import RateLimiter, read_tokens

SPIDER = (
    "from gossamer import Spider\n\n\nclass Shop(Spider):\n    def parse(self, page):\n        yield {'u': page.url}\n"
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "shop.py").write_text(SPIDER)
    with serving(folder, "--offer", "shop=shop.py", "--delay", "0", "--rate", "1000") as running:
        yield running


def run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("GOSSAMER_")}
    command = [sys.executable, "-m", "gossamer", "serve", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=own | environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_public_address_requires_a_strong_token(tmp_path: Path) -> None:
    """H61."""
    without = run("--host", "0.0.0.0", "--port", "0", cwd=tmp_path)
    assert (without.returncode, "no token is set" in without.stderr) == (2, True)
    for weak in ("changeme", "a" * 40, "password password", "short", ""):
        with pytest.raises(ConfigError) as refused:
            read_tokens({"GOSSAMER_WRITE_TOKEN": weak}, {})
        assert not weak or weak not in str(refused.value)
    path = tmp_path / "token"
    path.write_text(WRITE)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="is readable by other users"):
        read_tokens({}, {"write": path})
    path.chmod(0o600)
    assert read_tokens({}, {"write": path}) == {"write": WRITE}


def test_token_is_required_and_read_token_cannot_write(served: Served) -> None:
    """H61, H68."""
    anybody = httpx.Client(base_url=served.address, trust_env=False)
    assert [anybody.get(path).status_code for path in ("/healthz", "/readyz")] == [200, 200]
    for path in ("/api", "/api/jobs", "/metrics", "/api/events", "/api/jobs/x/why?url=a", "/api/scale"):
        assert anybody.get(path).status_code == 401, path
    reader = {"Authorization": f"Bearer {READ}"}
    assert anybody.get("/api", headers=reader).json()["role"] == "read"
    assert anybody.post("/api/jobs/x/stop", headers=reader).status_code == 403
    assert anybody.get("/api", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert anybody.post("/api/session", json={"token": "wrong"}).status_code == 401
    entered = anybody.post("/api/session", json={"token": READ})
    assert {"HttpOnly", "SameSite=strict"} <= set(entered.headers["set-cookie"].split("; "))
    assert anybody.get("/api").json()["role"] == "read"
    anybody.cookies.set("gossamer", entered.cookies["gossamer"].replace("read.", "write."))
    assert anybody.get("/api").status_code == 401
    anybody.close()


def test_cross_origin_requests_are_rejected(served: Served) -> None:
    """H62: foreign origins, forms, text/plain, and DNS rebinding."""
    job = {"job": "x", "urls": ["http://a.example/"]}
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        assert served.client.post("/api/jobs", json=job, headers=headers).status_code == 403
        assert served.client.get("/api/jobs", headers=headers).status_code == 403
    for name in ("rebound.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "a@b:c"):
        assert served.client.get("/api/jobs", headers={"Host": name}).status_code in (400, 403), name
    plain = served.client.post("/api/jobs", content=b'{"job":"x"}', headers={"Content-Type": "text/plain"})
    form = served.client.post("/api/jobs", data={"job": "x"})
    assert (plain.status_code, form.status_code) == (415, 415)
    own = served.client.get("/api/jobs", headers={"Origin": served.address.rstrip("/")})
    assert own.status_code == 200
    assert not [name for name in own.headers if name.startswith("access-control")]


def test_content_security_policy_allows_only_own_scripts(served: Served) -> None:
    """H60: no inline script, no other origin, no frame."""
    for path in ("/", "/api", "/nothing", "/metrics"):
        headers = served.client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[" * 100_000, 400),
        (b'{"job":' * 100_000, 400),
        (b'{"job":"x","urls":[' + b'"a",' * 1_000_000 + b'"a"]}', 400),
        (b'{"job":"x","urls":["http://a.example/"],"max_pages":-1}', 400),
        (b'{"job":"x","urls":["http://a.example/"],"max_pages":1e300}', 400),
        (b'{"job":"x","urls":["http://a.example/"],"concurrency":1000000000}', 400),
        (b'{"job":"../../etc","urls":["http://a.example/"]}', 400),
        (b'{"job":"..","urls":["http://a.example/"]}', 400),
        (b"\xff\xfe", 400),
    ],
    ids=["depth", "objects", "million seeds", "negative", "huge", "concurrency", "path", "dots", "bytes"],
)
def test_malformed_bodies_are_rejected(served: Served, body: bytes, status: int) -> None:
    """H63."""
    answer = served.client.post("/api/jobs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text


def test_oversized_bodies_are_rejected(served: Served) -> None:
    """H63: by Content-Length, and by the received size without it."""
    host, port = served.address.split("/")[2].split(":")
    head = f"POST /api/jobs HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {WRITE}\r\n"
    head += "Content-Type: application/json\r\n"
    for rest in ("Content-Length: 1073741824\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n"):
        with socket.create_connection((host, int(port)), timeout=30) as own:
            own.sendall((head + rest).encode())
            try:
                for _ in range(600 if "chunked" in rest else 0):
                    own.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
            except OSError:
                pass
            try:
                answer = own.recv(64)
            except OSError:
                answer = b"HTTP/1.1 413"
            assert answer.startswith(b"HTTP/1.1 413"), answer


@pytest.mark.parametrize("path", ["/api/jobs/..%2F..%2Fetc", "/api/jobs/%2e%2e", "/..%2f..%2fpyproject.toml", "/%00"])
def test_path_traversal_is_rejected(served: Served, path: str) -> None:
    """H63."""
    connection = http.client.HTTPConnection(served.address.split("/")[2], timeout=30)
    connection.request("GET", path, headers={"Authorization": f"Bearer {WRITE}"})
    assert connection.getresponse().status == 404
    connection.close()


@pytest.mark.parametrize(
    "extra",
    [
        {"spider": "/etc/passwd"}, {"spider": "os:system"}, {"proxy": ["http://x:1"]}, {"sink": ["jsonl:/tmp/x"]},
        {"headers": {"a": "env:SECRET"}}, {"secrets": ["HOME"]}, {"allow_private": True}, {"ca_file": "/etc/x"},
        {"robots": False}, {"cache": "/tmp/x"}, {"browser_path": "/bin/sh"}, {"resolve": ["*=127.0.0.1"]},
    ],
    ids=lambda extra: next(iter(extra)),
)  # fmt: skip
def test_submission_cannot_set_operator_settings(served: Served, extra: dict[str, object]) -> None:
    """H64: no module, no path, no proxy, no secret."""
    job = {"job": "x", "urls": ["http://a.example/"], **extra}
    assert served.client.post("/api/jobs", json=job).status_code in (400, 403)
    assert served.get("/api")["spiders"] == ["shop"]


def test_unknown_field_error_lists_known_fields(served: Served) -> None:
    job = served.post("/api/jobs", {"job": "x", "seeds": ["http://a.example/"]}, status=400)
    assert "`seeds`" in job["message"]
    assert "urls" in job["hint"]
    jobs = served.get("/api/jobs", 400, many="5")
    assert "`many`" in jobs["message"]
    assert "limit" in jobs["hint"]


def test_tokens_never_appear_in_output(served: Served) -> None:
    """H66: not in the log, the environment, or responses."""
    served.client.get("/api", headers={"Authorization": f"Bearer {WRITE}x"})
    said = served.log.read_text() + served.get("/metrics") + str(served.get("/openapi.json")) + str(served.get("/api"))
    assert WRITE not in said
    assert READ not in said


def test_rate_limit_is_per_address() -> None:
    clock = ManualClock()
    buckets = RateLimiter(2.0, 10.0, clock=clock, most=3)
    assert [buckets.wait("a") for _ in range(11)] == [0.0] * 10 + [0.5]
    assert buckets.wait("b") == 0.0
    clock.advance(0.5)
    assert (buckets.wait("a"), buckets.wait("a")) == (0.0, 0.5)
    for name in "cdefg":
        buckets.wait(name)
    assert len(buckets) == 3


def test_stalled_clients_do_not_block_others(served: Served) -> None:
    """Sixty event clients that never read, and a scraper that sends a thousand requests and hangs."""
    host, port = served.address.split("/")[2].split(":")
    head = f"HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {READ}\r\n\r\n"
    hanging = []
    try:
        for number in range(61):
            own = socket.socket()
            hanging.append(own)
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            own.settimeout(2)
            own.connect((host, int(port)))
            try:
                own.sendall(f"GET {'/api/events' if number else '/metrics'} {head}".encode() * (1 if number else 1000))
            except OSError:
                # The service has stopped to read: nothing that it has answered was taken.
                assert number == 0
        served.until(lambda: served.metric("gossamer_event_clients") == 60)
        assert served.get("/api/jobs")["jobs"] == []
    finally:
        for own in hanging:
            own.close()
    served.until(lambda: served.metric("gossamer_event_clients") == 0)
