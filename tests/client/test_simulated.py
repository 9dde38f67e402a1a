"""The client in the simulation, unchanged: virtual time, a lossy network, a broker that is killed."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from millstream.client.cluster import Cluster
from millstream.client.consumer import AsyncConsumer
from millstream.client.producer import AsyncProducer
from millstream.client.topics import create_topic
from millstream.deadline import Deadline
from millstream.model import TopicPartition
from tests.simulation.history import History
from tests.simulation.host import Host, Process
from tests.simulation.machine import PORT, BrokerMachine
from tests.simulation.network import Network
from tests.simulation.world import World

TOPIC = "events"
PARTITIONS = 2
RECORDS = 150
PATIENCE_MS = 120_000


class Run:
    """A sender and a reader on machines of their own; faults between them and the broker."""

    cut_off: tuple[str, ...] = ("sender", "reader")
    pause_s = (0.5, 2.0)

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.network = Network(self.world)
        self.random = Random(seed)
        host = Host(self.world, self.network, "broker")
        self.machine = BrokerMachine(
            self.world, host, History(is_flushed_before_ack=False), TOPIC, PARTITIONS, 1, {}
        )
        self.sent: dict[TopicPartition, list[int]] = {}
        self.seen: dict[TopicPartition, list[int]] = {}
        self.crashes = 0

    async def main(self) -> None:
        await self.machine.boot()
        sender = Host(self.world, self.network, "sender").start()
        reader = Host(self.world, self.network, "reader").start()
        await sender.call(self.create(sender))
        work = asyncio.ensure_future(self.work(sender, reader))
        faults = 0
        while not work.done():
            await asyncio.sleep(self.random.uniform(*self.pause_s))
            faults += 1
            await self.fault(faults % 4)
        await work
        assert faults >= 5
        await self.afterwards(reader)
        await self.machine.stop()

    async def work(self, sender: Process, reader: Process) -> None:
        """What is done among the faults."""
        await asyncio.gather(sender.call(self.send(sender)), reader.call(self.read(reader)))

    async def afterwards(self, reader: Process) -> None:
        """What is done when they are over."""

    async def fault(self, number: int) -> None:
        if number == 0:
            self.machine.crash()
            self.crashes += 1
            await asyncio.sleep(self.random.uniform(0.0, 1.5))
            await self.machine.boot()
        elif number == 1:
            await self.machine.stop()
            await self.machine.boot()
        else:
            name = self.random.choice(self.cut_off)
            ends = (name, "broker") if number == 2 else ("broker", name)
            self.network.block(*ends)
            await asyncio.sleep(self.random.uniform(0.1, 2.0))
            self.network.heal()

    def cluster(self, process: Process) -> Cluster:
        return Cluster(f"broker:{PORT}", random=process.random)

    async def create(self, process: Process) -> None:
        async with self.cluster(process) as cluster:
            await create_topic(cluster, TOPIC, Deadline(PATIENCE_MS), partitions=PARTITIONS)

    async def send(self, process: Process) -> None:
        async with AsyncProducer(
            f"broker:{PORT}",
            clock=process.clock,
            random=process.random,
            linger_ms=0,
            request_timeout_ms=5_000,
            delivery_timeout_ms=PATIENCE_MS,
            max_block_ms=PATIENCE_MS,
        ) as producer:

            async def fill(partition: TopicPartition) -> None:
                for number in range(RECORDS):
                    delivered = await producer.send(TOPIC, b"%d" % number, partition=partition.partition)
                    assert delivered.offset in (number, -1)
                    self.sent.setdefault(partition, []).append(number)
                    await asyncio.sleep(self.random.uniform(0, 0.2))

            await asyncio.gather(*(fill(TopicPartition(TOPIC, index)) for index in range(PARTITIONS)))

    async def read(self, process: Process) -> None:
        partitions = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
        async with AsyncConsumer(
            f"broker:{PORT}", offset_reset="earliest", request_timeout_ms=5_000, random=process.random
        ) as consumer:
            consumer.assign(partitions)
            while any(len(self.seen.get(partition, [])) < RECORDS for partition in partitions):
                for batch in await consumer.poll_batches():
                    numbers = [int(record.value) for record in batch.records]
                    self.seen.setdefault(batch.partition, []).extend(numbers)


@pytest.mark.parametrize("seed", range(5))
def test_every_record_once_and_in_order(seed: int) -> None:
    run = Run(seed)
    run.world.run(run.main(), limit_s=600)
    expected = {TopicPartition(TOPIC, index): list(range(RECORDS)) for index in range(PARTITIONS)}
    assert run.sent == expected
    assert run.seen == expected


def test_a_seed_runs_twice_in_the_same_way() -> None:
    hashes = set()
    for _ in range(2):
        run = Run(7)
        run.world.run(run.main(), limit_s=600)
        hashes.add(run.world.trace.hash())
    assert len(hashes) == 1
