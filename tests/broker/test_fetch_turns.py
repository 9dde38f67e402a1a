"""Partitions take turns where the answers of a client are cut short, however it asks for them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from millstream.broker.fetch_turns import MAX_REMEMBERED, FetchTurns
from millstream.broker.handlers.fetch import fetch
from millstream.broker.router import Context
from millstream.broker.server import Broker
from millstream.controller.topics import NewTopic
from millstream.protocol.messages import FetchRequest, FetchResponse
from tests.broker.test_fetch import add, broker_in, context

TOPICS = ("a", "b")
PARTITIONS = 3
Place = tuple[str, int]
EVERY: list[Place] = [(topic, index) for topic in TOPICS for index in range(PARTITIONS)]


class Reader:
    """A client that always asks in the same order, on one connection."""

    def __init__(self, broker: Broker, version: int, session_epoch: int) -> None:
        self._broker = broker
        self._ctx: Context = context(broker, is_local=True)
        self._ctx.version = version
        self._session_epoch = session_epoch
        self.offsets: Counter[Place] = Counter()

    def ask(self, places: list[Place]) -> list[Place]:
        """What one answer gave, while every partition has more."""
        for topic, index in EVERY:
            add(self._broker.replicas.leader(topic, index), bytes(2000))
        answer = fetch(self._ctx, self._request(places))
        assert isinstance(answer, FetchResponse)
        ids = {self._broker.metadata.topic(topic).topic_id: topic for topic in TOPICS}
        told = [
            ((each.topic or ids[each.topic_id], data.partition_index), data)
            for each in answer.responses
            for data in each.partitions
        ]
        assert [place for place, _ in told] == places
        assert len(answer.responses) == len({topic for topic, _ in places})
        served = [place for place, data in told if data.records]
        self.offsets.update(served)
        return served

    def _request(self, places: list[Place]) -> FetchRequest:
        return FetchRequest(
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=1 << 20,
            session_epoch=self._session_epoch,
            topics=[
                FetchRequest.FetchTopic(
                    topic=topic,
                    topic_id=self._broker.metadata.topic(topic).topic_id,
                    partitions=[
                        FetchRequest.FetchPartition(
                            partition=index, fetch_offset=self.offsets[topic, index], partition_max_bytes=2100
                        )
                        for name, index in places
                        if name == topic
                    ],
                )
                for topic in dict.fromkeys(name for name, _ in places)
            ],
        )


def in_broker(folder: Path, test: Callable[[Broker], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), broker_in(folder, fetch_local_bytes="1500") as broker:
            for topic in TOPICS:
                await broker.controller.create_topic(NewTopic(topic, PARTITIONS, 1))
            await test(broker)

    asyncio.run(main())


@pytest.mark.parametrize("version", [11, 13])
@pytest.mark.parametrize("session_epoch", [-1, 0])
def test_every_partition_of_every_topic_has_its_turn(
    tmp_path: Path, version: int, session_epoch: int
) -> None:
    """Each answer names a topic once, in the order of the request; with epoch 0 each begins a session."""

    async def test(broker: Broker) -> None:
        reader = Reader(broker, version, session_epoch)
        served = [reader.ask(EVERY) for _ in range(2 * len(EVERY))]
        assert served == [[place] for place in EVERY * 2]

    in_broker(tmp_path, test)


def test_what_is_left_out_for_a_while_keeps_its_place(tmp_path: Path) -> None:
    """A client does not ask for a partition whose records it has not handed on yet."""

    async def test(broker: Broker) -> None:
        reader = Reader(broker, 11, -1)
        held: list[Place] = []
        for _ in range(3 * len(EVERY)):
            held = reader.ask([place for place in EVERY if place not in held])
        assert reader.offsets == dict.fromkeys(EVERY, 3)

    in_broker(tmp_path, test)


def test_only_so_many_are_remembered() -> None:
    turns = FetchTurns()
    turns.cut(("t", index) for index in range(MAX_REMEMBERED + 5))
    assert len(turns._served) == MAX_REMEMBERED
    turns.whole()
    assert not turns._served
