"""What stands in a topic, read without the client under test's own bookkeeping."""

from __future__ import annotations

import asyncio

from millstream.client.cluster import Cluster
from millstream.client.offsets import LATEST, READ_UNCOMMITTED, list_offsets
from millstream.client.topics import create_topic
from millstream.deadline import Deadline
from millstream.model import TopicPartition
from millstream.protocol.record import Record
from tests.client.raw import RawBatch, read


async def make_topic(bootstrap: str, name: str, partitions: int = 1, **configs: str) -> str:
    """A topic whose leaders take requests. Kafka's broker shows a topic a moment before it leads it: a record
    that is sent without an acknowledgement would be lost."""
    async with Cluster(bootstrap) as cluster:
        deadline = Deadline(30_000)
        named = {key.replace("_", "."): value for key, value in configs.items()}
        await create_topic(
            cluster, name, deadline, partitions=partitions, replication_factor=1, configs=named
        )
        await ends(cluster, [TopicPartition(name, index) for index in range(partitions)], 0, deadline)
    return name


async def ends(
    cluster: Cluster, names: list[TopicPartition], isolation_level: int, deadline: Deadline
) -> dict[TopicPartition, int]:
    asked = dict.fromkeys(names, LATEST)
    found = await list_offsets(cluster, asked, deadline, isolation_level=isolation_level)
    return {name: each.offset for name, each in found.items()}


async def read_batches(
    bootstrap: str, topic: str, partitions: int, isolation_level: int = READ_UNCOMMITTED
) -> list[RawBatch]:
    """All batches of a topic up to its present end."""
    names = [TopicPartition(topic, index) for index in range(partitions)]
    async with Cluster(bootstrap) as cluster:
        deadline = Deadline(30_000)
        await cluster.topic(topic, deadline)
        while True:
            goal = await ends(cluster, names, isolation_level, deadline)
            if goal == await ends(cluster, names, READ_UNCOMMITTED, deadline):
                break
            await asyncio.sleep(0.02)  # a commit is answered before its markers are written
            assert not deadline.has_passed, "a transaction stays open"
        found: list[RawBatch] = []
        for name in names:
            found += await read(cluster, name, goal[name], deadline, isolation_level)
        return found


def batches_in(bootstrap: str, topic: str, partitions: int = 1, **options: int) -> list[RawBatch]:
    return asyncio.run(read_batches(bootstrap, topic, partitions, **options))


def records_in(bootstrap: str, topic: str, partitions: int = 1, **options: int) -> list[list[Record]]:
    """The records of each partition, in order."""
    found: list[list[Record]] = [[] for _ in range(partitions)]
    for batch in batches_in(bootstrap, topic, partitions, **options):
        found[batch.partition.partition] += batch.records
    return found


def values_in(bootstrap: str, topic: str, partitions: int = 1, **options: int) -> list[list[bytes | None]]:
    return [[record.value for record in part] for part in records_in(bootstrap, topic, partitions, **options)]
