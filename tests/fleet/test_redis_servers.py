"""Redis servers of all kinds: Valkey, TLS, restricted users, replicas, and Sentinel."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from importlib import resources
from pathlib import Path

import pytest
import redis
import trustme

from gossamer.errors import FrontierError
from gossamer.frontier.backends import create_fleet, open_fleet
from gossamer.frontier.redis.server import CHANNELS, COMMANDS, KEYS
from gossamer.lab.simweb.log import gaps
from gossamer.lab.simweb.process import SimWeb
from gossamer.model import Grant, Outcome
from gossamer.redact import masked_address
from gossamer.settings import Settings
from gossamer.testing import harnesses
from gossamer.testing.frontier import FrontierSuite
from gossamer.testing.harness import Harness, pages
from gossamer.testing.network import FaultyProxy
from gossamer.testing.servers import Certificate, RedisServer, Sentinel

sys.path.insert(0, str(Path(__file__).parents[1] / "crawl"))
from processes import crawl, environment, kill_tree, start, stored, until

DELAY = 0.02
PASSWORD = "open-sesame"
pytestmark = pytest.mark.skipif(
    not RedisServer.is_there() and os.environ.get("CI") != "true", reason="redis-server is not installed"
)


def gossamer(url: str, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """A command that finds the frontier's address in its environment."""
    return subprocess.run(
        [sys.executable, "-m", "gossamer", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**environment(), "GOSSAMER_FRONTIER": url, **extra},
    )


def crawls_whole(url: str, folder: Path, *options: str) -> None:
    """A small crawl by a fleet at this address is complete, polite and without repeats."""
    with SimWeb(sites=6, pages_per_site=20, page_bytes=2000) as web:
        done = crawl(folder, web, "--frontier", url, "--delay", str(DELAY), "--workers", "3", *options)
        assert done.returncode == 0, done.stderr
        verdict, log = web.judge(), web.log()
        assert set(stored(folder)) == web.plan.reachable()
    assert not verdict.missed
    assert not verdict.repeated
    assert set(stored(folder).values()) == {1}
    assert min(gaps(log).values()) >= DELAY


class TestValkey(FrontierSuite):
    @pytest.fixture(autouse=True)
    def _server(self, valkey_server: RedisServer) -> None:
        self.url = valkey_server.url

    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return harnesses.redis(settings, self.url)


def test_a_fleet_on_valkey_crawls_everything_once(valkey_server: RedisServer, tmp_path: Path) -> None:
    with redis.Redis.from_url(valkey_server.url) as store:
        assert "valkey_version" in store.info("server")
    crawls_whole(valkey_server.url, tmp_path / "job")


def write(issued: trustme.LeafCert, ca_file: Path, folder: Path) -> Certificate:
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    issued.private_key_pem.write_to_path(key_file)
    for number, part in enumerate(issued.cert_chain_pems):
        part.write_to_path(cert_file, append=number > 0)
    return Certificate(cert_file, key_file, ca_file)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[trustme.CA, Path]:
    made, path = trustme.CA(), tmp_path_factory.mktemp("authority") / "ca.pem"
    made.cert_pem.write_to_path(path)
    return made, path


