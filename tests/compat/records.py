"""Records written and read through librdkafka, whole and comparable, for tests that move folders."""

from __future__ import annotations

import random
import time
from contextlib import closing
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.compat.samples import CODECS, Headers, samples

TIMEOUT_S = 60.0


class Stored(NamedTuple):
    """A record with all that a consumer can see of it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def write_mixture(bootstrap: str, topic: str, *, with_idempotent: bool = True) -> None:
    """Every codec, plain and idempotent, every odd record; noise enough to fill segments of 1 MB."""
    noise = random.Random(topic)
    for codec in CODECS:
        for is_idempotent in (True, False) if with_idempotent else (False,):
            producer = Producer(
                {
                    "bootstrap.servers": bootstrap,
                    "compression.type": codec,
                    "enable.idempotence": is_idempotent,
                    "linger.ms": 2,
                    "batch.num.messages": 50,
                }
            )
            for shape in samples(int(time.time() * 1000), big_bytes=150_000):
                value = shape.value
                if value is not None and noise.random() < 0.3:
                    value += noise.randbytes(3000)
                producer.produce(
                    topic,
                    key=shape.key,
                    value=value,
                    headers=[*shape.headers, ("codec", codec.encode())],
                    timestamp=shape.timestamp_ms,
                    partition=0,
                )
            assert producer.flush(TIMEOUT_S) == 0


def read_everything(bootstrap: str, topic: str) -> list[Stored]:
    """All records of a topic's first partition."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "unused",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 50,
        "check.crcs": True,
    }
    found: list[Stored] = []
    deadline = time.monotonic() + TIMEOUT_S
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while time.monotonic() < deadline:
            message: Any
            for message in consumer.consume(1000, timeout=0.05):
                if message.error() is None:
                    headers = tuple(message.headers() or ())
                    record = Stored(
                        message.offset(), message.timestamp()[1], message.key(), message.value(), headers
                    )
                    found.append(record)
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    return found
                elif not message.error().retriable():
                    raise KafkaException(message.error())
    raise TimeoutError(f"the end of {topic} was not reached; {len(found)} records so far")
