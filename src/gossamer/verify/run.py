"""One proof from its start to its end: a web, a crawl, blows, a verdict, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from gossamer.clock import Clock
from gossamer.errors import ConfigError, GossamerError, JobMissing
from gossamer.frontier.backends import is_fleet, open_fleet, remove_job
from gossamer.jobs.results_folder import results_folder
from gossamer.redact import masked_address
from gossamer.settings import Settings
from gossamer.testing.web import SimWeb
from gossamer.verify.fleet import Processes
from gossamer.verify.sinks import made_its_own, read_back, take_away
from gossamer.verify.verdict import Blow, ProofVerdict, judge

_BATCH = 4
_CONCURRENCY = 32
_LOOK_SECONDS = 0.05
_KINDS = ("plain", "redirects", "robots-part")
Tell = Callable[[str], None]


class ProofOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be proved, and how hard it is made."""

    job: str
    frontier: str = ""
    """Empty for the embedded one."""
    sinks: tuple[str, ...] = ("jsonl",)
    workers: int = 3
    kills: int = 5
    stops: int = 1
    sites: int = 12
    pages: int = 40
    delay: float = 0.2
    lease_seconds: float = 3.0
    seconds: float = 300.0
    """After which a crawl that has not ended has failed."""
    seed: int = 1
    folder: Path | None = None
    """In which a folder of its own is made; the system's for temporary files if it is None."""
    keep: bool = False

    @property
    def is_fleet(self) -> bool:
        """Whether workers share a store, and not an owner."""
        return is_fleet(self.frontier)

    @property
    def has_children(self) -> bool:
        """Whether those who fetch are other processes than the one that was started."""
        return self.is_fleet or self.workers > 1


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """How it went."""

    wish: ProofOptions
    verdict: ProofVerdict
    blows: tuple[Blow, ...]
    seconds: float
    fault: str = ""
    """Why the crawl did not come to its end; empty if it did."""
    kept: str = ""
    """Where everything is, if it was to be kept."""

    @property
    def is_good(self) -> bool:
        """Whether all of it went as promised."""
        return not self.fault and self.verdict.is_good


async def prove(wish: ProofOptions, *, clock: Clock, tell: Tell) -> Proof:
    """Crawl a simulated web with real processes, trouble them, and compare what is left with the plan."""
    sinks = made_its_own(wish.sinks, f"gossamer_{wish.job.replace('-', '_').lower()}")
    wish = msgspec.structs.replace(wish, sinks=tuple(sinks))
    await _refuse_known_job(wish)
    place = Path(tempfile.mkdtemp(prefix=f"{wish.job}-", dir=wish.folder))
    try:
        async with _clean(wish, place, tell):
            return await _crawl(wish, place, clock=clock, tell=tell)
    finally:
        if not wish.keep:
            await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)


async def _refuse_known_job(wish: ProofOptions) -> None:
    if not wish.is_fleet:
        return
    try:
        fleet = await open_fleet(wish.frontier, wish.job)
    except JobMissing:
        return
    await fleet.aclose()
    raise ConfigError(
        f"there is a job {wish.job!r} in {masked_address(wish.frontier)} already, which verify does not touch",
        hint="leave --job away, or give a name that nobody uses",
    )


@asynccontextmanager
async def _clean(wish: ProofOptions, place: Path, tell: Tell) -> AsyncIterator[None]:
    """Whatever happens, the job, its results and its tables are taken away at the end; that this fails is told."""
    try:
        yield
    finally:
        if not wish.keep:
            try:
                if wish.is_fleet:
                    await remove_job(wish.frontier, wish.job)
                    results = results_folder(wish.frontier, wish.job, Settings(), place)
                    await asyncio.to_thread(shutil.rmtree, results, ignore_errors=True)
                for name in wish.sinks:
                    await take_away(name)
            except (GossamerError, OSError) as error:
                where = masked_address(wish.frontier) or "its sinks"
                tell(f"what job {wish.job!r} left in {where} is still there: {error}")


