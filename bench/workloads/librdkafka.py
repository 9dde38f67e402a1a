"""Produce and consume through librdkafka, the client under most non-Java programs (confluent-kafka)."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.batches import batch_of_size, sample_values
from bench.frames import ProduceAnswer, produce_frame
from bench.raw import Loader
from bench.subjects import Broker, Subject
from bench.wire import Connection
from bench.workload import (
    CPU_PER_GB,
    MB_PER_SECOND,
    RECORDS_PER_SECOND,
    CpuClock,
    Scale,
    Workload,
    topic_on,
)

FLUSH_SECONDS = 120


def size_name(value_bytes: int) -> str:
    return f"{value_bytes}B" if value_bytes < 1000 else f"{value_bytes // 1000}KB"


def make_producer(bootstrap: str, **options: str | int) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 5,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 500_000,
            "topic.metadata.refresh.interval.ms": -1,
            **options,
        }
    )


def produce(bootstrap: str, topic: str, value_bytes: int, records: int, **options: str | int) -> float:
    """Send `records` values as fast as librdkafka takes them; seconds until the last is acknowledged."""
    values = sample_values(value_bytes)
    producer = make_producer(bootstrap, **options)
    producer.produce(topic, values[0])
    producer.flush(FLUSH_SECONDS)
    send, poll = producer.produce, producer.poll
    started = time.perf_counter()
    for _ in range(records // len(values)):
        for value in values:
            while True:
                try:
                    send(topic, value)
                    break
                except BufferError:
                    poll(0.005)
        poll(0)
    left = producer.flush(FLUSH_SECONDS)
    seconds = time.perf_counter() - started
    if left:
        raise RuntimeError(f"{left} records not acknowledged within {FLUSH_SECONDS} s")
    return seconds


class LibrdkafkaProduce(Workload):
    metrics = (RECORDS_PER_SECOND, MB_PER_SECOND, CPU_PER_GB)

    def __init__(self, value_bytes: int, acks: str, partitions: int, codec: str = "none") -> None:
        self.value_bytes, self.acks, self.partitions, self.codec = value_bytes, acks, partitions, codec
        suffix = "" if codec == "none" else f"-{codec}"
        self.name = f"produce-{size_name(value_bytes)}-acks_{acks}-{partitions}p{suffix}"
        self.title = (
            f"librdkafka produce {size_name(value_bytes)}, acks={acks}, {partitions} partition(s)"
            + (f", {codec}" if suffix else "")
        )

    def measure(self, subject: Subject, scale: Scale) -> Mapping[str, float]:
        broker = subject.shared()
        wanted = (
            scale.count(quick=700_000, full=2_500_000)
            if self.value_bytes < 1000
            else scale.count(quick=200_000, full=600_000)
        )
        records = max(1, wanted // 1024) * 1024
        with topic_on(broker, self.partitions) as topic:
            cpu = CpuClock(broker)
            seconds = produce(
                broker.bootstrap,
                topic,
                self.value_bytes,
                records,
                **{"acks": self.acks, "compression.type": self.codec},
            )
            used_seconds = cpu.seconds()
            with Connection(broker.port) as connection:
                written = sum(connection.end_offsets(topic, self.partitions))
            if written != records + 1:
                raise RuntimeError(f"{written} records in the log instead of {records + 1}")
            total = records * self.value_bytes
            return {
                "records/s": records / seconds / 1e3,
                "MB/s": total / seconds / 1e6,
                "cpu/GB": used_seconds / (total / 1e9),
            }


def fill(broker: Broker, topic: str, value_bytes: int, partitions: int, total_bytes: int) -> int:
    """Write identical batches of about 64 KB evenly to all partitions; the count of records written."""
    made = batch_of_size(value_bytes, 64_000)
    frames = [produce_frame(topic, {index: made.data}, acks=1) for index in range(partitions)]
    requests = -(-total_bytes // (made.count * value_bytes * partitions)) * partitions
    loader = Loader(broker.port, frames, ProduceAnswer(topic), depth=16)
    try:
        loader.run(requests)
    finally:
        loader.close()
    with Connection(broker.port) as connection:
        return sum(connection.end_offsets(topic, partitions))


def consume(bootstrap: str, topic: str, partitions: int, records: int) -> float:
    """Read all records of assigned partitions from the start; seconds from the first to the last."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 1_000_000,
            "fetch.queue.backoff.ms": 1,
            "fetch.wait.max.ms": 100,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        received, deadline = 0, time.monotonic() + 120
        while not received:
            received = len(consumer.consume(1, 1.0))
        started = time.perf_counter()
        while received < records:
            received += len(consumer.consume(min(10_000, records - received), 1.0))
            if time.monotonic() > deadline:
                raise RuntimeError(f"only {received} of {records} records arrived")
        return time.perf_counter() - started
    finally:
        consumer.close()


class LibrdkafkaConsume(Workload):
    metrics = (RECORDS_PER_SECOND, MB_PER_SECOND, CPU_PER_GB)

    def __init__(self, value_bytes: int, partitions: int, codec: str = "none") -> None:
        self.value_bytes, self.partitions, self.codec = value_bytes, partitions, codec
        suffix = "" if codec == "none" else f"-{codec}"
        self.name = f"consume-{size_name(value_bytes)}-{partitions}p{suffix}"
        self.title = f"librdkafka consume {size_name(value_bytes)}, {partitions} partition(s)" + (
            f", {codec}" if suffix else ""
        )
        self._filled: dict[str, tuple[str, int]] = {}

    def prepare(self, subject: Subject, scale: Scale) -> None:
        broker = subject.shared()
        topic = f"{self.name}-{subject.label}"
        total = (
            scale.count(quick=80e6, full=300e6)
            if self.value_bytes < 1000
            else scale.count(quick=200e6, full=800e6)
        )
        with Connection(broker.port) as connection:
            connection.create_topic(topic, self.partitions)
            if self.codec == "none":
                fill(broker, topic, self.value_bytes, self.partitions, total)
            else:
                records = total // self.value_bytes // 1024 * 1024
                produce(
                    broker.bootstrap,
                    topic,
                    self.value_bytes,
                    records,
                    **{"acks": "1", "compression.type": self.codec},
                )
            self._filled[subject.label] = topic, sum(connection.end_offsets(topic, self.partitions))

    def measure(self, subject: Subject, scale: Scale) -> Mapping[str, float]:
        broker = subject.shared()
        topic, records = self._filled[subject.label]
        cpu = CpuClock(broker)
        seconds = consume(broker.bootstrap, topic, self.partitions, records)
        total = records * self.value_bytes
        return {
            "records/s": records / seconds / 1e3,
            "MB/s": total / seconds / 1e6,
            "cpu/GB": cpu.per_gb(total),
        }

    def finish(self, subject: Subject) -> None:
        topic, _ = self._filled.pop(subject.label)
        with Connection(subject.shared().port) as connection:
            connection.delete_topics([topic])
