"""Consumers of three brokers, each of which is killed in turn: every acknowledged record, in order, once."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from millstream import Consumer, Producer, TopicPartition
from millstream.testing import Cluster

PARTITIONS = 6
QUICK = {"group.consumer.heartbeat.interval.ms": "500", "group.consumer.min.heartbeat.interval.ms": "500"}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, config=QUICK) as cluster:
        yield cluster


class Writer:
    """Writes numbers to all partitions, again and again, and remembers which were acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        self.failures: list[BaseException] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(bootstrap, topic))
        self._thread.start()

    def _run(self, bootstrap: str, topic: str) -> None:
        try:
            with Producer(bootstrap) as producer:
                number = 0
                while not self._stop.is_set():
                    value = b"%d" % number
                    sent = [producer.send(topic, value, partition=index) for index in range(PARTITIONS)]
                    for index, delivery in enumerate(sent):
                        self.acknowledged[index].append((delivery.result(60).offset, value))
                    number += 1
                    time.sleep(0.002)
        except BaseException as error:
            self.failures.append(error)

    @property
    def count(self) -> int:
        return min((len(each) for each in self.acknowledged.values()), default=0)

    def wait_for(self, more: int) -> None:
        wanted, deadline = self.count + more, time.monotonic() + 60
        while self.count < wanted:
            assert not self.failures, self.failures
            assert time.monotonic() < deadline, "nothing is acknowledged"
            time.sleep(0.05)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert not self.failures, self.failures


class Reader:
    """Reads until it is told that there is no more than so much."""

    def __init__(self, bootstrap: str, topic: str, **options: Any) -> None:
        self.seen: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        self.failures: list[BaseException] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(bootstrap, topic, options))
        self._thread.start()

    def _run(self, bootstrap: str, topic: str, options: dict[str, Any]) -> None:
        try:
            with Consumer(bootstrap, offset_reset="earliest", **options) as consumer:
                if "group" in options:
                    consumer.subscribe(topic)
                else:
                    consumer.assign([TopicPartition(topic, index) for index in range(PARTITIONS)])
                while not self._stop.is_set():
                    for record in consumer.poll(timeout=0.2):
                        self.seen[record.partition].append((record.offset, record.value))
        except BaseException as error:
            self.failures.append(error)

    def stop_after(self, records: dict[int, list[tuple[int, bytes]]]) -> None:
        deadline = time.monotonic() + 60
        while any(len(self.seen[index]) < len(each) for index, each in records.items()):
            assert not self.failures, self.failures
            assert time.monotonic() < deadline, {index: len(each) for index, each in self.seen.items()}
            time.sleep(0.05)
        self._stop.set()
        self._thread.join()
        assert not self.failures, self.failures


def test_every_broker_is_killed_in_turn(cluster: Cluster) -> None:
    topic = cluster.create_topic(
        "killed", PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"}
    )
    bootstrap = cluster.bootstrap
    writer = Writer(bootstrap, topic)
    readers = [
        Reader(bootstrap, topic),
        Reader(bootstrap, topic, group="classic", session_timeout_ms=10_000, heartbeat_interval_ms=500),
        Reader(bootstrap, topic, group="new", group_protocol="consumer"),
    ]
    writer.wait_for(100)
    for broker_id in (1, 2, 3):
        cluster[broker_id].kill()
        writer.wait_for(100)
        cluster.start_broker(broker_id)
        cluster.wait_until_healthy()
    writer.stop()
    for reader in readers:
        reader.stop_after(writer.acknowledged)
    assert readers[0].seen == writer.acknowledged, "each once and in order"
    for reader in readers[1:]:
        assert {index: sorted(set(each)) for index, each in reader.seen.items()} == writer.acknowledged
