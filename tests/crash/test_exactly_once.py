"""Copying in transactions while brokers and copiers are killed: each record once, and in order.

Two groups copy the same topic: one with librdkafka, whose members share the partitions and speak the old
protocol; one without a client library, in transaction version 2.
MILLSTREAM_EOS_ROUNDS says how often; the long run is 30 times.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.compat.committed import committed, everything
from tests.compat.topics import create_topic
from tests.crash.copier import BATCH_RECORDS, GAVE_UP
from tests.processes import BrokerProcess, until

ROUNDS = int(os.environ.get("MILLSTREAM_EOS_ROUNDS", "3"))
PARTITIONS = 3
RECORDS = 400
"""How many records each partition gets in each round."""
PATIENCE_S = 60.0

SINKS = {"old": "sink", "new": "new-sink"}
"""Where each group copies to."""
PROGRAMS = {
    "old-0": ("tests.crash.copier", ()),
    "old-1": ("tests.crash.copier", ()),
    "new-0": ("tests.crash.new_copier", ("0", "2")),
    "new-1": ("tests.crash.new_copier", ("1",)),
}


class Copier:
    """One copier that is started again whenever it ends."""

    def __init__(self, folder: Path, name: str, bootstrap: str) -> None:
        self.output = folder / f"{name}.out"
        module, partitions = PROGRAMS[name]
        group = name.partition("-")[0]
        words = (bootstrap, group, name, "source", SINKS[group], *partitions)
        self.command = [sys.executable, "-m", module, *words]
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def keep_running(self) -> None:
        if self.process is not None:
            status = self.process.poll()
            if status is None:
                return
            assert status in (GAVE_UP, -9), f"a copier failed: {self.output.read_text()[-3000:]}"
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(self.command, stdout=output, stderr=output)
        self.starts += 1

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)


class Positions:
    """How far the groups are."""

    def __init__(self, bootstrap: str) -> None:
        self._consumers = [
            Consumer({"bootstrap.servers": bootstrap, "group.id": group, "reconnect.backoff.max.ms": 200})
            for group in SINKS
        ]

    def close(self) -> None:
        for consumer in self._consumers:
            consumer.close()

    def total(self) -> int:
        """How many records were copied, by all groups; 0 while the broker does not answer."""
        places = [TopicPartition("source", number) for number in range(PARTITIONS)]
        try:
            found = [consumer.committed(places, 5) for consumer in self._consumers]
        except KafkaException:
            return 0
        return sum(max(place.offset, 0) for each in found for place in each)


@pytest.fixture
def copiers() -> Iterator[list[Copier]]:
    made: list[Copier] = []
    yield made
    for each in made:
        each.kill()


@pytest.mark.timeout(90 + 20 * ROUNDS)
def test_each_record_once_and_in_order(
    broker_process: Callable[..., BrokerProcess], copiers: list[Copier], tmp_path: Path
) -> None:
    pick = random.Random(20260401)
    broker = broker_process(
        group_initial_rebalance_delay_ms="0",
        group_min_session_timeout_ms="500",
        log_segment_bytes=str(1 << 20),
    ).start()
    for name in ("source", *SINKS.values()):
        create_topic(broker.bootstrap, name, PARTITIONS)
    copiers += [Copier(tmp_path, name, broker.bootstrap) for name in PROGRAMS]
    written = 0
    with closing(Positions(broker.bootstrap)) as positions:

        def progress() -> int:
            """How many records were copied; copiers that ended are started again."""
            for copier in copiers:
                copier.keep_running()
            return positions.total()

        for _ in range(ROUNDS):
            seen = progress()
            feed(broker.bootstrap, written, written + RECORDS)
            written += RECORDS
            wait_for(progress, seen + 1)
            time.sleep(pick.uniform(0, 0.5))
            victims = pick.choice(("broker", "one", "copiers", "all"))
            if victims != "broker":
                for copier in pick.sample(copiers, 1 if victims == "one" else len(copiers)):
                    copier.kill()
            if victims in ("broker", "all"):
                broker.kill()
                broker.start()
        wait_for(progress, written * PARTITIONS * len(SINKS))
    for copier in copiers:
        copier.kill()
    expected = [[b"%d" % number for number in range(written)]] * PARTITIONS
    assert committed(broker.bootstrap, "source", PARTITIONS) == expected
    for sink in SINKS.values():
        until(
            lambda at=sink: len(committed(broker.bootstrap, at)[0]) >= written,  # type: ignore[misc]
            PATIENCE_S,
            "the last transactions are ended",
        )
        assert committed(broker.bootstrap, sink, PARTITIONS) == expected
        aborted = sum(map(len, everything(broker.bootstrap, sink, PARTITIONS))) - written * PARTITIONS
        print(f"{sink}: {aborted} records aborted")
    starts = {name: copier.starts for name, copier in zip(PROGRAMS, copiers, strict=True)}
    print(f"{ROUNDS} rounds, starts of copiers: {starts}")


def wait_for(progress: Callable[[], int], goal: int) -> None:
    until(lambda: progress() >= goal, PATIENCE_S + 5 * ROUNDS, f"{goal} records are copied")


def feed(bootstrap: str, start: int, end: int) -> None:
    """Write numbers to each partition, a few in each batch."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "batch.num.messages": BATCH_RECORDS}
    )
    for number in range(start, end):
        for partition in range(PARTITIONS):
            producer.produce("source", b"%d" % number, partition=partition)
    assert producer.flush(PATIENCE_S) == 0
