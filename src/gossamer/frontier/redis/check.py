"""Checks a Redis server for a crawl: persistence, replicas, memory, rights, and clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

from gossamer.clock import Clock
from gossamer.errors import GossamerError, Unavailable
from gossamer.frontier.base import skew
from gossamer.frontier.redis.connection import RedisConnections, addresses, server_name
from gossamer.frontier.redis.server import check_rights, check_server, connect, faults, translate
from gossamer.model import Finding

_LAG_SLACK_SECONDS = 2
"""Seconds by which a lag may exceed min-replicas-max-lag: Redis checks it once a second, in whole seconds."""


class Persistence(NamedTuple):
    """The settings that decide how much a server may forget, and whether that loses pages."""

    persistence: dict[str, Any]
    replication: dict[str, Any]
    appendfsync: str
    """Empty where the user may not read it; likewise `save`, `min_replicas`, and `max_lag`."""
    syncs_in_rewrites: bool
    """Whether syncing goes on while Redis rewrites the append-only file."""
    save: str
    min_replicas: str
    max_lag: str
    is_alone: bool
    """Whether the whole job is on this server: then it forgets a page and its links together."""
    has_replicas: bool
    """Whether a replica may take this server's place, connected at the moment or not."""


async def condition(url: str, *, clock: Clock, forget_seconds: float) -> AsyncIterator[Finding]:
    """Findings about each of these servers: reachability, version, rights, clock, memory, durability."""
    urls = addresses(url)
    for one in urls:
        name = f"{server_name(one)}: " if len(urls) > 1 else ""
        async for found in _server(one, name, clock):
            yield found
    async for found in durability(url, forget_seconds=forget_seconds):
        yield found


async def durability(url: str, *, forget_seconds: float) -> AsyncIterator[Finding]:
    """Findings on how much each server or cluster node may forget; more than `forget_seconds` is weak."""
    urls = addresses(url)
    links = RedisConnections(urls)
    try:
        for name in links.names:
            try:
                link = await links.link(name)
                nodes = await link.nodes()
                is_alone = len(urls) == 1 and not links.is_cluster
                for node in nodes:
                    where = "" if is_alone else f"{_place(node) if links.is_cluster else name}: "
                    for found in _findings(
                        await _kept(node, is_alone=is_alone, in_cluster=links.is_cluster), forget_seconds
                    ):
                        yield found._replace(says=where + found.says)
            except faults.NoPermissionError:
                yield Finding(
                    "durability",
                    "weak",
                    f"{name}: this user may not ask for INFO: nobody notices that a server has forgotten something",
                    "ACL SETUSER name +info",
                )
            except (faults.RedisError, GossamerError) as error:
                translated = translate(error, "") if isinstance(error, faults.RedisError) else error
                if not isinstance(translated, Unavailable):
                    yield Finding("durability", "weak", f"{name}: {translated}", translated.hint)
            if links.is_cluster:
                break
    finally:
        await links.aclose()


async def _server(url: str, name: str, clock: Clock) -> AsyncIterator[Finding]:
    server = connect(url)
    try:
        mode = await check_server(server)
        about = await server.info("server") if mode else {}
        version = str(about.get("valkey_version") or about.get("redis_version", ""))
        kind = "Valkey" if "valkey_version" in about else "Redis"
        if mode != "cluster":
            await check_rights(server)
        yield Finding(
            "frontier", "good", f"{name}{kind} {version or 'of unknown version'}{f', {mode}' if mode else ''}"
        )

        async def time() -> float:
            seconds, microseconds = await server.time()
            return float(seconds) + float(microseconds) / 1e6

        found = await skew(clock, time)
        yield found._replace(says=name + found.says)
        if mode:
            found = _room(await server.info("memory"))
            yield found._replace(says=name + found.says)
    except (faults.RedisError, GossamerError) as error:
        translated = translate(error, "") if isinstance(error, faults.RedisError) else error
        yield Finding(
            "frontier",
            "bad",
            name + str(translated),
            translated.hint or "check that the server is running, and its address",
        )
    finally:
        await server.aclose()


def _place(node: Any) -> str:
    known = node.connection_pool.connection_kwargs
    return f"{known.get('host')}:{known.get('port')}"