@pytest.fixture(scope="module")
def secure(authority: tuple[trustme.CA, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    issued = authority[0].issue_cert("127.0.0.1")
    certificate = write(issued, authority[1], tmp_path_factory.mktemp("server"))
    with RedisServer(password=PASSWORD, certificate=certificate) as running:
        yield running


def test_workers_reach_redis_over_tls_with_an_authority_of_our_own(secure: RedisServer, tmp_path: Path) -> None:
    with SimWeb(sites=4, pages_per_site=10, page_bytes=2000) as web:
        (tmp_path / "seeds").write_text("\n".join(web.seeds))
        options = ("--seeds", str(tmp_path / "seeds"), "--job", "shop", "--allow-private", "--delay", "0.01")
        submitted = gossamer(secure.url, "submit", *options, "--sink", f"jsonl:{tmp_path}/shared")
        assert submitted.returncode == 0, submitted.stderr
        # As SSL_CERT_FILE says it to every program.
        plain, _, _ = secure.url.partition("?")
        assert secure.certificate is not None
        worked = gossamer(plain, "worker", "--job", "shop", SSL_CERT_FILE=str(secure.certificate.ca_file))
        assert worked.returncode == 0, worked.stderr
        assert not web.judge().missed
    seen = gossamer(secure.url, "status", "shop", "--json")
    assert '"finished"' in seen.stdout
    assert PASSWORD not in submitted.stderr + worked.stderr + seen.stderr + seen.stdout


def test_supervised_workers_get_the_way_over_tls_too(secure: RedisServer, tmp_path: Path) -> None:
    crawls_whole(secure.url, tmp_path / "job")


def test_a_server_that_asks_for_our_certificate_gets_it(authority: tuple[trustme.CA, Path], tmp_path: Path) -> None:
    certificate = write(authority[0].issue_cert("127.0.0.1"), authority[1], tmp_path)
    with RedisServer(certificate=certificate, tls_auth_clients="yes") as server:
        refused = gossamer(server.url, "status", "shop")
        known = f"{server.url}&ssl_certfile={certificate.cert_file}&ssl_keyfile={certificate.key_file}"
        taken = gossamer(known, "status", "shop")
    assert refused.returncode == 1
    assert "Traceback" not in refused.stderr
    assert "no job 'shop'" in taken.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("?ssl_ca_certs=", "?ssl_ca_certs=/nowhere"), ["/nowhere", "does not exist"]),
        (("ca.pem", "ca.pem&nonsense=1"), ["option"]),
        (("?ssl_ca_certs=", "?client_name="), ["certificate", "ssl_ca_certs=", "SSL_CERT_FILE"]),
        (("127.0.0.1", "localhost"), ["certificate", "localhost"]),
    ],
)
def test_a_certificate_that_is_not_trusted_is_an_error_with_the_fix(
    secure: RedisServer, change: tuple[str, str], words: list[str]
) -> None:
    done = gossamer(secure.url.replace(*change), "status", "shop")
    assert done.returncode in (1, 2)
    assert all(word in done.stderr for word in words), done.stderr
    assert "hint:" in done.stderr
    assert "Traceback" not in done.stderr
    assert PASSWORD not in done.stderr


@pytest.mark.parametrize(
    "address",
    [
        "redis://user:{0}@h:1/0",
        "rediss://:{0}@h:1/0?ssl_ca_certs=/ca.pem",
        "redis://h:1/0?password={0}&db=1",
        "redis+sentinel://user:{0}@h:1,g:2/main/0?sentinel_password={0}",
        "redis://u:{0}@h:1/0,redis://u:{0}@g:1/0",
    ],
)
def test_h66_an_address_is_shown_without_its_passwords(address: str) -> None:
    assert PASSWORD not in masked_address(address.format(PASSWORD))
    assert masked_address(address.format(PASSWORD)).startswith(address.partition("://")[0])


def let(server: RedisServer, *rules: str) -> str:
    """The address for a user with these rights and no others."""
    with redis.Redis.from_url(server.url) as store:
        store.execute_command("ACL", "SETUSER", "worker", "reset", "on", f">{PASSWORD}", *rules)
    return server.url_as("worker", PASSWORD)


ALL = (KEYS, CHANNELS, *(f"+{name}" for name in COMMANDS))


HARNESS = ("+flushall", "+hincrbyfloat", "+keys", "+dump", "+restore", "+replicaof")
"""What the suite itself does to the server."""


class BlindSuite(FrontierSuite):
    """Without INFO nobody notices that a server has forgotten something: what the how-to says of `+info`."""

    __test__ = False
    test_p4_tokens_grow_over_what_was_forgotten = None  # type: ignore[assignment]
    test_p5_a_forgotten_lease_ends_before_its_site_is_leased_again = None  # type: ignore[assignment]
    test_p7_run_changes_after_the_store_may_have_forgotten = None  # type: ignore[assignment]


