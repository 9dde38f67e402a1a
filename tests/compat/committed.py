"""What readers of committed, or of all, records see of a topic: each partition's values in order."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

TIMEOUT_S = 30.0


def reader(bootstrap: str, **settings: Any) -> Consumer:
    """A consumer of committed records that takes partitions as it is told."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused: partitions are assigned by hand",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
            **settings,
        }
    )


def read_to_end(consumer: Consumer, topic: str, partitions: int) -> list[list[bytes]]:
    """All that there is now, by partition."""
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
    found: list[list[bytes]] = [[] for _ in range(partitions)]
    ended: set[int] = set()
    deadline = time.monotonic() + TIMEOUT_S
    while len(ended) < partitions:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the end of {topic} was not reached: {[len(part) for part in found]}")
        for message in consumer.consume(1000, timeout=0.02):
            error = message.error()
            if error is None:
                found[message.partition()].append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            elif not error.retriable():
                raise KafkaException(error)
    consumer.unassign()
    return found


def committed(bootstrap: str, topic: str, partitions: int = 1, **settings: Any) -> list[list[bytes]]:
    """What a new reader of committed records sees."""
    with closing(reader(bootstrap, **settings)) as consumer:
        return read_to_end(consumer, topic, partitions)


def everything(bootstrap: str, topic: str, partitions: int = 1) -> list[list[bytes]]:
    """What is written, committed or not."""
    return committed(bootstrap, topic, partitions, **{"isolation.level": "read_uncommitted"})
