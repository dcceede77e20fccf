"""The crawler of many tutorials: requests and BeautifulSoup on 16 threads, or with `--processes` on 16 processes."""

import json
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from queue import SimpleQueue
from threading import local
from urllib.parse import urldefrag, urljoin, urlsplit

import requests
from bs4 import BeautifulSoup
from wanted import wanted

WORKERS = 16
MINE = local()


def fetch(url, ca_file):
    """A page's row, and its links on the same host."""
    # A session is not safe to share between threads.
    if not hasattr(MINE, "session"):
        MINE.session = requests.Session()
    response = MINE.session.get(url, timeout=30, verify=ca_file or True)
    soup = BeautifulSoup(response.content, "lxml")
    links = {urldefrag(urljoin(url, anchor["href"])).url for anchor in soup.find_all("a", href=True)}
    own = urlsplit(url).netloc
    title = soup.title.get_text() if soup.title else ""
    row = {"url": url, "status": response.status_code, "title": title, "links": len(links)}
    return row, [link for link in links if urlsplit(link).netloc == own]


def main():
    choice = wanted()
    seeds = open(choice.seeds).read().split()
    seen = set(seeds)
    pool = (ProcessPoolExecutor if choice.processes else ThreadPoolExecutor)(WORKERS)
    over = SimpleQueue()

    def go(url):
        pool.submit(fetch, url, choice.ca_file).add_done_callback(over.put)

    with pool, open(choice.output, "w") as file:
        for url in seeds:
            go(url)
        left = len(seeds)
        while left:
            row, links = over.get().result()
            left -= 1
            file.write(json.dumps(row) + "\n")
            for link in links:
                if link not in seen:
                    seen.add(link)
                    left += 1
                    go(link)


if __name__ == "__main__":
    main()
