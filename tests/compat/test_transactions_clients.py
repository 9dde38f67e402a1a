"""Transactional producers of three client families: commit, abort, offsets, zombies, time-outs.

All of them speak the old protocol: they name partitions first and keep their epoch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import aiokafka
import kafka
import pytest
from aiokafka.errors import ProducerFenced as AioProducerFenced
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka.errors import ProducerFencedError
from kafka.structs import OffsetAndMetadata

from tests.compat.committed import committed, everything
from tests.compat.topics import create_topic
from tests.conftest import Name
from tests.processes import BrokerProcess, until

TIMEOUT_S = 20.0
PARTITIONS = 3


def producer(bootstrap: str, transactional_id: str, **settings: object) -> Producer:
    made = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "linger.ms": 0,
            "transaction.timeout.ms": 30_000,
            **settings,
        }
    )
    made.init_transactions(TIMEOUT_S)
    return made


def expected(rounds: range, is_committed: Callable[[int], bool]) -> list[list[bytes]]:
    return [
        [b"%d/%d" % (number, index) for number in rounds if is_committed(number) for index in range(5)]
        for _ in range(PARTITIONS)
    ]


def is_committed(number: int) -> bool:
    return number % 3 != 1


# Commit and abort


def test_confluent(bootstrap: str, new_name: Name) -> None:
    topic = create_topic(bootstrap, new_name("txn-confluent"), PARTITIONS)
    writer = producer(bootstrap, new_name("id"))
    for number in range(6):
        writer.begin_transaction()
        for partition in range(PARTITIONS):
            for index in range(5):
                writer.produce(topic, b"%d/%d" % (number, index), partition=partition)
        if is_committed(number):
            writer.commit_transaction(TIMEOUT_S)
        else:
            writer.flush(TIMEOUT_S)
            writer.abort_transaction(TIMEOUT_S)
    check(bootstrap, topic)


def test_aiokafka(bootstrap: str, new_name: Name) -> None:
    topic = create_topic(bootstrap, new_name("txn-aiokafka"), PARTITIONS)

    async def run() -> None:
        writer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=new_name("id"))
        async with asyncio.timeout(TIMEOUT_S), writer:
            for number in range(6):
                await writer.begin_transaction()
                for partition in range(PARTITIONS):
                    for index in range(5):
                        await writer.send(topic, b"%d/%d" % (number, index), partition=partition)
                await writer.flush()
                if is_committed(number):
                    await writer.commit_transaction()
                else:
                    await writer.abort_transaction()

    asyncio.run(run())
    check(bootstrap, topic)


def test_kafka_python(bootstrap: str, new_name: Name) -> None:
    topic = create_topic(bootstrap, new_name("txn-kafka-python"), PARTITIONS)
    with closing(kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=new_name("id"))) as writer:
        writer.init_transactions()
        for number in range(6):
            writer.begin_transaction()
            for partition in range(PARTITIONS):
                for index in range(5):
                    writer.send(topic, b"%d/%d" % (number, index), partition=partition)
            writer.flush()
            if is_committed(number):
                writer.commit_transaction()
            else:
                writer.abort_transaction()
    check(bootstrap, topic)


def check(bootstrap: str, topic: str) -> None:
    """Readers of three families see what was committed; those of all records see all."""
    wanted = expected(range(6), is_committed)
    until(lambda: committed(bootstrap, topic, PARTITIONS) == wanted, TIMEOUT_S, "all is committed")
    assert everything(bootstrap, topic, PARTITIONS) == expected(range(6), lambda _: True)
    assert asyncio.run(aiokafka_values(bootstrap, topic)) == wanted
    assert kafka_python_values(bootstrap, topic) == wanted


async def aiokafka_values(bootstrap: str, topic: str) -> list[list[bytes]]:
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", fetch_max_wait_ms=20
    )
    found: list[list[bytes]] = []
    async with asyncio.timeout(TIMEOUT_S), consumer:
        for partition in range(PARTITIONS):
            place = aiokafka.TopicPartition(topic, partition)
            consumer.assign([place])
            await consumer.seek_to_beginning(place)
            values: list[bytes] = []
            while len(values) < 20:
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    values += [record.value for record in records]
            found.append(values)
    return found


def kafka_python_values(bootstrap: str, topic: str) -> list[list[bytes]]:
    found: list[list[bytes]] = []
    reader = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", fetch_max_wait_ms=20
    )
    with closing(reader):
        for partition in range(PARTITIONS):
            place = kafka.TopicPartition(topic, partition)
            reader.assign([place])
            reader.seek_to_beginning(place)
            values: list[bytes] = []
            deadline = time.monotonic() + TIMEOUT_S
            while len(values) < 20:
                assert time.monotonic() < deadline
                for records in reader.poll(timeout_ms=200).values():
                    values += [record.value for record in records]
            found.append(values)
    return found


# Offsets in the transaction


def committed_position(bootstrap: str, group: str, topic: str) -> int:
    with closing(Consumer({"bootstrap.servers": bootstrap, "group.id": group})) as consumer:
        (place,) = consumer.committed([TopicPartition(topic, 0)], TIMEOUT_S)
        position: int = place.offset
        return position


def test_offsets_with_confluent(bootstrap: str, new_name: Name) -> None:
    source, sink = (create_topic(bootstrap, new_name(word)) for word in ("source", "sink"))
    group = new_name("group")
    fill(bootstrap, source, 10)
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    with closing(Consumer(settings)) as consumer:
        consumer.subscribe([source])
        writer = producer(bootstrap, new_name("id"))
        copied = 0
        while copied < 10:
            messages = [each for each in consumer.consume(5, 1.0) if each.error() is None]
            if not messages:
                continue
            copied += len(messages)
            writer.begin_transaction()
            for message in messages:
                writer.produce(sink, message.value(), partition=0)
            positions = consumer.position(consumer.assignment())
            writer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), TIMEOUT_S)
            if copied == 10:
                writer.abort_transaction(TIMEOUT_S)
            else:
                writer.commit_transaction(TIMEOUT_S)
    assert 0 < committed_position(bootstrap, group, source) < 10
    seen = [b"%d" % number for number in range(committed_position(bootstrap, group, source))]
    assert committed(bootstrap, sink) == [seen]


def test_offsets_with_aiokafka(bootstrap: str, new_name: Name) -> None:
    source, sink = (create_topic(bootstrap, new_name(word)) for word in ("source", "sink"))
    group = new_name("group")
    fill(bootstrap, source, 10)

    async def run() -> None:
        place = aiokafka.TopicPartition(source, 0)
        writer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=new_name("id"))
        async with asyncio.timeout(TIMEOUT_S), writer:
            async with writer.transaction():
                await writer.send(sink, b"kept", partition=0)
                await writer.send_offsets_to_transaction({place: 7}, group)
            await writer.begin_transaction()
            await writer.send(sink, b"dropped", partition=0)
            await writer.send_offsets_to_transaction({place: 9}, group)
            await writer.abort_transaction()

    asyncio.run(run())
    until(lambda: committed_position(bootstrap, group, source) == 7, TIMEOUT_S, "the offset is committed")
    assert committed(bootstrap, sink) == [[b"kept"]]


def test_offsets_with_kafka_python(bootstrap: str, new_name: Name) -> None:
    source, sink = (create_topic(bootstrap, new_name(word)) for word in ("source", "sink"))
    group = new_name("group")
    fill(bootstrap, source, 10)
    place = kafka.TopicPartition(source, 0)
    with closing(kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=new_name("id"))) as writer:
        writer.init_transactions()
        for offset, is_kept in ((7, True), (9, False)):
            writer.begin_transaction()
            writer.send(sink, b"%d" % offset, partition=0)
            writer.send_offsets_to_transaction({place: OffsetAndMetadata(offset, "", -1)}, group)
            writer.flush()
            if is_kept:
                writer.commit_transaction()
            else:
                writer.abort_transaction()
    until(lambda: committed_position(bootstrap, group, source) == 7, TIMEOUT_S, "the offset is committed")
    assert committed(bootstrap, sink) == [[b"7"]]


def fill(bootstrap: str, topic: str, count: int) -> None:
    writer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        writer.produce(topic, b"%d" % number, partition=0)
    assert writer.flush(TIMEOUT_S) == 0


# Zombies


def test_a_zombie_of_confluent(bootstrap: str, new_name: Name) -> None:
    topic, name = create_topic(bootstrap, new_name("txn-zombie")), new_name("id")
    zombie = producer(bootstrap, name)
    zombie.begin_transaction()
    zombie.produce(topic, b"zombie", partition=0)
    zombie.flush(TIMEOUT_S)
    successor = producer(bootstrap, name)
    with pytest.raises(KafkaException) as caught:
        zombie.commit_transaction(TIMEOUT_S)
    assert caught.value.args[0].fatal()
    successor.begin_transaction()
    successor.produce(topic, b"successor", partition=0)
    successor.commit_transaction(TIMEOUT_S)
    until(lambda: committed(bootstrap, topic) == [[b"successor"]], TIMEOUT_S, "only the successor's is seen")


def test_a_zombie_of_aiokafka(bootstrap: str, new_name: Name) -> None:
    topic, name = create_topic(bootstrap, new_name("txn-zombie")), new_name("id")

    async def run() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            settings = {"bootstrap_servers": bootstrap, "transactional_id": name}
            zombie = aiokafka.AIOKafkaProducer(**settings)
            await zombie.start()
            await zombie.begin_transaction()
            await zombie.send_and_wait(topic, b"zombie", partition=0)
            async with aiokafka.AIOKafkaProducer(**settings) as successor:
                with pytest.raises(AioProducerFenced):
                    await zombie.commit_transaction()
                await zombie.stop()
                async with successor.transaction():
                    await successor.send(topic, b"successor", partition=0)

    asyncio.run(run())
    until(lambda: committed(bootstrap, topic) == [[b"successor"]], TIMEOUT_S, "only the successor's is seen")


def test_a_zombie_of_kafka_python(bootstrap: str, new_name: Name) -> None:
    topic, name = create_topic(bootstrap, new_name("txn-zombie")), new_name("id")
    settings = {"bootstrap_servers": bootstrap, "transactional_id": name}
    with closing(kafka.KafkaProducer(**settings)) as zombie:
        zombie.init_transactions()
        zombie.begin_transaction()
        zombie.send(topic, b"zombie", partition=0)
        zombie.flush()
        with closing(kafka.KafkaProducer(**settings)) as successor:
            successor.init_transactions()
            with pytest.raises(ProducerFencedError):
                zombie.commit_transaction()
            successor.begin_transaction()
            successor.send(topic, b"successor", partition=0)
            successor.commit_transaction()
    until(lambda: committed(bootstrap, topic) == [[b"successor"]], TIMEOUT_S, "only the successor's is seen")


# Time-outs


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker that looks for late transactions all the time."""
    options = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
    with BrokerProcess(tmp_path_factory.mktemp("impatient") / "data", options=options) as broker:
        yield broker.bootstrap


def test_a_transaction_that_takes_too_long(impatient: str, new_name: Name) -> None:
    """It is aborted by the coordinator, readers go on, and the producer is told when it comes back."""
    topic = create_topic(impatient, new_name("txn-late"))
    late = producer(impatient, new_name("id"), **{"transaction.timeout.ms": 3000, "message.timeout.ms": 3000})
    other = producer(impatient, new_name("id"))
    began = time.monotonic()
    late.begin_transaction()
    late.produce(topic, b"late", partition=0)
    late.flush(TIMEOUT_S)
    other.begin_transaction()
    other.produce(topic, b"in time", partition=0)
    other.commit_transaction(TIMEOUT_S)
    first_seen = committed(impatient, topic)
    assert first_seen == [[]] or time.monotonic() - began > 3
    until(lambda: committed(impatient, topic) == [[b"in time"]], TIMEOUT_S, "the late one is aborted")
    with pytest.raises(KafkaException):
        late.commit_transaction(TIMEOUT_S)
    assert everything(impatient, topic) == [[b"late", b"in time"]]
    assert committed(impatient, topic) == [[b"in time"]]
