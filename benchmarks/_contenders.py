"""The compared crawlers: their commands for each shape, and their properties."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from _linked_web import LinkedWeb
from _peers import SCRIPTS
from _shapes import SHAPES, Shape
from gossamer.lab.simweb.process import SimWeb

ALL = frozenset(SHAPES)
MEMORY_ONLY = ALL - {"durable"}
PLAIN = MEMORY_ONLY - {"tls"}


class Scene(NamedTuple):
    """Files and settings of one crawl."""

    web: SimWeb | LinkedWeb
    folder: Path
    shape: Shape
    program: Path
    """The crawler's program in its environment."""

    @property
    def seeds(self) -> Path:
        return self.folder / "seeds.txt"

    @property
    def output(self) -> Path:
        return self.folder / "pages.jsonl"

    def outputs(self) -> list[Path]:
        """All possible output files."""
        return [*self.folder.glob("pages.jsonl*"), *self.folder.glob("job/pages*.jsonl")]


class Contender(NamedTuple):
    """One crawler."""

    name: str
    environment: str
    """Its name in _peers.py; empty for Gossamer."""
    command: Callable[[Scene, str], list[str]]
    """Builds the command from the scene and the address of a Redis server."""
    shapes: frozenset[str] = ALL
    base: str = "gossamer"
    """The crawler to compare its CPU with."""
    needs_redis: bool = False
    resumes: bool = False
    stores_files: bool = False
    """Whether it stores only bodies; then every response of the server counts as stored."""
    may_fail: bool = False
    """Whether to ignore its exit code; wget2 fails if any page failed."""


def gossamer(scene: Scene, redis_url: str, *, workers: int = 1) -> list[str]:
    shape = scene.shape
    return [
        sys.executable, "-m", "gossamer", "crawl", "--seeds", str(scene.seeds), "--job", str(scene.folder / "job"),
        "--no-robots", "--delay", "0", "--allow-private", "--concurrency", "100", "--quiet",
        *(("--frontier", redis_url) if redis_url else ()),
        *(("--workers", str(workers)) if workers > 1 else ()),
        *(("--per-site", "100", "--site-share", "1") if shape.plan.sites == 1 else ()),
        *(("--ca-file", str(scene.web.ca_file)) if shape.plan.tls else ()),
        *(("--sink", "jsonl", "--sink", "warc") if shape.is_durable else ()),
    ]  # fmt: skip


def python(scene: Scene, redis_url: str, *, script: str, options: tuple[str, ...] = ()) -> list[str]:
    return [
        str(scene.program), str(SCRIPTS / script), str(scene.seeds), str(scene.output), *options,
        *(("--ca-file", str(scene.web.ca_file)) if scene.shape.plan.tls else ()),
        *(("--redis", redis_url) if redis_url else ()),
        *(("--durable", str(scene.folder / "durable")) if scene.shape.is_durable else ()),
    ]  # fmt: skip


def spider(scene: Scene, _: str) -> list[str]:
    ca_file = (f"SSL_CERT_FILE={scene.web.ca_file}",) if scene.shape.plan.tls else ()
    return [
        "env",
        *ca_file,
        "node",
        str(SCRIPTS / "spider_crawl.js"),
        str(scene.program),
        str(scene.seeds),
        str(scene.output),
    ]


def native(scene: Scene, _: str, *, mode: str, gogc: str = "") -> list[str]:
    variables = ("env", f"GOGC={gogc}") if gogc else ()
    return [*variables, str(scene.program), str(scene.seeds), str(scene.output), mode]


def wget2(scene: Scene, _: str) -> list[str]:
    return [
        str(scene.program), "--recursive", "--level=0", "--max-threads=100", "--robots=off", "--quiet", "--tries=1",
        f"--input-file={scene.seeds}", f"--directory-prefix={scene.folder / 'files'}",
        *((f"--ca-certificate={scene.web.ca_file}",) if scene.shape.plan.tls else ()),
    ]  # fmt: skip


def _fleet(workers: int) -> list[Contender]:
    word = "1 worker" if workers == 1 else f"{workers} workers"
    run = partial(python, script="scrapy_redis_crawl.py", options=("--workers", str(workers)))
    ours = f"gossamer on Redis, {word}"
    shapes = frozenset({"40kb", "durable"})
    return [
        Contender(ours, "", partial(gossamer, workers=workers), shapes, needs_redis=True, resumes=True),
        Contender(f"scrapy-redis, {word}", "scrapy-redis", run, shapes, ours, needs_redis=True, resumes=True),
    ]


CONTENDERS = [
    Contender("gossamer", "", gossamer, resumes=True),
    Contender("gossamer, 2 workers", "", partial(gossamer, workers=2), frozenset({"40kb", "durable"}), resumes=True),
    Contender("aiohttp + selectolax script", "script", partial(python, script="script.py"), MEMORY_ONLY),
    Contender("wget2 (files, no titles)", "wget2", wget2, MEMORY_ONLY, stores_files=True, may_fail=True),
    Contender("spider (Rust), a Website a host", "spider-native", partial(native, mode="hosts"), PLAIN),
    Contender('spider (Rust), "*"', "spider-native", partial(native, mode="star"), frozenset({"links"})),
    Contender("colly (Go), own seen set", "colly", partial(native, mode="seen", gogc="400"), PLAIN),
    Contender("colly (Go), as documented", "colly", partial(native, mode="plain"), PLAIN),
    Contender("Rust floor, html5ever", "floor", partial(native, mode="tree"), PLAIN),
    Contender("Rust floor, lol_html", "floor", partial(native, mode="stream"), PLAIN),
    Contender("spider (Node package)", "spider", spider, MEMORY_ONLY),
    Contender(
        "scrapy, own seen set", "scrapy", partial(python, script="scrapy_crawl.py", options=("--seen",)), MEMORY_ONLY
    ),
    Contender("scrapy", "scrapy", partial(python, script="scrapy_crawl.py"), resumes=True),
    Contender("crawlee", "crawlee", partial(python, script="crawlee_crawl.py"), resumes=True),
    Contender(
        "requests + bs4, 16 processes",
        "requests",
        partial(python, script="requests_crawl.py", options=("--processes",)),
        MEMORY_ONLY,
    ),
    Contender("requests + bs4, 16 threads", "requests", partial(python, script="requests_crawl.py"), MEMORY_ONLY),
    *_fleet(1),
    *_fleet(2),
]
