"""What ListOffsets says while a new leader does not know yet how much is committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from millstream.broker.handlers.offsets import list_offsets
from millstream.broker.router import Context
from millstream.broker.server import Broker
from millstream.config.broker import BrokerConfig
from millstream.controller.topics import NewTopic
from millstream.errors import LeaderNotAvailable, OffsetNotAvailable
from millstream.net.connection import Connection
from millstream.protocol.messages import ListOffsetsRequest

LATEST, EARLIEST = -1, -2


@asynccontextmanager
async def new_leader(folder: Path) -> AsyncIterator[Broker]:
    """It leads a partition from its first record on, which it does not know to be committed."""
    places = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(folder), "registry": "memory"}
    async with Broker(BrokerConfig(places)) as broker:
        await broker.controller.create_topic(NewTopic("t", 1, 1))
        broker.replicas.leader("t", 0)._led_from = 1
        yield broker


@pytest.mark.parametrize("version", range(1, 12))
def test_that_the_end_is_not_known_is_told_in_words_of_the_clients_version(
    tmp_path: Path, version: int
) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), new_leader(tmp_path) as broker:
            connection = Connection(broker.listeners["PLAINTEXT"])
            ctx = Context(broker, connection, "PLAINTEXT", version, None)

            async def ask(timestamp: int) -> tuple[int, int]:
                wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
                topic = ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[wanted])
                response = await list_offsets(ctx, ListOffsetsRequest(replica_id=-1, topics=[topic]))
                (found,) = response.topics[0].partitions
                return found.error_code, found.offset

            error = OffsetNotAvailable if version >= 5 else LeaderNotAvailable
            for timestamp in (LATEST, 10**12):
                assert await ask(timestamp) == (error.code, -1)
            assert await ask(EARLIEST) == (0, 0)

    asyncio.run(main())


def test_old_clients_ask_again(tmp_path: Path) -> None:
    """aiokafka's speak version 3 at most; an error that they do not know ends them."""

    async def main() -> None:
        async with asyncio.timeout(60), new_leader(tmp_path) as broker:
            bootstrap, place = f"127.0.0.1:{broker.port}", TopicPartition("t", 0)
            consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
            async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer, consumer:
                asked = broker.metrics.request_seconds.labels("ListOffsets")
                ends = asyncio.ensure_future(consumer.end_offsets([place]))
                while not asked.count:
                    await asyncio.sleep(0.005)
                await producer.send_and_wait("t", b"x")
                assert await ends == {place: 1}

    asyncio.run(main())
