"""Three nodes of Apache Kafka whose leaders are moved, killed and started again under our clients."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from bench.clusters import KafkaCluster, bootstrap_of

from millstream import AsyncAdmin, AsyncConsumer, AsyncProducer, TopicPartition
from millstream.errors import KafkaError
from tests.client.logs import read_batches

PARTITIONS = 3
BATCH = 30
SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "controller.quorum.election.timeout.ms": "1000",
    "controller.quorum.fetch.timeout.ms": "2000",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
}
OPTIONS: Any = {"batch_bytes": 500, "retry_backoff_ms": 20, "request_timeout_ms": 5000}


class Load:
    """Writers of plain records and of transactions, and readers of both, until they are told to stop."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.is_over = asyncio.Event()
        self.all_is_written = asyncio.Event()
        self.written: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self.committed: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self.seen: dict[str, list[list[int]]] = defaultdict(lambda: [[] for _ in range(PARTITIONS)])

    async def write(self) -> None:
        async with AsyncProducer(self.bootstrap, **OPTIONS) as producer:
            deliveries = []
            number = 0
            while not self.is_over.is_set() or number % PARTITIONS:
                deliveries.append(producer.send("plain", b"%d" % number, partition=number % PARTITIONS))
                self.written[number % PARTITIONS].append(number)
                number += 1
                await asyncio.sleep(0.003)
            for delivery in deliveries:
                await delivery

    async def transact(self) -> None:
        async with AsyncProducer(self.bootstrap, transactional_id="id", **OPTIONS) as producer:
            number = 0
            while not self.is_over.is_set():
                numbers = range(number, number + BATCH)
                number += BATCH
                async with producer.transaction():
                    for each in numbers:
                        producer.send("whole", b"%d" % each, partition=each % PARTITIONS)
                    await producer.send_offsets({TopicPartition("plain", 0): number}, "copiers")
                for each in numbers:
                    self.committed[each % PARTITIONS].append(each)
                await asyncio.sleep(0.05)

    async def read(self, topic: str, expected: list[list[int]], **options: Any) -> None:
        async with AsyncConsumer(self.bootstrap, offset_reset="earliest", **options) as consumer:
            if "group" in options:
                consumer.subscribe(topic)
            else:
                consumer.assign([(topic, index) for index in range(PARTITIONS)])
            seen = self.seen[topic]
            while not self.all_is_written.is_set() or any(
                not set(found).issuperset(wanted) for found, wanted in zip(seen, expected, strict=True)
            ):
                for record in await consumer.poll(timeout=0.2):
                    seen[record.partition].append(int(record.value))

    async def grow(self, records: int) -> None:
        """Until so many more records of each kind were read: all goes on."""
        goals = [sum(map(len, self.seen[topic])) + records for topic in ("plain", "whole")]
        while any(
            sum(map(len, self.seen[topic])) < goal
            for topic, goal in zip(("plain", "whole"), goals, strict=True)
        ):
            await asyncio.sleep(0.05)


async def create_topics(admin: AsyncAdmin) -> None:
    while len((await admin.describe_cluster(timeout=120)).brokers) < 3:
        await asyncio.sleep(0.2)
    for topic in ("plain", "whole"):
        await admin.create_topic(
            topic, PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"}, timeout=120
        )


async def move_leaders(admin: AsyncAdmin) -> None:
    """Let another replica of each partition be the preferred leader, and lead."""
    targets: dict[TopicPartition, Any] = {}
    for topic in ("plain", "whole", "__transaction_state", "__consumer_offsets"):
        for index, part in (await admin.describe_topic(topic)).partitions.items():
            targets[TopicPartition(topic, index)] = [*part.replicas[1:], part.replicas[0]]
    assert set((await admin.reassign(targets, timeout=60)).values()) == {None}
    while await admin.list_reassignments(timeout=60):
        await asyncio.sleep(0.1)
    for where, replicas in targets.items():
        while (await admin.describe_topic(where.topic)).partitions[where.partition].leader != replicas[0]:
            await admin.elect_leaders(targets, timeout=60)  # again, where one was not in sync yet
            await asyncio.sleep(0.05)


async def until_whole(admin: AsyncAdmin) -> None:
    """Until all replicas of the topics are in sync."""
    while True:
        try:
            topics = [await admin.describe_topic(topic, timeout=60) for topic in ("plain", "whole")]
        except KafkaError:
            continue
        if all(len(part.isr) == 3 for topic in topics for part in topic.partitions.values()):
            return
        await asyncio.sleep(0.2)


@pytest.mark.java
@pytest.mark.timeout(300)
def test_every_record_once_and_in_order_while_leaders_move_and_die(tmp_path: Path) -> None:
    cluster = KafkaCluster(tmp_path, SETTINGS)

    async def main() -> Load:
        bootstrap = bootstrap_of(cluster)
        async with AsyncAdmin(bootstrap) as admin:
            await create_topics(admin)
            load = Load(bootstrap)
            async with asyncio.TaskGroup() as group:
                writers = [group.create_task(load.write()), group.create_task(load.transact())]
                group.create_task(load.read("plain", load.written))
                group.create_task(
                    load.read(
                        "whole",
                        load.committed,
                        group="readers",
                        isolation_level="read_committed",
                        heartbeat_interval_ms=500,
                    )
                )
                await load.grow(300)
                await move_leaders(admin)
                await load.grow(300)
                victim = (await admin.describe_topic("plain")).partitions[0].leader
                node = cluster._nodes[victim - 1]
                await asyncio.to_thread(node.kill)
                await load.grow(300)
                await asyncio.to_thread(node.launch)
                await until_whole(admin)
                await load.grow(300)
                load.is_over.set()
                await asyncio.wait(writers)
                load.all_is_written.set()
        return load

    cluster.format()
    cluster.launch()
    try:
        load = asyncio.run(asyncio.wait_for(main(), 280))
        for topic, level, expected in (("plain", 0, load.written), ("whole", 1, load.committed)):
            found: list[list[int]] = [[] for _ in range(PARTITIONS)]
            for batch in asyncio.run(read_batches(bootstrap_of(cluster), topic, PARTITIONS, level)):
                found[batch.partition.partition] += [int(record.value or b"") for record in batch.records]
            assert found == expected, f"{topic} in the log"
        assert load.seen["plain"] == load.written
        for seen, committed in zip(load.seen["whole"], load.committed, strict=True):
            assert sorted(set(seen)) == committed
    finally:
        cluster.stop()
