"""A hand-written crawler with aiohttp and selectolax: no durability, no politeness, no limits."""

import asyncio
import json
import ssl
from urllib.parse import urldefrag, urljoin, urlsplit

import aiohttp
import uvloop
from selectolax.lexbor import LexborHTMLParser
from wanted import wanted


async def main(choice) -> None:
    seeds = open(choice.seeds).read().split()  # noqa: ASYNC230
    seen = set(seeds)
    queue: asyncio.Queue[str] = asyncio.Queue()
    for url in seeds:
        queue.put_nowait(url)
    context = ssl.create_default_context(cafile=choice.ca_file) if choice.ca_file else True
    connector = aiohttp.TCPConnector(limit=100, ssl=context)
    async with aiohttp.ClientSession(connector=connector) as session:
        with open(choice.output, "w") as file:  # noqa: ASYNC230

            async def work() -> None:
                while True:
                    url = await queue.get()
                    try:
                        async with session.get(url) as response:
                            body = await response.read()
                        tree = LexborHTMLParser(body)
                        title = tree.css_first("title")
                        hrefs = {node.attributes.get("href") for node in tree.css("a[href]")}
                        own = urlsplit(url).netloc
                        for href in hrefs:
                            link = urldefrag(urljoin(url, href or "")).url
                            if link not in seen and urlsplit(link).netloc == own:
                                seen.add(link)
                                queue.put_nowait(link)
                        row = {
                            "url": url,
                            "status": response.status,
                            "title": title.text() if title else "",
                            "links": len(hrefs),
                        }
                        file.write(json.dumps(row) + "\n")
                    finally:
                        queue.task_done()

            workers = [asyncio.create_task(work()) for _ in range(100)]
            await queue.join()
            for worker in workers:
                worker.cancel()


if __name__ == "__main__":
    uvloop.run(main(wanted()))
