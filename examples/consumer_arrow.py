"""Read a topic by the column: Arrow record batches, straight from the bytes that the broker sent.

Needs pyarrow (`pip install 'millstream[arrow]'`). Start a broker with `millstream serve`, then run this;
HOST:PORT as its argument names another.
"""

from __future__ import annotations

import sys

import pyarrow as pa
import pyarrow.compute as pc

from millstream import Admin, Consumer, Producer
from millstream.errors import TopicAlreadyExists

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"
TOPIC, COUNT = "arrow-words", 20_000


def write() -> None:
    with Admin(BOOTSTRAP) as admin:
        try:
            admin.create_topic(TOPIC, partitions=2)
        except TopicAlreadyExists:
            pass
    with Producer(BOOTSTRAP, serializer="str") as producer:
        for number in range(COUNT):
            producer.send(TOPIC, ("mill", "stream", "wheel")[number % 3], partition=number % 2)


def read() -> None:
    batches: list[pa.RecordBatch] = []
    with Consumer(BOOTSTRAP, offset_reset="earliest") as consumer:
        consumer.assign(consumer.partitions_of(TOPIC))
        while sum(batch.num_rows for batch in batches) < COUNT:
            batches.append(consumer.poll_arrow())
    table = pa.Table.from_batches(batches)
    print(", ".join(table.column_names))
    words = pc.cast(table.column("value"), pa.string())
    for count in pc.value_counts(words).to_pylist():
        print(f"{count['values']}: {count['counts']}")


if __name__ == "__main__":
    write()
    read()
