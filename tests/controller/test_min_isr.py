"""Brokers whose own min.insync.replicas differ: who may lead depends on what each leader commits with.

While a leader may commit nothing, those that left its ISR have all that is committed (KIP-966). What a
leader may commit with is its own word, where the topic does not say: brokers are reconfigured one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from millstream.cluster.metadata import PartitionState
from millstream.controller import controller as controller_module
from millstream.controller import tree
from millstream.errors import OperationNotAttempted
from millstream.protocol.messages import AlterPartitionRequest, AlterPartitionResponse
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


# Another min.insync.replicas on its way to the brokers


async def set_min_isr(cluster: Cluster, value: str) -> None:
    await cluster.controller.controller.set_topic_config("t", lambda _: {KEY: value}, validate_only=False)


def decided(cluster: Cluster) -> PartitionState:
    """The partition as the controller knows it."""
    return cluster.controller.controller.term.picture.topic("t").partitions[0]


async def propose(cluster: Cluster, leader: int, isr: list[int]) -> AlterPartitionResponse:
    """What a leader is answered that proposes in-sync replicas."""
    broker = cluster.brokers[leader]
    partition = broker.replicas.leader("t", 0)
    assert partition.leadership is not None
    Request = AlterPartitionRequest
    data = Request.PartitionData(
        partition_index=0,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.leadership.version,
        new_isr_with_epochs=[Request.BrokerState(broker_id=each) for each in isr],
    )
    request = Request(
        broker_id=leader,
        broker_epoch=broker.broker_epoch,
        topics=[Request.TopicData(topic_id=partition.topic_id, partitions=[data])],
    )
    return await cluster.controller.controller.requests.alter_partitions(request)


@pytest.mark.parametrize("is_next_term", [False, True])
def test_a_leader_that_has_not_heard_of_a_larger_one_may_not_go_on_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_next_term: bool
) -> None:
    """It would acknowledge by the smaller one, while those that left could lead by the larger."""
    monkeypatch.setattr(controller_module, "APPLY_SECONDS", 0.05)

    async def main() -> None:
        async with asyncio.timeout(60), Cluster(tmp_path) as cluster:
            office = cluster.controller.controller
            leader, other = (id_ for id_ in cluster.ids if id_ != office.broker_id)
            await cluster.create("t", assignment={0: [leader, other]})
            await cluster.brokers[leader].cluster_state.stop()
            await set_min_isr(cluster, "2")
            if is_next_term:  # one that knows nothing of what its predecessor told whom
                office.session_lost()
                office.joined_again()
                await cluster.until(lambda: office.is_active)
            assert (await propose(cluster, leader, [leader])).error_code == OperationNotAttempted.code
            assert (decided(cluster).isr, decided(cluster).eligible) == ([leader, other], [])
            await cluster.brokers[leader].cluster_state.start()
            async with asyncio.timeout(10):
                while (await propose(cluster, leader, [leader])).error_code:
                    await asyncio.sleep(0.01)
            assert (decided(cluster).isr, decided(cluster).eligible) == ([leader], [other])
            led = cluster.brokers[leader].replicas.leader("t", 0)
            assert led.log.config.min_insync_replicas == 2  # alone it commits nothing

    asyncio.run(main())


def test_who_leaves_while_a_change_is_on_its_way_stays_eligible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither number lets the last one commit alone: if it loses power, who left has all that counts."""
    monkeypatch.setattr(controller_module, "APPLY_SECONDS", 0.05)

    async def main() -> None:
        async with asyncio.timeout(60), Cluster(tmp_path) as cluster:
            slow = cluster.controller.config.node_id
            leader, other = (id_ for id_ in cluster.ids if id_ != slow)
            await cluster.create("t", assignment={0: [leader, other]}, min_insync_replicas="2")
            await cluster.brokers[slow].cluster_state.stop()
            await set_min_isr(cluster, "3")
            await cluster.stop(other)
            await cluster.until(lambda: decided(cluster).isr == [leader])
            assert decided(cluster).eligible == [other]
            await cluster.brokers[slow].cluster_state.start()

    asyncio.run(main())


def test_who_is_eligible_stays_so_until_the_isr_is_enough(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), Cluster(tmp_path) as cluster:
            slow = cluster.controller.config.node_id
            leader, other = (id_ for id_ in cluster.ids if id_ != slow)
            await cluster.create("t", assignment={0: [leader, other]}, min_insync_replicas="2")
            await cluster.stop(other)
            await cluster.until(lambda: decided(cluster).eligible == [other])
            for value in ("3", "2"):
                await set_min_isr(cluster, value)
                assert cluster.agree("t", lambda state: state.eligible == [other])
            await set_min_isr(cluster, "1")
            assert cluster.agree("t", lambda state: state.eligible == [])

    asyncio.run(main())


def test_a_broker_that_refuses_what_is_set_for_all_takes_the_min_isr_of_it(tmp_path: Path) -> None:
    """The controller goes by it, whatever else is not valid on one of the brokers."""
    lag = "log.cleaner.{}.compaction.lag.ms"

    async def main() -> None:
        cluster = Cluster(tmp_path)
        async with asyncio.timeout(60):
            try:
                await cluster.start(1)
                strict = await cluster.start(2, {lag.format("min"): "1000"})
                told = {KEY: "2", lag.format("max"): "500"}
                await cluster.controller.controller.set_broker_config(
                    tree.DEFAULT_BROKER, lambda _: told, validate_only=False
                )
                assert cluster.brokers[1].config[lag.format("max")] == 500
                assert strict.config[lag.format("max")] > 1000
                assert strict.config[KEY] == 2
                await cluster.controller.controller.set_broker_config(
                    tree.DEFAULT_BROKER, lambda _: {lag.format("max"): "500"}, validate_only=False
                )
                assert strict.config[KEY] == 1
            finally:
                await cluster.__aexit__(None, None, None)

    asyncio.run(main())
