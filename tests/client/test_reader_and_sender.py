"""Records written and read back: all codecs, order, retries, gaps, restarts, transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from millstream.client.cluster import Cluster
from millstream.client.deadline import Deadline
from millstream.client.fetching import FetchLimits
from millstream.client.offsets import READ_COMMITTED
from millstream.client.producing import ACKS_LEADER, ACKS_NONE, produce
from millstream.client.reader import Reader
from millstream.client.sender import Sender, partition_for_key
from millstream.client.topics import create_topic, delete_records, delete_topic
from millstream.errors import KafkaError, MessageTooLarge, OffsetOutOfRange, UnknownTopicOrPartition
from millstream.model import TopicPartition
from millstream.protocol.batch import Codec, encode_batch
from millstream.protocol.record import Record
from millstream.testing import Broker
from tests.client.conftest import Work
from tests.conftest import Name

Run = Callable[[Work], Any]
NOW_MS = 1_780_000_000_000


def numbered(count: int, start: int = 0) -> list[Record]:
    return [
        Record(key=b"k%d" % n, value=b"v%d" % n, headers=(("n", b"%d" % n),), timestamp=NOW_MS + n)
        for n in range(start, start + count)
    ]


async def read_all(reader: Reader, count: int) -> list[Record]:
    """Until `count` records have come; never for ever."""
    found: list[Record] = []
    deadline = Deadline(30_000)
    while len(found) < count:
        assert not deadline.has_passed, f"{len(found)} of {count} records came"
        for batch in await reader.poll(1000):
            found += batch.records
    return found


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]


@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec(with_cluster: Run, new_name: Name, codec: Codec) -> None:
    partition = TopicPartition(new_name(f"codec-{codec.name.lower()}"), 0)

    async def work(cluster: Cluster, deadline: Deadline) -> None:
        await create_topic(cluster, partition.topic, deadline)
        sender = Sender(cluster, codec=codec)
        await sender.start(deadline)
        assert (await sender.send(partition, numbered(100), deadline)).base_offset == 0
        assert (await sender.send(partition, numbered(50, 100), deadline)).base_offset == 100
        async with Reader(cluster, {partition: 0}) as reader:
            found = await read_all(reader, 150)
            assert reader.positions == {partition: 150}
        assert [record.offset for record in found] == list(range(150))
        for record, sent in zip(found, numbered(150), strict=True):
            assert (record.key, record.value) == (sent.key, sent.value)
            assert (record.headers, record.timestamp) == (sent.headers, sent.timestamp)

    with_cluster(work)


def test_reading_starts_inside_a_batch(with_cluster: Run, new_name: Name) -> None:
    partition = TopicPartition(new_name("inside"), 0)

    async def work(cluster: Cluster, deadline: Deadline) -> None:
        await create_topic(cluster, partition.topic, deadline)
        await produce(cluster, partition, encode_batch(numbered(10)), deadline)
        async with Reader(cluster, {partition: 7}) as reader:
            assert values(await read_all(reader, 3)) == [b"v7", b"v8", b"v9"]

    with_cluster(work)


def test_new_records_are_followed(with_cluster: Run, new_name: Name) -> None:
    partition = TopicPartition(new_name("followed"), 0)

    async def work(cluster: Cluster, deadline: Deadline) -> None:
        await create_topic(cluster, partition.topic, deadline)
        async with Reader(cluster, {partition: 0}) as reader:
            assert await reader.poll(50) == []
            for number in range(5):
                await produce(cluster, partition, encode_batch(numbered(1, number)), deadline)
                assert values(await read_all(reader, 1)) == [b"v%d" % number]
            reader.drop(partition)
            assert await reader.poll(60_000) == []

    with_cluster(work)


def test_many_partitions_and_small_fetches(with_cluster: Run, new_name: Name) -> None:
    """Order within each partition is kept although each Fetch brings only a piece of all."""
    name = new_name("spread")
    partitions = [TopicPartition(name, index) for index in range(6)]

    async def work(cluster: Cluster, deadline: Deadline) -> None:
        await create_topic(cluster, name, deadline, partitions=6)
        sender = Sender(cluster)
        await sender.start(deadline)
        for start in range(0, 200, 20):
            await asyncio.gather(*(sender.send(p, numbered(20, start), deadline) for p in partitions))
        limits = FetchLimits(max_bytes=2000, partition_max_bytes=1000)
        seen: dict[TopicPartition, list[int]] = {p: [] for p in partitions}
        async with Reader(cluster, dict.fromkeys(partitions, 0), limits=limits) as reader:
            while any(len(offsets) < 200 for offsets in seen.values()):
                for batch in await reader.poll(5000):
                    seen[batch.partition] += [record.offset for record in batch.records]
        assert all(offsets == list(range(200)) for offsets in seen.values())

    with_cluster(work)


def test_no_partition_waits_for_the_others(with_cluster: Run, new_name: Name) -> None:
    """A Fetch that is full after one partition begins with another one the next time."""
    name = new_name("fair")
    partitions = [TopicPartition(name, index) for index in range(3)]

    async def work(cluster: Cluster, deadline: Deadline) -> None:
        await create_topic(cluster, name, deadline, partitions=3)
        for partition in partitions:
            for start in range(0, 100, 10):
                await produce(cluster, partition, encode_batch(numbered(10, start)), deadline)
        limits = FetchLimits(max_bytes=300, partition_max_bytes=300)
        async with Reader(cluster, dict.fromkeys(partitions, 0), limits=limits) as reader:
            for _ in range(9):
                assert await reader.poll(5000)
            reached = reader.positions.values()
            assert max(reached) - min(reached) <= 20

    with_cluster(work)


def test_acks(with_cluster: Run, new_name: Name) -> None:
    partition = TopicPartition(new_name("acks"), 0)

    async def work(cluster: Cluster, deadline: Deadline) -> None:
        await create_topic(cluster, partition.topic, deadline)
        none = Sender(cluster, acks=ACKS_NONE)
        await none.start(deadline)
        assert (await none.send(partition, numbered(1), deadline)).base_offset == -1
        async with Reader(cluster, {partition: 0}) as reader:
            assert values(await read_all(reader, 1)) == [b"v0"]
        leader = Sender(cluster, acks=ACKS_LEADER)
        await leader.start(deadline)
        assert (await leader.send(partition, numbered(1, 1), deadline)).base_offset == 1

    with_cluster(work)


def test_a_batch_sent_twice_is_written_once(with_cluster: Run, new_name: Name) -> None:
    """What an idempotent sender does after a lost answer: the same bytes again."""
    partition = TopicPartition(new_name("twice"), 0)

    async def work(cluster: Cluster, deadline: Deadline) -> None:
        await create_topic(cluster, partition.topic, deadline)
        sender = Sender(cluster)
        await sender.start(deadline)
        batch = encode_batch(
            numbered(3),
            producer_id=sender._producer_id,
            producer_epoch=sender._producer_epoch,
            base_sequence=0,
        )
        first = await produce(cluster, partition, bytes(batch), deadline)
        again = await produce(cluster, partition, bytes(batch), deadline)
        assert first.base_offset == again.base_offset == 0
        async with Reader(cluster, {partition: 0}) as reader:
            assert len(await read_all(reader, 3)) == 3
            assert await reader.poll(100) == []

    with_cluster(work)


def test_a_batch_that_is_too_large_fails_its_partition_only(with_cluster: Run, new_name: Name) -> None:
    name = new_name("large")
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)

    async def work(cluster: Cluster, deadline: Deadline) -> None:
        await create_topic(cluster, name, deadline, partitions=2, configs={"max.message.bytes": "1000"})
        sender = Sender(cluster)
        await sender.start(deadline)
        with pytest.raises(MessageTooLarge, match=f"partition {first}"):
            await sender.send(first, [Record(value=b"x" * 2000, timestamp=NOW_MS)], deadline)
        with pytest.raises(MessageTooLarge):
            await sender.send(first, numbered(1), deadline)
        assert (await sender.send(second, numbered(1), deadline)).base_offset == 0

    with_cluster(work)


def test_deleted_records_are_a_gap(with_cluster: Run, new_name: Name) -> None:
    partition = TopicPartition(new_name("gap"), 0)

    async def work(cluster: Cluster, deadline: Deadline) -> None:
        await create_topic(cluster, partition.topic, deadline)
        for start in range(0, 10, 5):
            await produce(cluster, partition, encode_batch(numbered(5, start)), deadline)
        await delete_records(cluster, {partition: 7}, deadline)
        gaps: list[tuple[TopicPartition, int, int]] = []
        async with Reader(cluster, {partition: 2}, on_gap=lambda *gap: gaps.append(gap)) as reader:
            assert values(await read_all(reader, 3)) == [b"v7", b"v8", b"v9"]
        assert gaps == [(partition, 2, 7)]
        async with Reader(cluster, {partition: 99}) as reader:
            with pytest.raises(OffsetOutOfRange, match="ends before offset 99"):
                await reader.poll(5000)

    with_cluster(work)


def test_a_deleted_topic_ends_reading(with_cluster: Run, new_name: Name) -> None:
    partition = TopicPartition(new_name("deleted"), 0)

    async def work(cluster: Cluster, deadline: Deadline) -> None:
        await create_topic(cluster, partition.topic, deadline)
        async with Reader(cluster, {partition: 0}) as reader:
            assert await reader.poll(10) == []
            await delete_topic(cluster, partition.topic, deadline)
            with pytest.raises(UnknownTopicOrPartition):
                await reader.poll(30_000)

    with_cluster(work)


def test_keys_go_where_other_clients_put_them(either_bootstrap: str, new_name: Name) -> None:
    from confluent_kafka import Producer

    name = new_name("keys")
    keys = [b"", b"a", b"21", b"foobar", "ключ".encode(), bytes(range(256))]
    seen: dict[bytes, int] = {}

    def delivered(error: object, message: Any) -> None:
        assert error is None
        seen[message.key()] = message.partition()

    async def make() -> None:
        async with Cluster(either_bootstrap) as cluster:
            await create_topic(cluster, name, Deadline(30_000), partitions=7)

    uvloop.run(make())
    producer = Producer({"bootstrap.servers": either_bootstrap, "partitioner": "murmur2"})
    for key in keys:
        producer.produce(name, b"v", key, on_delivery=delivered)
    assert producer.flush(20) == 0
    assert {key: partition_for_key(key, 7) for key in keys} == seen


def test_restarts_are_survived(new_name: Name) -> None:
    """While the broker goes away and comes back, a sender and a reader go on: all records, once, in order."""
    name = new_name("restart")
    partition = TopicPartition(name, 0)
    total = 300

    async def main(broker: Broker) -> list[Record]:
        async with Cluster(broker.bootstrap) as writing, Cluster(broker.bootstrap) as reading:
            deadline = Deadline(60_000)
            await create_topic(writing, name, deadline)
            sender = Sender(writing)
            await sender.start(deadline)
            stop = asyncio.Event()

            async def send() -> None:
                for number in range(total):
                    await sender.send(partition, numbered(1, number), Deadline(30_000))
                    await asyncio.sleep(0.002)
                stop.set()

            async def restart() -> None:
                for _ in range(2):
                    await asyncio.sleep(0.15)
                    await asyncio.to_thread(broker.restart)

            async with Reader(reading, {partition: 0}) as reader:
                sending, restarting = asyncio.ensure_future(send()), asyncio.ensure_future(restart())
                found = await read_all(reader, total)
                await asyncio.gather(sending, restarting)
                assert await reader.poll(200) == []
                return found

    with Broker() as broker:
        found = uvloop.run(main(broker))
    assert values(found) == [b"v%d" % n for n in range(total)]
    assert [record.offset for record in found] == list(range(total))


def test_a_broker_that_stays_away_is_an_error_at_the_deadline(new_name: Name) -> None:
    partition = TopicPartition(new_name("away"), 0)

    async def main(broker: Broker) -> None:
        async with Cluster(broker.bootstrap) as cluster:
            await create_topic(cluster, partition.topic, Deadline(30_000))
            sender = Sender(cluster)
            await sender.start(Deadline(30_000))
            async with Reader(cluster, {partition: 0}, timeout_ms=500) as reader:
                await reader.poll(10)
                await asyncio.to_thread(broker.stop)
                with pytest.raises(KafkaError, match="the last error was"):
                    await sender.send(partition, numbered(1), Deadline(500))
                with pytest.raises(KafkaError, match="the last error was"):
                    await reader.poll(30_000)

    with Broker() as broker:
        uvloop.run(main(broker))


@pytest.mark.java
def test_aborted_transactions_are_left_out(kafka_bootstrap: str, new_name: Name) -> None:
    """Written by a foreign producer; on Millstream too once it has transactions."""
    from confluent_kafka import Producer

    partition = TopicPartition(new_name("transactions"), 0)

    async def make() -> None:
        async with Cluster(kafka_bootstrap) as cluster:
            await create_topic(cluster, partition.topic, Deadline(30_000))

    async def read(isolation_level: int, count: int) -> list[bytes | None]:
        async with (
            Cluster(kafka_bootstrap) as cluster,
            Reader(cluster, {partition: 0}, isolation_level=isolation_level) as reader,
        ):
            found = values(await read_all(reader, count))
            assert await reader.poll(200) == []
            return found

    uvloop.run(make())
    producer = Producer({"bootstrap.servers": kafka_bootstrap, "transactional.id": new_name("id")})
    producer.init_transactions(30)
    for number, is_kept in enumerate([True, False, True, False]):
        producer.begin_transaction()
        producer.produce(partition.topic, b"%d" % number, partition=0)
        producer.flush(20)
        if is_kept:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    assert uvloop.run(read(READ_COMMITTED, 2)) == [b"0", b"2"]
    assert uvloop.run(read(0, 4)) == [b"0", b"1", b"2", b"3"]
