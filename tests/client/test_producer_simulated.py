"""The producer in the simulation, unchanged: virtual time, a lossy network, a broker that is killed."""

from __future__ import annotations

import asyncio

import pytest

from millstream.client.cluster import Cluster
from millstream.client.offsets import READ_COMMITTED, READ_UNCOMMITTED
from millstream.client.producer import AsyncProducer
from millstream.deadline import Deadline
from millstream.model import TopicPartition
from tests.client.logs import ends
from tests.client.raw import read
from tests.client.test_simulated import PARTITIONS, PATIENCE_MS, TOPIC, Run
from tests.simulation.host import Process
from tests.simulation.machine import PORT

RECORDS = 1200


class SendingRun(Run):
    """A producer with five batches in flight; what it wrote is read when the faults are over."""

    cut_off = ("sender",)
    pause_s = (0.3, 1.5)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.offsets: dict[int, list[int]] = {}

    async def work(self, sender: Process, reader: Process) -> None:
        await sender.call(self.send(sender))

    async def afterwards(self, reader: Process) -> None:
        await reader.call(self.read(reader))

    async def send(self, process: Process) -> None:
        async with AsyncProducer(
            f"broker:{PORT}",
            clock=process.clock,
            random=process.random,
            batch_bytes=150,
            linger_ms=20,
            request_timeout_ms=3000,
        ) as producer:
            deliveries = []
            for number in range(RECORDS):
                await producer.room()
                deliveries.append(producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS))
                if number % 5 == 0:
                    await asyncio.sleep(self.random.uniform(0, 0.1))
            for delivery in deliveries:
                delivered = await delivery
                self.offsets.setdefault(delivered.partition, []).append(delivered.offset)

    async def read(self, process: Process, isolation_level: int = READ_UNCOMMITTED) -> None:
        partitions = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
        deadline = Deadline(PATIENCE_MS)
        async with Cluster(f"broker:{PORT}", random=process.random) as cluster:
            goals = await ends(cluster, partitions, isolation_level, deadline)
            for partition in partitions:
                for batch in await read(cluster, partition, goals[partition], deadline, isolation_level):
                    numbers = [int(record.value or b"") for record in batch.records]
                    self.seen.setdefault(partition, []).extend(numbers)


class TransactionalRun(SendingRun):
    """Transactions instead, some of them aborted; readers of committed records see the others."""

    async def send(self, process: Process) -> None:
        async with AsyncProducer(
            f"broker:{PORT}",
            clock=process.clock,
            random=process.random,
            transactional_id="id",
            transaction_timeout_ms=60_000,
            max_block_ms=PATIENCE_MS,
            batch_bytes=150,
            linger_ms=5,
            request_timeout_ms=3000,
        ) as producer:
            for number in range(0, RECORDS, 40):
                producer.begin_transaction()
                for each in range(number, number + 40):
                    producer.send(TOPIC, b"%d" % each, partition=each % PARTITIONS)
                    if each % 10 == 0:
                        await asyncio.sleep(self.random.uniform(0, 0.2))
                await producer.send_offsets({TopicPartition(TOPIC, 0): number}, "group")
                if number % 120 == 80:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()

    async def read(self, process: Process, isolation_level: int = READ_COMMITTED) -> None:
        await super().read(process, isolation_level)


@pytest.mark.parametrize("seed", range(4))
def test_committed_records_once_and_in_order(seed: int) -> None:
    run = TransactionalRun(seed)
    run.world.run(run.main(), limit_s=900)
    committed = [number for number in range(RECORDS) if number // 40 * 40 % 120 != 80]
    assert run.seen == {
        TopicPartition(TOPIC, index): [number for number in committed if number % PARTITIONS == index]
        for index in range(PARTITIONS)
    }
    assert run.crashes


@pytest.mark.parametrize("seed", range(6))
def test_every_record_once_and_in_order(seed: int) -> None:
    run = SendingRun(seed)
    run.world.run(run.main(), limit_s=600)
    expected = {
        TopicPartition(TOPIC, index): list(range(index, RECORDS, PARTITIONS)) for index in range(PARTITIONS)
    }
    assert run.seen == expected
    for told in run.offsets.values():
        assert all(offset in (-1, place) for place, offset in enumerate(told))
    assert run.crashes


def test_a_seed_runs_twice_in_the_same_way() -> None:
    hashes = set()
    for _ in range(2):
        run = SendingRun(11)
        run.world.run(run.main(), limit_s=600)
        hashes.add(run.world.trace.hash())
    assert len(hashes) == 1