class TestFewRights(BlindSuite):
    """The whole contract as a user who may do what the how-to says, and who may not ask for INFO."""

    __test__ = True

    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer) -> None:
        self.url = let(redis_server, *ALL, *HARNESS)

    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return harnesses.redis(settings, self.url)


class TestFewRightsOnValkey(BlindSuite):
    __test__ = True

    @pytest.fixture(autouse=True)
    def _server(self, valkey_server: RedisServer) -> None:
        self.url = let(valkey_server, *ALL, *HARNESS)

    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return harnesses.redis(settings, self.url)


def test_a_fleet_crawls_as_a_user_with_few_rights(redis_server: RedisServer, tmp_path: Path) -> None:
    crawls_whole(let(redis_server, *ALL), tmp_path / "job")


def test_the_list_of_rights_has_every_command_of_the_script_and_stands_in_the_docs() -> None:
    folder = resources.files("gossamer.frontier.redis").joinpath("lua")
    script = "".join(path.read_text("utf-8") for path in folder.iterdir())
    used = {word.lower() for word in re.findall(r"'([A-Z]{3,})'", script)} - {
        *("limit", "withscores", "info", "damaged", "replace", "announce"),
        # Only `spread` needs these.
        *("restore", "unlink"),
    }
    assert used <= set(COMMANDS)
    page = (Path(__file__).parents[2] / "docs/howto/fleet-on-redis.md").read_text("utf-8")
    assert set(re.findall(r"(?<!\S)\+([a-z]+)", page)) >= {*COMMANDS, "info"}
    assert KEYS in page
    assert CHANNELS in page


async def _use(url: str) -> None:
    frontier = await create_fleet(url, "rights", Settings(delay=0.0), worker="w")
    try:
        await frontier.add(pages(1, 2, 3))
        grant = await frontier.lease(1, batch=1, seconds=60)
        lease = grant.leases[0]
        done = Outcome(site=lease.site, lane=0, token=lease.token, key=lease.requests[0].key, status="done")
        await frontier.complete([done])
        await frontier.counts()
        await frontier.idle(Grant(wait=0.3, news=1_000_000))
    finally:
        await frontier.aclose()


@pytest.mark.parametrize("kind", ["redis_server", "valkey_server"])
@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("+hset", "HSET"),
        ("+rpush", "RPUSH"),
        ("+time", "TIME"),
        ("+eval", "EVAL"),
        ("+evalsha", "EVALSHA"),
        ("+publish", "PUBLISH"),
        ("+psubscribe", "PSUBSCRIBE"),
        (KEYS, "keys gossamer:*"),
        (CHANNELS, "channels gossamer:"),
    ],
)
def test_a_right_that_is_missing_is_named(request: pytest.FixtureRequest, kind: str, missing: str, words: str) -> None:
    server: RedisServer = request.getfixturevalue(kind)
    with redis.Redis.from_url(server.url) as store:
        store.flushall()
    url = let(server, *(rule for rule in ALL if rule != missing))
    with pytest.raises(FrontierError, match=re.escape(words)) as caught:
        asyncio.run(_use(url))
    assert missing in caught.value.hint
    asyncio.run(_use(let(server, *ALL)))


def test_a_channel_pattern_that_redis_does_not_take_for_ours_is_named(redis_server: RedisServer) -> None:
    """Publishing passes with it, listening does not: workers would sleep through the news."""
    with pytest.raises(FrontierError, match="channels") as caught:
        asyncio.run(_use(let(redis_server, KEYS, "&gossamer:*", *(f"+{name}" for name in COMMANDS))))
    assert CHANNELS in caught.value.hint


