"""Read, work and write exactly once: the records written and the offsets read are one transaction.

Whatever happens to this program, readers of committed records see each result once. Start a broker with
`millstream serve`, then run this; HOST:PORT as its argument names another. Kill it and run it again: it goes
on where it was.
"""

from __future__ import annotations

import sys

from millstream import Consumer, Producer, TopicPartition

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"
SOURCE, SINK, COUNT = "transactions-in", "transactions-out", 1000


def fill() -> None:
    with Producer(BOOTSTRAP, serializer="str") as producer:
        for number in range(COUNT):
            producer.send(SOURCE, f"order {number}")


def copy() -> None:
    copied = 0
    with (
        Consumer(
            BOOTSTRAP, group="transactions", offset_reset="earliest", auto_commit=False, deserializer="str"
        ) as consumer,
        Producer(BOOTSTRAP, transactional_id="transactions-1", serializer="str") as producer,
    ):
        consumer.subscribe(SOURCE)
        while copied < COUNT:
            records = consumer.poll(max_records=200)
            if not records:
                continue
            with producer.transaction():
                for record in records:
                    producer.send(SINK, record.value.upper())
                offsets = {TopicPartition(r.topic, r.partition): r.offset + 1 for r in records}
                producer.send_offsets(offsets, consumer.group_metadata)
            copied += len(records)
    print(f"copied {copied} records to {SINK}")


if __name__ == "__main__":
    fill()
    copy()
