"""Records written and read back with the two halves of the client: codecs, order, restarts, transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from millstream import AsyncConsumer, AsyncProducer, ReadBatch, Record
from millstream.client.cluster import Cluster
from millstream.client.topics import create_topic
from millstream.deadline import Deadline
from millstream.errors import MessageTooLarge, RequestTimedOut
from millstream.model import TopicPartition
from millstream.protocol.batch import encode_batch
from millstream.protocol.record import Record as Sent
from millstream.testing import Broker
from tests.client.conftest import Work
from tests.client.consuming import new_topic, read
from tests.client.logs import records_in, values_in
from tests.client.raw import produce, write
from tests.conftest import Name

Run = Callable[[Work], Any]
NOW_MS = 1_780_000_000_000
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def numbered(count: int, start: int = 0) -> list[Sent]:
    return [Sent(key=b"k%d" % n, value=b"v%d" % n, timestamp=NOW_MS + n) for n in range(start, start + count)]


def values(records: list[Record]) -> list[bytes]:
    return [record.value for record in records]


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(either_bootstrap: str, codec: Any) -> None:
    async def main() -> None:
        topic = await new_topic(either_bootstrap)
        async with AsyncProducer(either_bootstrap, compression=codec) as producer:
            for n in range(150):
                producer.send(
                    topic, b"v%d" % n, key=b"k%d" % n, timestamp_ms=NOW_MS + n, headers=[("n", b"%d" % n)]
                )
        async with AsyncConsumer(either_bootstrap, offset_reset="earliest") as consumer:
            consumer.assign([(topic, 0)])
            found = await read(consumer, 150)
            assert await consumer.position((topic, 0)) == 150
        for n, record in enumerate(found):
            assert record == Record(topic, 0, n, NOW_MS + n, b"k%d" % n, b"v%d" % n, (("n", b"%d" % n),))

    uvloop.run(main())


def test_reading_starts_inside_a_batch_and_follows(either_bootstrap: str) -> None:
    async def main() -> None:
        topic = await new_topic(either_bootstrap)
        here = TopicPartition(topic, 0)
        async with Cluster(either_bootstrap) as cluster:
            deadline = Deadline(30_000)
            await produce(cluster, here, encode_batch(numbered(10)), deadline)
            async with AsyncConsumer(either_bootstrap) as consumer:
                consumer.assign([here])
                consumer.seek(here, 7)
                assert values(await read(consumer, 3)) == [b"v7", b"v8", b"v9"]
                assert await consumer.poll(timeout=0.05) == []
                for number in range(5):
                    await produce(cluster, here, encode_batch(numbered(1, number)), deadline)
                    assert values(await read(consumer, 1)) == [b"v%d" % number]

    uvloop.run(main())


def test_batches_come_with_their_headers(either_bootstrap: str) -> None:
    async def main() -> None:
        topic = await new_topic(either_bootstrap)
        for codec in CODECS:
            async with AsyncProducer(either_bootstrap, compression=codec) as producer:  # type: ignore[arg-type]
                await (await producer.send_batch(topic, [b"%d" % n for n in range(300)]))
        async with AsyncConsumer(either_bootstrap, offset_reset="earliest") as consumer:
            consumer.assign([(topic, 0)])
            consumer.seek((topic, 0), 250)
            found: list[ReadBatch] = []
            while sum(len(batch.records) for batch in found) < 1250:
                found += await consumer.poll_batches(timeout=5)
            assert [batch.header.codec for batch in found] == list(range(5))
            assert [len(batch.records) for batch in found] == [50, 300, 300, 300, 300]
            assert {batch.partition for batch in found} == {TopicPartition(topic, 0)}
            assert len({batch.header.producer_id for batch in found}) == 5
            assert await consumer.poll_batches(timeout=0.05) == []

    uvloop.run(main())


def test_many_partitions_and_small_fetches(either_bootstrap: str) -> None:
    """Order within each partition is kept although each Fetch brings only a piece of all."""

    async def main() -> None:
        topic = await new_topic(either_bootstrap, 6)
        async with AsyncProducer(either_bootstrap) as producer:
            for start in range(0, 200, 20):
                for partition in range(6):
                    rows = [b"v%d" % n for n in range(start, start + 20)]
                    await producer.send_batch(topic, rows, partition=partition)
        seen: dict[int, list[int]] = {partition: [] for partition in range(6)}
        async with AsyncConsumer(
            either_bootstrap, offset_reset="earliest", fetch_max_bytes=2000, partition_max_bytes=1000
        ) as consumer:
            consumer.assign([(topic, partition) for partition in range(6)])
            for record in await read(consumer, 1200):
                seen[record.partition].append(record.offset)
        assert all(offsets == list(range(200)) for offsets in seen.values())

    uvloop.run(main())


def test_no_partition_waits_for_the_others(with_cluster: Run, either_bootstrap: str, new_name: Name) -> None:
    """A Fetch that is full after one partition begins with another one the next time."""
    name = new_name("fair")
    partitions = [TopicPartition(name, index) for index in range(3)]

    async def work(cluster: Cluster, deadline: Deadline) -> None:
        await create_topic(cluster, name, deadline, partitions=3)
        for partition in partitions:
            for start in range(0, 100, 10):
                await produce(cluster, partition, encode_batch(numbered(10, start)), deadline)
        async with AsyncConsumer(
            either_bootstrap, offset_reset="earliest", fetch_max_bytes=300, partition_max_bytes=300
        ) as consumer:
            consumer.assign(partitions)
            for _ in range(9):
                assert await consumer.poll(10, timeout=5)
            reached = [await consumer.position(partition) for partition in partitions]
            assert max(reached) - min(reached) <= 20

    with_cluster(work)


def test_acks(either_bootstrap: str) -> None:
    async def main() -> None:
        topic = await new_topic(either_bootstrap)
        async with AsyncProducer(either_bootstrap, acks=0) as producer:
            assert (await producer.send(topic, b"v0")).offset == -1
        async with AsyncConsumer(either_bootstrap, offset_reset="earliest") as consumer:
            consumer.assign([(topic, 0)])
            assert values(await read(consumer, 1)) == [b"v0"]
        async with AsyncProducer(either_bootstrap, acks=1) as producer:
            assert (await producer.send(topic, b"v1")).offset == 1

    uvloop.run(main())


def test_a_batch_sent_twice_is_written_once(with_cluster: Run, either_bootstrap: str, new_name: Name) -> None:
    """What an idempotent producer does after a lost answer: the same bytes again."""
    partition = TopicPartition(new_name("twice"), 0)

    async def work(cluster: Cluster, deadline: Deadline) -> None:
        await create_topic(cluster, partition.topic, deadline)
        batch = await write(cluster, partition, numbered(3), deadline)
        assert await produce(cluster, partition, batch, deadline) == 0

    with_cluster(work)
    assert [[record.offset for record in part] for part in records_in(either_bootstrap, partition.topic)] == [
        [0, 1, 2]
    ]


def test_a_record_that_is_too_large_fails_alone(
    with_cluster: Run, either_bootstrap: str, new_name: Name
) -> None:
    name = new_name("large")

    async def work(cluster: Cluster, deadline: Deadline) -> None:
        await create_topic(cluster, name, deadline, partitions=2, configs={"max.message.bytes": "1000"})
        async with AsyncProducer(either_bootstrap) as producer:
            with pytest.raises(MessageTooLarge, match=f"partition {name}-0"):
                await producer.send(name, b"x" * 2000, partition=0)
            assert (await producer.send(name, b"1", partition=0)).offset == 0
            assert (await producer.send(name, b"2", partition=1)).offset == 0

    with_cluster(work)


def test_keys_go_where_other_clients_put_them(either_bootstrap: str) -> None:
    from confluent_kafka import Producer

    keys = [b"", b"a", b"21", b"foobar", "ключ".encode(), bytes(range(256))]
    theirs: dict[bytes, int] = {}
    ours: dict[bytes, int] = {}

    def delivered(error: object, message: Any) -> None:
        assert error is None
        theirs[message.key()] = message.partition()

    async def send() -> None:
        async with AsyncProducer(either_bootstrap) as producer:
            for key in keys:
                ours[key] = (await producer.send(topic, b"v", key=key)).partition

    topic = uvloop.run(new_topic(either_bootstrap, 7))
    producer = Producer({"bootstrap.servers": either_bootstrap, "partitioner": "murmur2"})
    for key in keys:
        producer.produce(topic, b"v", key, on_delivery=delivered)
    assert producer.flush(20) == 0
    uvloop.run(send())
    assert ours == theirs


def test_restarts_are_survived_by_both_halves() -> None:
    """While the broker goes away and comes back, both go on: all records, once, in order."""
    total = 300

    async def main(broker: Broker) -> list[Record]:
        topic = await new_topic(broker.bootstrap)

        async def send() -> None:
            async with AsyncProducer(broker.bootstrap, linger_ms=0) as producer:
                for number in range(total):
                    await producer.send(topic, b"v%d" % number)
                    await asyncio.sleep(0.002)

        async def restart() -> None:
            for _ in range(2):
                await asyncio.sleep(0.15)
                await asyncio.to_thread(broker.restart)

        async with AsyncConsumer(broker.bootstrap, offset_reset="earliest") as consumer:
            consumer.assign([(topic, 0)])
            sending, restarting = asyncio.ensure_future(send()), asyncio.ensure_future(restart())
            found = await read(consumer, total)
            await asyncio.gather(sending, restarting)
            assert await consumer.poll(timeout=0.2) == []
            return found

    with Broker() as broker:
        found = uvloop.run(main(broker))
    assert values(found) == [b"v%d" % n for n in range(total)]
    assert [record.offset for record in found] == list(range(total))


def test_a_broker_that_stays_away_is_an_error_at_the_deadline() -> None:
    async def main(broker: Broker) -> None:
        topic = await new_topic(broker.bootstrap)
        async with (
            AsyncProducer(broker.bootstrap, delivery_timeout_ms=500) as producer,
            AsyncConsumer(broker.bootstrap) as consumer,
        ):
            await producer.send(topic, b"1")
            await consumer.partitions_of(topic)
            await asyncio.to_thread(broker.stop)
            with pytest.raises(RequestTimedOut, match="not written in 500 ms"):
                await producer.send(topic, b"2")
            with pytest.raises(RequestTimedOut, match="the last error was"):
                await consumer.end_offsets([(topic, 0)], timeout=0.5)

    with Broker() as broker:
        uvloop.run(main(broker))


@pytest.mark.java
def test_aborted_transactions_of_another_client_are_left_out(kafka_bootstrap: str, new_name: Name) -> None:
    from confluent_kafka import Producer

    topic = uvloop.run(new_topic(kafka_bootstrap))

    async def consumed(isolation_level: Any, count: int) -> list[bytes]:
        async with AsyncConsumer(
            kafka_bootstrap, offset_reset="earliest", isolation_level=isolation_level
        ) as consumer:
            consumer.assign([(topic, 0)])
            found = values(await read(consumer, count))
            assert await consumer.poll(timeout=0.2) == []
            return found

    producer = Producer({"bootstrap.servers": kafka_bootstrap, "transactional.id": new_name("id")})
    producer.init_transactions(30)
    for number, is_kept in enumerate([True, False, True, False]):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=0)
        producer.flush(20)
        if is_kept:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    assert uvloop.run(consumed("read_committed", 2)) == [b"0", b"2"]
    assert uvloop.run(consumed("read_uncommitted", 4)) == [b"0", b"1", b"2", b"3"]
    assert values_in(kafka_bootstrap, topic, isolation_level=1) == [[b"0", b"2"]]


def test_what_was_written_is_told_though_some_rows_failed(
    with_cluster: Run, either_bootstrap: str, new_name: Name
) -> None:
    name = new_name("partly")

    def by_length(_: str, key: bytes | None, partitions: int) -> int:
        return int(key or b"0")

    async def work(cluster: Cluster, deadline: Deadline) -> None:
        await create_topic(cluster, name, deadline, partitions=2, configs={"max.message.bytes": "1000"})
        async with AsyncProducer(either_bootstrap, partitioner=by_length) as producer:
            rows = [b"1", b"x" * 2000, b"2"]
            deliveries = await producer.send_batch(name, rows, keys=[b"0", b"1", b"0"])
            with pytest.raises(MessageTooLarge):
                await deliveries
            assert deliveries.done()
            assert [tuple(place) for place in deliveries.written()] == [(name, 0, 0, 2)]

    with_cluster(work)
