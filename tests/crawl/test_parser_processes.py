from __future__ import annotations

import asyncio
from pathlib import Path

from gossamer.engine.parser_pool import ParserPool
from gossamer.model import Request, Response
from gossamer.settings import Settings

SPIDER = """
import os
import gossamer

class Deadly(gossamer.Spider):
    def parse(self, page):
        if page.url.endswith("/deadly"):
            os._exit(7)
        yield {"url": page.url}
"""


def test_a_page_that_kills_its_process_costs_none_of_those_that_wait_for_it(tmp_path: Path) -> None:
    spider = tmp_path / "deadly.py"
    spider.write_text(SPIDER)

    async def run() -> None:
        pool = ParserPool(1, Settings(spider=str(spider)))

        async def errors(*paths: str) -> list[str]:
            kind = (("content-type", "text/html"),)
            answers = [Response(url=f"http://a.example/{path}", status=200, headers=kind) for path in paths]
            found = await asyncio.gather(*(pool.extract(Request(one.url), one) for one in answers))
            return [page.error for page in found]

        try:
            for _ in range(3):
                first, *others = await errors("deadly", "one", "two")
                assert "died" in first
                assert others == ["", ""]
        finally:
            await pool.aclose()

    asyncio.run(run())
