"""Kafka's own copier, in transaction version 2, while each broker is killed: each record once, in order."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.apache_kafka import java_command
from confluent_kafka import Producer

from millstream.testing import Cluster
from tests.failover.load import read_all

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

PARTITIONS = 2
RECORDS = 3000
"""How many each partition has: enough for copiers to be at work during all failures."""


class Copier:
    """A copier of one partition, started again if it gives up; it goes on where its group has committed."""

    def __init__(self, bootstrap: str, partition: int, folder: Path) -> None:
        words = ["--broker-list", bootstrap, "--input-topic", "source", "--output-topic", "sink"]
        words += ["--input-partition", str(partition), "--transaction-size", "10"]
        words += ["--transactional-id", f"copier-{partition}", "--consumer-group", f"copier-{partition}"]
        words += ["--transaction-timeout", "30000", "--enable-random-aborts"]
        self._command = java_command("org.apache.kafka.tools.TransactionalMessageCopier", words, heap="128m")
        self._output = folder / f"copier-{partition}.out"
        self.starts = 0
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        with self._output.open("ab") as output:
            return subprocess.Popen(self._command, stdout=output, stderr=subprocess.STDOUT)

    def is_done(self) -> bool:
        status = self._process.poll()
        if status is None:
            return False
        if status == 0:
            return True
        assert self.starts < 10, self._output.read_text()[-3000:]
        self._process = self._start()
        return False

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(20)


@pytest.fixture
def copiers() -> Iterator[list[Copier]]:
    made: list[Copier] = []
    yield made
    for copier in made:
        copier.kill()


def test_copying_in_transactions_while_brokers_are_killed(
    cluster: Cluster, copiers: list[Copier], tmp_path: Path
) -> None:
    for name in ("source", "sink"):
        cluster.create_topic(name, PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"})
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 0})
    for number in range(RECORDS):
        for partition in range(PARTITIONS):
            producer.produce("source", b"%d" % number, key=b"%d" % partition, partition=partition)
    assert producer.flush(30) == 0
    copiers += [Copier(cluster.bootstrap, partition, tmp_path) for partition in range(PARTITIONS)]
    time.sleep(2)
    kills = 0
    deadline = time.monotonic() + 240
    while [copier for copier in copiers if not copier.is_done()]:
        assert time.monotonic() < deadline, "the copiers make no progress"
        if kills < 6:
            victim = 1 + kills % 3
            cluster[victim].kill()
            kills += 1
            time.sleep(0.5)
            cluster.start_broker(victim)
            cluster.wait_until_healthy()
        time.sleep(0.1)
    assert kills >= 3
    found = read_all(cluster.bootstrap, "sink", PARTITIONS)
    expected = [b"%d" % number for number in range(RECORDS)]
    assert sum(map(len, found.values())) == PARTITIONS * RECORDS
    assert sorted(found.values()) == [expected] * PARTITIONS
