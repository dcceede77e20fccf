"""Concurrency control: the number of concurrent fetches follows the load of the machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from gossamer.engine.concurrency import FLOOR, Load, Machine, Slots, first_limit, next_limit, regulate
from gossamer.lab import virtual_time
from gossamer.lab.virtual_time import LoopClock

CALM = Load(0.01, 0.4, 0.5)


@pytest.mark.parametrize(
    ("load", "limit"),
    [
        (CALM, 64),
        (Load(0.6), 57),
        (Load(0.3, 0.5), 64),
        (Load(0.3, 0.95), 57),
        (Load(0.05, 1.0), 64),
        (Load(0.0, 0.0, 0.91), 57),
        (Load(0.0, 0.0, 0.96), 32),
    ],
)
def test_lag_and_memory_lower_the_concurrency_and_cpu_alone_does_not(load: Load, limit: int) -> None:
    assert next_limit(64, load, most=64, used=64) == limit


def test_concurrency_rises_only_while_slots_are_used_up_to_the_setting() -> None:
    assert next_limit(20, CALM, most=64, used=20) == 22
    assert next_limit(20, CALM, most=64, used=10) == 20
    assert next_limit(20, Load(0.01, 0.95), most=64, used=20) == 20
    assert next_limit(20, Load(0.01, 0.1, 0.87), most=64, used=20) == 20
    assert next_limit(63, CALM, most=64, used=63) == 64


def test_concurrency_never_falls_below_the_floor() -> None:
    limit = 1000
    for _ in range(100):
        limit = next_limit(limit, Load(9.0, 1.0, 0.99), most=1000, used=limit)
    assert limit == FLOOR
    assert next_limit(2, Load(9.0, 1.0, 0.99), most=2, used=2) == 2


def test_concurrency_is_lowered_from_the_slots_in_use() -> None:
    assert next_limit(1000, Load(1.0), most=1000, used=100) == 90


def test_a_small_container_starts_with_lower_concurrency() -> None:
    def first(free_bytes: int | None) -> int:
        return first_limit(64, free_bytes=free_bytes, page_bytes=10 << 20)

    assert [first(None), first(8 << 30), first(1 << 30), first(200 << 20), first(0)] == [64, 64, 43, 8, 8]
    assert first_limit(2, free_bytes=0, page_bytes=1) == 2


class Weather:
    """A load that depends on the hour."""

    def __init__(self, memory: float = 0.1) -> None:
        self.memory = memory

    def shares(self, elapsed_seconds: float) -> tuple[float, float]:
        assert elapsed_seconds == pytest.approx(1.0)
        return 0.2, self.memory


def test_concurrency_follows_memory_in_virtual_time() -> None:
    seen: list[int] = []

    async def main() -> None:
        slots, weather, clock = Slots(100), Weather(), LoopClock()

        async def fetch() -> None:
            while True:
                async with slots:
                    await clock.sleep(0.05)

        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(fetch()) for _ in range(200)]
            running.append(
                tasks.create_task(regulate(slots, cast(Any, weather), clock, changed=lambda: seen.append(slots.limit)))
            )
            await clock.sleep(10)
            assert (slots.limit, slots.used, seen) == (100, 100, [])
            weather.memory = 0.97
            await clock.sleep(10)
            assert (slots.limit, slots.used) == (FLOOR, FLOOR)
            weather.memory = 0.88
            await clock.sleep(10)
            assert slots.limit == FLOOR
            weather.memory = 0.2
            await clock.sleep(60)
            assert slots.limit == 100
            assert slots.used == 100
            for task in running:
                task.cancel()

    virtual_time.run(main())
    assert seen[:3] == [50, 25, 12]


def test_a_slot_whose_waiter_is_cancelled_is_not_lost() -> None:
    async def main() -> None:
        slots = Slots(1)
        async with asyncio.TaskGroup() as tasks:
            async with slots:
                first, second = (tasks.create_task(_enter(slots)) for _ in range(2))
                await asyncio.sleep(0)
                first.cancel()
                await asyncio.sleep(0)
            await second
        assert (slots.used, slots.limit) == (0, 1)

    asyncio.run(main())


async def _enter(slots: Slots) -> None:
    async with slots:
        await asyncio.sleep(0)


def machine(root: Path, files: dict[str, str]) -> Machine:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Machine(root)


MIB = 1 << 20
MEMINFO = "MemTotal: 8388608 kB\nMemFree: 100 kB\nMemAvailable: 419430 kB\n"


def test_the_tightest_cgroup_v2_limit_counts(tmp_path: Path) -> None:
    pod = "sys/fs/cgroup/pod"
    found = machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/worker\n",
            "proc/self/statm": "100 50 1\n",
            "proc/meminfo": MEMINFO,
            f"{pod}/worker/memory.max": "max\n",
            f"{pod}/worker/memory.current": f"{600 * MIB}\n",
            f"{pod}/memory.max": f"{1000 * MIB}\n",
            f"{pod}/memory.current": f"{950 * MIB}\n",
            f"{pod}/memory.stat": f"anon 5\ninactive_file {150 * MIB}\n",
            f"{pod}/cpu.max": "50000 100000\n",
            f"{pod}/worker/cpu.stat": "usage_usec 1000000\n",
        },
    )
    assert found.memory() == pytest.approx(0.8)
    assert found.free_bytes() == 200 * MIB
    assert Machine(tmp_path, workers=4).free_bytes() == 50 * MIB, "four begin together"
    (tmp_path / pod / "worker" / "cpu.stat").write_text("usage_usec 1450000\n")
    processor, memory = found.shares(1.0)
    assert (processor, memory) == (pytest.approx(0.9, abs=0.2), pytest.approx(0.8))  # type: ignore[comparison-overlap]


def test_a_cgroup_v1_container_sees_its_own_limit(tmp_path: Path) -> None:
    found = machine(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/not-to-be-seen-here\n1:cpu,cpuacct:/docker/x\n0::/\n",
            "proc/self/statm": "100 50 1\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{100 * MIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{96 * MIB}\n",
            "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 0\n",
        },
    )
    assert found.memory() == pytest.approx(0.96)
    assert found.free_bytes() == 4 * MIB


def test_memory_used_by_others_does_not_limit_a_small_process(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/\n", "proc/meminfo": MEMINFO, "proc/self/statm": "9 5000 1\n"}
    assert machine(tmp_path / "small", files).memory() == 0.0
    files["proc/self/statm"] = f"9 {2_000_000} 1\n"
    assert machine(tmp_path / "large", files).memory() == pytest.approx(0.95)


def test_without_load_measurements_concurrency_stays(tmp_path: Path) -> None:
    processor, memory = Machine(tmp_path).shares(1000.0)
    assert processor < 0.5
    assert memory == 0.0
    assert Machine(tmp_path).free_bytes() is None
