"""Share the work on a topic among the members of a group, and commit what is done.

Start a broker with `millstream serve`, then run this; HOST:PORT as its argument names another. Run it twice
at once: each gets half of the partitions, and what one leaves the other takes over.
"""

from __future__ import annotations

import sys
from collections import Counter

from millstream import Admin, Consumer, Producer, TopicPartition
from millstream.errors import TopicAlreadyExists

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"
TOPIC, COUNT = "group-orders", 1000


def write() -> None:
    with Admin(BOOTSTRAP) as admin:
        try:
            admin.create_topic(TOPIC, partitions=4)
        except TopicAlreadyExists:
            pass
    with Producer(BOOTSTRAP, serializer="json") as producer:
        for number in range(COUNT):
            city = ("Lima", "Oslo", "Pune")[number % 3]
            producer.send(TOPIC, {"city": city, "amount": number}, key=city.encode())


def assigned(partitions: list[TopicPartition]) -> None:
    print("reading", ", ".join(map(str, partitions)))


def read() -> None:
    totals: Counter[str] = Counter()
    done = 0
    with Consumer(
        BOOTSTRAP, group="group-totals", deserializer="json", offset_reset="earliest", auto_commit=False
    ) as consumer:
        consumer.subscribe(TOPIC, on_assigned=assigned)
        while done < COUNT:
            records = consumer.poll(max_records=100)
            for record in records:
                totals[record.value["city"]] += record.value["amount"]
            done += len(records)
            consumer.commit()  # only now: what a crash leaves uncommitted is read again
        print("lag", sum(consumer.lag().values()))
    for city, total in sorted(totals.items()):
        print(f"{city}: {total}")


if __name__ == "__main__":
    write()
    read()
