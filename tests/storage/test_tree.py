from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path

import pytest

from gossamer.errors import SinkFull
from gossamer.model import PageRow, Record
from gossamer.storage.tree import Tree, TreeSink, place_of


def store(folder: Path, *records: Record) -> None:
    async def run() -> None:
        sink = TreeSink(folder)
        await sink.write(records)
        await sink.aclose()

    asyncio.run(run())


def record(url: str, *, status: int = 200, body: bytes = b"", found: tuple[str, ...] = (), **row: str) -> Record:
    return Record(key=1, token=1, page=PageRow(url=url, status=status, **row), body=body, found=found)  # type: ignore[arg-type]


def key(url: str) -> str:
    return hashlib.sha224(url.encode()).hexdigest()[:24]


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_page_and_links_are_plain_files(tmp_path: Path) -> None:
    url, links = "http://a.example:8080/x?y=ä", ("http://a.example:8080/1", "https://b.example/")
    store(tmp_path, record(url, body=b"<p>\xff", found=links))
    name = f"a.example:8080/{key(url)}"
    assert files(tmp_path) == [f"htmls/{name}", f"links/{name}"]
    assert (tmp_path / "htmls" / name).read_bytes() == b"<p>\xff"
    assert json.loads((tmp_path / "links" / name).read_text()) == list(links)


@pytest.mark.parametrize("row", [{"status": 404}, {"status": 0, "error": "timeout"}, {"error": "spider: x"}])
def test_an_error_is_an_empty_file(tmp_path: Path, row: dict[str, object]) -> None:
    store(tmp_path, record("http://a.example/", **row))  # type: ignore[arg-type]
    assert files(tmp_path) == [f"errs/a.example/{key('http://a.example/')}"]
    assert (tmp_path / files(tmp_path)[0]).read_bytes() == b""


def test_redirect_is_stored_under_its_target(tmp_path: Path) -> None:
    store(tmp_path, record("http://a.example/", status=301, location="http://b.example/"))
    ((_, links),) = Tree(tmp_path).links()
    assert links == ("http://b.example/",)


def test_unchanged_page_is_kept(tmp_path: Path) -> None:
    url = "http://a.example/"
    store(tmp_path, record(url, body=b"old", found=("http://a.example/1",)))
    store(tmp_path, record(url, status=304))
    assert (tmp_path / "htmls" / "/".join(place_of(url))).read_bytes() == b"old"
    assert list(Tree(tmp_path).links()) == [("a.example", ("http://a.example/1",))]


def test_refetched_page_replaces_the_old_one(tmp_path: Path) -> None:
    for body in (b"old", b"new"):
        store(tmp_path, record("http://a.example/", body=body))
    assert (tmp_path / "htmls" / "/".join(place_of("http://a.example/"))).read_bytes() == b"new"
    assert len(files(tmp_path)) == 2


def test_error_is_stored_beside_the_old_page(tmp_path: Path) -> None:
    url = "http://a.example/"
    names = [f"{kind}/a.example/{key(url)}" for kind in ("errs", "htmls", "links")]
    store(tmp_path, record(url, body=b"old"))
    store(tmp_path, record(url, status=503))
    assert files(tmp_path) == names
    store(tmp_path, record(url, body=b"new"))
    assert files(tmp_path) == names[1:]


def test_f49_unmounted_folder_is_waited_for_and_not_created(tmp_path: Path) -> None:
    async def run() -> None:
        sink = TreeSink(tmp_path / "mount")
        await sink.write([record("http://a.example/1")])
        (tmp_path / "mount").rename(tmp_path / "away")
        (tmp_path / "mount").mkdir()
        with pytest.raises(SinkFull, match="No such file"):
            await sink.write([record("http://a.example/2")])
        assert files(tmp_path / "mount") == []
        (tmp_path / "mount").rmdir()
        (tmp_path / "away").rename(tmp_path / "mount")
        await sink.write([record("http://a.example/2")])
        await sink.aclose()

    asyncio.run(run())
    assert len(files(tmp_path / "mount" / "htmls")) == 2


@pytest.mark.parametrize("url", ["http://../x", "http://./x", "http:///x", "x", "http://" + "a" * 300 + "/x"])
def test_file_names_cannot_escape_the_folder(tmp_path: Path, url: str) -> None:
    store(tmp_path / "tree", record(url, body=b"x"))
    assert len(files(tmp_path)) == 2
    assert all(name.startswith(("tree/htmls/_", "tree/links/_")) for name in files(tmp_path))


def test_a_tree_of_another_program_is_read(tmp_path: Path) -> None:
    assert not Tree(tmp_path)
    for kind, url, text in (
        ("htmls", "http://a.example/", "<p>"),
        ("links", "http://a.example/", '["http://a.example/1", "http://b.example/"]'),
        ("errs", "http://a.example/bad", ""),
        ("links", "http://a.example/broken", "{"),
    ):
        path = tmp_path / kind / "a.example" / key(url)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    tree = Tree(tmp_path)
    assert tree
    assert [tree.has(f"http://a.example/{path}") for path in ("", "bad", "1")] == [True, True, False]
    assert not tree.has("http://b.example/")
    assert list(tree.links()) == [("a.example", ("http://a.example/1", "http://b.example/"))]
