"""Groups and transactions whose coordinators are killed: they go on at another broker."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from millstream.broker.coordinators import java_hash
from millstream.testing import Cluster
from tests.failover.conftest import MakeCluster
from tests.failover.load import CLASSIC, Reader, Writer, read_all

SAFE = {"min.insync.replicas": "2"}


def coordinator(cluster: Cluster, topic: str, key: str) -> int:
    return cluster.leader(topic, (java_hash(key) & 0x7FFFFFFF) % 3)


@pytest.mark.parametrize("member", [CLASSIC, {"group.protocol": "consumer"}], ids=["classic", "consumer"])
def test_a_group_goes_on_when_its_coordinator_is_killed(
    make_cluster: MakeCluster, member: dict[str, Any]
) -> None:
    """Two members keep their offsets: what was committed is not read again by those who come later."""
    cluster = make_cluster(config={"group.consumer.heartbeat.interval.ms": "1000"})
    topic = cluster.create_topic("t", 6, replication_factor=3, configs=SAFE)
    with Writer(cluster.bootstrap, topic) as writer:
        with (
            Reader(cluster.bootstrap, topic, "g", member) as first,
            Reader(cluster.bootstrap, topic, "g", member) as second,
        ):
            deadline = time.monotonic() + 40
            while not (first.read and second.read):
                assert time.monotonic() < deadline, (first.errors, second.errors)
                time.sleep(0.05)
            for _ in range(2):
                victim = coordinator(cluster, "__consumer_offsets", "g")
                cluster[victim].kill()
                writer.wait_for(200)
                deadline = time.monotonic() + 40
                while set(writer.acknowledged) - first.read.keys() - second.read.keys():
                    assert time.monotonic() < deadline, (first.errors, second.errors)
                    time.sleep(0.05)
                    if len(writer.acknowledged) > 5000:
                        break
                cluster.start_broker(victim)
                cluster.wait_until_healthy()
            writer.stop()
            deadline = time.monotonic() + 40
            while missing := set(writer.acknowledged) - first.read.keys() - second.read.keys():
                assert time.monotonic() < deadline, f"{len(missing)} not read"
                time.sleep(0.05)
        read = first.read + second.read
        with Reader(cluster.bootstrap, topic, "g", member) as late:
            time.sleep(3)
        assert sum((read + late.read).values()) < 2 * len(writer.acknowledged)
        assert not late.read, "everything had been committed"


class Transfers:
    """A transactional producer: each transaction writes its number to every partition, or aborts."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.committed: list[int] = []
        self.aborted: list[int] = []
        self.failure: BaseException | None = None
        self._bootstrap, self._topic, self._partitions = bootstrap, topic, partitions
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(90)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def wait_for(self, count: int, timeout_s: float = 60) -> None:
        start, deadline = len(self.committed), time.monotonic() + timeout_s
        while len(self.committed) < start + count:
            assert time.monotonic() < deadline, f"no {count} commits: {self.failure!r}"
            assert self.failure is None
            time.sleep(0.01)

    def _run(self) -> None:
        try:
            producer = Producer(
                {
                    "bootstrap.servers": self._bootstrap,
                    "transactional.id": "transfers",
                    "transaction.timeout.ms": 60_000,
                    "retry.backoff.ms": 20,
                    "reconnect.backoff.max.ms": 200,
                    "log_level": 0,
                    "error_cb": lambda _: None,
                }
            )
            _retried(lambda: producer.init_transactions(60))
            for number in itertools.count():
                if self._stop.is_set():
                    return
                self._transact(producer, number)
        except BaseException as error:
            self.failure = error

    def _transact(self, producer: Producer, number: int) -> None:
        producer.begin_transaction()
        is_abort = number % 7 == 3
        value = b"%s%d" % (b"x" if is_abort else b"c", number)
        try:
            for index in range(self._partitions):
                producer.produce(self._topic, value, partition=index)
            if is_abort:
                producer.flush(30)
                _retried(lambda: producer.abort_transaction(60))
                self.aborted.append(number)
                return
            _retried(lambda: producer.commit_transaction(60))
            self.committed.append(number)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            _retried(lambda: producer.abort_transaction(60))
            self.aborted.append(number)


def _retried(work: object) -> None:
    while True:
        try:
            work()  # type: ignore[operator]
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


def test_transactions_are_whole_when_any_broker_is_killed(cluster: Cluster) -> None:
    """Coordinator, leaders and others in turn: what was committed is in every partition, once; what was
    aborted in none."""
    topic = cluster.create_topic("t", 3, replication_factor=3, configs=SAFE)
    transfers = Transfers(cluster.bootstrap, topic, 3)
    transfers.wait_for(20)
    for round_number in range(3):
        victim = (
            coordinator(cluster, "__transaction_state", "transfers")
            if round_number == 0
            else cluster.leader(topic, round_number)
        )
        cluster[victim].kill()
        transfers.wait_for(20)
        cluster.start_broker(victim)
        cluster.wait_until_healthy()
    transfers.wait_for(10)
    transfers.stop()
    found = read_all(cluster.bootstrap, topic, 3)
    for values in found.values():
        counts = Counter(values)
        assert [value for value, count in counts.items() if count > 1] == []
        assert {b"c%d" % number for number in transfers.committed} <= counts.keys()
        assert not [value for value in values if value.startswith(b"x")]
        assert not {b"c%d" % number for number in transfers.aborted} & counts.keys()
        order = [int(value[1:]) for value in values]
        assert order == sorted(order)
    assert found[0] == found[1] == found[2]


def test_a_coordinator_hands_over_cleanly(cluster: Cluster) -> None:
    """A clean stop of the transactions' coordinator is no failure for a transactional producer."""
    topic = cluster.create_topic("t", 3, replication_factor=3, configs=SAFE)
    transfers = Transfers(cluster.bootstrap, topic, 3)
    transfers.wait_for(10)
    victim = coordinator(cluster, "__transaction_state", "transfers")
    cluster.stop_broker(victim)
    transfers.wait_for(20)
    cluster.start_broker(victim)
    transfers.wait_for(10)
    transfers.stop()
    found = read_all(cluster.bootstrap, topic, 3)
    assert found[0] == found[1] == found[2]
    assert {b"c%d" % number for number in transfers.committed} == set(found[0])