def test_users_with_and_without_info_share_a_job(redis_server: RedisServer) -> None:
    """The one who may not see the server's run id is no sign of a restart, after which all lanes would rest."""

    async def run() -> None:
        few = await create_fleet(let(redis_server, *ALL), "shared", Settings(delay=0.0), worker="few")
        whole = await open_fleet(redis_server.url, "shared", worker="whole")
        try:
            for number in range(4):
                for frontier in (few, whole):
                    await frontier.add(
                        pages(2 * number + (frontier is few), site=f"{number}.{frontier is few}.example")
                    )
                    assert len((await frontier.lease(1, batch=1, seconds=3600)).leases) == 1
        finally:
            await few.aclose()
            await whole.aclose()

    asyncio.run(run())


@pytest.fixture
def pair() -> Iterator[tuple[RedisServer, RedisServer]]:
    """A primary, and a replica that has caught up with it."""
    with RedisServer(password=PASSWORD, repl_diskless_sync_delay="0") as first:
        with RedisServer(password=PASSWORD, replicaof=f"127.0.0.1 {first.port}") as second:
            with redis.Redis.from_url(second.url) as replica:
                until(lambda: replica.info("replication")["master_link_status"] == "up")
            yield first, second


def test_f31_what_a_replica_never_heard_of_is_refused_after_a_fail_over(pair: tuple[RedisServer, RedisServer]) -> None:
    """The lease that the primary took with it is unknown: its outcomes are counted, and tokens grow all the same."""

    async def run(proxy: FaultyProxy, replica: redis.Redis) -> None:
        first, second = pair
        frontier = await create_fleet(first.url_at(proxy.port), "job", Settings(delay=0.0), worker="w")
        try:
            await frontier.add(pages(1, 2, 3))
            until(lambda: replica.dbsize() == primary_size(first))
            replica.replicaof("NO", "ONE")
            lost = (await frontier.lease(1, batch=3, seconds=1)).leases[0]
            first.kill()
            proxy.lead(second.port)
            outcomes = [
                Outcome(site=lost.site, lane=0, token=lost.token, key=request.key, status="done")
                for request in lost.requests
            ]
            receipt = await frontier.complete(outcomes)
            assert (receipt.accepted, receipt.stale) == (0, 3)
            while not (found := (await frontier.lease(1, batch=3, seconds=1)).leases):
                await asyncio.sleep(0.05)
            assert found[0].token > lost.token
            assert {request.key for request in found[0].requests} == {request.key for request in lost.requests}
            counts = await frontier.counts()
            assert (counts.stale, counts.done, counts.leased, counts.finished) == (3, 0, 3, False)
        finally:
            await frontier.aclose()

    with FaultyProxy(pair[0].port) as proxy, redis.Redis.from_url(pair[1].url) as replica:
        asyncio.run(run(proxy, replica))


def primary_size(server: RedisServer) -> int:
    with redis.Redis.from_url(server.url) as store:
        return int(store.dbsize())


def test_f31_a_crawl_goes_on_with_a_replica_behind_the_same_address(
    pair: tuple[RedisServer, RedisServer], tmp_path: Path
) -> None:
    first, second = pair
    folder = tmp_path / "job"
    with (
        FaultyProxy(first.port) as proxy,
        redis.Redis.from_url(second.url) as replica,
        SimWeb(sites=8, pages_per_site=50, page_bytes=2000, latency_seconds=0.01) as web,
    ):
        options = ("--delay", str(DELAY), "--workers", "2", "--lease-seconds", "2")
        process = start(folder, web, "--frontier", first.url_at(proxy.port), *options)
        until(lambda: len(web.log()) > 80)
        first.kill()
        killed_at = time.time()
        replica.replicaof("NO", "ONE")
        proxy.lead(second.port)
        assert process.wait(60) == 0, process.stderr.read() if process.stderr else ""
        kill_tree(process)
        is_exact(web, folder, killed_at=killed_at)


