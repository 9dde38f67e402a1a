"""A consumer that reads partitions by itself, on Millstream and on Apache Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
import uvloop
from confluent_kafka import Producer

from millstream import AsyncConsumer, TopicPartition
from millstream.client.cluster import Cluster
from millstream.client.consumer_errors import NoOffset, NotSubscribed
from millstream.client.errors import NoSuchTopic
from millstream.client.face import Closed
from millstream.client.record_deletion import delete_records
from millstream.deadline import Deadline
from millstream.protocol.batch import Codec
from tests.client.consuming import PATIENCE_S, fill, new_topic, numbered, read

Body = Callable[[str], Coroutine[Any, Any, None]]


@pytest.fixture
def run(either_bootstrap: str) -> Callable[[Body], None]:
    """Runs a test's coroutine with the address of each kind of broker."""

    def go(body: Body) -> None:
        uvloop.run(body(either_bootstrap))

    return go


def test_reads_all_records_of_all_partitions_in_order(run: Callable[[Body], None]) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap, 3)
        for partition in range(3):
            for start in range(0, 300, 100):
                await fill(bootstrap, topic, partition, numbered(100, start))
        async with AsyncConsumer(bootstrap, offset_reset="earliest") as consumer:
            consumer.assign(await consumer.partitions_of(topic))
            records = await read(consumer, 900, max_records=70)
        for partition in range(3):
            mine = [record for record in records if record.partition == partition]
            assert [record.offset for record in mine] == list(range(300))
            assert [record.value for record in mine] == numbered(300)
        first = next(record for record in records if record.partition == 1)
        assert (first.topic, first.key, first.timestamp_ms) == (topic, b"k0", 1_000)
        assert first.headers == (("n", b"0"),)

    run(body)


def test_a_poll_gives_at_most_what_it_is_asked_for_and_nothing_when_there_is_nothing(
    run: Callable[[Body], None],
) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap)
        await fill(bootstrap, topic, 0, numbered(10))
        async with AsyncConsumer(bootstrap, offset_reset="earliest") as consumer:
            consumer.assign([(topic, 0)])
            assert len(await read(consumer, 1, max_records=3)) == 3
            assert await consumer.position((topic, 0)) == 3
            assert len(await read(consumer, 7)) == 7
            assert await consumer.poll(timeout=0.1) == []
            await fill(bootstrap, topic, 0, [b"late"])
            assert [record.value for record in await read(consumer, 1)] == [b"late"]

    run(body)


def test_iterates_and_knows_its_position_at_every_record(run: Callable[[Body], None]) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap)
        await fill(bootstrap, topic, 0, numbered(50))
        seen = []
        async with AsyncConsumer(bootstrap, offset_reset="earliest") as consumer:
            consumer.assign([(topic, 0)])
            async for record in consumer:
                seen.append(record.offset)
                assert await consumer.position((topic, 0)) == record.offset + 1
                if record.offset == 20 and seen.count(20) == 1:
                    consumer.seek((topic, 0), 10)
                if record.offset == 49:
                    break
        assert seen == [*range(21), *range(10, 50)]

    run(body)


def test_an_iteration_ends_when_the_consumer_is_closed(run: Callable[[Body], None]) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap)
        consumer = AsyncConsumer(bootstrap, offset_reset="earliest")
        consumer.assign([(topic, 0)])

        async def iterate() -> int:
            return sum([1 async for _ in consumer])

        task = asyncio.ensure_future(iterate())
        await asyncio.sleep(0.1)
        await consumer.close()
        assert await task == 0
        await consumer.close()
        with pytest.raises(Closed):
            await consumer.poll()

    run(body)


def test_seeks_by_offset_by_time_to_the_beginning_and_to_the_end(run: Callable[[Body], None]) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap, 2)
        for partition in range(2):
            await fill(bootstrap, topic, partition, numbered(100), start_ms=5_000)
        async with AsyncConsumer(bootstrap, offset_reset="earliest") as consumer:
            consumer.assign([(topic, 0), (topic, 1)])
            await read(consumer, 200)
            consumer.seek((topic, 0), 95)
            assert [record.offset for record in await read(consumer, 5)] == list(range(95, 100))
            consumer.seek_to_time(5_090, (topic, 1))
            assert [record.offset for record in await read(consumer, 10)] == list(range(90, 100))
            consumer.seek_to_time(9_999_999_999_999)
            assert await consumer.position((topic, 0)) == 100
            consumer.seek_to_beginning((topic, 1))
            assert {record.partition for record in await read(consumer, 100)} == {1}
            consumer.seek_to_beginning()
            consumer.seek_to_end()
            assert await consumer.position((topic, 0)) == 100
            assert await consumer.poll(timeout=0.1) == []
            assert await consumer.beginning_offsets([(topic, 0)]) == {TopicPartition(topic, 0): 0}
            assert await consumer.end_offsets([(topic, 1)]) == {TopicPartition(topic, 1): 100}
            found = await consumer.offsets_at({TopicPartition(topic, 0): 5_042})
            assert (found[TopicPartition(topic, 0)].offset, found[TopicPartition(topic, 0)].timestamp_ms) == (
                42,
                5_042,
            )
            with pytest.raises(ValueError, match="negative"):
                consumer.seek((topic, 0), -1)
            with pytest.raises(NotSubscribed, match="not assigned"):
                consumer.seek((topic, 7), 1)

    run(body)


