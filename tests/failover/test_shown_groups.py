"""What a cluster shows of groups whose coordinator is on one broker and whose partitions on others."""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.request

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from millstream.broker.coordinators import java_hash
from millstream.registry.sqlite import SqliteRegistry
from millstream.testing import Cluster
from tests.failover.conftest import MakeCluster
from tests.processes import free_ports

LAG = re.compile(r'millstream_group_lag\{group="g",partition="(\d+)",topic="t"\} (\S+)')


def lags(port: int) -> dict[int, float]:
    found: dict[int, float] = {}
    for step in range(3):
        with urllib.request.urlopen(f"http://127.0.0.1:{port + step}/metrics", timeout=10) as answer:
            for index, value in LAG.findall(answer.read().decode()):
                assert int(index) not in found, "told by two brokers"
                found[int(index)] = float(value)
    return found


def committed(cluster: Cluster, offsets: dict[int, int]) -> None:
    """Commit; the client gives up where the coordinator is not there yet, and is told again."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "log_level": 0})
    places = [TopicPartition("t", index, offset) for index, offset in offsets.items()]
    deadline = time.monotonic() + 30
    while True:
        try:
            consumer.commit(offsets=places, asynchronous=False)
            break
        except KafkaException:
            if time.monotonic() > deadline:
                raise
    consumer.close()


def test_lags_are_told_for_partitions_that_others_lead(make_cluster: MakeCluster) -> None:
    port = free_ports(3)
    cluster = make_cluster(config={"metrics.listener": f"127.0.0.1:{port}"})
    cluster.create_topic("t", 3, assignment={0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2]})
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for index in range(3):
        for _ in range(10 * (index + 1)):
            producer.produce("t", b"x", partition=index)
    assert producer.flush(20) == 0
    committed(cluster, {0: 3, 1: 3, 2: 3})
    deadline = time.monotonic() + 30
    while (seen := lags(port)) != {0: 7.0, 1: 17.0, 2: 27.0}:
        assert time.monotonic() < deadline, seen
        time.sleep(0.3)


def test_a_groups_nodes_move_with_its_coordinator(cluster: Cluster) -> None:
    """The nodes of /consumers are the coordinator's: those of the one before go when it stops leading."""
    cluster.create_topic("t", 3, replication_factor=3)
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "log_level": 0, "session.timeout.ms": 6000}
    )
    consumer.subscribe(["t"])

    async def shown() -> dict[str, list[str]]:
        registry = SqliteRegistry(str(cluster.data / "registry.db"))
        await registry.start()
        try:
            found = {}
            for kind in ("ids", "owners/t"):
                path = f"/consumers/g/{kind}"
                found[kind] = await registry.children(path) if await registry.exists(path) is not None else []
            return found
        finally:
            await registry.close()

    def wait() -> dict[str, list[str]]:
        deadline = time.monotonic() + 30
        while True:
            consumer.poll(0.1)
            found = asyncio.run(shown())
            if len(found["ids"]) == 1 and len(found["owners/t"]) == 3:
                return found
            assert time.monotonic() < deadline, found

    wait()
    index = (java_hash("g") & 0x7FFFFFFF) % 3
    cluster[cluster.leader("__consumer_offsets", index)].kill()
    time.sleep(0.5)
    found = wait()
    assert found["owners/t"] == ["0", "1", "2"]
    consumer.close()
    deadline = time.monotonic() + 30
    while (left := asyncio.run(shown()))["ids"] or left["owners/t"]:
        assert time.monotonic() < deadline, json.dumps(left)
        time.sleep(0.1)
