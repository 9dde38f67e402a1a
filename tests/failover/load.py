"""Real clients at work while brokers come and go, and what must hold afterwards."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from bench.apache_kafka import java_command
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

CLASSIC: dict[str, Any] = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
"""Settings of members in the classic protocol; in the newer one they are the broker's."""

JAVA_LIMIT = 1_000_000
JAVA_CONFIG = """\
retries=1000000
enable.idempotence=true
delivery.timeout.ms=60000
retry.backoff.ms=20
retry.backoff.max.ms=200
reconnect.backoff.ms=20
reconnect.backoff.max.ms=200
"""
"""The tool's own default is not to try again, which no application has."""


class Writer:
    """An idempotent confluent-kafka producer in a thread; every value is written once."""

    def __init__(
        self, bootstrap: str, topic: str, rate: int = 400, config: dict[str, Any] | None = None
    ) -> None:
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        """Values with their partition and offset."""
        self.failed: list[str] = []
        self.acknowledged_at: list[float] = []
        self.errors: list[str] = []
        self._topic = topic
        self._pause_s = 1 / rate
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "delivery.timeout.ms": 60_000,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 200,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "topic.metadata.refresh.fast.interval.ms": 50,
                "log_level": 0,
                "error_cb": self._error,
                **(config or {}),
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Write no more, and wait for what is under way."""
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join(90)
            left = self._producer.flush(60)
            assert left == 0, f"{left} records without an answer"

    def wait_for(self, count: int, timeout_s: float = 60) -> float:
        """Wait for so many more acknowledgements; how long it took until the first of them."""
        start, begun = len(self.acknowledged_at), time.monotonic()
        while len(self.acknowledged_at) < start + count:
            assert time.monotonic() - begun < timeout_s, f"no {count} acknowledgements in {timeout_s} s"
            time.sleep(0.001)
        return self.acknowledged_at[start] - begun

    @property
    def longest_pause_s(self) -> float:
        """The longest time between two acknowledgements."""
        return max((b - a for a, b in itertools.pairwise(self.acknowledged_at)), default=0.0)

    def _error(self, error: KafkaError) -> None:
        if error.fatal():
            self.errors.append(str(error))

    def _run(self) -> None:
        for number in itertools.count():
            if self._stop.is_set():
                return
            value = b"w%d" % number
            self._producer.produce(self._topic, value, on_delivery=self._delivered)
            self._producer.poll(self._pause_s)

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            self.acknowledged[message.value()] = (message.partition(), message.offset())
            self.acknowledged_at.append(time.monotonic())


class Reader:
    """A confluent-kafka consumer of a group in a thread, which counts what it has read."""

    def __init__(self, bootstrap: str, topic: str, group: str, config: dict[str, Any] | None = None) -> None:
        self.read: Counter[bytes] = Counter()
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 500,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.max.ms": 200,
                "log_level": 0,
                "error_cb": lambda _: None,
                **(CLASSIC if config is None else config),
            }
        )
        self._topic = topic
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(60)

    def wait_for(self, values: set[bytes], timeout_s: float = 60) -> None:
        """Wait until all these values have been read."""
        deadline = time.monotonic() + timeout_s
        while missing := values - self.read.keys():
            assert time.monotonic() < deadline, (
                f"{len(missing)} of {len(values)} not read; {self.errors[-3:]}"
            )
            time.sleep(0.02)

    def _run(self) -> None:
        self._consumer.subscribe([self._topic])
        try:
            while not self._stop.is_set():
                message = self._consumer.poll(0.1)
                if message is None:
                    continue
                if message.error():
                    self.errors.append(str(message.error()))
                else:
                    self.read[message.value()] += 1
        finally:
            self._consumer.close()


def is_java(value: bytes) -> bool:
    """Whether a record is one of a `JavaWriter`."""
    return value.startswith(b"7.")


class JavaWriter:
    """Kafka's own VerifiableProducer, which tells of every acknowledgement."""

    def __init__(self, bootstrap: str, topic: str, rate: int = 100) -> None:
        words = ["--bootstrap-server", bootstrap, "--topic", topic, "--throughput", str(rate), "--acks", "-1"]
        words += ["--max-messages", str(JAVA_LIMIT), "--value-prefix", "7"]
        self._config = tempfile.NamedTemporaryFile("w", suffix=".properties")  # noqa: SIM115
        self._config.write(JAVA_CONFIG)
        self._config.flush()
        words += ["--command-config", self._config.name]
        command = java_command("org.apache.kafka.tools.VerifiableProducer", words, heap="128m")
        self.acknowledged: set[bytes] = set()
        self.failed: list[str] = []
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(40)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._thread.join(10)
        self._config.close()

    def wait_for(self, count: int, timeout_s: float = 60) -> None:
        start, deadline = len(self.acknowledged), time.monotonic() + timeout_s
        while len(self.acknowledged) < start + count:
            assert time.monotonic() < deadline, f"no {count} acknowledgements of Java in {timeout_s} s"
            time.sleep(0.01)

    def _run(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout:
            for line in self._process.stdout:
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                if event.get("name") == "producer_send_success":
                    self.acknowledged.add(event["value"].encode())
                elif event.get("name") == "producer_send_error":
                    self.failed.append(event.get("message", ""))


def read_all(bootstrap: str, topic: str, partitions: int, timeout_s: float = 60) -> dict[int, list[bytes]]:
    """Every committed record of a topic, by partition, read from the beginning to the end as it is now."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 0,
            "error_cb": lambda _: None,
        }
    )
    try:
        places = [TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)]
        deadline = time.monotonic() + timeout_s
        ends = {place.partition: _end_offset(consumer, place, deadline) for place in places}
        consumer.assign(places)
        found: dict[int, list[bytes]] = {index: [] for index in range(partitions)}
        at = dict.fromkeys(range(partitions), 0)
        while any(at[index] < end for index, end in ends.items()):
            assert time.monotonic() < deadline, f"read up to {at} of {ends}"
            for message in consumer.consume(1000, 0.2):
                assert not message.error(), message.error()
                found[message.partition()].append(message.value())
            for place in consumer.position(places):
                at[place.partition] = max(at[place.partition], place.offset)
        return found
    finally:
        consumer.close()


def wait_until_committed(
    bootstrap: str, topic: str, group: str, partitions: int, timeout_s: float = 60
) -> None:
    """Wait until a group has committed everything that is in a topic as it is now."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0, "error_cb": lambda _: None}
    )
    try:
        places = [TopicPartition(topic, index) for index in range(partitions)]
        deadline = time.monotonic() + timeout_s
        ends = [_end_offset(consumer, place, deadline) for place in places]
        at: list[int] = []
        while at != ends:
            assert time.monotonic() < deadline, f"committed {at} of {ends}"
            with contextlib.suppress(KafkaException):
                at = [place.offset for place in consumer.committed(places, timeout=5)]
            time.sleep(0.05)
    finally:
        consumer.close()