def test_paused_partitions_keep_what_they_have_until_resumed(run: Callable[[Body], None]) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap, 2)
        await fill(bootstrap, topic, 0, numbered(30))
        await fill(bootstrap, topic, 1, numbered(30))
        async with AsyncConsumer(bootstrap, offset_reset="earliest") as consumer:
            consumer.assign([(topic, 0), (topic, 1)])
            first = await read(consumer, 1, max_records=1)
            stopped = first[0].partition
            consumer.pause((topic, stopped))
            assert consumer.paused() == {TopicPartition(topic, stopped)}
            others = await read(consumer, 30)
            assert {record.partition for record in others} == {1 - stopped}
            assert await consumer.poll(timeout=0.2) == []
            consumer.resume()
            rest = await read(consumer, 29)
            assert [record.offset for record in rest] == list(range(1, 30))

    run(body)


def test_lag_is_what_is_left_to_read(run: Callable[[Body], None]) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap, 2)
        await fill(bootstrap, topic, 0, numbered(40))
        async with AsyncConsumer(bootstrap, offset_reset="earliest") as consumer:
            consumer.assign([(topic, 0), (topic, 1)])
            assert await consumer.lag() == {TopicPartition(topic, 0): 40, TopicPartition(topic, 1): 0}
            await read(consumer, 1, max_records=15)
            assert await consumer.lag() == {TopicPartition(topic, 0): 25, TopicPartition(topic, 1): 0}

    run(body)


def test_the_reset_policy_decides_where_no_position_is_known(run: Callable[[Body], None]) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap)
        await fill(bootstrap, topic, 0, numbered(10))
        async with AsyncConsumer(bootstrap) as consumer:
            consumer.assign([(topic, 0)])
            assert await consumer.position((topic, 0)) == 10
        async with AsyncConsumer(bootstrap, offset_reset="none") as consumer:
            consumer.assign([(topic, 0)])
            with pytest.raises(NoOffset) as caught:
                await read(consumer, 1)
            assert caught.value.partitions == (TopicPartition(topic, 0),)
            consumer.seek((topic, 0), 7)
            assert [record.offset for record in await read(consumer, 3)] == [7, 8, 9]

    run(body)


def test_goes_on_by_its_policy_where_records_were_deleted_under_it(run: Callable[[Body], None]) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap)
        for start in range(0, 50, 10):
            await fill(bootstrap, topic, 0, numbered(10, start))
        async with Cluster(bootstrap) as cluster:
            await delete_records(cluster, {TopicPartition(topic, 0): 30}, Deadline(30_000))
        for policy, first in (("earliest", 30), ("latest", 50)):
            async with AsyncConsumer(bootstrap, offset_reset=policy) as consumer:  # type: ignore[arg-type]
                consumer.assign([(topic, 0)])
                consumer.seek((topic, 0), 5)
                if policy == "earliest":
                    assert (await read(consumer, 1))[0].offset == first
                async with asyncio.timeout(PATIENCE_S):
                    while await consumer.position((topic, 0)) == 5:
                        assert await consumer.poll(timeout=0.1) == []
                assert await consumer.position((topic, 0)) == 50
        async with AsyncConsumer(bootstrap, offset_reset="none") as consumer:
            consumer.assign([(topic, 0)])
            consumer.seek((topic, 0), 5)
            with pytest.raises(NoOffset, match="no record at offset 5"):
                await read(consumer, 1)

    run(body)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_reads_every_codec(run: Callable[[Body], None], codec: Codec) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap)
        await fill(bootstrap, topic, 0, numbered(1000), codec=codec)
        async with AsyncConsumer(bootstrap, offset_reset="earliest") as consumer:
            consumer.assign([(topic, 0)])
            assert [record.value for record in await read(consumer, 1000)] == numbered(1000)

    run(body)


