"""Write and read with kafka-python.

Start a broker with `millstream serve`, then run this program; HOST:PORT as its argument names another.
"""

from __future__ import annotations

import sys

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"
TOPIC = "kafka-python-quickstart"
COUNT = 10


def write() -> None:
    """The topic comes to exist with its first record."""
    producer = KafkaProducer(bootstrap_servers=BOOTSTRAP)
    futures = [producer.send(TOPIC, f"hello {number}".encode(), partition=0) for number in range(COUNT)]
    for future in futures:
        future.get(10)
    producer.close()
    print(f"wrote {COUNT} records")


def read() -> None:
    consumer = KafkaConsumer(bootstrap_servers=BOOTSTRAP, consumer_timeout_ms=10_000)
    consumer.assign([TopicPartition(TOPIC, 0)])
    consumer.seek_to_beginning()
    for _ in range(COUNT):
        record = next(consumer)
        print(f"{record.partition}:{record.offset} {record.value.decode()}")
    consumer.close()


if __name__ == "__main__":
    write()
    read()
