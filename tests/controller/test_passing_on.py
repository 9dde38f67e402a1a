"""What clients ask for at a broker that is not the controller is passed on to it, once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.server import Broker
from millstream.client.connection import Connection
from millstream.controller.topics import NewTopic
from millstream.errors import NetworkException, RequestTimedOut
from millstream.protocol.messages import CreateTopicsRequest, CreateTopicsResponse
from tests.controller.cluster import Cluster
from tests.controller.test_admin import ask, connected


def creation(name: str) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=2)
    return CreateTopicsRequest(topics=[topic], timeout_ms=10_000)


async def create(broker: Broker, name: str) -> list[int]:
    answer = await ask(broker, creation(name), CreateTopicsResponse)
    return [topic.error_code for topic in answer.topics]


def test_a_listener_for_clients_and_brokers_alike(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster(tmp_path, config={"inter.broker.listener.name": "PLAINTEXT"}) as cluster:
            await cluster.until_controller()
            assert await create(cluster.follower, "t") == [0]

    asyncio.run(main())


def test_what_was_sent_and_not_answered_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller dies with its answer, and the broker that passed it on is the next one."""

    async def main() -> None:
        async with Cluster(tmp_path, count=2) as cluster:
            first = await cluster.until_controller()
            broker = cluster.follower
            request = broker.peers.request

            async def lost(broker_id: int, purpose: str, asked: Any, answer: Any, timeout_ms: float) -> Any:
                found = await request(broker_id, purpose, asked, answer, timeout_ms)
                if isinstance(asked, CreateTopicsRequest):
                    await cluster.stop(first.config.node_id)
                    await cluster.until(lambda: broker.controller.is_active)
                    raise NetworkException("the connection is closed")
                return found

            monkeypatch.setattr(broker.peers, "request", lost)
            assert await create(broker, "t") == [RequestTimedOut.code]
            assert "t" in broker.metadata.topics

    asyncio.run(main())


def test_a_clean_stop_does_not_wait_for_what_clients_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with Cluster(tmp_path) as cluster:
            head, broker = await cluster.until_controller(), cluster.follower
            first, number = head.config.node_id, broker.config.node_id
            await cluster.create("t", assignment={0: [number, first]})
            await cluster.until(lambda: cluster.states("t")[0].leader == number)
            arrived, may_go_on = asyncio.Event(), asyncio.Event()
            make = head.controller.create_topic

            async def slowly(wanted: NewTopic, *, validate_only: bool = False) -> Any:
                arrived.set()
                await may_go_on.wait()
                return await make(wanted, validate_only=validate_only)

            monkeypatch.setattr(head.controller, "create_topic", slowly)
            connections: list[Connection] = [await connected(broker) for _ in range(3)]
            asked: list[asyncio.Future[Any]] = [
                asyncio.ensure_future(each.request(creation(f"n{place}"), CreateTopicsResponse, 30_000))
                for place, each in enumerate(connections)
            ]
            made = NewTopic("m", 1, 2)  # by a producer that names it
            asked.append(asyncio.ensure_future(broker.controller_link.create_topic(made)))
            await arrived.wait()
            await broker.controller_link.hand_over()
            assert head.metadata.topic("t").partitions[0].leader == first
            assert not any(each.done() for each in asked)
            may_go_on.set()
            assert (await asked.pop()).name == "m"
            for each in asked:
                assert [topic.error_code for topic in (await each).topics] == [0]
            for connection in connections:
                await connection.close()

    asyncio.run(main())
