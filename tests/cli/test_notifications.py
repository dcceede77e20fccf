"""Notifications of ends, stalls, and high error rates, to a webhook and to a command, without slowing the crawl."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from commands import gossamer, small_site

from gossamer.jobs.notifications import Judge, RunSample
from gossamer.testing.servers import free_port

FAST = ("--allow-private", "--delay", "0", "--quiet")


class Hook(BaseHTTPRequestHandler):
    """Records notifications."""

    def do_POST(self) -> None:
        output: list[object] = self.server.output  # type: ignore[attr-defined]
        output.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def test_webhook_and_command_are_notified_of_the_end(tmp_path: Path) -> None:
    with small_site() as url, ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        server.output = []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        hook, command = f"http://127.0.0.1:{server.server_port}/x?key=hush", f"exec:tee {tmp_path}/sent"
        done = gossamer("crawl", url, "--job", "one", *FAST, "--notify", hook, "--notify", command, cwd=tmp_path)
        assert done.returncode in (0, 3), done.stderr
        server.shutdown()
        (output,) = server.output  # type: ignore[attr-defined]
    assert (output["event"], output["job"]) == ("finished", "one")
    assert output["pages"] == len((tmp_path / "crawls/one/pages.jsonl").read_text().splitlines())
    assert json.loads((tmp_path / "sent").read_text()) == output


def test_unreachable_webhook_only_logs_a_warning(tmp_path: Path) -> None:
    with small_site() as url:
        gone = f"http://me:hush@127.0.0.1:{free_port()}/x?key=hush"
        words = ("--notify", gone, "--notify", "exec:false")
        done = gossamer("--log-level", "warning", "crawl", url, "--job", "one", *FAST[:-1], *words, cwd=tmp_path)
        assert done.returncode in (0, 3), done.stderr
        assert b"notification to 127.0.0.1" in done.stderr
        assert b"hush" not in done.stderr
        refused = gossamer("crawl", url, *FAST, "--notify", "nobody", cwd=tmp_path)
        assert (refused.returncode, b"neither a URL nor a command" in refused.stderr) == (2, True)


def looks(*rows: tuple[float, int, int, bool]) -> list[list[str]]:
    judge = Judge(stalled_after=60, errors_above=0.5)
    return [[word for word, _ in judge.events(RunSample(*row))] for row in rows]


def test_stall_is_notified_once_per_stall() -> None:
    assert looks(
        (0, 0, 0, True), (59, 0, 0, True), (60, 0, 0, True), (200, 0, 0, True), (201, 1, 0, True), (262, 1, 0, True)
    ) == [[], [], ["stalled"], [], [], ["stalled"]]


def test_waiting_for_a_delay_or_a_pause_is_no_stall() -> None:
    assert looks((0, 0, 0, False), (1000, 0, 0, False), (1059, 0, 0, True)) == [[], [], []]


def test_high_error_rate_is_notified_once_until_it_recovers() -> None:
    assert looks(
        (0, 0, 0, True),
        (5, 40, 40, True),
        (10, 60, 60, True),
        (15, 120, 120, True),
        (20, 180, 120, True),
        (25, 240, 170, True),
    ) == [[], [], ["errors"], [], [], ["errors"]]
