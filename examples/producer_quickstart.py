"""Write records with the blocking producer: JSON values, keys, headers, and where each one went.

Start a broker with `millstream serve`, then run this; HOST:PORT as its argument names another.
"""

from __future__ import annotations

import sys

from millstream import Delivery, KafkaError, Producer

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"
TOPIC = "producer-orders"


def report(delivery: Delivery) -> None:
    """Called in the producer's thread once the record is written, or has failed."""
    try:
        where = delivery.result()
    except KafkaError as error:
        print(f"not written: {error}")
    else:
        print(f"written to {where.topic}-{where.partition} at {where.offset}")


def main() -> None:
    with Producer(BOOTSTRAP, serializer="json", key_serializer="str", compression="zstd") as producer:
        first = producer.send(TOPIC, {"fruit": "quince", "kg": 3}, key="42", headers=[("shop", b"Oslo")])
        print("the first is at", first.result(timeout=10).offset)  # waits for this one record
        for number in range(3):
            producer.send(TOPIC, {"fruit": "plum", "kg": number}).add_done_callback(report)
        for number in range(10_000):  # these travel in batches; nobody waits for each
            producer.send(TOPIC, {"fruit": "pear", "kg": number})
        producer.flush()
        print("all are written:", producer.buffered_bytes, "bytes are left")


if __name__ == "__main__":
    main()
