"""A consumer goes on where it was, each record once and in order, whatever brokers and networks do."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
import uvloop

from millstream import AsyncConsumer, TopicPartition
from millstream.client.producer import AsyncProducer
from millstream.testing import Broker
from tests.client.consuming import fill, new_topic, numbered, read, until
from tests.client.fault_proxy import Fault, FaultProxy

FETCH, OFFSET_COMMIT, FIND_COORDINATOR, JOIN, HEARTBEAT, SYNC = 1, 8, 10, 11, 12, 14
CONSUMER_HEARTBEAT = 68
QUICK = {
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.min.session.timeout.ms": "1000",
}


def test_a_restart_of_the_broker_is_not_noticed_by_a_reader() -> None:
    async def body(broker: Broker) -> None:
        topic = await new_topic(broker.bootstrap)
        for start in range(0, 1000, 100):
            await fill(broker.bootstrap, topic, 0, numbered(100, start))
        async with AsyncConsumer(
            broker.bootstrap, offset_reset="earliest", partition_max_bytes=2_000
        ) as consumer:
            consumer.assign([(topic, 0)])
            records = await read(consumer, 150, max_records=50)
            await asyncio.get_running_loop().run_in_executor(None, broker.restart)
            records += await read(consumer, 1000 - len(records))
            await asyncio.get_running_loop().run_in_executor(None, broker.restart)
            await fill(broker.bootstrap, topic, 0, [b"after"])
            records += await read(consumer, 1)
        assert [record.value for record in records] == [*numbered(1000), b"after"]

    with Broker() as broker:
        uvloop.run(body(broker))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_restart_of_the_broker_is_not_noticed_by_a_member(protocol: str) -> None:
    async def body(broker: Broker) -> None:
        topic = await new_topic(broker.bootstrap, 2)
        lost: list[object] = []
        async with AsyncConsumer(
            broker.bootstrap,
            group="stays",
            group_protocol=protocol,  # type: ignore[arg-type]
            offset_reset="earliest",
            heartbeat_interval_ms=150,
            auto_commit=False,
        ) as consumer:
            consumer.subscribe(topic, on_lost=lost.append)
            await until(lambda: len(consumer.assignment) == 2, consumer)
            for number in range(3):
                for partition in range(2):
                    await fill(broker.bootstrap, topic, partition, [b"%d" % number])
                values = [record.value for record in await read(consumer, 2)]
                assert values == [b"%d" % number] * 2
                await asyncio.get_running_loop().run_in_executor(None, broker.restart)
                await consumer.commit()
                committed = await consumer.committed()
                assert [each.offset for each in committed.values()] == [number + 1] * 2
        assert lost == []

    with Broker(config=QUICK) as broker:
        uvloop.run(body(broker))


def port_of(bootstrap: str) -> int:
    return int(bootstrap.rpartition(":")[2])


def test_cut_and_delayed_fetches_lose_and_double_nothing(either_bootstrap: str) -> None:
    random = Random(7)
    faults = list(Fault)

    def decide(key: int) -> Fault:
        return random.choice(faults) if key == FETCH and random.random() < 0.3 else Fault.NONE

    async def body(bootstrap: str, proxy: FaultProxy) -> None:
        topic = await new_topic(bootstrap, 3)
        for partition in range(3):
            for start in range(0, 2000, 50):
                await fill(bootstrap, topic, partition, numbered(50, start))
        async with AsyncConsumer(
            proxy.bootstrap, offset_reset="earliest", partition_max_bytes=1_000, fetch_max_bytes=2_000
        ) as consumer:
            consumer.assign([(topic, index) for index in range(3)])
            records = await read(consumer, 6000)
            assert await consumer.poll(timeout=0.1) == []
        for partition in range(3):
            mine = [record for record in records if record.partition == partition]
            assert [record.offset for record in mine] == list(range(2000))
            assert [record.value for record in mine] == numbered(2000)

    with FaultProxy("127.0.0.1", port_of(either_bootstrap), decide) as proxy:
        uvloop.run(body(either_bootstrap, proxy))
        assert sum(1 for key, fault in proxy.seen if key == FETCH and fault is not Fault.NONE) > 10


@pytest.fixture(
    params=[
        "millstream-classic",
        "millstream-consumer",
        pytest.param("kafka-classic", marks=pytest.mark.java),
    ]
)
def group_broker(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """The address of a broker, and a protocol of its groups."""
    kind, _, protocol = request.param.partition("-")
    if kind == "kafka":
        yield request.getfixturevalue("kafka_bootstrap"), protocol
    else:
        with Broker(config=QUICK) as broker:
            yield broker.bootstrap, protocol


def test_a_group_on_a_bad_network_reads_everything_once_and_commits(group_broker: tuple[str, str]) -> None:
    address, protocol = group_broker
    random = Random(11)
    faults = [Fault.CUT_BEFORE, Fault.CUT_WITHIN, Fault.LOSE_ANSWER, Fault.DELAY]
    kinds = {FETCH, OFFSET_COMMIT, JOIN, HEARTBEAT, SYNC, CONSUMER_HEARTBEAT, FIND_COORDINATOR}

    def decide(key: int) -> Fault:
        return random.choice(faults) if key in kinds and random.random() < 0.1 else Fault.NONE

    async def body(bootstrap: str, proxy: FaultProxy) -> None:
        topic = await new_topic(bootstrap, 4)
        for partition in range(4):
            for start in range(0, 1000, 50):
                await fill(bootstrap, topic, partition, numbered(50, start))
        seen: Counter[tuple[int, int]] = Counter()
        owners: dict[TopicPartition, AsyncConsumer] = {}

        def make() -> AsyncConsumer:
            consumer = AsyncConsumer(
                proxy.bootstrap,
                group=f"rough-{topic}",
                group_protocol=protocol,  # type: ignore[arg-type]
                offset_reset="earliest",
                heartbeat_interval_ms=150,
                session_timeout_ms=6_000,
                auto_commit=False,
                partition_max_bytes=1_000,
            )

            def assigned(partitions: list[TopicPartition]) -> None:
                owners.update(dict.fromkeys(partitions, consumer))

            async def revoked(partitions: list[TopicPartition]) -> None:
                await consumer.commit()
                for partition in partitions:
                    assert owners.pop(partition) is consumer, "two members read a partition"

            consumer.subscribe(topic, on_assigned=assigned, on_revoked=revoked)
            return consumer

        async with make() as first, make() as second:
            async with asyncio.timeout(60):
                while len(seen) < 4000:
                    for consumer in (first, second):
                        for record in await consumer.poll(max_records=60, timeout=0.1):
                            seen[record.partition, record.offset] += 1
            await first.commit()
            await second.commit()
            partitions = [TopicPartition(topic, index) for index in range(4)]
            committed = await first.committed(partitions)
            assert [each.offset for each in committed.values()] == [1000] * 4
        assert set(seen) == {(partition, offset) for partition in range(4) for offset in range(1000)}
        assert max(seen.values()) == 1, "commits at every hand-over leave nothing to read twice"

    with FaultProxy("127.0.0.1", port_of(address), decide) as proxy:
        uvloop.run(body(address, proxy))
        assert sum(1 for _, fault in proxy.seen if fault is not Fault.NONE) > 10


def test_rebalances_under_load_hand_every_record_over_once() -> None:
    async def body(bootstrap: str) -> None:
        topic = await new_topic(bootstrap, 6)
        total = 3000
        seen: Counter[tuple[int, int]] = Counter()

        async def write() -> None:
            async with AsyncProducer(bootstrap) as producer:
                for start in range(0, total, 60):
                    for partition in range(6):
                        values = [b"%d" % n for n in range(start // 6, start // 6 + 10)]
                        await producer.send_batch(topic, values, partition=partition)
                    await asyncio.sleep(0.02)

        async def consume(life_s: float) -> None:
            async with AsyncConsumer(
                bootstrap,
                group="load",
                offset_reset="earliest",
                heartbeat_interval_ms=100,
                session_timeout_ms=6_000,
            ) as consumer:
                consumer.subscribe(topic)
                end = asyncio.get_running_loop().time() + life_s
                while asyncio.get_running_loop().time() < end and len(seen) < total:
                    for record in await consumer.poll(max_records=20, timeout=0.05):
                        seen[record.partition, record.offset] += 1

        async def come_and_go() -> None:
            while len(seen) < total:
                await consume(0.7)

        async with asyncio.timeout(60):
            await asyncio.gather(write(), consume(60), come_and_go(), come_and_go())
        assert len(seen) == total
        assert max(seen.values()) == 1

    with Broker(config=QUICK) as broker:
        uvloop.run(body(broker.bootstrap))
