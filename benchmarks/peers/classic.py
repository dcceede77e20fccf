"""A plain script: requests and html5lib over a list of sites, one page each, on 16 threads or 16 processes."""

import json
import os
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import html5lib
import requests
from wanted import wanted

WORKERS = 16
SECONDS = float(os.environ.get("TIMEOUT", "5"))


def fetch(url):
    try:
        response = requests.get(url, timeout=SECONDS)
    except requests.RequestException:
        return None
    tree = html5lib.parse(response.content, namespaceHTMLElements=False)
    title = tree.find(".//title")
    return {"url": url, "title": title.text if title is not None else "", "links": len(tree.findall(".//a[@href]"))}


def main():
    choice = wanted()
    pool = (ProcessPoolExecutor if choice.processes else ThreadPoolExecutor)(WORKERS)
    with pool, open(choice.output, "w") as file:
        for row in pool.map(fetch, open(choice.seeds).read().split()):
            if row:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
