"""The same crawl with Crawlee's ParselCrawler and its default client, 100 pages at once from the start.

In memory by its MemoryStorageClient, which is its fastest; with `--durable` by its FileSystemStorageClient, which it
resumes from, and with each body in its key-value store.
"""

import asyncio
import hashlib
import json
import os
from datetime import timedelta

from crawlee import ConcurrencySettings
from crawlee.configuration import Configuration
from crawlee.crawlers import ParselCrawler, ParselCrawlingContext
from crawlee.http_clients import ImpitHttpClient
from crawlee.storage_clients import FileSystemStorageClient, MemoryStorageClient
from wanted import wanted


async def main(choice) -> None:
    durable = choice.durable
    configuration = Configuration(
        purge_on_start=not durable, storage_dir=durable or "storage", log_level="ERROR",
        # Disable its automatic scaling, which depends on the load of the machine.
        max_used_cpu_ratio=1.0, max_event_loop_delay=timedelta(seconds=10), available_memory_ratio=0.9,
    )  # fmt: skip
    crawler = ParselCrawler(
        configuration=configuration,
        storage_client=FileSystemStorageClient() if durable else MemoryStorageClient(),
        # It supports no custom authority: certificates are not verified, which is in its favor.
        http_client=ImpitHttpClient(verify=not choice.ca_file, browser=None),
        concurrency_settings=ConcurrencySettings(min_concurrency=100, desired_concurrency=100, max_concurrency=100),
        max_request_retries=0,
        use_session_pool=False,
        configure_logging=False,
    )
    with open(choice.output, "a") as file:  # noqa: ASYNC230

        @crawler.router.default_handler
        async def handle(context: ParselCrawlingContext) -> None:
            url = context.request.url
            if durable:
                store = await context.get_key_value_store()
                body = await context.http_response.read()
                await store.set_value(hashlib.sha256(url.encode()).hexdigest(), body, content_type="text/html")
            await context.enqueue_links(strategy="same-hostname")
            row = {"url": url, "title": context.selector.css("title::text").get()}
            file.write(json.dumps(row) + "\n")
            if durable:
                file.flush()

        await crawler.run(open(choice.seeds).read().split())  # noqa: ASYNC230


if __name__ == "__main__":
    os.environ.setdefault("CRAWLEE_LOG_LEVEL", "ERROR")
    asyncio.run(main(wanted()))
