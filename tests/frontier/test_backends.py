from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gossamer.clock import SystemClock
from gossamer.errors import ConfigError, Held, JobMissing
from gossamer.frontier.backends import (
    ability,
    backend_of,
    is_address,
    is_fleet,
    list_jobs,
    open_fleet,
    owned_backend,
    owned_url,
    remove_job,
)
from gossamer.frontier.base import Compacts
from gossamer.model import Request
from gossamer.settings import Settings


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("", "sqlite"), ("sqlite", "sqlite"), ("sqlite:crawls/x", "sqlite"), ("memory:", "sqlite"),
        ("redis://h:6379/0", "redis"), ("rediss://h", "redis"), ("redis+sentinel://h/s", "redis"),
        ("unix:///s", "redis"),
        ("postgres://h/d", "postgresql"), ("postgresql://h/d,postgresql://i/d", "postgresql"),
        ("mariadb://h/d", "mysql"), ("mysql://h/d", "mysql"), ("folder:/mnt/x", "folder"),
    ],
)  # fmt: skip
def test_an_address_names_its_backend(url: str, name: str) -> None:
    assert backend_of(url).name == name


@pytest.mark.parametrize(
    ("url", "meant"),
    [("reddis://h:6379", "redis://"), ("postgre://h", "postgres"), ("foldr:/mnt", "folder:/"), ("Redis://h", "redis://")],
)  # fmt: skip
def test_a_mistyped_scheme_gets_a_suggestion(url: str, meant: str) -> None:
    with pytest.raises(ConfigError) as refused:
        backend_of(url)
    assert f"did you mean {meant}" in refused.value.hint
    for form in ("sqlite", "memory:", "redis://", "unix://", "postgresql://", "mysql://", "folder:/path"):
        assert form in refused.value.hint


def test_a_password_in_a_wrong_address_is_hidden() -> None:
    with pytest.raises(ConfigError) as refused:
        backend_of("reddis://me:secret@h:6379")
    assert "secret" not in f"{refused.value} {refused.value.hint}"


def test_an_unsupported_operation_names_the_backends_that_support_it() -> None:
    with pytest.raises(ConfigError, match="only jobs in postgresql or mysql can be compacted"):
        ability("redis://h", Compacts, "compacted")  # type: ignore[type-abstract]


def test_a_job_with_an_owner_is_no_fleet() -> None:
    assert [is_fleet(url) for url in ("", "memory:", "folder:/mnt")] == [False, False, True]
    assert [is_address(text) for text in ("redis://h", "folder:x", "reddis://h", "shop")] == [True, True, True, False]
    with pytest.raises(ConfigError, match="a fleet's frontier is a server"):
        asyncio.run(open_fleet("", "x"))
    with pytest.raises(ConfigError, match="has no owner"):
        owned_backend("redis://h")
    with pytest.raises(ConfigError) as refused:
        is_fleet("sqlite:/data/x")
    assert "--job /data/x" in refused.value.hint


def test_an_embedded_job_is_made_opened_and_removed(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    url, clock = owned_url("", folder), SystemClock()
    backend = owned_backend(url)

    async def run() -> None:
        with pytest.raises(JobMissing):
            await backend.open(url, "shop", clock=clock)
        made = await backend.create(url, "shop", Settings(delay=0.25), clock=clock)
        await made.add([Request("https://a.example/", 1, "a.example")])
        with pytest.raises(Held):
            await remove_job(url, "shop")
        await made.aclose()
        assert await list_jobs(f"sqlite:{tmp_path}") == ["shop"]
        again = await backend.open(url, "shop", clock=clock)
        assert (await again.counts()).queued == 1
        await again.aclose()
        assert backend.settings(url, "shop") == Settings(delay=0.25)
        (folder / "pages.jsonl").write_text("{}\n")
        assert await remove_job(url, "shop")
        assert not await remove_job(url, "shop")

    asyncio.run(run())
    assert not [path.name for path in folder.glob("frontier.db*") if path.name != "frontier.db-owner"]
    assert (folder / "pages.jsonl").read_text() == "{}\n"