def is_exact(web: SimWeb, folder: Path, *, killed_at: float) -> None:
    """Everything is stored once, politely, and only what was fetched about the time of the fail-over came again."""
    log = web.log()
    assert killed_at < log[-1].arrived_at, "it was over before"
    assert not web.judge().missed
    assert set(stored(folder)) == web.plan.reachable()
    assert set(stored(folder).values()) == {1}
    assert min(gaps(log).values()) >= DELAY
    about = Counter(entry.url for entry in log if abs(entry.arrived_at - killed_at) < 2)
    assert set(web.judge().repeated) <= set(about)


@pytest.fixture
def watched(pair: tuple[RedisServer, RedisServer]) -> Iterator[tuple[Sequence[RedisServer], Sequence[Sentinel], str]]:
    """The servers and the address of three sentinels that watch over them and know of one another."""
    with ExitStack() as stack:
        sentinels = [stack.enter_context(Sentinel(pair[0])) for _ in range(3)]
        for sentinel in sentinels:
            with redis.Redis.from_url(sentinel.url) as asked:
                until(lambda asked=asked: _knows_all(asked))  # type: ignore[misc]
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in sentinels)
        yield pair, sentinels, f"redis+sentinel://:{PASSWORD}@{hosts}/main/0"


def primary_port(sentinel: Sentinel) -> int:
    with redis.Redis.from_url(sentinel.url) as asked:
        return int(asked.sentinel_get_master_addr_by_name("main")[1])


def _knows_all(sentinel: redis.Redis) -> bool:
    state = sentinel.sentinel_master("main")
    return isinstance(state, dict) and int(state["num-other-sentinels"]) == 2 and int(state["num-slaves"]) == 1


@pytest.mark.long
def test_f31_sentinels_lead_a_crawl_to_the_new_primary(
    watched: tuple[Sequence[RedisServer], Sequence[Sentinel], str], tmp_path: Path
) -> None:
    """The old one comes back empty, at its address; nobody asks it any more."""
    (first, second), sentinels, url = watched
    folder = tmp_path / "job"
    with SimWeb(sites=8, pages_per_site=80, page_bytes=2000, latency_seconds=0.01) as web:
        process = start(folder, web, "--frontier", url, "--delay", "0.05", "--workers", "2", "--lease-seconds", "2")
        until(lambda: len(web.log()) > 80)
        first.kill()
        killed_at = time.time()
        until(lambda: {second.port} == set(map(primary_port, sentinels)))
        first.start()
        assert process.poll() is None
        code = process.wait(60)
        said = process.stderr.read() if process.stderr else ""
        kill_tree(process)
        assert code == 0, said
        assert PASSWORD not in said
        is_exact(web, folder, killed_at=killed_at)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("/main/", "/other/"), ["3 of 3 sentinels answer", "'other'"]),
        ((PASSWORD, "wrong"), ["password"]),
        (("/main/0", ""), ["redis+sentinel://", "/SERVICE/"]),
        (("/main/0", "/main/x"), ["redis+sentinel://", "/SERVICE/"]),
    ],
)
def test_a_wrong_address_of_sentinels_is_an_error_with_words(
    watched: tuple[Sequence[RedisServer], Sequence[Sentinel], str], change: tuple[str, str], words: list[str]
) -> None:
    done = gossamer(watched[2].replace(*change), "status", "shop")
    assert done.returncode in (1, 2)
    assert all(word in done.stderr for word in words), done.stderr
    assert "Traceback" not in done.stderr
    assert "wrong" not in done.stderr
    assert PASSWORD not in done.stderr


def test_sentinels_that_are_all_away_are_an_error_with_words() -> None:
    done = gossamer(f"redis+sentinel://:{PASSWORD}@127.0.0.1:1,127.0.0.1:2/main/0", "status", "shop")
    assert done.returncode == 1
    assert "0 of 2 sentinels answer" in done.stderr
    assert PASSWORD not in done.stderr


def test_an_address_without_a_password_is_shown_as_it_is() -> None:
    """Commands are printed with it, for people to copy."""
    assert masked_address("postgresql://crawler@h/db") == "postgresql://crawler@h/db"
    assert masked_address("redis://:hush@h,redis://me:hush@i") == "redis://:***@h,redis://me:***@i"
