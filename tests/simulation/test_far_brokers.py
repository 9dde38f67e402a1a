"""Brokers that are far from one another follow a new controller all the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from millstream.cluster.metadata import PartitionState
from millstream.controller.broker_requests import BrokerRequests
from millstream.controller.topics import NewTopic
from millstream.protocol.messages import ClusterStateRequest, ClusterStateResponse
from millstream.registry.memory import MemoryTree
from tests.simulation.network import Network
from tests.simulation.node import Node
from tests.simulation.world import World

SETTINGS = {"min.insync.replicas": "2", "default.replication.factor": "3"}


@pytest.mark.parametrize("distance_s", [0.1, 0.3, 0.6])
def test_a_distant_broker_follows_a_new_controller(
    distance_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it need not be told everything, again and again."""
    poll, are_full = BrokerRequests.poll, Counter[bool]()

    async def counted(requests: BrokerRequests, asked: ClusterStateRequest) -> ClusterStateResponse:
        answer = await poll(requests, asked)
        are_full[answer.is_full] += 1
        return answer

    monkeypatch.setattr(BrokerRequests, "poll", counted)
    world = World(1, trace_lines=10)
    network, tree = Network(world), MemoryTree()
    nodes = [
        Node(
            world,
            network,
            tree,
            number,
            SETTINGS,
            session_ms=6000,
            sees_death=True,
            knows_boots=True,
            faults=Counter(),
        )
        for number in (1, 2, 3)
    ]

    async def until(condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.05)

    def controllers() -> list[Node]:
        return [node for node in nodes if node.broker is not None and node.broker.controller.is_active]

    def known_to(node: Node) -> PartitionState:
        assert node.broker is not None
        return node.broker.metadata.topic("t").partitions[0]

    async def main() -> None:
        watching = [asyncio.ensure_future(node.watch_over()) for node in nodes]
        await until(lambda: all(node.is_serving for node in nodes) and controllers())
        (old,) = controllers()
        far, near = (node for node in nodes if node is not old)
        broker = old.broker
        assert broker is not None
        assert old.process is not None
        topic = NewTopic("t", assignment={0: [old.number, far.number, near.number]})
        await old.process.call(broker.controller.create_topic(topic))
        for link in network.links_of(far.name, [old.name, near.name]):
            link.distance_s = distance_s
        await until(lambda: sorted(known_to(far).isr) == [1, 2, 3])
        old.kill(10_000.0)
        await until(lambda: controllers() and controllers() != [old])
        (new,) = controllers()
        epoch = new.broker.controller.epoch if new.broker is not None else 0
        for node in (far, near):
            await until(lambda node=node: node.broker.metadata.controller_epoch == epoch)  # type: ignore[misc]
            await until(lambda node=node: sorted(known_to(node).isr) == sorted([far.number, near.number]))  # type: ignore[misc]
        await asyncio.sleep(5)
        are_full.clear()
        await asyncio.sleep(20)
        assert are_full[False] > 20
        assert not are_full[True]
        for node in nodes:
            node.is_over = True
        await asyncio.gather(*watching)
        for node in (far, near):
            await node.stop(1000.0)

    world.run(main(), limit_s=600)
