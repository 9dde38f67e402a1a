"""Members of groups that run by themselves: in a thread here, or in a process that can be killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

QUICK = {
    "auto.offset.reset": "earliest",
    "session.timeout.ms": 1500,
    "heartbeat.interval.ms": 200,
    "fetch.wait.max.ms": 50,
    "topic.metadata.refresh.interval.ms": 500,
    "topic.metadata.propagation.max.ms": 2000,
}
"""Settings under which a test need not wait long. The broker must allow the session time-out."""

PROGRAM = """
import sys
from confluent_kafka import Consumer
settings = dict(word.split("=", 1) for word in sys.argv[2:])
consumer = Consumer(settings)
consumer.subscribe([sys.argv[1]], on_assign=lambda _, parts: print("assigned", len(parts), flush=True))
while True:
    message = consumer.poll(1)
    if message is not None and message.error() is None:
        print("read", message.partition(), message.offset(), flush=True)
"""


def client_settings(bootstrap: str, group: str, **settings: Any) -> dict[str, Any]:
    """A member's settings; one that is None is left to the client."""
    named = {key.replace("_", "."): value for key, value in settings.items()}
    values = {"bootstrap.servers": bootstrap, "group.id": group, **QUICK, **named}
    return {key: value for key, value in values.items() if value is not None}


class Member:
    """A librdkafka consumer in a thread: reads on and on, and commits as it was told to."""

    def __init__(self, bootstrap: str, group: str, topics: list[str], **settings: Any) -> None:
        self.consumer = Consumer(client_settings(bootstrap, group, **settings))
        self.topics = topics
        self.values: Counter[bytes] = Counter()
        self.assigned: list[tuple[str, int]] = []
        self.assignments = 0
        """How often a rebalance gave it something, be it nothing."""
        self.error: KafkaError | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def leave(self) -> None:
        """Leave the group and end."""
        self._is_over.set()
        self._thread.join(20)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        self.consumer.subscribe(self.topics, on_assign=self._assign, on_revoke=self._look, on_lost=self._look)
        while not self._is_over.is_set() and self.error is None:
            for message in self.consumer.consume(500, timeout=0.05):
                error = message.error()
                if error is None:
                    self.values[message.value()] += 1
                elif error.code() == KafkaError._FATAL:
                    self.error = error
            self.assigned = sorted((each.topic, each.partition) for each in self.consumer.assignment())
        self.consumer.close()

    def _assign(self, consumer: Consumer, partitions: list[Any]) -> None:
        self.assignments += 1

    def _look(self, consumer: Consumer, partitions: list[Any]) -> None:
        """Let the client do what it does by itself."""


class DoomedMember:
    """A consumer in a process of its own, which ends by `kill -9` and says goodbye to nobody."""

    def __init__(self, bootstrap: str, group: str, topic: str, log: Path, **settings: Any) -> None:
        words = [f"{key}={value}" for key, value in client_settings(bootstrap, group, **settings).items()]
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, topic, *words], stdout=output, stderr=subprocess.DEVNULL
            )

    @property
    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    @property
    def is_assigned(self) -> bool:
        return any(line.startswith("assigned ") and line != "assigned 0" for line in self.lines)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(20)


def send(bootstrap: str, topic: str, values: list[bytes], partitions: int) -> None:
    """Write values, one partition after the other."""
    producer = Producer({"bootstrap.servers": bootstrap})
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Any) -> None:
        if error is not None:
            failures.append(error)

    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % partitions, on_delivery=delivered)
    assert producer.flush(20) == 0
    if failures:
        raise KafkaException(failures[0])
