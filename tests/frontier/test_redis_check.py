"""Findings of `doctor` and `submit` about Redis servers whose settings may lose pages."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from gossamer.clock import SystemClock
from gossamer.frontier.backends import check
from gossamer.frontier.redis.check import durability
from gossamer.model import Finding
from gossamer.testing.servers import RedisServer

GOOD = {"appendonly": "yes", "appendfsync": "everysec"}
FAST = {"repl_diskless_sync_delay": "0"}


def found(*urls: str, forget_seconds: float = 10.0) -> list[Finding]:
    async def look() -> list[Finding]:
        return [one async for one in durability(",".join(urls), forget_seconds=forget_seconds)]

    return asyncio.run(look())


@pytest.mark.parametrize(
    ("options", "state", "says", "fix"),
    [
        (GOOD, "good", "everysec", ""),
        ({**GOOD, "appendfsync": "always"}, "good", "power cut", ""),
        ({**GOOD, "appendfsync": "no"}, "weak", "half a minute", "CONFIG SET appendfsync everysec"),
        ({**GOOD, "no_appendfsync_on_rewrite": "yes"}, "weak", "rewrites", "CONFIG SET no-appendfsync-on-rewrite no"),
        ({}, "weak", "loses the job", "CONFIG SET appendonly yes"),
        ({"save": "60 1"}, "weak", "snapshots only", "CONFIG SET appendonly yes"),
    ],
)
def test_doctor_reports_what_a_server_may_lose(options: dict[str, str], state: str, says: str, fix: str) -> None:
    with RedisServer(**options) as server:  # type: ignore[arg-type]
        (one,) = found(server.url)
    assert (one.subject, one.state) == ("durability", state)
    assert says in one.says
    assert fix in one.mend


def test_each_of_several_servers_is_named() -> None:
    with RedisServer(**GOOD) as first, RedisServer(**GOOD) as second, RedisServer() as third:  # type: ignore[arg-type]
        urls = [server.url for server in (first, second, third)]
        seen = found(*urls)
        assert [one.state for one in seen].count("weak") == 1
        (weak,) = [one for one in seen if one.state == "weak"]
        assert weak.says.startswith(f"127.0.0.1:{third.port}/0: no append-only file")

        async def all_findings() -> list[Finding]:
            return [one async for one in check(",".join(urls), clock=SystemClock())]

        every = asyncio.run(all_findings())
        assert {one.says.split(": ")[0] for one in every} == {f"127.0.0.1:{s.port}/0" for s in (first, second, third)}


def test_replicas_that_may_lag_for_long_are_weak_where_that_loses_pages() -> None:
    with ExitStack() as stack:
        first = stack.enter_context(RedisServer(**GOOD, **FAST))  # type: ignore[arg-type]
        second = stack.enter_context(RedisServer(**GOOD, **FAST))  # type: ignore[arg-type]
        replica = stack.enter_context(
            RedisServer(replicaof=f"127.0.0.1 {first.port}", **GOOD, **FAST)  # type: ignore[arg-type]
        )
        with redis.Redis.from_url(first.url) as store:
            while not store.info("replication")["connected_slaves"]:
                store.ping()
            # Alone, a server forgets a page and its links together.
            assert [one.state for one in found(first.url)] == ["good"]
            weak = [one for one in found(first.url, second.url) if one.state == "weak"]
            assert len(weak) == 1
            assert "min-replicas-to-write 1 and min-replicas-max-lag 8," in weak[0].mend
            store.config_set("min-replicas-to-write", 1)
            store.config_set("min-replicas-max-lag", 30)
            assert [one.state for one in found(first.url, second.url)].count("weak") == 1
            # A replica that stands still is counted for up to two seconds longer than this.
            store.config_set("min-replicas-max-lag", 10)
            assert [one.state for one in found(first.url, second.url)].count("weak") == 1
            store.config_set("min-replicas-max-lag", 8)
            assert {one.state for one in found(first.url, second.url)} == {"good"}
            assert {one.state for one in found(first.url, second.url, forget_seconds=5)} == {"good", "weak"}
        assert "bad" in {one.state for one in found(replica.url)}


def test_a_cluster_replica_that_is_disconnected_is_still_judged() -> None:
    with ExitStack() as stack:
        options = {**GOOD, **FAST, "cluster_enabled": "yes", "cluster_config_file": "nodes.conf"}
        primary = stack.enter_context(RedisServer(**options))  # type: ignore[arg-type]
        with RedisServer(**options) as replica:  # type: ignore[arg-type]
            one: Any = redis.Redis.from_url(primary.url)
            two: Any = redis.Redis.from_url(replica.url)
            one.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
            two.execute_command("CLUSTER MEET", "127.0.0.1", primary.port)
            own = one.execute_command("CLUSTER MYID").decode()
            while own not in str(two.execute_command("CLUSTER NODES")):
                two.ping()
            two.execute_command("CLUSTER REPLICATE", own)
            while own not in [node["master_id"] for node in one.execute_command("CLUSTER NODES").values()]:
                one.ping()
            two.close()
        while (
            one.info("replication")["connected_slaves"] or one.execute_command("CLUSTER INFO")["cluster_state"] != "ok"
        ):
            one.ping()
        weak = [finding for finding in found(primary.url) if finding.state == "weak"]
        one.close()
    assert len(weak) == 1
    assert "min-replicas-max-lag 8," in weak[0].mend


def test_missing_info_rights_are_reported() -> None:
    with RedisServer(**GOOD) as server:  # type: ignore[arg-type]
        with redis.Redis.from_url(server.url) as store:
            store.execute_command("ACL", "SETUSER", "few", "on", ">x", "~*", "&*", "+@all", "-info", "-config")
            store.execute_command("ACL", "SETUSER", "some", "on", ">x", "~*", "&*", "+@all", "-config")
        (blind,) = found(server.url_as("few", "x"))
        assert (blind.state, blind.mend) == ("weak", "ACL SETUSER name +info")
        (half,) = found(server.url_as("some", "x"))
        assert half.state == "weak"
        assert "appendfsync everysec" in half.mend


def test_submit_reports_weak_settings(tmp_path: Path) -> None:
    with RedisServer() as server:
        words = ["submit", "http://x.test/", "--job", "j", "--frontier", server.url, "--sink", f"jsonl:{tmp_path}/out"]
        output = subprocess.run(
            [sys.executable, "-m", "gossamer", *words], capture_output=True, text=True, timeout=60, check=False
        )
    assert output.returncode == 0, output.stderr
    assert "warning: no append-only file" in output.stderr
    assert "hint: CONFIG SET appendonly yes" in output.stderr
