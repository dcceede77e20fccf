"""Tracing: a page as spans, exported as the OTEL_* variables configure, and nothing without them."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from commands import environment, gossamer, small_site
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler
from opentelemetry.trace import SpanKind, StatusCode

from gossamer.errors import ConfigError
from gossamer.jobs.local_run import LocalRun
from gossamer.lab.simweb.process import SimWeb
from gossamer.settings import build
from gossamer.telemetry import enabling_variable
from gossamer.telemetry.tracing import Tracing, open_tracing

FAST = ("--allow-private", "--delay", "0", "--quiet")


def crawled(
    folder: Path | None, seeds: list[str], sampler: Sampler | None = None, **settings: Any
) -> list[ReadableSpan]:
    """The spans of a crawl in this process."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    chosen = build({"allow_private": True, "delay": 0.0, "commit_seconds": 0.01, **settings})
    asyncio.run(LocalRun(folder, chosen, seeds, tracing=Tracing(provider)).run())
    return list(exporter.get_finished_spans())


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """The attributes of a span."""
    return dict(span.attributes or {})


def by_page(spans: list[ReadableSpan]) -> dict[str, dict[str, ReadableSpan]]:
    """Path -> name -> span, for each page."""
    paths = {s.context.trace_id: str(attributes(s)["url.full"]).split("/", 3)[3] for s in spans if s.name == "page"}
    found: dict[str, dict[str, ReadableSpan]] = {}
    for span in spans:
        found.setdefault(paths[span.context.trace_id], {})[span.name] = span
    return found


def test_page_is_one_trace_from_lease_to_storage(tmp_path: Path) -> None:
    with small_site() as url:
        port = url.rpartition(":")[2]
        seeds = [f"http://pages.test:{port}/", f"http://pages.test:{port}/secret?token=hushhush"]
        pages = by_page(crawled(tmp_path, seeds, resolve=["*.test=127.0.0.1"]))
    assert set(pages) == {"", "a", "b", "gone", "secret?token=***"}
    home, gone, secret = pages[""], pages["gone"], pages["secret?token=***"]
    steps = ["lease", "turn", "robots", "dns", "GET", "wait", "download", "extract", "sink", "complete", "page"]
    # The robots.txt and the page are two requests of one trace; the second shows by name here.
    assert set(home) == set(steps)
    root = home["page"]
    assert root.parent is None
    for name in ("lease", "turn", "robots", "GET", "extract", "sink", "complete"):
        span = home[name]
        assert span.parent is not None
        assert span.parent.span_id == root.context.span_id, name
        times = (root.start_time, span.start_time, span.end_time, root.end_time)
        assert list(times) == sorted(at or 0 for at in times), name
    order = [home[name].start_time or 0 for name in ("lease", "robots", "GET", "extract", "sink", "complete")]
    assert order == sorted(order)
    client = home["GET"]
    assert client.kind is SpanKind.CLIENT
    assert attributes(client) == {
        "http.request.method": "GET",
        "url.full": f"http://pages.test:{port}/",
        "server.address": "pages.test",
        "server.port": int(port),
        "http.response.status_code": 200,
        "http.response.body.size": attributes(client)["http.response.body.size"],
        "network.protocol.version": "1.1",
        "network.peer.address": "127.0.0.1",
    }
    assert {parent.span_id for name in ("wait", "download") if (parent := home[name].parent)} == {
        client.context.span_id
    }
    assert (attributes(root)["gossamer.outcome"], attributes(root)["gossamer.depth"]) == ("done", 0)
    assert (attributes(gone["GET"])["error.type"], gone["GET"].status.status_code) == ("404", StatusCode.ERROR)
    assert (attributes(gone["page"])["gossamer.reason"], gone["page"].status.status_code) == (
        "http-404",
        StatusCode.ERROR,
    )
    assert (attributes(secret["page"])["gossamer.outcome"], "GET" in secret) == ("skipped", False)


def test_unsampled_pages_have_no_spans(tmp_path: Path) -> None:
    with SimWeb(sites=2, pages_per_site=5) as web:
        assert crawled(tmp_path, list(web.seeds), ALWAYS_OFF, scope="any") == []
        assert len((tmp_path / "pages.jsonl").read_bytes().splitlines()) == 10


