"""Copying at a limited rate."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from millstream.cluster.throttle import Throttle, is_listed
from tests.cluster.nodes import Nodes, run, until
from tests.storage.logs import TestClock

RATE = 1_000_000
NO_LIMIT = str(2**63 - 1)


def test_a_throttle_lets_bytes_go_at_its_rate() -> None:
    clock = TestClock()
    throttle = Throttle(lambda: 1000, clock)
    assert throttle.wait_s() == 0
    throttle.spend(500)
    assert throttle.wait_s() == 0.5
    clock.ms += 200
    assert throttle.wait_s() == pytest.approx(0.3)
    clock.ms += 300
    assert throttle.wait_s() == 0
    clock.ms += 10_000
    throttle.spend(100)
    assert throttle.wait_s() == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("listed", "is_throttled"),
    [("", False), ("*", True), ("0:1", False), ("0:1,3:2", True), (" 3:2 ", True), ("3:20", False)],
)
def test_the_list_of_throttled_replicas(listed: str, is_throttled: bool) -> None:
    assert is_listed({"k": listed}, "k", 3, 2) == is_throttled


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_replica_that_is_not_in_sync_is_copied_at_the_rate(tmp_path: Path, side: str) -> None:
    async def test(nodes: Nodes) -> None:
        nodes.topic.overrides = {f"{side}.replication.throttled.replicas": "*"}
        await nodes.create()
        await nodes.stop(3)
        nodes.elect(1, [1, 2])
        await nodes.tell()
        started = asyncio.get_running_loop().time()
        for _ in range(15):
            await nodes[1].send(bytes(100_000))
        assert asyncio.get_running_loop().time() - started < 1.0  # node 2 is in sync: it is not held back
        await nodes.start(3)
        started = asyncio.get_running_loop().time()
        await nodes.tell(3, is_new=False)
        await until(lambda: nodes.topic.partitions[0].isr == [1, 2, 3])
        took_s = asyncio.get_running_loop().time() - started
        assert 0.9 < took_s < 6

    run(test, tmp_path, replica_fetch_max_bytes="100000", **rates(side, RATE))


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_what_one_fetch_brings_is_held_back_for_as_long_as_it_takes(tmp_path: Path, side: str) -> None:
    """Also where that is longer than a partition is held back at a time."""

    async def test(nodes: Nodes) -> None:
        nodes.topic.overrides = {f"{side}.replication.throttled.replicas": "*"}
        await nodes.create()
        await nodes.stop(3)
        nodes.elect(1, [1, 2])
        await nodes.tell()
        for _ in range(6):
            await nodes[1].send(bytes(100_000))
        await nodes.start(3)
        started = asyncio.get_running_loop().time()
        await nodes.tell(3, is_new=False)
        await until(lambda: nodes[3].partition().log.end_offset == 6)
        assert asyncio.get_running_loop().time() - started > 2.5  # 300,000 bytes are owed after the first

    run(test, tmp_path, replica_fetch_max_bytes="310000", **rates(side, 100_000))


def rates(side: str, rate: int) -> dict[str, Any]:
    found = {"leader": NO_LIMIT, "follower": NO_LIMIT, side: str(rate)}
    return {f"{each}_replication_throttled_rate": text for each, text in found.items()}
