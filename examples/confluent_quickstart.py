"""Write and read with confluent-kafka (librdkafka).

Start a broker with `millstream serve`, then run this program; HOST:PORT as its argument names another.
"""

from __future__ import annotations

import sys

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"
TOPIC = "confluent-quickstart"
COUNT = 10


def create() -> None:
    admin = AdminClient({"bootstrap.servers": BOOTSTRAP})
    for created in admin.create_topics([NewTopic(TOPIC, num_partitions=2)]).values():
        try:
            created.result(10)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def write() -> None:
    producer = Producer({"bootstrap.servers": BOOTSTRAP, "enable.idempotence": True})
    for number in range(COUNT):
        producer.produce(TOPIC, key=f"key-{number}", value=f"hello {number}")
    unsent = producer.flush(10)
    print(f"wrote {COUNT - unsent} records")


def read() -> None:
    consumer = Consumer(
        {"bootstrap.servers": BOOTSTRAP, "group.id": "quickstart", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(TOPIC, partition, OFFSET_BEGINNING) for partition in (0, 1)])
    for _ in range(COUNT):
        message = consumer.poll(10)
        if message is None:
            sys.exit("no record came in 10 seconds")
        place = f"{message.partition()}:{message.offset()}"
        print(f"{place} {message.key().decode()} = {message.value().decode()}")
    consumer.close()


if __name__ == "__main__":
    create()
    write()
    read()
