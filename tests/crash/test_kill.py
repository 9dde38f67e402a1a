"""`kill -9` in the middle of load, again and again.

MILLSTREAM_CRASH_ROUNDS says how often; the long run is 50 times.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import partial

import pytest
from confluent_kafka import Producer

from tests.crash.load import Decoded, LoadProducer, check, read_all, wait_for_more
from tests.processes import BrokerProcess, until
from tests.wire import Wire, append, create_topic, end_offset, list_offsets

ROUNDS = int(os.environ.get("MILLSTREAM_CRASH_ROUNDS", "4"))
PARTITIONS = 3


@pytest.mark.timeout(60 + 10 * ROUNDS)
@pytest.mark.parametrize("flush_before_ack", ["false", "true"], ids=["written", "fsynced"])
def test_nothing_acknowledged_is_lost(
    broker_process: Callable[..., BrokerProcess], flush_before_ack: str
) -> None:
    """Plain and idempotent producers write to rolling segments; the broker dies at a random moment."""
    pick = random.Random(20260302)
    broker = broker_process(log_segment_bytes=str(1 << 20), log_flush_before_ack=flush_before_ack).start()
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "load", partitions=PARTITIONS)
    producers = [
        LoadProducer(
            broker.bootstrap,
            "load",
            partition,
            is_idempotent=is_idempotent,
            acks=-1 if is_idempotent else 1,
            seed=10 * partition + is_idempotent,
        )
        for partition in range(PARTITIONS)
        for is_idempotent in (True, False)
    ]
    for producer in producers:
        producer.start()
    totals = [0] * PARTITIONS
    known: Decoded = {}
    for _ in range(ROUNDS):
        wait_for_more(producers, pick.randint(300, 2500))
        broker.kill()
        broker.start()
        for partition in range(PARTITIONS):
            totals[partition] = check(producers, broker.bootstrap, "load", partition, known)
    for producer in producers:
        producer.finish(60)
    for partition in range(PARTITIONS):
        final = check(producers, broker.bootstrap, "load", partition, known)
        assert final >= totals[partition] > 0
        for producer in producers:
            if producer.partition == partition and producer.is_idempotent:
                kept = read_all(broker.bootstrap, "load", partition, known).values()
                mine = sum(value.startswith(producer.label + b"/") for value in kept)
                assert mine == len(producer.acknowledged)
    assert len(list(broker.partition_folder("load").glob("*.log"))) > 1, "segments did not roll"
    assert broker.stop() == 0


@pytest.mark.timeout(60 + 10 * ROUNDS)
def test_librdkafka_rides_through_crashes(broker_process: Callable[..., BrokerProcess]) -> None:
    """One idempotent producer of a real client lives through all crashes; its application sees no error."""
    broker = broker_process().start()
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "ride")
    offsets: dict[int, int] = {}
    errors: list[str] = []

    def delivered(number: int) -> Callable[..., None]:
        def note(error: object, message: object) -> None:
            if error is not None:
                errors.append(str(error))
            else:
                offsets[number] = message.offset()  # type: ignore[attr-defined]

        return note

    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 2,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 20,
            "log_level": 0,
        }
    )

    def has_delivered(count: int) -> bool:
        producer.poll(0.05)
        return len(offsets) >= count

    number = 0
    for _ in range(ROUNDS):
        goal = number + 2000
        while number < goal:
            producer.produce("ride", b"%d" % number, partition=0, on_delivery=delivered(number))
            number += 1
            producer.poll(0)
            if number == goal - 700:
                broker.kill()
        broker.start()
        until(partial(has_delivered, goal - 100), 60, "deliveries go on")
    assert producer.flush(60) == 0
    assert not errors, errors[:3]
    found = read_all(broker.bootstrap, "ride", 0)
    assert [int(value) for value in found.values()] == list(range(number))
    assert offsets == {n: n for n in range(number)}


def test_killed_while_it_starts(broker_process: Callable[..., BrokerProcess]) -> None:
    """Recovery is interrupted by further kills at random moments, and the next start finishes it."""
    broker = broker_process().start()
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "often", partitions=2)
        for number in range(200):
            assert append(wire, "often", b"%d" % number) == number
    broker.kill()
    pick = random.Random(7)
    for _ in range(ROUNDS):
        broker.launch()
        assert broker.runs_for(pick.uniform(0.02, 0.5)), broker.output
        broker.kill()
    broker.start()
    found = read_all(broker.bootstrap, "often", 0)
    assert list(found.values()) == [b"%d" % number for number in range(200)]
    with Wire(broker.bootstrap) as wire:
        assert append(wire, "often", b"after") == 200


def test_lookups_work_after_a_crash(broker_process: Callable[..., BrokerProcess]) -> None:
    """The indexes are derived again: offsets and times inside old and new segments are found."""
    broker = broker_process(log_segment_bytes=str(1 << 20), log_index_interval_bytes="100").start()
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "find")
        for number in range(250):
            assert append(wire, "find", b"%d" % number, bytes(10_000)) == 2 * number
        (before,) = list_offsets(wire, "find", timestamp=-3)
    broker.kill()
    for index in broker.partition_folder("find").glob("*index"):
        index.unlink()
    broker.start()
    found = read_all(broker.bootstrap, "find", 0)
    assert [value for value in found.values() if value != bytes(10_000)] == [b"%d" % n for n in range(250)]
    with Wire(broker.bootstrap) as wire:
        (latest,) = list_offsets(wire, "find", timestamp=-3)
        assert (latest.offset, latest.timestamp) == (before.offset, before.timestamp)
        assert end_offset(wire, "find", timestamp=latest.timestamp) == latest.offset
        (early,) = list_offsets(wire, "find", timestamp=1)
        assert early.offset == 0
