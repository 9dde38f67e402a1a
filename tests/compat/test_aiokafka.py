"""aiokafka: the client with the oldest request versions (Produce 7 or 8, Fetch 11, InitProducerId 0)."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import MessageSizeTooLargeError, OffsetOutOfRangeError, for_code

from tests.compat.samples import CODECS, NOW_MS, Sample, samples
from tests.compat.stored import stored_batches
from tests.conftest import Name

TIMEOUT_S = 20.0


async def create(bootstrap: str, name: str, partitions: int = 1, **config: str) -> str:
    configs = {key.replace("_", "."): value for key, value in config.items()}
    async with asyncio.timeout(TIMEOUT_S), AsyncExitStack() as stack:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        stack.push_async_callback(admin.close)
        answer = await admin.create_topics([NewTopic(name, partitions, 1, topic_configs=configs)])
        assert [error[1] for error in answer.topic_errors] == [0]
    return name


async def send(bootstrap: str, topic: str, records: list[Sample], **settings: Any) -> list[int]:
    async with (
        asyncio.timeout(TIMEOUT_S),
        AIOKafkaProducer(bootstrap_servers=bootstrap, **settings) as producer,
    ):
        waiting = [
            await producer.send(
                topic,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
                timestamp_ms=record.timestamp_ms,
                partition=0,
            )
            for record in records
        ]
        return [(await future).offset for future in waiting]


async def read(bootstrap: str, topic: str, count: int, start: int = 0) -> list[Any]:
    place = TopicPartition(topic, 0)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="none", fetch_max_wait_ms=50
    )
    async with asyncio.timeout(TIMEOUT_S), consumer:
        consumer.assign([place])
        consumer.seek(place, start)
        found: list[Any] = []
        while len(found) < count:
            found += (await consumer.getmany(place, timeout_ms=500)).get(place, [])
        return found


@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
@pytest.mark.parametrize("codec", CODECS)
def test_records_pass_unchanged(bootstrap: str, new_name: Name, codec: str, idempotent: bool) -> None:
    # this client sends no records that have neither key nor value
    shapes = samples(int(time.time() * 1000))
    sent = [shape for shape in shapes if (shape.key, shape.value) != (None, None)]

    async def steps() -> list[Any]:
        topic = await create(bootstrap, new_name(f"aiokafka-{codec}"))
        settings = {"compression_type": None if codec == "none" else codec, "enable_idempotence": idempotent}
        offsets = await send(bootstrap, topic, sent, linger_ms=5, **settings)
        assert offsets == list(range(len(sent)))
        return [topic, *await read(bootstrap, topic, len(sent))]

    topic, *found = asyncio.run(steps())
    assert [Sample(r.key, r.value, tuple(r.headers), r.timestamp) for r in found] == sent
    assert [record.offset for record in found] == list(range(len(sent)))
    batches = stored_batches(bootstrap, topic)
    assert codec in {batch.codec for batch in batches} <= {codec, "none"}
    assert {batch.producer_id >= 0 for batch in batches} == {idempotent}


def test_offsets_times_and_the_end(bootstrap: str, new_name: Name) -> None:
    base_ms = NOW_MS - 60_000

    async def steps() -> None:
        topic = await create(bootstrap, new_name("aio-offsets"))
        place = TopicPartition(topic, 0)
        await send(bootstrap, topic, [Sample(None, b"%d" % n, (), base_ms + n) for n in range(50)])
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="none")
        async with asyncio.timeout(TIMEOUT_S), consumer:
            consumer.assign([place])
            assert await consumer.beginning_offsets([place]) == {place: 0}
            assert await consumer.end_offsets([place]) == {place: 50}
            found = await consumer.offsets_for_times({place: base_ms + 20})
            assert (found[place].offset, found[place].timestamp) == (20, base_ms + 20)
            assert await consumer.offsets_for_times({place: base_ms + 900}) == {place: None}
            consumer.seek(place, 48)
            assert (await consumer.getone()).value == b"48"
            assert (await consumer.getone()).value == b"49"
            waiting = asyncio.ensure_future(consumer.getone())
            await send(bootstrap, topic, [Sample(None, b"later")])
            assert (await waiting).value == b"later"
            consumer.seek(place, 1000)
            with pytest.raises(OffsetOutOfRangeError):
                await consumer.getone()

    asyncio.run(steps())


def test_topics_and_configs(bootstrap: str, new_name: Name) -> None:
    topic = new_name("aio-life")

    async def steps() -> None:
        async with asyncio.timeout(TIMEOUT_S), AsyncExitStack() as stack:
            admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
            await admin.start()
            stack.push_async_callback(admin.close)

            async def partitions() -> int:
                (described,) = await admin.describe_topics([topic])
                return len(described["partitions"])

            answer = await admin.create_topics(
                [NewTopic(topic, 2, 1, topic_configs={"retention.ms": "1234567"}), NewTopic("bad name", 1, 1)]
            )
            assert {entry[0]: entry[1] for entry in answer.topic_errors} == {topic: 0, "bad name": 17}
            while topic not in await admin.list_topics():
                await asyncio.sleep(0.02)
            await admin.create_partitions({topic: NewPartitions(3)})
            while await partitions() != 3:
                await asyncio.sleep(0.02)
            (described,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
            ((_, _, _, name, entries),) = described.resources
            assert name == topic
            assert {entry[0]: entry[1] for entry in entries}["retention.ms"] == "1234567"
            await admin.alter_configs(
                [ConfigResource(ConfigResourceType.TOPIC, topic, {"segment.ms": "70000"})]
            )
            while True:
                (described,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
                values = {entry[0]: entry[1] for entry in described.resources[0][4]}
                if values["segment.ms"] == "70000":
                    break
                await asyncio.sleep(0.02)
            assert values["retention.ms"] == "604800000"  # the old request sets everything anew
            await send(bootstrap, topic, [Sample(None, b"x")] * 10)
            deleted = await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=6)})
            assert deleted == {TopicPartition(topic, 0): 6}
            assert [record.offset for record in await read(bootstrap, topic, 4, start=6)] == [6, 7, 8, 9]
            gone = await admin.delete_topics([topic])
            assert gone.topic_error_codes == [(topic, 0)]
            while topic in await admin.list_topics():
                await asyncio.sleep(0.02)
            again = await admin.delete_topics([topic])
            assert for_code(again.topic_error_codes[0][1]).__name__ == "UnknownTopicOrPartitionError"

    asyncio.run(steps())


def test_a_record_larger_than_the_topic_takes(bootstrap: str, new_name: Name) -> None:
    async def steps() -> None:
        topic = await create(bootstrap, new_name("aio-small"), max_message_bytes="5000")
        with pytest.raises(MessageSizeTooLargeError):
            await send(bootstrap, topic, [Sample(None, bytes(6000))])

    asyncio.run(steps())
