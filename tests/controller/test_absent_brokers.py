"""New topics while brokers are away, and brokers that never come back."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream.controller import tree
from millstream.controller.topics import NewTopic
from millstream.errors import BrokerIdNotRegistered, InvalidReplicationFactor, InvalidRequest
from millstream.protocol.messages import UnregisterBrokerRequest, UnregisterBrokerResponse
from tests.controller.cluster import Cluster
from tests.wire import Wire

Test = Callable[[Cluster], Coroutine[Any, Any, None]]
Run = Callable[[Test], None]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def start(test: Test) -> None:
        async def main() -> None:
            async with asyncio.timeout(60), Cluster(tmp_path) as cluster:
                await test(cluster)

        asyncio.run(main())

    return start


async def stop_one(cluster: Cluster) -> tuple[int, list[int]]:
    """Stop a broker that is not the controller, and wait until that is seen; it, and the others."""
    away = cluster.follower.config.node_id
    await cluster.stop(away)
    picture = cluster.controller.controller.term.picture
    await cluster.until(lambda: away not in picture.brokers)
    return away, [id_ for id_ in cluster.ids if id_ != away]


@pytest.mark.parametrize("is_wiped", [False, True])
def test_who_is_away_gets_replicas_and_copies_them_when_it_returns(run: Run, is_wiped: bool) -> None:
    async def test(cluster: Cluster) -> None:
        away, others = await stop_one(cluster)
        await cluster.create("t", 6, 3, min_insync_replicas="2")
        for state in cluster.states("t"):
            assert set(state.replicas) == set(cluster.ids)
            assert state.replicas[-1] == away
            assert set(state.isr) == set(others)
            assert state.leader in others
        await cluster.controller.controller.add_partitions("t", 8, None, validate_only=False)
        assert [set(state.isr) for state in cluster.states("t")[6:]] == [set(others)] * 2
        await cluster.create("two", 6, 2)  # those that are there are enough
        assert all(away not in state.replicas for state in cluster.states("two"))
        if is_wiped:
            shutil.rmtree(cluster.folder / f"broker-{away}")
        await cluster.start(away)
        await cluster.until_in_sync("t", cluster.ids)
        assert set(cluster.brokers[away].replicas.topic("t")) == set(range(8))

    run(test)


def test_another_controller_knows_who_belongs_to_the_cluster_and_its_rack(run: Run) -> None:
    async def test(cluster: Cluster) -> None:
        away = cluster.follower.config.node_id
        await cluster.stop(away)
        await cluster.start(away, {"broker.rack": "north"})
        await cluster.stop(away)
        first = cluster.controller.config.node_id
        await cluster.stop(first)
        (last,) = cluster.brokers
        office = (await cluster.until_controller()).controller
        await cluster.until(lambda: list(office.term.picture.brokers) == [last])
        assert office.term.picture.seen_racks == {away: "north", first: None, last: None}
        await cluster.create("t", 1, 3)
        (state,) = cluster.states("t")
        assert (state.isr, state.leader) == ([last], last)
        for broker_id in (first, away):
            await cluster.start(broker_id)
        await cluster.until_in_sync("t", cluster.ids)

    run(test)


def test_a_broker_that_is_gone_for_good_is_forgotten(run: Run) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("before", 1, 3)
        away, others = await stop_one(cluster)
        office = cluster.controller.controller
        with pytest.raises(InvalidRequest, match="stop it first"):
            await office.unregister_broker(others[0])
        with pytest.raises(BrokerIdNotRegistered):
            await office.unregister_broker(9)
        await office.unregister_broker(away)
        assert str(away) not in await cluster.registries[others[0]].children(tree.SEEN_BROKERS)
        with pytest.raises(BrokerIdNotRegistered):
            await office.unregister_broker(away)
        with pytest.raises(InvalidReplicationFactor, match="there are 2"):
            await office.create_topic(NewTopic("t", 1, 3))
        assert away in cluster.states("before")[0].replicas  # until it is moved
        await cluster.start(away)
        await cluster.until_in_sync("before", cluster.ids)
        await cluster.create("t", 1, 3)

    run(test)


def test_a_broker_that_was_forgotten_counts_as_one_that_lost_records(run: Run) -> None:
    """Whether it did, nobody can tell any more: it does not lead where another replica can."""

    async def test(cluster: Cluster) -> None:
        await cluster.create("t", 1, 3, min_insync_replicas="2")
        office = cluster.controller.config.node_id
        first, last = (id_ for id_ in cluster.ids if id_ != office)
        await cluster.create("u", assignment={0: [first, last]}, min_insync_replicas="2")
        await cluster.stop(last)
        await cluster.until_in_sync("u", [first])
        await cluster.stop(first)
        await cluster.until(lambda: cluster.states("u")[0].leader == -1)
        (state,) = cluster.states("u")
        assert (state.isr, state.eligible) == ([first], [last])
        await cluster.controller.controller.unregister_broker(first)
        await cluster.start(first)
        (state,) = cluster.states("u", office)
        assert (state.leader, state.isr, state.eligible) == (-1, [], [last])
        await cluster.start(last)
        await cluster.until_in_sync("u", [first, last])

    run(test)


def test_any_broker_takes_the_request(run: Run) -> None:
    """Java's Admin asks whoever it is connected to, and does not look for the controller."""

    async def test(cluster: Cluster) -> None:
        away, others = await stop_one(cluster)
        follower = cluster.follower
        assert follower.config.node_id in others

        def ask(broker_id: int) -> UnregisterBrokerResponse:
            with Wire(f"127.0.0.1:{follower.port}") as wire:
                answer: UnregisterBrokerResponse = wire.ask(UnregisterBrokerRequest(broker_id=broker_id))
                return answer

        refused = await asyncio.to_thread(ask, others[0])
        assert (refused.error_code, refused.error_message) == (
            InvalidRequest.code,
            f"broker {others[0]} is there: stop it first",
        )
        assert (await asyncio.to_thread(ask, away)).error_code == 0
        assert (await asyncio.to_thread(ask, away)).error_code == BrokerIdNotRegistered.code
        seen = await cluster.registries[others[0]].get(f"{tree.SEEN_BROKERS}/{others[0]}")
        assert msgspec.json.decode(seen.data)["epoch"] > 0

    run(test)
