"""Whole crawls into sinks on servers: several at once, killed and resumed; and a fleet that shares one."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import redis
from processes import crawl, kill_tree, rows, start, until

from gossamer.compression import zstd
from gossamer.lab.simweb.process import SimWeb
from gossamer.testing.servers import BucketServer, RedisServer, SqlServer


def lines(data: bytes) -> list[str]:
    whole = zstd.decompress(data)
    return [json.loads(line)["url"] for line in whole.splitlines()]


def test_a_killed_crawl_has_every_page_once_in_each_of_its_sinks(
    tmp_path: Path,
    postgres_server: SqlServer,
    bucket_server: BucketServer,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F61, F62. All but the stream are exact: that may have a page of the killed run twice."""
    bucket, table = f"b{secrets.token_hex(5)}", f"t{secrets.token_hex(5)}"
    bucket_server.make(bucket)
    for name, value in bucket_server.environment().items():
        monkeypatch.setenv(name, value)
    names = (
        "jsonl",
        f"{postgres_server.url}?table={table}",
        f"s3://{bucket}/lines?object_seconds=0",
        f"warc+file://{tmp_path}/archive",
        redis_server.url.replace("redis://", "redis+stream://") + f"?stream={table}",
    )
    options = [word for name in names for word in ("--sink", name)]
    folder = tmp_path / "job"
    with SimWeb(sites=4, pages_per_site=15, page_bytes=2000) as web:
        killed = start(folder, web, *options, "--delay", "0.02")
        until(lambda: len(rows(folder / "pages.jsonl")) > 10)
        kill_tree(killed)
        done = crawl(folder, web, *options, "--delay", "0")
        assert done.returncode == 0, done.stderr
    pages = [row["url"] for row in rows(folder / "pages.jsonl")]
    assert len(pages) == len(set(pages)) == 60
    assert sorted(row[0] for row in postgres_server.ask(f"SELECT url FROM {table}")) == sorted(pages)
    stored = [url for name, data in bucket_server.objects(bucket).items() if "/pages-" in name for url in lines(data)]
    assert sorted(stored) == sorted(pages)
    index = Counter(
        json.loads(line.split(b" ", 2)[2])["url"]
        for path in (tmp_path / "archive").glob("*.cdxj")
        for line in path.read_bytes().splitlines()
    )
    assert index == Counter(pages)
    with redis.Redis.from_url(redis_server.url) as client:
        followed = [fields[b"url"].decode() for _, fields in client.xrange(table)]
    assert set(followed) == set(pages)
    assert not [path for path in (folder / "spool").rglob("*") if path.is_file() and path.suffix]


def test_a_submitted_fleet_shares_a_table_and_a_killed_worker_leaves_no_gap(
    tmp_path: Path, maria_server: SqlServer, redis_server: RedisServer
) -> None:
    table, job = f"t{secrets.token_hex(5)}", f"job{secrets.token_hex(4)}"
    environment = {**os.environ, "GOSSAMER_FRONTIER": redis_server.url, "PYTHONUNBUFFERED": "1"}

    def gossamer(*words: str, folder: Path = tmp_path) -> subprocess.Popen[str]:
        folder.mkdir(exist_ok=True)
        return subprocess.Popen(
            [sys.executable, "-m", "gossamer", *words],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )

    with SimWeb(sites=4, pages_per_site=15, page_bytes=2000) as web:
        (tmp_path / "seeds").write_text("\n".join(web.seeds))
        submit = ("submit", "--seeds", str(tmp_path / "seeds"), "--job", job, "--allow-private", "--delay", "0.02")
        # On one machine alone this would be lost with it.
        refused = gossamer(*submit, "--sink", maria_server.url, "--sink", "warc")
        assert "need a shared place" in refused.communicate()[1]
        taken = gossamer(*submit, "--lease-seconds", "2", "--sink", f"{maria_server.url}?table={table}")
        assert "4 URLs added" in taken.communicate()[1]
        workers = [gossamer("worker", "--job", job, "--name", f"w{n}", folder=tmp_path / f"m{n}") for n in range(2)]
        until(lambda: _count(maria_server, table) > 8)
        kill_tree(workers[0])
        assert workers[1].wait(60) == 0, workers[1].communicate()[1]
        workers[1].communicate()
    urls = [row[0] for row in maria_server.ask(f"SELECT url FROM {table}")]
    assert len(urls) == len(set(urls)) == 60
    assert not list(tmp_path.rglob("segments"))


def _count(server: SqlServer, table: str) -> int:
    asked = f"SELECT COUNT(*) FROM information_schema.tables WHERE table_name = '{table}'"
    return server.ask(f"SELECT COUNT(*) FROM {table}")[0][0] if server.ask(asked)[0][0] else 0