def test_shows_committed_transactions_only_where_asked_to(run: Callable[[Body], None]) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap)
        await asyncio.get_running_loop().run_in_executor(None, _transactions, bootstrap, topic)
        async with AsyncConsumer(bootstrap, offset_reset="earliest") as consumer:
            consumer.assign([(topic, 0)])
            values = [record.value for record in await read(consumer, 40)]
            assert values == [b"aborted"] * 10 + [b"kept"] * 10 + [b"aborted"] * 10 + [b"kept"] * 10
        async with AsyncConsumer(
            bootstrap, offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:
            consumer.assign([(topic, 0)])
            values = [record.value for record in await read(consumer, 20)]
            assert values == [b"kept"] * 20
            end = (await consumer.end_offsets([(topic, 0)]))[TopicPartition(topic, 0)]
            assert await consumer.position((topic, 0)) in (end - 1, end)
            assert await consumer.poll(timeout=0.1) == []
            assert await consumer.position((topic, 0)) == end == 44

    run(body)


def _transactions(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"tx-{topic}"})
    producer.init_transactions(30)
    for keep in (False, True, False, True):
        producer.begin_transaction()
        for _ in range(10):
            producer.produce(topic, b"kept" if keep else b"aborted", partition=0)
        producer.flush()
        if keep:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)


def test_deserialises_and_stops_at_what_it_cannot(run: Callable[[Body], None]) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap)
        await fill(bootstrap, topic, 0, [b'{"n": 1}', None, b'{"n": 2}', b"{", b'{"n": 3}'])
        async with AsyncConsumer(
            bootstrap, offset_reset="earliest", deserializer="json", key_deserializer="str"
        ) as consumer:
            consumer.assign([(topic, 0)])
            records = await read(consumer, 3)
            assert [record.value for record in records] == [{"n": 1}, None, {"n": 2}]
            assert [record.key for record in records] == ["k0", "k1", "k2"]
            for _ in range(2):
                with pytest.raises(msgspec.DecodeError) as caught:
                    await read(consumer, 1)
                assert caught.value.__notes__ == [f"in partition {topic}-0 at offset 3"]
            assert await consumer.position((topic, 0)) == 3
            consumer.seek((topic, 0), 4)
            assert [record.value for record in await read(consumer, 1)] == [{"n": 3}]

    run(body)


def test_an_assignment_is_replaced_and_what_stays_goes_on(run: Callable[[Body], None]) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap, 2)
        await fill(bootstrap, topic, 0, numbered(20))
        await fill(bootstrap, topic, 1, numbered(20))
        async with AsyncConsumer(bootstrap, offset_reset="earliest") as consumer:
            consumer.assign([(topic, 0)])
            assert len(await read(consumer, 1, max_records=5)) == 5
            consumer.assign([(topic, 0), (topic, 1)])
            records = await read(consumer, 35)
            assert [record.offset for record in records if record.partition == 0] == list(range(5, 20))
            consumer.assign([(topic, 1)])
            assert consumer.assignment == {TopicPartition(topic, 1)}
            await consumer.unsubscribe()
            assert consumer.assignment == frozenset()
            assert await consumer.poll(timeout=0.05) == []

    run(body)


def test_waits_for_a_topic_that_does_not_exist_yet(run: Callable[[Body], None]) -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap)
        later = f"{topic}-later"
        async with AsyncConsumer(bootstrap, offset_reset="earliest") as consumer:
            consumer.assign([(later, 0)])
            assert await consumer.poll(timeout=0.2) == []
            with pytest.raises(NoSuchTopic):
                await consumer.partitions_of(later)
            async with Cluster(bootstrap) as cluster:
                from millstream.client.topics import create_topic

                await create_topic(cluster, later, Deadline(30_000), partitions=1, replication_factor=1)
            await fill(bootstrap, later, 0, numbered(3))
            assert len(await read(consumer, 3)) == 3
            assert later in await consumer.topics()

    run(body)


def test_options_that_make_no_sense_are_refused_at_once(own_bootstrap: str) -> None:
    async def body() -> None:
        with pytest.raises(ValueError, match="offset_reset is one of earliest, latest, none"):
            AsyncConsumer(own_bootstrap, offset_reset="first")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="assignors"):
            AsyncConsumer(own_bootstrap, assignors=["magic"])
        with pytest.raises(ValueError, match="name the group"):
            AsyncConsumer(own_bootstrap, group_instance_id="me")
        with pytest.raises(TypeError):
            AsyncConsumer(own_bootstrap, no_such_option=1)  # type: ignore[call-arg]
        async with AsyncConsumer(own_bootstrap) as consumer:
            with pytest.raises(NotSubscribed, match="needs a group"):
                consumer.subscribe("t")
            with pytest.raises(NotSubscribed, match="no group"):
                await consumer.commit()

    asyncio.run(body())
