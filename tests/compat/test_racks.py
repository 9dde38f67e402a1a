"""Consumers of every kind read from the replica in their own rack (KIP-392)."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition

from tests.cluster.brokers import Brokers, run
from tests.processes import until as eventually

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
PARTITIONS, EACH = 6, 20


def with_confluent(bootstrap: str, rack: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "client.rack": rack})
    count = 0
    try:
        consumer.assign([TopicPartition("t", index, 0) for index in range(PARTITIONS)])

        def is_all() -> bool:
            nonlocal count
            count += len(consumer.consume(1000, 0.2))
            return count >= PARTITIONS * EACH

        eventually(is_all, 20, "all records")
    finally:
        consumer.close()
    return count


def with_kafka_python(bootstrap: str, rack: str) -> int:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, client_rack=rack)
    count = 0
    try:
        places = [PythonTopicPartition("t", index) for index in range(PARTITIONS)]
        consumer.assign(places)
        consumer.seek_to_beginning(*places)

        def is_all() -> bool:
            nonlocal count
            count += sum(map(len, consumer.poll(timeout_ms=200).values()))
            return count >= PARTITIONS * EACH

        eventually(is_all, 20, "all records")
    finally:
        consumer.close()
    return count


def with_kcat(bootstrap: str, rack: str) -> int:
    words = ["kcat", "-b", bootstrap, "-C", "-t", "t", "-o", "beginning", "-e", "-q"]
    done = subprocess.run(
        [*words, "-X", f"client.rack={rack}"], stdout=subprocess.PIPE, timeout=20, check=True
    )
    return len(done.stdout.splitlines())


@pytest.mark.parametrize("read", [with_confluent, with_kafka_python, with_kcat])
def test_what_others_lead_is_read_from_the_replica_in_the_rack(
    tmp_path: Path, read: Callable[[str, str], int]
) -> None:
    async def test(brokers: Brokers) -> None:
        await brokers.create("t", PARTITIONS, 3)
        for index in range(PARTITIONS):
            for _ in range(EACH):
                await brokers.send("t", b"v" * 100, index=index)
            for number in brokers.ids:
                await brokers.until_committed(number, "t", EACH, index)
        led = sum(brokers.leader_of("t", index) == 3 for index in range(PARTITIONS))
        assert led < PARTITIONS
        bootstrap = f"127.0.0.1:{brokers[1].port}"
        assert await asyncio.to_thread(read, bootstrap, "rack-3") == PARTITIONS * EACH
        assert brokers.replica(3, "t").counters.records_out.value >= PARTITIONS * EACH

    run(test, tmp_path, replica_selector_class=SELECTOR)
