"""A program that copies one topic to another in transactions, one of a group; made to be killed.

    python -m tests.crash.copier BOOTSTRAP GROUP TRANSACTIONAL_ID SOURCE SINK

Each record goes to the partition it came from, with its position committed in the same transaction. When
anything goes wrong that cannot simply be tried again, it aborts if it can and ends: whoever runs it starts it
again, and it goes on from what is committed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer

GAVE_UP = 3
BATCH_RECORDS = 8
TIMEOUT_S = 10.0
PATIENCE_S = 30.0
PAUSE_S = 0.01
"""How long each transaction is open at least, so that being killed within one is likely."""


def tried(call: Callable[[], Any]) -> Any:
    """Do it, and again for as long as the client says that this makes sense."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


def copy(bootstrap: str, group: str, transactional_id: str, source: str, sink: str) -> None:
    quick = {
        "bootstrap.servers": bootstrap,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 200,
        # Starting anew when all brokers are gone, librdkafka 2.16 waits for good on the broker it dropped.
        "metadata.recovery.strategy": "none",
    }
    consumer = Consumer(
        {
            **quick,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "session.timeout.ms": 1500,
            "heartbeat.interval.ms": 200,
            "fetch.wait.max.ms": 20,
        }
    )
    producer = Producer(
        {**quick, "transactional.id": transactional_id, "transaction.timeout.ms": 20_000, "linger.ms": 0}
    )
    tried(lambda: producer.init_transactions(TIMEOUT_S))
    consumer.subscribe([source])
    while True:
        messages = [message for message in consumer.consume(BATCH_RECORDS, 0.1) if message.error() is None]
        if not messages:
            continue
        try:
            producer.begin_transaction()
            for message in messages:
                producer.produce(sink, message.value(), partition=message.partition())
            producer.poll(PAUSE_S)
            at, owner = consumer.position(consumer.assignment()), consumer.consumer_group_metadata()
            tried(partial(producer.send_offsets_to_transaction, at, owner, TIMEOUT_S))
            tried(partial(producer.commit_transaction, TIMEOUT_S))
        except KafkaException as error:
            print(f"{transactional_id}: {error}", file=sys.stderr)
            if error.args[0].txn_requires_abort():
                tried(lambda: producer.abort_transaction(TIMEOUT_S))
            sys.exit(GAVE_UP)


if __name__ == "__main__":
    copy(*sys.argv[1:])
