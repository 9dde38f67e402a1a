"""Groups whose members are our consumer and other clients: they agree on who reads what."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer as ConfluentConsumer

from millstream import Admin, Consumer, Producer, TopicPartition
from millstream.testing import Broker

PARTITIONS, RECORDS = 6, 600


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    config = {
        "group.consumer.heartbeat.interval.ms": "300",
        "group.consumer.min.heartbeat.interval.ms": "300",
    }
    with Broker(config=config) as broker:
        yield broker


class Ours:
    """Our consumer in a thread of its own."""

    def __init__(
        self, bootstrap: str, group: str, topic: str, seen: Counter[tuple[int, int]], **options: Any
    ):
        self.assignment: set[int] = set()
        self._stop = threading.Event()
        self._arguments = (bootstrap, group, topic, seen, options)
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        bootstrap, group, topic, seen, options = self._arguments
        try:
            with Consumer(
                bootstrap, group=group, offset_reset="earliest", heartbeat_interval_ms=200, **options
            ) as consumer:
                consumer.subscribe(topic)
                while not self._stop.is_set():
                    for record in consumer.poll(timeout=0.1):
                        seen[record.partition, record.offset] += 1
                    self.assignment = {each.partition for each in consumer.assignment}
        except BaseException as error:
            self._failures.append(error)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._failures == []


class Theirs:
    """librdkafka's consumer, polled by a thread."""

    def __init__(
        self, bootstrap: str, group: str, topic: str, seen: Counter[tuple[int, int]], **options: Any
    ):
        self.assignment: set[int] = set()
        self._stop = threading.Event()
        self._consumer = ConfluentConsumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                **options,
            }
        )
        self._consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._run, args=(seen,))
        self._thread.start()

    def _run(self, seen: Counter[tuple[int, int]]) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(100, 0.1):
                if message.error() is None:
                    seen[message.partition(), message.offset()] += 1
            self.assignment = {each.partition for each in self._consumer.assignment()}
        self._consumer.close()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 40
    while not is_so():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.05)


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "cooperative-sticky": (
        {"assignors": ["cooperative-sticky"]},
        {"partition.assignment.strategy": "cooperative-sticky", "heartbeat.interval.ms": 200},
    ),
    "range": (
        {"assignors": ["range"]},
        {"partition.assignment.strategy": "range", "heartbeat.interval.ms": 200},
    ),
    "roundrobin": (
        {"assignors": ["roundrobin"]},
        {"partition.assignment.strategy": "roundrobin", "heartbeat.interval.ms": 200},
    ),
    "consumer": ({"group_protocol": "consumer"}, {"group.protocol": "consumer"}),
}


@pytest.mark.parametrize("is_first", [True, False], ids=["ours-first", "theirs-first"])
@pytest.mark.parametrize("case", CASES)
def test_members_share_and_hand_over(broker: Broker, case: str, is_first: bool) -> None:
    topic, group = f"mixed-{case}-{is_first}", f"mixed-{case}-{is_first}"
    with Admin(broker.bootstrap) as admin:
        admin.create_topic(topic, PARTITIONS)
    ours, theirs = CASES[case]
    makers: list[Callable[[], Any]] = [
        lambda: Ours(broker.bootstrap, group, topic, seen, **ours),
        lambda: Theirs(broker.bootstrap, group, topic, seen, **theirs),
    ]
    seen: Counter[tuple[int, int]] = Counter()
    members = []
    try:
        for make in makers if is_first else makers[::-1]:
            members.append(make())
            until(lambda: bool(members[-1].assignment))
        until(lambda: sorted(len(each.assignment) for each in members) == [3, 3])
        with Producer(broker.bootstrap) as producer:
            for number in range(RECORDS):
                producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
        until(lambda: len(seen) == RECORDS)
        members.pop(0).stop()
        until(lambda: len(members[0].assignment) == PARTITIONS)
    finally:
        for member in members:
            member.stop()
    assert set(seen.values()) == {1}, "what one committed the other did not read again"
    with Admin(broker.bootstrap) as admin:
        offsets = admin.group_offsets(group)
    assert offsets.keys() == {TopicPartition(topic, index) for index in range(PARTITIONS)}
    assert {each.offset for each in offsets.values()} == {RECORDS // PARTITIONS}
