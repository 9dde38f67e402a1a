"""Brokers whose own min.insync.replicas differ: who may lead depends on what each leader commits with.

While a leader may commit nothing, those that left its ISR have all that is committed (KIP-966). What a
leader may commit with is its own word, where the topic does not say: brokers are reconfigured one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from millstream.controller import tree
from tests.controller.cluster import Cluster
from tests.storage.logs import batch

KEY = "min.insync.replicas"


async def start(cluster: Cluster, values: Mapping[int, str]) -> None:
    for broker_id, value in values.items():
        await cluster.start(broker_id, {KEY: value})


def append(cluster: Cluster, broker_id: int) -> int:
    """What a leader that acknowledges one more record has acknowledged then."""
    partition = cluster.brokers[broker_id].replicas.leader("t", 0)
    partition.append(batch(b"acknowledged"), -1, 9)
    return partition.acknowledged


@pytest.mark.parametrize("is_set_while_running", [False, True])
def test_who_left_the_isr_of_a_leader_that_goes_on_alone_may_not_lead(
    tmp_path: Path, is_set_while_running: bool
) -> None:
    async def main() -> None:
        cluster = Cluster(tmp_path)
        async with asyncio.timeout(60):
            try:
                await start(cluster, {1: "2", 2: "2" if is_set_while_running else "1", 3: "2"})
                assert cluster.controller is cluster.brokers[1]
                await cluster.create("t", assignment={0: [2, 3]})
                if is_set_while_running:
                    await cluster.controller.controller.set_broker_config(
                        "2", lambda _: {KEY: "1"}, validate_only=False
                    )
                await cluster.stop(3)
                await cluster.until(lambda: cluster.states("t", 2)[0].isr == [2])
                assert append(cluster, 2) == 1
                assert cluster.states("t", 1)[0].eligible == []
                await cluster.stop(2)
                await start(cluster, {3: "2"})
                await asyncio.sleep(0.3)
                assert cluster.states("t", 1)[0].leader == -1
                await start(cluster, {2: "2"})
                await cluster.until(lambda: cluster.states("t", 1)[0].leader == 2)
                await cluster.until(lambda: cluster.brokers[3].replicas.topic("t")[0].log.end_offset == 1)
            finally:
                await cluster.__aexit__(None, None, None)

    asyncio.run(main())


def test_a_leader_that_comes_back_with_a_smaller_one_goes_on_alone(tmp_path: Path) -> None:
    """As an operator does who has one replica left and wants to write: those that left are behind then."""

    async def main() -> None:
        cluster = Cluster(tmp_path)
        async with asyncio.timeout(60):
            try:
                await start(cluster, {1: "2", 2: "2", 3: "2"})
                await cluster.create("t", assignment={0: [2, 3]})
                await cluster.stop(3)
                await cluster.until(lambda: cluster.states("t", 2)[0].eligible == [3])
                await cluster.stop(2)
                await start(cluster, {2: "1"})
                await cluster.until(lambda: cluster.states("t", 2)[0].leader == 2)
                assert append(cluster, 2) == 1
                node = await cluster.registries[1].get(tree.state_path("t", 0))
                assert b'"eligible":[]' in node.data
            finally:
                await cluster.__aexit__(None, None, None)

    asyncio.run(main())


def test_who_left_may_lead_where_no_leader_could_go_on_without(tmp_path: Path) -> None:
    """Another broker's smaller number changes nothing for a leader that keeps to its own."""

    async def main() -> None:
        cluster = Cluster(tmp_path)
        async with asyncio.timeout(60):
            try:
                await start(cluster, {1: "1", 2: "2", 3: "2"})
                await cluster.create("t", assignment={0: [2, 3]})
                await cluster.stop(3)
                await cluster.until(lambda: cluster.states("t", 2)[0].isr == [2])
                assert cluster.states("t", 1)[0].eligible == [3]
                await cluster.stop(2)
                await start(cluster, {3: "2"})
                await cluster.until(lambda: cluster.states("t", 1)[0].leader == 3)
            finally:
                await cluster.__aexit__(None, None, None)

    asyncio.run(main())