async def _kept(server: Any, *, is_alone: bool, in_cluster: bool) -> Persistence:
    names = ("appendfsync", "no-appendfsync-on-rewrite", "save", "min-replicas-to-write", "min-replicas-max-lag")
    fsync, pauses, save, least, lag = [await _option(server, name) for name in names]
    persistence, replication = await server.info("persistence"), await server.info("replication")
    has_replicas = int(replication.get("connected_slaves", 0)) > 0 or (in_cluster and await _has_replicas(server))
    return Persistence(persistence, replication, fsync, pauses != "yes", save, least, lag, is_alone, has_replicas)


async def _has_replicas(node: Any) -> bool:
    """Return whether the cluster lists a replica of this node. INFO counts only those connected at the moment."""
    own = await node.execute_command("CLUSTER MYID")
    nodes = await node.execute_command("CLUSTER NODES")
    return any(one["master_id"] == _text(own) for one in nodes.values())


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


async def _option(server: Any, name: str) -> str:
    try:
        return str((await server.config_get(name)).get(name, ""))
    except faults.RedisError:
        return ""


def _findings(kept: Persistence, forget_seconds: float) -> Iterator[Finding]:
    yield _on_disk(kept)
    if kept.replication.get("role") == "slave":
        yield Finding(
            "durability", "bad", "is a replica, which accepts no writes", "name its primary, or use redis+sentinel://"
        )
    elif kept.has_replicas and not kept.is_alone:
        yield _on_replicas(kept, forget_seconds)


def _on_disk(kept: Persistence) -> Finding:
    append = "CONFIG SET appendonly yes, and in redis.conf"
    if not kept.persistence.get("aof_enabled"):
        if kept.save:
            says = "snapshots only: a restart loses everything after the last one"
            more = "is fetched again" if kept.is_alone else "loses pages whose links went there"
            return Finding("durability", "weak", f"{says}, and that {more}", append)
        return Finding("durability", "weak", "no append-only file: a restart of Redis loses the job", append)
    if kept.persistence.get("aof_last_write_status", "ok") != "ok":
        return Finding("durability", "bad", "Redis cannot write its append-only file", "free its disk")
    if kept.appendfsync in ("always", "everysec") and not kept.syncs_in_rewrites:
        says = "while Redis rewrites its append-only file nothing is synced: a power cut may then lose half a minute"
        return Finding("durability", "weak", says, "CONFIG SET no-appendfsync-on-rewrite no, and in redis.conf")
    if kept.appendfsync == "always":
        return Finding("durability", "good", "what was acknowledged survives a power cut (appendfsync always)")
    if kept.appendfsync == "everysec":
        says = "a power cut loses at most the last 2 s, which are fetched again (appendfsync everysec)"
        return Finding("durability", "good", says)
    if kept.appendfsync:
        says = f"a power cut may lose half a minute (appendfsync {kept.appendfsync})"
        return Finding("durability", "weak", says, "CONFIG SET appendfsync everysec, and in redis.conf")
    says = "this user may not ask how often the append-only file is synced"
    return Finding(
        "durability", "weak", says, "check that redis.conf has appendfsync everysec, or: ACL SETUSER name +config|get"
    )


def _on_replicas(kept: Persistence, forget_seconds: float) -> Finding:
    most = int(forget_seconds) - _LAG_SLACK_SECONDS
    wanted = f"min-replicas-to-write 1 and min-replicas-max-lag {most}"
    if not kept.min_replicas:
        says = "this user may not ask how far a replica may lag that takes the primary's place"
        return Finding(
            "durability", "weak", says, f"check that redis.conf has {wanted}, or: ACL SETUSER name +config|get"
        )
    lag = int(kept.max_lag or 0)
    if int(kept.min_replicas) < 1 or not 0 < lag <= most:
        says = (
            f"a replica may take the primary's place that lags by more than forget_seconds ({forget_seconds:g} s; "
            f"min-replicas-to-write {kept.min_replicas}, min-replicas-max-lag {lag}): that loses pages"
        )
        return Finding("durability", "weak", says, f"CONFIG SET {wanted}, and in redis.conf")
    says = f"a replica that takes the primary's place lags by {lag + _LAG_SLACK_SECONDS} s at most"
    return Finding("durability", "good", says)


def _room(memory: dict[str, Any]) -> Finding:
    most, used = int(memory.get("maxmemory", 0)), int(memory.get("used_memory", 0))
    if not most:
        return Finding("memory", "good", f"{used / 1e6:,.0f} MB used, no limit set")
    room = (most - used) / 1e6
    says = f"room for {room:,.0f} MB, about {max(0.0, room) / 100:,.1f} M URLs"
    return Finding("memory", "good" if room > 100 else "weak", says, "" if room > 100 else "raise maxmemory")