@contextmanager
def collector(*, hangs: bool = False) -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """An OTLP receiver over HTTP that records requests; optionally it accepts connections and never responds."""
    got: list[ExportTraceServiceRequest] = []
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if hangs:
                over.wait()
                return
            assert (self.path, self.headers["x-tenant"]) == ("/v1/traces", "me")
            body = gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
            got.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", got
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def test_all_workers_export_spans_and_log_trace_ids(tmp_path: Path) -> None:
    with collector() as (endpoint, got), SimWeb(sites=4, pages_per_site=5) as web:
        (tmp_path / "seeds").write_text("\n".join(web.seeds))
        done = gossamer(
            "--log-format", "json", "--log-file", "log", "--log-level", "fetch=info",
            "crawl", "--seeds", "seeds", "--job", "one", "--workers", "2", "--scope", "any", *FAST,
            cwd=tmp_path,
            OTEL_EXPORTER_OTLP_ENDPOINT=endpoint,
            OTEL_EXPORTER_OTLP_HEADERS="x-tenant=me",
            OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
            OTEL_TRACES_SAMPLER="always_on",
            OTEL_SERVICE_NAME="night-crawl",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    resources = [group.resource for one in got for group in one.resource_spans]
    spans = [s for one in got for group in one.resource_spans for scope in group.scope_spans for s in scope.spans]
    names = {tag.value.string_value for one in resources for tag in one.attributes if tag.key == "service.name"}
    assert names == {"night-crawl"}
    stored = [json.loads(line)["url"] for line in (tmp_path / "crawls/one/pages.jsonl").read_text().splitlines()]
    traced = {
        span.trace_id.hex(): next(tag.value.string_value for tag in span.attributes if tag.key == "url.full")
        for span in spans
        if span.name == "page"
    }
    assert sorted(traced.values()) == sorted(stored)
    assert {span.trace_id.hex() for span in spans} == set(traced)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    asked = [line for line in lines if line["room"] == "fetch"]
    assert all(traced[line["trace_id"]] == line["url"] for line in asked if not line["url"].endswith("/robots.txt"))
    assert len(asked) >= len(stored)


def test_hanging_collector_does_not_block_a_crawl(tmp_path: Path) -> None:
    with collector(hangs=True) as (endpoint, _), small_site() as url:
        done = gossamer(
            "crawl", url, "--job", "one", *FAST, cwd=tmp_path,
            OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_EXPORTER_OTLP_TIMEOUT="1", OTEL_TRACES_SAMPLER="always_on",
        )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert len((tmp_path / "crawls/one/pages.jsonl").read_bytes().splitlines()) == 4


CHECKED = """
import asyncio, sys
{before}
from gossamer.jobs.local_run import LocalRun
from gossamer.settings import build
asyncio.run(LocalRun(None, build({{"allow_private": True, "delay": 0.0}}), [{url!r}]).run())
print(sum(name.startswith("opentelemetry") and sys.modules[name] is not None for name in sys.modules))
"""


@pytest.mark.parametrize(
    ("before", "variables", "code", "said"),
    [
        ("", {}, 0, ""),
        ("sys.modules['opentelemetry'] = None", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, 0, "telemetry]"),
        (
            "sys.modules['opentelemetry'] = None",
            {"OTEL_TRACES_EXPORTER": "otlp"},
            1,
            "needs opentelemetry: not installed",
        ),
    ],
    ids=["off", "an endpoint for others", "asked for"],
)
def test_tracing_is_not_imported_unless_enabled(before: str, variables: dict[str, str], code: int, said: str) -> None:
    with small_site() as url:
        script = CHECKED.format(before=before, url=f"{url}/data")
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, env=environment(**variables), check=False
        )
    assert (done.returncode, done.stdout) == (code, "" if code else "0\n"), done.stderr
    assert said in done.stderr


def test_invalid_otel_variables_are_rejected() -> None:
    assert enabling_variable({"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"}) == ""
    assert (
        enabling_variable({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"})
        == ""
    )
    for wrong in (
        {"OTEL_TRACES_EXPORTER": "telegraph"},
        {"OTEL_EXPORTER_OTLP_PROTOCOL": "smoke"},
        {"OTEL_TRACES_SAMPLER_ARG": "often"},
    ):
        with pytest.raises(ConfigError):
            open_tracing(wrong)
