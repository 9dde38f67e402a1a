"""Read, change, write in transactions with our own clients, while members of the group come and go."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest
import uvloop

from millstream import AsyncConsumer, AsyncProducer, TopicPartition
from millstream.errors import KafkaError, MillstreamError
from millstream.testing import Broker
from tests.client.consuming import new_topic, read

PARTITIONS, RECORDS = 4, 800
QUICK = {
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.min.session.timeout.ms": "1000",
}


async def copy(bootstrap: str, source: str, sink: str, protocol: str, name: str, life_s: float) -> None:
    """A worker: what it reads it writes, with its positions, in one transaction."""
    loop = asyncio.get_running_loop()
    end = loop.time() + life_s
    async with (
        AsyncConsumer(
            bootstrap,
            group=f"copy-{source}",
            group_protocol=protocol,  # type: ignore[arg-type]
            offset_reset="earliest",
            isolation_level="read_committed",
            auto_commit=False,
            heartbeat_interval_ms=150,
            session_timeout_ms=6_000,
        ) as consumer,
        AsyncProducer(bootstrap, transactional_id=name) as producer,
    ):
        consumer.subscribe(source)
        while loop.time() < end:
            records = await consumer.poll(max_records=25, timeout=0.1)
            if not records:
                continue
            offsets = {TopicPartition(each.topic, each.partition): each.offset + 1 for each in records}
            try:
                async with producer.transaction():
                    for record in records:
                        producer.send(sink, record.value, partition=record.partition)
                    await producer.send_offsets(offsets, consumer.group_metadata)
            except KafkaError:
                for partition in offsets:  # it was aborted: read them again, where they are still ours
                    if partition in consumer.assignment:
                        consumer.seek_to_committed(partition)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_every_record_is_copied_exactly_once(protocol: str) -> None:
    async def body(bootstrap: str) -> None:
        source, sink = await new_topic(bootstrap, PARTITIONS), await new_topic(bootstrap, PARTITIONS)
        async with AsyncProducer(bootstrap) as producer:
            for number in range(RECORDS):
                producer.send(source, b"%d" % number, partition=number % PARTITIONS)
        random = Random(3)
        is_done = asyncio.Event()

        async def workers(number: int) -> None:
            while not is_done.is_set():
                await copy(bootstrap, source, sink, protocol, f"copier-{number}", random.uniform(0.3, 1.0))

        tasks = [asyncio.ensure_future(workers(number)) for number in range(2)]
        try:
            async with AsyncConsumer(
                bootstrap, offset_reset="earliest", isolation_level="read_committed"
            ) as consumer:
                consumer.assign([(sink, index) for index in range(PARTITIONS)])
                records = await read(consumer, RECORDS)
                is_done.set()
                await asyncio.gather(*tasks)
                records += await consumer.poll(timeout=0.5)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        counts = Counter(int(record.value) for record in records)
        assert counts == Counter(range(RECORDS))
        for index in range(PARTITIONS):
            values = [int(record.value) for record in records if record.partition == index]
            assert values == sorted(values)

    with Broker(config=QUICK) as broker:
        uvloop.run(body(broker.bootstrap))


def test_to_go_back_to_what_was_committed_needs_a_group(own_bootstrap: str) -> None:
    async def body() -> None:
        async with AsyncConsumer(own_bootstrap) as consumer:
            with pytest.raises(MillstreamError, match="no group"):
                consumer.seek_to_committed()

    asyncio.run(body())