async def _crawl(wish: ProofOptions, place: Path, *, clock: Clock, tell: Tell) -> Proof:
    names = sys.platform != "linux"
    web = SimWeb(
        log_path=place / "requests.log", sites=wish.sites, pages_per_site=wish.pages, seed=wish.seed, names=names,
        kinds=_KINDS, page_bytes=4000, links_per_page=12, latency_seconds=0.02,
    )  # fmt: skip
    with web:
        fates = web.fates()
        (place / "seeds.txt").write_text("\n".join(web.seeds), "utf-8")
        processes = Processes(_words(wish, names), folder=place, environment=_environment(wish), clock=clock)
        began_at, blows, fault = clock.monotonic(), list[Blow](), ""
        try:
            await processes.start()
            async with asyncio.timeout(wish.seconds):
                async for blow in _blows(wish, processes, web, expected=len(web.reachable()), clock=clock):
                    blows.append(blow)
                    tell(f"{clock.monotonic() - began_at:6.1f} s  {blow.kind}")
                if code := await processes.wait():
                    fault = f"the crawl ended with code {code}: {_last_words(processes.said)}"
        except TimeoutError:
            fault = f"the crawl was not over after {wish.seconds:.0f} s"
        finally:
            await processes.end()
        seconds = clock.monotonic() - began_at
        log = web.log()
    folder = results_folder(wish.frontier, wish.job, Settings(), place / "crawls" / wish.job)
    stored = {name: await read_back(name, folder, is_fleet=wish.is_fleet) for name in wish.sinks}
    verdict = judge(
        log, stored, fates, blows=blows, delay=wish.delay, in_hand=_BATCH * min(wish.sites, wish.workers * _CONCURRENCY)
    )
    kept = str(place) if wish.keep else ""
    return Proof(wish=wish, verdict=verdict, blows=tuple(blows), seconds=seconds, fault=fault, kept=kept)


def _words(wish: ProofOptions, names: bool) -> list[str]:
    words = [
        "--seeds", "seeds.txt", "--job", wish.job, "--quiet", "--allow-private", "--workers", str(wish.workers),
        "--delay", str(wish.delay), "--lease-seconds", str(wish.lease_seconds), "--batch", str(_BATCH),
        "--concurrency", str(_CONCURRENCY), "--backoff-seconds", "0.5",
        # That workers die is not the pages' fault here.
        "--max-deliveries", str(2 * (wish.kills + wish.stops) + 5),
    ]  # fmt: skip
    words += ["--resolve", "*.sim=127.0.0.1"] if names else []
    return [*words, *(word for name in wish.sinks for word in ("--sink", name))]


def _environment(wish: ProofOptions) -> Mapping[str, str]:
    """That of the user, without what would change the crawl; the frontier's address may hold a password."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GOSSAMER_")}
    return {**kept, "GOSSAMER_FRONTIER": wish.frontier}


async def _blows(
    wish: ProofOptions, processes: Processes, web: SimWeb, *, expected: int, clock: Clock
) -> AsyncIterator[Blow]:
    """Deal the blows while the crawl goes on, spread over its whole length; fewer if it is over before."""
    chance = random.Random(wish.seed)
    kinds = ["kill"] * wish.kills + ["stop"] * wish.stops
    chance.shuffle(kinds)
    seen = 0
    for number, kind in enumerate(kinds):
        # Between two blows somebody has fetched something, or the second one would hit nobody.
        mark = max(seen + 2, int(expected * (number + chance.uniform(0.2, 1.0)) / (len(kinds) + 1)))
        while (seen := _requests(web)) < mark or (wish.has_children and not processes.workers()):
            if processes.code is not None:
                return
            await clock.sleep(_LOOK_SECONDS)
        if kind == "kill":
            yield await processes.kill(chance)
        elif (blow := await processes.stop(chance, 1.3 * wish.lease_seconds + 2 * wish.delay)) is not None:
            yield blow


def _requests(web: SimWeb) -> int:
    """Lines of the log so far."""
    return web.log_path.read_bytes().count(b"\n") if web.log_path.exists() else 0


def _last_words(path: Path) -> str:
    text = path.read_text("utf-8", "replace").strip()
    return text.splitlines()[-1][:300] if text else "without a word"
