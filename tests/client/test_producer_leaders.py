"""Leaders that move while a producer sends: brokers of a cluster stop and come back, one at another port."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from millstream import AsyncProducer, TopicPartition
from millstream.client.offsets import READ_COMMITTED
from millstream.testing import Cluster as Processes
from tests.client.logs import read_batches
from tests.controller.cluster import Cluster

PARTITIONS = 3
OPTIONS: Any = {"batch_bytes": 500, "retry_backoff_ms": 20, "request_timeout_ms": 5000}


def addresses(cluster: Cluster) -> list[str]:
    return [f"127.0.0.1:{broker.port}" for broker in cluster.brokers.values()]


async def values(bootstrap: list[str], topic: str, isolation_level: int) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    for batch in await read_batches(",".join(bootstrap), topic, PARTITIONS, isolation_level):
        found[batch.partition.partition] += [int(record.value or b"") for record in batch.records]
    return found


async def roll(cluster: Cluster, topic: str) -> None:
    """Stop each broker, let the others lead, and start it again."""
    for broker_id in cluster.ids:
        port = 0 if broker_id == 2 else cluster.brokers[broker_id].port
        await cluster.stop(broker_id)
        await cluster.until(
            lambda: all(
                state.leader in cluster.brokers
                for broker in cluster.brokers.values()
                for state in broker.metadata.topic(topic).partitions
            )
        )
        await asyncio.sleep(0.2)
        await cluster.start(broker_id, {"listeners": f"PLAINTEXT://127.0.0.1:{port}"})
        await cluster.until_in_sync(topic, cluster.ids)


def test_records_while_brokers_are_stopped_in_turn(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.until_controller()
            await cluster.create("t", PARTITIONS, min_insync_replicas="2")
            rolling = asyncio.ensure_future(roll(cluster, "t"))
            async with AsyncProducer(addresses(cluster), **OPTIONS) as producer:
                deliveries = []
                number = 0
                while not rolling.done() or number % PARTITIONS:
                    deliveries.append(producer.send("t", b"%d" % number, partition=number % PARTITIONS))
                    number += 1
                    await asyncio.sleep(0.001)
                await rolling
                offsets: list[list[int]] = [[] for _ in range(PARTITIONS)]
                for delivery in deliveries:
                    delivered = await delivery
                    offsets[delivered.partition].append(delivered.offset)
            assert number > 300
            expected = [list(range(index, number, PARTITIONS)) for index in range(PARTITIONS)]
            assert await values(addresses(cluster), "t", 0) == expected
            for part in offsets:
                assert all(told in (-1, place) for place, told in enumerate(part))

    asyncio.run(asyncio.wait_for(main(), 100))


def test_transactions_while_brokers_are_stopped_in_turn(tmp_path: Path) -> None:
    config = {"transaction.state.log.num.partitions": "2"}

    async def main() -> None:
        async with Cluster(tmp_path, config=config) as cluster:
            await cluster.until_controller()
            await cluster.create("t", PARTITIONS, min_insync_replicas="2")
            committed: list[list[int]] = [[] for _ in range(PARTITIONS)]
            async with AsyncProducer(addresses(cluster), transactional_id="id", **OPTIONS) as producer:
                number = 0

                async def write() -> None:
                    nonlocal number
                    numbers = range(number, number + 30)
                    number += 30
                    async with producer.transaction():
                        for each in numbers:
                            producer.send("t", b"%d" % each, partition=each % PARTITIONS)
                        await producer.send_offsets({TopicPartition("t", 0): number}, "group")
                    for each in numbers:
                        committed[each % PARTITIONS].append(each)

                for _ in range(5):
                    await write()
                rolling = asyncio.ensure_future(roll(cluster, "t"))
                while not rolling.done():
                    await write()
                await rolling
                for _ in range(5):
                    await write()
            assert number > 10 * 30
            assert await values(addresses(cluster), "t", READ_COMMITTED) == committed

    asyncio.run(asyncio.wait_for(main(), 100))


@pytest.mark.timeout(150)
def test_records_while_a_leader_is_killed(tmp_path: Path) -> None:
    """`kill -9` of a broker's process: what was acknowledged is there, once, in order."""
    settings = {"registry.session.timeout.ms": "2000", "min.insync.replicas": "2"}

    async def main(processes: Processes) -> None:
        victim = processes[processes.leader("t")]
        async with AsyncProducer(processes.bootstrap.split(","), **OPTIONS) as producer:
            deliveries = []
            for number in range(3000):
                deliveries.append(producer.send("t", b"%d" % number, partition=number % PARTITIONS))
                if number == 1000:
                    os.kill(victim.pid, signal.SIGKILL)
                await asyncio.sleep(0.001)
            told = await asyncio.gather(*deliveries)
        expected = [list(range(index, 3000, PARTITIONS)) for index in range(PARTITIONS)]
        assert await values(processes.bootstrap.split(","), "t", 0) == expected
        assert all(each.offset in (-1, number // PARTITIONS) for number, each in enumerate(told))

    with Processes(3, settings, data=tmp_path) as processes:
        processes.create_topic("t", PARTITIONS, replication_factor=3)
        asyncio.run(asyncio.wait_for(main(processes), 120))