def _end_offset(consumer: Consumer, place: TopicPartition, deadline: float) -> int:
    """The client gives up at once where a broker of its list has just gone; it is asked again."""
    while True:
        try:
            return int(consumer.get_watermark_offsets(place, timeout=5)[1])
        except KafkaException:
            if time.monotonic() > deadline:
                raise


def check(
    found: dict[int, list[bytes]], writer: Writer, *, others: Callable[[bytes], bool] = lambda _: False
) -> None:
    """No acknowledged record is lost, none is there twice, all lie where and in the order it was said."""
    assert writer.failed == []
    assert writer.errors == []
    everything = Counter(value for values in found.values() for value in values if not others(value))
    lost = writer.acknowledged.keys() - everything.keys()
    assert not lost, f"{len(lost)} of {len(writer.acknowledged)} lost, such as {sorted(lost)[:5]}"
    assert [value for value, count in everything.items() if count > 1] == []
    for index, values in found.items():
        told = sorted(
            (offset, value)
            for value, (partition, offset) in writer.acknowledged.items()
            if partition == index
        )
        order = {value: position for position, value in enumerate(values)}
        assert [order[value] for _, value in told] == sorted(order[value] for _, value in told)


def numbered(prefix: str) -> Iterator[str]:
    return (f"{prefix}-{number}" for number in itertools.count())
