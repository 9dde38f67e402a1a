"""Copy records from one topic to another exactly once, with confluent-kafka (librdkafka).

The records and the position that was read up to are written in one transaction: whatever happens to this
program, readers of committed records see each copy once. Start a broker with `millstream serve`, then run
this; HOST:PORT as its argument names another. Kill it and run it again: it goes on where it was.
"""

from __future__ import annotations

import sys

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"
SOURCE, SINK = "exactly-once-in", "exactly-once-out"
COUNT = 1000
TIMEOUT_S = 30


def create() -> None:
    admin = AdminClient({"bootstrap.servers": BOOTSTRAP})
    for created in admin.create_topics([NewTopic(SOURCE, 2), NewTopic(SINK, 2)]).values():
        try:
            created.result(TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def fill() -> None:
    producer = Producer({"bootstrap.servers": BOOTSTRAP, "enable.idempotence": True})
    for number in range(COUNT):
        producer.produce(SOURCE, key=str(number), value=f"order {number}")
    producer.flush(TIMEOUT_S)
    print(f"wrote {COUNT} records to {SOURCE}")


def copy() -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": BOOTSTRAP,
            "group.id": "exactly-once",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    producer = Producer({"bootstrap.servers": BOOTSTRAP, "transactional.id": "exactly-once-1"})
    producer.init_transactions(TIMEOUT_S)  # shuts out an earlier run of this program that is still there
    consumer.subscribe([SOURCE])
    copied = 0
    while copied < COUNT:
        messages = [message for message in consumer.consume(100, 1.0) if message.error() is None]
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            producer.produce(SINK, key=message.key(), value=message.value().upper())
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), TIMEOUT_S)
        producer.commit_transaction(TIMEOUT_S)
        copied += len(messages)
    consumer.close()
    print(f"copied {copied} records to {SINK}")


if __name__ == "__main__":
    create()
    fill()
    copy()
