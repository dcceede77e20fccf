"""Real sites: documentation from Debian packages, served compressed by a local nginx, crawled by Gossamer and Scrapy.

    python benchmarks/real_sites.py [--runs 3] [--only gossamer scrapy script]

It serves the packages python3-doc, debian-handbook, and postgresql-doc-15, each on its own loopback address, by nginx
with its configuration in a temporary folder; missing packages are installed with apt. All crawlers start at the front
page of each and follow the links on its host, as in peers.py. CPU is that of the crawler's process tree, without nginx,
in milliseconds per stored page; the log of nginx shows which pages were fetched.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple, Self, cast

from _contenders import CONTENDERS, Contender, Scene
from _fleet import urls
from _peers import NotInstalled, environment, version
from _shapes import Shape
from _tally import Running
from gossamer.lab.simweb.process import SimWeb
from gossamer.lab.simweb.site import WebPlan

PACKAGES = {
    "python3-doc": (Path("/usr/share/doc/python3/html"), "/index.html"),
    "debian-handbook": (Path("/usr/share/doc/debian-handbook/html"), "/en-US/index.html"),
    "postgresql-doc-15": (Path("/usr/share/doc/postgresql-doc-15/html"), "/index.html"),
}
"""Package -> its folder and its front page."""
REAL = Shape("real", "", WebPlan(sites=len(PACKAGES)))
WANTED = ("gossamer", "scrapy, own seen set", "scrapy", "aiohttp + selectolax script")
DEADLINE_SECONDS = 900.0
CONFIGURATION = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/errors.log;
events {{ worker_connections 1024; }}
http {{
  include /etc/nginx/mime.types; sendfile on; gzip on; gzip_comp_level 1; gzip_min_length 256;
  gzip_types text/plain text/css application/javascript;
  log_format benchmark '$status http://$server_addr:$server_port$request_uri';
  access_log {folder}/requests.log benchmark;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
{servers}
}}
"""


class Nginx:
    """Runs nginx during a block, with one loopback address for each package."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="real-sites-"))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        servers, self.seeds = [], []
        for number, (root, front) in enumerate(PACKAGES.values(), 1):
            host = f"127.0.0.{number}"
            servers.append(f"  server {{ listen {host}:{port}; root {root.resolve()}; }}")
            self.seeds.append(f"http://{host}:{port}{front}")
        configuration = CONFIGURATION.format(folder=self._folder, servers="\n".join(servers))
        (self._folder / "nginx.conf").write_text(f"user root;\n{configuration}" if os.geteuid() == 0 else configuration)
        self._address = ("127.0.0.1", port)

    def __enter__(self) -> Self:
        program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
        assert program is not None
        self._process = subprocess.Popen([program, "-p", str(self._folder), "-c", str(self._folder / "nginx.conf")])
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(self._address).close()
                return self
            except OSError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    sys.exit(f"nginx does not start: {(self._folder / 'errors.log').read_text()}")
                time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._folder)

    def fetched(self) -> Counter[str]:
        """Number of responses with status 200 per URL since the last call."""
        path = self._folder / "requests.log"
        lines = path.read_text().splitlines()
        os.truncate(path, 0)
        return Counter(line[4:] for line in lines if line.startswith("200 "))


class Crawl(NamedTuple):
    """CPU and fetched pages of one crawl."""

    cost: float
    """CPU milliseconds per page."""
    stored: set[str]
    requests: int
    repeated: int


def crawl(contender: Contender, web: Nginx) -> Crawl:
    with tempfile.TemporaryDirectory(prefix="real-sites-") as name:
        folder = Path(name)
        # The commands need seeds and folder only: these sites have no TLS and no plan.
        program = environment(contender.environment) if contender.environment else Path()
        scene = Scene(cast(SimWeb, web), folder, REAL, program)
        scene.seeds.write_text("\n".join(web.seeds))
        web.fetched()
        running = Running(contender.command(scene, ""), folder / "cost.json")
        cost = running.cost(DEADLINE_SECONDS)
        fetched = web.fetched()
        stored = {url for path in scene.outputs() for url in urls(path)} & set(fetched)
        # Ignore the exit code: real sites have broken links.
        if cost is None or not stored:
            sys.exit(f"{contender.name} failed: {running.errors.read_text(errors='replace')[-600:]}")
        requests = sum(fetched.values())
        return Crawl(cost.cpu_seconds / len(stored) * 1000, stored, requests, requests - len(fetched))


def install() -> None:
    missing = [name for name, (root, front) in PACKAGES.items() if not Path(f"{root}{front}").exists()]
    if shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        missing.append("nginx-light")
    if missing:
        command = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
        if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
            sys.exit(f"!!! NOT RUN: needs the Debian packages {', '.join(missing)}, and apt-get failed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[""], help="contenders whose name contains one of these")
    choice = parser.parse_args()
    install()
    wanted = [
        one
        for one in CONTENDERS
        if one.name == "gossamer" or (one.name in WANTED and any(part in one.name for part in choice.only))
    ]
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for name in dict.fromkeys(one.environment for one in wanted if one.environment):
        try:
            print(f"  {name} {version(name)}", flush=True)
        except NotInstalled as error:
            print(f"!!! {name} COULD NOT BE INSTALLED HERE AND IS NOT RUN: {error}")
            wanted = [one for one in wanted if one.environment != name]
    crawls: dict[str, list[Crawl]] = {one.name: [] for one in wanted}
    with Nginx() as web:
        for number in range(choice.runs):
            turn = number % len(wanted)
            for contender in wanted[turn:] + wanted[:turn]:
                found = crawl(contender, web)
                crawls[contender.name].append(found)
                print(
                    f"  run {number + 1}: {contender.name:30} {found.cost:7.2f} ms a page, {len(found.stored)} pages, "
                    f"{found.requests} requests, {found.repeated} repeated",
                    flush=True,
                )
    ours = crawls["gossamer"]
    print(f"\n{'':30}{'CPU ms a page':>15}{'times':>9}{'pages':>9}{'not by gossamer':>17}")
    for name, runs in crawls.items():
        times = statistics.median(run.cost / own.cost for run, own in zip(runs, ours))
        only = len(runs[0].stored - ours[0].stored)
        print(
            f"{name:30}{statistics.median(run.cost for run in runs):15.2f}{times:9.1f}{len(runs[0].stored):9}{only:17}"
        )


if __name__ == "__main__":
    main()
