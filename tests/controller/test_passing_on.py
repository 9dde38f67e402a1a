"""What clients ask for at a broker that is not the controller is passed on to it, once."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from millstream.broker import controller_link
from millstream.broker.server import Broker
from millstream.client.connection import Connection
from millstream.controller.topics import NewTopic
from millstream.errors import NetworkException, NotController, RequestTimedOut, TopicAlreadyExists
from millstream.protocol.messages import CreateTopicsRequest, CreateTopicsResponse
from tests.controller.cluster import Cluster
from tests.controller.test_admin import ask, connected


def creation(name: str, count: int = 1) -> CreateTopicsRequest:
    names = [name, *(f"{name}-{number}" for number in range(1, count))]
    topics = [
        CreateTopicsRequest.CreatableTopic(name=each, num_partitions=1, replication_factor=2)
        for each in names
    ]
    return CreateTopicsRequest(topics=topics, timeout_ms=10_000)


def kill(connection: Connection) -> None:
    """End a connection at once, as the system does for a process that is killed."""
    transport = connection._transport
    assert transport is not None
    reset = struct.pack("ii", 1, 0)
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
    connection.abort()


class Slow:
    """A controller that makes topics whose name says so when it is told to."""

    def __init__(self, head: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self.may_go_on = asyncio.Event()
        self._make = head.controller.create_topic
        monkeypatch.setattr(head.controller, "create_topic", self._create)

    async def _create(self, wanted: NewTopic, *, validate_only: bool = False) -> Any:
        if wanted.name.startswith("slow"):
            self.begun.append(wanted.name)
            await self.may_go_on.wait()
        return await self._make(wanted, validate_only=validate_only)


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
            slow = Slow(head, monkeypatch)
            connections: list[Connection] = [await connected(broker) for _ in range(3)]
            asked: list[asyncio.Future[Any]] = [
                asyncio.ensure_future(each.request(creation(f"slow{place}"), CreateTopicsResponse, 30_000))
                for place, each in enumerate(connections)
            ]
            made = NewTopic("slow", 1, 2)  # by a producer that names it
            asked.append(asyncio.ensure_future(broker.controller_link.create_topic(made)))
            await cluster.until(lambda: len(slow.begun) == 4)
            await broker.controller_link.hand_over()
            assert head.metadata.topic("t").partitions[0].leader == first
            assert not any(each.done() for each in asked)
            slow.may_go_on.set()
            assert (await asked.pop()).name == "slow"
            for each in asked:
                assert [topic.error_code for topic in (await each).topics] == [0]
            for connection in connections:
                await connection.close()

    asyncio.run(main())


def test_what_takes_long_holds_up_nobody_else_until_all_that_may_be_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_link, "PATIENCE_MS", 1000.0)

    async def main() -> None:
        async with Cluster(tmp_path) as cluster:
            slow, broker = Slow(await cluster.until_controller(), monkeypatch), cluster.follower
            lines = len(controller_link.LINES)
            connections = [await connected(broker) for _ in range(lines)]
            asked: list[asyncio.Future[Any]] = []
            for place, each in enumerate(connections):
                assert await create(broker, f"t{place}") == [0]
                asked.append(
                    asyncio.ensure_future(
                        each.request(creation(f"slow{place}"), CreateTopicsResponse, 30_000)
                    )
                )
                await cluster.until(lambda: len(slow.begun) == place + 1)  # noqa: B023 - it is awaited here
            assert await create(broker, "late") == [NotController.code]
            kill(connections[0])
            assert await create(broker, "late") == [0]
            slow.may_go_on.set()
            with pytest.raises(NetworkException):
                await asked.pop(0)
            for answer in await asyncio.gather(*asked):
                assert [topic.error_code for topic in answer.topics] == [0]
            for connection in connections[1:]:
                await connection.close()

    asyncio.run(main())


def test_of_large_requests_one_is_with_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory they become many times their size; small ones go their own way."""

    async def main() -> None:
        async with Cluster(tmp_path) as cluster:
            slow, broker = Slow(await cluster.until_controller(), monkeypatch), cluster.follower
            connection = await connected(broker)
            request = creation("slow" + "w" * 200, 400)
            first = asyncio.ensure_future(connection.request(request, CreateTopicsResponse, 60_000))
            await cluster.until(lambda: bool(slow.begun))
            refused = await ask(broker, creation("l" * 200, 400), CreateTopicsResponse)
            assert {topic.error_code for topic in refused.topics} == {NotController.code}
            assert await create(broker, "small") == [0]
            slow.may_go_on.set()
            assert {topic.error_code for topic in (await first).topics} == {0}
            again = await ask(broker, request, CreateTopicsResponse)
            assert {topic.error_code for topic in again.topics} == {TopicAlreadyExists.code}
            await connection.close()

    asyncio.run(main())
