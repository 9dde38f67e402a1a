"""Which answers of controllers a broker takes, and when it asks for everything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.broker import cluster_state
from millstream.broker.server import Broker
from millstream.errors import NetworkException
from millstream.protocol.messages import ClusterStateRequest, ClusterStateResponse
from tests.cluster.brokers import until
from tests.controller.cluster import Cluster

Answer = Callable[[ClusterStateRequest, Callable[[], Awaitable[ClusterStateResponse]]], Awaitable[Any]]


def between(broker: Broker, answer: Answer) -> None:
    """Have a say in what a broker hears of its controller."""
    ask = broker.peers.request

    async def request(broker_id: int, purpose: str, asked: Any, *rest: Any) -> Any:
        def go_on() -> Awaitable[Any]:
            return ask(broker_id, purpose, asked, *rest)

        return await (answer(asked, go_on) if isinstance(asked, ClusterStateRequest) else go_on())

    broker.peers.request = request  # type: ignore[assignment, method-assign]


def test_an_answer_of_an_older_controller_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), Cluster(tmp_path) as cluster:
            await cluster.create("t")
            broker = cluster.follower
            await until(lambda: "t" in broker.metadata.topics)
            epoch = broker.metadata.controller_epoch
            told: list[tuple[int, bool]] = []

            async def answer(asked: ClusterStateRequest, go_on: Callable[[], Awaitable[Any]]) -> Any:
                response = await go_on()
                told.append((asked.controller_epoch, "t" in broker.metadata.topics))
                if len(told) > 1:
                    return response
                return ClusterStateResponse(
                    controller_id=response.controller_id,
                    controller_epoch=epoch - 1,
                    is_full=True,
                    sequence=response.sequence,
                    brokers=response.brokers,
                    topics=[],
                )

            between(broker, answer)
            await until(lambda: len(told) > 2)
            assert told == [(epoch, True)] * len(told)

    asyncio.run(main())


def test_after_a_silence_everything_is_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), Cluster(tmp_path) as cluster:
            await cluster.create("t")
            broker = cluster.follower
            await until(lambda: "t" in broker.metadata.topics)
            asked: list[int] = []
            is_silent = True

            async def answer(request: ClusterStateRequest, go_on: Callable[[], Awaitable[Any]]) -> Any:
                asked.append(request.sequence)
                if is_silent:
                    raise NetworkException("silence")
                return await go_on()

            between(broker, answer)
            await asyncio.sleep(2)
            is_silent = False
            await until(lambda: -1 in asked)
            await until(lambda: asked[-1] >= 0)

    asyncio.run(main())


def test_who_waits_for_a_controller_that_is_gone_asks_the_next_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be stopped, or cut off: then its connections stay as they are."""
    monkeypatch.setattr(cluster_state, "ANSWER_MS", 120_000)

    async def main() -> None:
        async with asyncio.timeout(60), Cluster(tmp_path) as cluster:
            old = await cluster.until_controller()
            broker = cluster.follower
            await until(lambda: broker.metadata.controller_id == old.config.node_id)
            never = asyncio.Event()
            poll = old.controller.requests.poll

            async def silence(request: ClusterStateRequest) -> ClusterStateResponse:
                await never.wait()
                return await poll(request)

            old.controller.requests.poll = silence  # type: ignore[method-assign]
            await asyncio.sleep(0.6)  # by now it waits for an answer
            cluster.lose(old.config.node_id)
            await until(lambda: broker.metadata.controller_id not in (-1, old.config.node_id))
            never.set()

    asyncio.run(main())
