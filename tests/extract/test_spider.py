from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gossamer.errors import ConfigError, ExtractError
from gossamer.extract.page import Page
from gossamer.extract.spider import FieldSpider, Spider, load
from gossamer.model import Request, Response

URL = "http://a.example/"


def page(html: str, label: str = "") -> Page:
    headers = (("content-type", "text/html; charset=utf-8"),)
    return Page(Response(url=URL, status=200, headers=headers, body=html.encode()), Request(url=URL, label=label))


class Shop(Spider):
    start = ("http://a.example/",)
    settings: ClassVar[dict[str, Any]] = {"delay": 2.0}

    def parse(self, page: Page) -> Iterator[Any]:
        yield {"url": page.url}

    async def parse_product(self, page: Page) -> AsyncIterator[Any]:
        yield {"title": page.title}


def test_default_spider_follows_links_and_extracts_nothing() -> None:
    assert Spider.follows_links
    assert Spider().handler("")(page("<p>x")) is None


def test_a_spider_with_its_own_parse_follows_only_what_it_yields() -> None:
    assert not Shop.follows_links

    class Tuned(Spider):
        settings: ClassVar[dict[str, Any]] = {"delay": 0}

        def parse_product(self, page: Page) -> None: ...

    class Both(Shop):
        follows_links = True

    class Heir(Shop):
        pass

    assert Tuned.follows_links
    assert Both.follows_links
    assert not Heir.follows_links


def test_spider_name_defaults_to_its_class() -> None:
    class Named(Spider):
        name = "shop"

    assert (Shop.name, Named.name) == ("Shop", "shop")


def test_label_selects_the_handler() -> None:
    spider = Shop()
    assert list(spider.handler("")(page("<p>"))) == [{"url": URL}]  # type: ignore[arg-type]
    found = spider.handler("product")(page("<title>t</title>", "product"))
    assert inspect.isasyncgen(found)

    async def gather() -> list[Any]:
        return [item async for item in found]

    assert asyncio.run(gather()) == [{"title": "t"}]


@pytest.mark.parametrize("label", ["nosuch", "middleware", "x y", "__class__"])
def test_an_unknown_label_is_named_with_the_spider(label: str) -> None:
    with pytest.raises(ExtractError) as error:
        Shop().handler(label)
    assert "Shop" in str(error.value)
    assert repr(label) in str(error.value)


def test_field_spider_yields_one_item_with_the_fields_found() -> None:
    spider = FieldSpider({"title": "h1::text", "links": "a::attr(href)", "price": ".price::text"})
    assert spider.follows_links
    assert spider.parse(page("<h1>T</h1><a href=/1>1</a><a href=/2>2</a>")) == [
        {"url": URL, "title": "T", "links": ["/1", "/2"]}
    ]
    assert spider.parse(page("<p>nothing")) == []


def test_field_spider_refuses_a_bad_selector_before_the_crawl() -> None:
    with pytest.raises(ConfigError, match=r"title.*'h1\['"):
        FieldSpider({"title": "h1["})


SPIDER = """
import gossamer
class {name}(gossamer.Spider):
    start = ['http://x/']
    def parse(self, page):
        yield 1
""".lstrip()


def test_a_spider_is_loaded_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "one.py"
    file.write_text(SPIDER.format(name="One"))
    found = load(str(file))
    assert issubclass(found, Spider)
    assert list(found.start) == ["http://x/"]
    assert load(f"{file}:One").__name__ == "One"


def test_dataclass_items_in_a_spider_file_work(tmp_path: Path) -> None:
    file = tmp_path / "items.py"
    lines = "from __future__ import annotations\nimport dataclasses\n@dataclasses.dataclass\nclass Item:\n    a: int\n"
    file.write_text(lines + SPIDER.format(name="One"))
    assert load(str(file)).__name__ == "One"


def test_two_files_of_one_name_are_two_spiders(tmp_path: Path) -> None:
    found = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        file = tmp_path / folder / "json.py"
        file.write_text(SPIDER.format(name=f"Of{folder.upper()}"))
        found.append(load(str(file)).__name__)
    assert found == ["OfA", "OfB"]


def test_a_spider_is_loaded_from_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_spiders.py").write_text(SPIDER.format(name="One") + SPIDER.format(name="Two"))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load("shop_spiders:Two").__name__ == "Two"


@pytest.mark.parametrize(
    ("source", "reference", "words", "hint"),
    [
        (None, "{file}", "no such file", "path of a Python file"),
        ("x = 1\n", "{file}", "defines no spider", "inherits from gossamer.Spider"),
        (SPIDER.format(name="A") + SPIDER.format(name="B"), "{file}", "has 2 spiders", ":A"),
        (SPIDER.format(name="A"), "{file}:B", "B does not exist", "it has A"),
        ("class B: pass\n", "{file}:B", "not a subclass", "inherit from gossamer.Spider"),
        ("x = 1\ndef broken(:\n", "{file}", "line 2", "fix the file"),
        ("x = 1\n\nboom()\n", "{file}", "line 3: NameError", ""),
        (None, "nosuchmodule:Spider", "no module named nosuchmodule", "spider.py"),
        (None, "json:NoSuch", "NoSuch does not exist", "defines no Spider"),
    ],
)
def test_invalid_spider_references_are_explained(
    tmp_path: Path, source: str | None, reference: str, words: str, hint: str
) -> None:
    file = tmp_path / "spider.py"
    if source is not None:
        file.write_text(source)
    with pytest.raises(ConfigError) as error:
        load(reference.format(file=file))
    assert words in str(error.value)
    assert hint in error.value.hint


def test_imported_spider_is_not_the_files_own(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("from gossamer.extract.spider import FieldSpider\n" + SPIDER.format(name="Own"))
    assert load(str(file)).__name__ == "Own"
