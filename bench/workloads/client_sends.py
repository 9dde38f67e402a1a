"""The sending rows of the table of Python clients: 100 B records without keys, acks=all, linger 5 ms.

A row sends so many records to a topic's only partition and gives the seconds until the last was acknowledged.
All clients get batches of 64 KB (confluent-kafka keeps its own, larger ones); the columnar rows send 50,000
rows at a time, which exist beforehand as a list or as an Arrow table.
"""

from __future__ import annotations

import time
from collections.abc import Callable

VALUE_BYTES = 100
BATCH_BYTES = 64 * 1024
LINGER_MS = 5
ROWS_AT_ONCE = 50_000
FLUSH_SECONDS = 120

Row = Callable[[str, str, int], float]


def _values(count: int) -> list[bytes]:
    return [b"%0*d" % (VALUE_BYTES, number) for number in range(count)]


def send_aiokafka(bootstrap: str, topic: str, records: int) -> float:
    from aiokafka import AIOKafkaProducer

    async def main() -> float:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap, acks="all", linger_ms=LINGER_MS, max_batch_size=BATCH_BYTES
        )
        await producer.start()
        try:
            values = _values(1000)
            await producer.send_and_wait(topic, values[0])
            started = time.perf_counter()
            for number in range(records):
                await producer.send(topic, values[number % 1000])
            await producer.flush()
            return time.perf_counter() - started
        finally:
            await producer.stop()

    return _on_uvloop(main)


def send_kafka_python(bootstrap: str, topic: str, records: int) -> float:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=bootstrap, acks="all", linger_ms=LINGER_MS, batch_size=BATCH_BYTES
    )
    try:
        values = _values(1000)
        producer.send(topic, values[0]).get(30)
        started = time.perf_counter()
        for number in range(records):
            producer.send(topic, values[number % 1000])
        producer.flush(FLUSH_SECONDS)
        return time.perf_counter() - started
    finally:
        producer.close()


def send_confluent(bootstrap: str, topic: str, records: int) -> float:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": LINGER_MS,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 500_000,
        }
    )
    values = _values(1000)
    producer.produce(topic, values[0])
    producer.flush(FLUSH_SECONDS)
    produce, poll = producer.produce, producer.poll
    started = time.perf_counter()
    for number in range(records):
        try:
            produce(topic, values[number % 1000])
        except BufferError:
            poll(0.01)
            while True:
                try:
                    produce(topic, values[number % 1000])
                    break
                except BufferError:
                    poll(0.01)
        if not number % 1000:
            poll(0)
    producer.flush(FLUSH_SECONDS)
    return time.perf_counter() - started


def send_millstream(bootstrap: str, topic: str, records: int) -> float:
    from millstream import Producer

    with Producer(bootstrap) as producer:
        values = _values(1000)
        producer.send(topic, values[0]).result(30)
        started = time.perf_counter()
        for number in range(records):
            producer.send(topic, values[number % 1000])
        producer.flush(FLUSH_SECONDS)
        return time.perf_counter() - started


def send_millstream_async(bootstrap: str, topic: str, records: int) -> float:
    from millstream import AsyncProducer

    async def main() -> float:
        async with AsyncProducer(bootstrap) as producer:
            values = _values(1000)
            await producer.send(topic, values[0])
            started = time.perf_counter()
            for number in range(records):
                await producer.room()
                producer.send(topic, values[number % 1000])
            await producer.flush(FLUSH_SECONDS)
            return time.perf_counter() - started

    return _on_uvloop(main)


def send_millstream_batch(bootstrap: str, topic: str, records: int) -> float:
    from millstream import Producer

    with Producer(bootstrap) as producer:
        values = _values(ROWS_AT_ONCE)
        producer.send(topic, values[0]).result(30)
        started = time.perf_counter()
        for _ in range(records // ROWS_AT_ONCE):
            producer.send_batch(topic, values)
        producer.flush(FLUSH_SECONDS)
        return time.perf_counter() - started


def send_millstream_arrow(bootstrap: str, topic: str, records: int) -> float:
    import pyarrow as pa

    from millstream import Producer

    with Producer(bootstrap) as producer:
        table = pa.table({"value": pa.array(_values(ROWS_AT_ONCE), pa.binary())})
        producer.send(topic, b"first").result(30)
        started = time.perf_counter()
        for _ in range(records // ROWS_AT_ONCE):
            producer.send_arrow(topic, table)
        producer.flush(FLUSH_SECONDS)
        return time.perf_counter() - started


def _on_uvloop(main: Callable[[], object]) -> float:
    import uvloop

    seconds: float = uvloop.run(main())
    return seconds


SEND_ROWS: dict[str, tuple[Row, float]] = {
    "send/aiokafka": (send_aiokafka, 0.2),
    "send/kafka-python": (send_kafka_python, 0.1),
    "send/confluent-kafka": (send_confluent, 0.5),
    "send/millstream, send()": (send_millstream, 0.5),
    "send/millstream, async send()": (send_millstream_async, 0.5),
    "send/millstream, send_batch()": (send_millstream_batch, 1.0),
    "send/millstream, send_arrow()": (send_millstream_arrow, 1.0),
}
"""By name, each with how much of the records it sends: the slow ones are measured over fewer."""

SEND_SETTINGS = {
    "send/aiokafka": f"acks=all, linger_ms={LINGER_MS}, max_batch_size={BATCH_BYTES}",
    "send/kafka-python": f"acks=all, linger_ms={LINGER_MS}, batch_size={BATCH_BYTES}",
    "send/confluent-kafka": f"acks=all (its default), linger.ms={LINGER_MS}, "
    "queue.buffering.max.messages=500000, queue.buffering.max.kbytes=500000",
    "send/millstream, send()": "the defaults: acks=all, idempotent, linger 5 ms, batches of 64 KB",
}
"""What differs from the defaults of each client."""

SEND_BARS = (
    ("send/millstream, send()", "send/aiokafka", 2.5),
    ("send/millstream, async send()", "send/aiokafka", 2.5),
    ("send/millstream, send_batch()", "send/confluent-kafka", 3.0),
    ("send/millstream, send_arrow()", "send/confluent-kafka", 3.0),
)
