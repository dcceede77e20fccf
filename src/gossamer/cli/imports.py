"""The command `import`: imports URLs, archives, and the state of other crawlers."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from gossamer import settings as configuration
from gossamer.cli.console import Exit, say
from gossamer.cli.options import Sectioned, given, job_names, settings_options
from gossamer.cli.runner import read_settings, run
from gossamer.clock import SystemClock
from gossamer.engine.heartbeat import is_live
from gossamer.errors import ConfigError, JobMissing
from gossamer.frontier.backends import backend_of, find_backend, is_fleet
from gossamer.frontier.base import FleetFrontier, OwnedFrontier
from gossamer.imports.importer import Finding, ImportCounts, ImportedRequest, Importer, Maker, PageMaker
from gossamer.imports.lists import read_cdxj, read_list, read_sitemap, read_warc
from gossamer.imports.scrapy_state import is_jobdir, read_jobdir, read_scrapy_redis
from gossamer.job_folder import folder_of
from gossamer.jobs.find import create_frontier, open_job
from gossamer.logs import plain
from gossamer.settings import Settings

KINDS = ("list", "sitemap", "warc", "cdxj", "jobdir", "scrapy-redis")
_IMPORTER = "import"


@click.command("import", cls=Sectioned)
@click.argument("name", metavar="JOB", shell_complete=job_names)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--from", "kind", type=click.Choice(KINDS), help="Type of the sources.  [default: detected]")
@click.option(
    "--frontier",
    default="",
    metavar="URL",
    envvar="GOSSAMER_FRONTIER",
    help="Address of the frontier, for a job of a fleet.",
)
@click.option("--done", is_flag=True, help="Mark the URLs of a list as fetched, and do not queue them.")
@click.option("--scrapy", "for_scrapy", is_flag=True, help="Import into the job of the Scrapy project in this folder.")
@click.option(
    "--source-spider", default="", metavar="NAME", help="Spider whose scrapy-redis keys are read.  [default: JOB]"
)
@click.option("--queue-key", default="", metavar="KEY", help="Queue key of scrapy-redis.  [default: NAME:requests]")
@click.option(
    "--dupefilter-key", default="", metavar="KEY", help="Dupefilter key of scrapy-redis.  [default: NAME:dupefilter]"
)
@settings_options
def take(
    name: str,
    sources: tuple[str, ...],
    kind: str | None,
    frontier: str,
    done: bool,
    for_scrapy: bool,
    source_spider: str,
    queue_key: str,
    dupefilter_key: str,
    **options: Any,
) -> int:
    """Import URLs, archives, or the state of another crawler into a job.

    \b
    gossamer import news urls.txt             queue a list of URLs
    gossamer import news urls.txt --done      mark them as fetched
    gossamer import news sitemap.xml          queue the URLs of a sitemap
    gossamer import news crawl.warc.gz        mark archived pages as fetched
    gossamer import shop crawls/shop-1        continue a Scrapy JOBDIR
    gossamer import shop redis://host:6379/0  continue a scrapy-redis crawl

    A list can be - for standard input, a sitemap can be a URL, and a .cdxj index stands for its archive. Sources are
    not modified, and no code in them is run: pickles are parsed as data.
    """
    kinds = {source: kind or kind_of(source) for source in sources}

    def findings() -> Iterator[Finding]:
        for source, what in kinds.items():
            if what == "scrapy-redis":
                yield from read_scrapy_redis(source, source_spider or name, queue=queue_key, dupefilter=dupefilter_key)
            else:
                yield from _read(source, what, done)

    quiet = all(what == "sitemap" or (what == "list" and not done) for what in kinds.values())
    work = _Work(name, frontier, given(options), for_scrapy, "scrapy-redis" in kinds.values(), must_rest=not quiet)
    tally = run(work.take(findings()))
    _print_imported(name, tally)
    return Exit.SOME_FAILED if tally.counts["refused"] else Exit.OK


def kind_of(source: str) -> str:
    """Detect the type of a source; ConfigError if it is unknown."""
    backend = find_backend(source)
    if backend is not None and backend.name == "redis":
        return "scrapy-redis"
    if source == "-":
        return "list"
    if re.match(r"https?://", source):
        return "sitemap"
    path = Path(source)
    if not path.exists():
        raise ConfigError(f"{source} does not exist", hint="check the path")
    if path.is_dir():
        if is_jobdir(path):
            return "jobdir"
        raise ConfigError(f"{source} is a folder, but not a Scrapy JOBDIR", hint="name the files in it")
    name = path.name.lower().removesuffix(".gz")
    for ending, what in ((".warc", "warc"), (".cdxj", "cdxj"), (".cdx", "cdxj"), (".xml", "sitemap"), (".txt", "list")):
        if name.endswith(ending):
            return what
    raise ConfigError(f"{source}: unknown file type", hint=f"name the type: --from {'|'.join(KINDS)}")


def _read(source: str, kind: str, done: bool) -> Iterator[Finding]:
    path = Path(source)
    if kind == "jobdir":
        return read_jobdir(path)
    if kind == "warc":
        return read_warc(path)
    if kind == "cdxj":
        return read_cdxj(path)
    if kind == "sitemap":
        is_remote = re.match(r"https?://", source)
        return iter((ImportedRequest(source, is_sitemap=True),)) if is_remote else read_sitemap(path)
    return _lines(source, done)


def _lines(source: str, done: bool) -> Iterator[Finding]:
    if source == "-":
        yield from read_list(sys.stdin, is_done=done)
        return
    with open(source, encoding="utf-8", errors="replace") as file:
        yield from read_list(file, is_done=done)


class _Work:
    """One import: opens or creates the job, and adds the findings to it."""

    def __init__(
        self, name: str, url: str, values: dict[str, Any], for_scrapy: bool, from_redis: bool, *, must_rest: bool
    ) -> None:
        self._name = name
        self._url = url
        self._values = values
        self._for_scrapy = for_scrapy
        self._from_redis = from_redis
        self._must_rest = must_rest

    async def take(self, findings: Iterator[Finding]) -> ImportCounts:
        frontier, settings, maker = await self._open()
        try:
            shards = 1
            if not isinstance(frontier, OwnedFrontier):
                shards = len(await frontier.shards())
                await self._check_rest(frontier)
                await frontier.abandon(_IMPORTER)
            before = (await frontier.counts()).job
            await frontier.steer("running")
            intake = Importer(frontier, settings, maker, clock=SystemClock(), shards=shards)
            try:
                return await intake.take(findings)
            finally:
                if before == "paused":
                    await frontier.steer("paused")
        finally:
            await frontier.aclose()

    async def _open(self) -> tuple[FleetFrontier | OwnedFrontier, Settings, Maker]:
        if self._for_scrapy:
            return await self._open_project()
        if is_fleet(self._url):
            settings = read_settings(None, {**await self._kept(), **self._values})
        else:
            settings = read_settings(folder_of(self._name, ()), self._values)
        frontier = await create_frontier(self._name, self._url, settings, worker=_IMPORTER)
        settings = settings if isinstance(frontier, OwnedFrontier) else frontier.settings
        return frontier, settings, PageMaker(settings, frontier.secret)

    async def _open_project(self) -> tuple[FleetFrontier | OwnedFrontier, Settings, Maker]:
        from gossamer.scrapy.options import open_frontier, read_options
        from gossamer.scrapy.requests import ScrapyMaker, project_settings

        project = project_settings()
        values = {**project.getdict("GOSSAMER_SETTINGS"), **self._values}
        project.set("GOSSAMER_SETTINGS", values, "cmdline")
        project.set("GOSSAMER_WORKER", _IMPORTER, "cmdline")
        project.set("GOSSAMER_JOB", self._name, "cmdline")
        if self._url:
            project.set("GOSSAMER_FRONTIER", self._url, "cmdline")
        options = read_options(project, self._name)
        frontier = await open_frontier(options, self._values)
        settings = options.settings if isinstance(frontier, OwnedFrontier) else frontier.settings
        maker = ScrapyMaker(project, frontier.secret, site_by=settings.site_by, from_scrapy_redis=self._from_redis)
        return frontier, settings, maker

    async def _kept(self) -> dict[str, Any]:
        """The settings of an existing job; empty if it is new."""
        try:
            async with open_job(self._name, self._url) as job:
                return configuration.dump(job.settings)
        except JobMissing:
            return {}

    async def _check_rest(self, fleet: FleetFrontier) -> None:
        """Raise ConfigError if the job has live workers: they could lease URLs before these are marked as fetched."""
        live = [one.worker for one in await fleet.workers() if is_live(one) and one.worker != _IMPORTER]
        if live and self._must_rest:
            raise ConfigError(
                f"job {self._name!r} has running workers: {', '.join(live[:5])}",
                hint="stop the workers, import, start them",
            )
        if not backend_of(self._url).knows_all_keys and self._for_scrapy and self._must_rest:
            raise ConfigError(
                "fingerprints cannot be imported into a folder frontier, whose shards know only their own sites",
                hint="use redis://, postgresql://, mysql://, or sqlite:",
            )


def _print_imported(name: str, tally: ImportCounts) -> None:
    counts = tally.counts
    words = (
        ("queued", "queued"),
        ("done", "marked as fetched"),
        ("seen", "fingerprints imported"),
        ("known", "already known"),
    )
    say(f"{name}: " + ", ".join(f"{counts[word]:,} {text}" for word, text in words if counts[word] or word == "queued"))
    if counts["lost"]:
        say(
            f"{counts['lost']:,} fingerprints were skipped: they cannot be converted to URLs, so their pages "
            "are fetched again if other pages link to them"
        )
        say("hint: for a Scrapy project use --scrapy; or import a list of the fetched URLs with --done")
    for change, times in sorted(tally.changed.items()):
        say(f"changed: {plain(change)}, in {times:,} request{'s' * (times != 1)}")
    for what, why, _ in tally.unread:
        say(f"skipped: {plain(what)}: {plain(why)}")
    if counts["refused"] > len(tally.unread):
        say(f"skipped: {counts['refused'] - len(tally.unread):,} more")
