"""Topics that are deleted, made again, grow, and hold very large records, under both halves of the client."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from millstream import AsyncAdmin, AsyncConsumer, AsyncProducer, Consumer, TopicPartition
from millstream.errors import UnknownTopicOrPartition
from tests.client.consuming import fill, new_topic, numbered, read, until
from tests.conftest import Name


def run(work: Any) -> None:
    asyncio.run(asyncio.wait_for(work, 90))


def test_a_topic_that_is_made_again_is_written_and_read(either_bootstrap: str, new_name: Name) -> None:
    """It has another id, no records and no memory of the producer's sequences."""
    topic = new_name("again")

    async def main() -> None:
        async with (
            AsyncAdmin(either_bootstrap) as admin,
            AsyncProducer(either_bootstrap, auto_create_topics=False, linger_ms=0) as producer,
            AsyncConsumer(either_bootstrap, offset_reset="earliest", fetch_max_wait_ms=50) as consumer,
        ):
            consumer.assign([(topic, 0)])
            for life in range(3):
                await admin.create_topic(topic, 1, replication_factor=1)
                for number in range(5 - life):
                    delivered = await producer.send(topic, b"%d-%d" % (life, number))
                    assert delivered.offset == number
                found = [record.value for record in await read(consumer, 5 - life)]
                assert found == [b"%d-%d" % (life, number) for number in range(5 - life)]
                await admin.delete_topic(topic)
                assert await consumer.poll(timeout=0.3) == []

    run(main())


def test_a_topic_that_is_made_again_may_be_smaller(either_bootstrap: str, new_name: Name) -> None:
    topic = new_name("smaller")

    async def main() -> None:
        async with (
            AsyncAdmin(either_bootstrap) as admin,
            AsyncProducer(either_bootstrap, auto_create_topics=False, linger_ms=0) as producer,
            asyncio.timeout(60),
        ):
            await admin.create_topic(topic, 3, replication_factor=1)
            for partition in range(3):
                await producer.send(topic, b"1", partition=partition)
            await admin.delete_topic(topic)
            await admin.create_topic(topic, 1, replication_factor=1)
            waiting = producer.send(topic, b"2", partition=2)
            assert (await producer.send(topic, b"2", partition=0)).offset == 0
            with pytest.raises(UnknownTopicOrPartition, match=topic):
                await waiting
            for number in range(10):
                delivered = await producer.send(topic, b"3", key=b"%d" % number)
                assert (delivered.partition, delivered.offset) == (0, number + 1)
            with pytest.raises(UnknownTopicOrPartition, match="0 to 0"):
                producer.send(topic, b"4", partition=2)

    run(main())


def test_a_topic_that_is_gone_fails_its_records(either_bootstrap: str, new_name: Name) -> None:
    topic = new_name("gone")

    async def main() -> None:
        async with (
            AsyncAdmin(either_bootstrap) as admin,
            AsyncProducer(either_bootstrap, auto_create_topics=False) as producer,
        ):
            await admin.create_topic(topic, 1, replication_factor=1)
            await producer.send(topic, b"1")
            await admin.delete_topic(topic)
            with pytest.raises(UnknownTopicOrPartition, match=topic):
                await asyncio.wait_for(_awaited(producer.send(topic, b"2")), 20)
            assert producer.buffered_bytes == 0

    run(main())


async def _awaited(delivery: Any) -> Any:
    return await delivery


def test_new_partitions_are_used_and_read(either_bootstrap: str) -> None:
    async def main() -> None:
        topic = await new_topic(either_bootstrap)
        async with (
            AsyncAdmin(either_bootstrap) as admin,
            AsyncProducer(either_bootstrap) as producer,
            AsyncConsumer(
                either_bootstrap, group=f"g-{topic}", offset_reset="earliest", metadata_max_age_ms=300
            ) as consumer,
        ):
            await producer.send(topic, b"0")
            consumer.subscribe(re.compile(topic))
            await until(lambda: len(consumer.assignment) == 1, consumer)
            await admin.add_partitions(topic, 3)
            await until(lambda: len(consumer.assignment) == 3, consumer)
            assert len(await consumer.partitions_of(topic)) == 3

    run(main())


def test_a_very_large_record(either_bootstrap: str, new_name: Name) -> None:
    """Larger than what a Fetch asks for: a broker gives the first batch whole."""
    topic, size = new_name("huge"), 24 * 1024 * 1024

    async def main() -> None:
        async with (
            AsyncAdmin(either_bootstrap) as admin,
            AsyncProducer(
                either_bootstrap, max_request_bytes=size + 1000, buffer_bytes=size + 1000
            ) as producer,
            AsyncConsumer(either_bootstrap, offset_reset="earliest") as consumer,
        ):
            await admin.create_topic(
                topic, 1, replication_factor=1, configs={"max.message.bytes": str(size + 1000)}
            )
            values = [b"a" * size, b"small", b"b" * size]
            for value in values:
                await producer.room()
                producer.send(topic, value)
                await producer.flush()
            consumer.assign([(topic, 0)])
            assert [record.value for record in await read(consumer, 3)] == values
            consumer.seek_to_beginning()
            rows = 0
            while rows < 3:
                rows += (await consumer.poll_arrow(timeout=10)).num_rows

    run(main())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_callbacks_that_seek_and_commit(either_bootstrap: str, protocol: Any) -> None:
    topic = asyncio.run(new_topic(either_bootstrap, 2))
    for partition in range(2):
        asyncio.run(fill(either_bootstrap, topic, partition, numbered(10)))
    group = f"g-{protocol}-{topic}"
    told: list[str] = []
    with Consumer(
        either_bootstrap,
        group=group,
        group_protocol=protocol,
        offset_reset="earliest",
        auto_commit=False,
        fetch_max_wait_ms=100,
    ) as consumer:

        def assigned(partitions: list[TopicPartition]) -> None:
            told.append("assigned")
            for partition in partitions:
                consumer.seek(partition, 7)
                assert consumer.position(partition) == 7
            consumer.pause(partitions[0])
            consumer.resume()

        def revoked(partitions: list[TopicPartition]) -> None:
            told.append("revoked")
            consumer.commit(dict.fromkeys(partitions, 9))

        consumer.subscribe(topic, on_assigned=assigned, on_revoked=revoked)
        seen: list[int] = []
        for record in consumer:
            seen.append(record.offset)
            if len(seen) == 6:
                break
        assert sorted(seen) == [7, 7, 8, 8, 9, 9]
        consumer.unsubscribe()
        assert told == ["assigned", "revoked"]
        found = consumer.committed([(topic, 0), (topic, 1)])
        assert {each.offset for each in found.values()} == {9}


def test_a_pattern_that_ignores_case_does_so_on_the_broker_too(either_bootstrap: str) -> None:
    async def main() -> None:
        topic = await new_topic(either_bootstrap, prefix="MiXed")
        async with AsyncConsumer(
            either_bootstrap, group=f"g-{topic}", group_protocol="consumer", metadata_max_age_ms=500
        ) as consumer:
            consumer.subscribe(re.compile(topic.lower(), re.IGNORECASE))
            await until(lambda: len(consumer.assignment) == 1, consumer)
            assert consumer.subscription == {topic}
            with pytest.raises(ValueError, match="VERBOSE"):
                consumer.subscribe(re.compile("a b", re.VERBOSE))

    run(main())
