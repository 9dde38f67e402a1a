"""What a person who follows partitions is told: gaps, topics that went away, brokers that do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millstream import AsyncAdmin, AsyncConsumer, AsyncProducer, TopicPartition
from millstream.cli.span_reader import SpanReader
from millstream.errors import KafkaError, OffsetOutOfRange, UnknownTopicOrPartition
from millstream.testing import Broker

HERE = TopicPartition("followed", 0)


async def prepared(broker: Broker, count: int) -> None:
    async with AsyncProducer(broker.bootstrap) as producer:
        for number in range(count):
            await producer.send(HERE.topic, b"%d" % number, partition=0)


async def read_all(reader: SpanReader, count: int) -> list[bytes]:
    found: list[Any] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            for batch in await reader.poll(0.2):
                found += [record.value for record in batch.records]
    return found


def following(broker: Broker, **options: Any) -> AsyncConsumer:
    return AsyncConsumer(broker.bootstrap, offset_reset="none", **options)


def test_deleted_records_are_a_gap(capsys: pytest.CaptureFixture[str]) -> None:
    async def main(broker: Broker) -> None:
        await prepared(broker, 10)
        async with AsyncAdmin(broker.bootstrap) as admin, following(broker) as consumer:
            await admin.delete_records({HERE: 7})
            reader = SpanReader(consumer, {HERE: 2})
            assert await read_all(reader, 3) == [b"7", b"8", b"9"]
            assert reader.positions == {HERE: 10}
        async with following(broker) as consumer:
            reader = SpanReader(consumer, {HERE: 99})
            with pytest.raises(OffsetOutOfRange, match="no record at offset 99"):
                await read_all(reader, 1)

    with Broker() as broker:
        asyncio.run(main(broker))
    assert "note: records 2 to 6 of followed-0 were deleted before they were read" in capsys.readouterr().err


def test_a_deleted_topic_ends_reading() -> None:
    async def main(broker: Broker) -> None:
        await prepared(broker, 1)
        async with AsyncAdmin(broker.bootstrap) as admin, following(broker) as consumer:
            reader = SpanReader(consumer, {HERE: 0})
            assert await read_all(reader, 1) == [b"0"]
            await admin.delete_topic(HERE.topic)
            with pytest.raises(UnknownTopicOrPartition):
                await read_all(reader, 1)

    with Broker() as broker:
        asyncio.run(main(broker))


def test_brokers_that_stay_away_are_an_error_at_the_deadline() -> None:
    async def main(broker: Broker) -> None:
        await prepared(broker, 1)
        async with following(broker, request_timeout_ms=500) as consumer:
            reader = SpanReader(consumer, {HERE: 0})
            assert await read_all(reader, 1) == [b"0"]
            await asyncio.to_thread(broker.stop)
            with pytest.raises(KafkaError, match="the last error was"):
                await read_all(reader, 1)

    with Broker() as broker:
        asyncio.run(main(broker))


def test_a_partition_that_is_dropped_is_read_no_more() -> None:
    async def main(broker: Broker) -> None:
        await prepared(broker, 5)
        async with following(broker) as consumer:
            reader = SpanReader(consumer, {HERE: 0})
            assert len(await read_all(reader, 5)) == 5
            reader.drop([HERE])
            assert reader.positions == {}
            assert await reader.poll(0.1) == []

    with Broker() as broker:
        asyncio.run(main(broker))
