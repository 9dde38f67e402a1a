"""Write an Arrow table to a topic, and a list of values: whole batches, filled by the column.

Needs pyarrow (`pip install 'millstream[arrow]'`). Start a broker with `millstream serve`, then run this;
HOST:PORT as its argument names another.
"""

from __future__ import annotations

import sys
import time

import pyarrow as pa

from millstream import Producer

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"
TOPIC, COUNT = "producer-rows", 200_000


def main() -> None:
    table = pa.table(
        {
            "key": pa.array([f"sensor {number % 100}" for number in range(COUNT)]),
            "value": pa.array([b"%.2f" % (number / 7) for number in range(COUNT)], pa.binary()),
            "timestamp": pa.array([int(time.time() * 1000)] * COUNT, pa.timestamp("ms")),
        }
    )
    with Producer(BOOTSTRAP) as producer:
        ranges = producer.send_arrow(TOPIC, table).result(timeout=60)
        print(f"wrote {sum(each.count for each in ranges)} rows of the table")
        ranges = producer.send_batch(TOPIC, [b"one", b"two", b"three"], partition=0).result(timeout=60)
        print(f"wrote {ranges[0].count} values to partition {ranges[0].partition}")


if __name__ == "__main__":
    main()
