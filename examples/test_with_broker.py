"""A test suite with a real broker: the fixtures come with Millstream, there is nothing to set up.

Run it with `pytest examples/test_with_broker.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from millstream.testing import Broker


def test_an_order_reaches_the_ledger(millstream_broker: Broker, millstream_topic: Callable[..., str]) -> None:
    topic = millstream_topic(partitions=1)
    producer = Producer({"bootstrap.servers": millstream_broker.bootstrap})
    producer.produce(topic, b"order 1")
    assert producer.flush(10) == 0

    settings = {"bootstrap.servers": millstream_broker.bootstrap, "group.id": "ledger"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    message = consumer.poll(10)
    consumer.close()
    assert message is not None
    assert message.value() == b"order 1"


def test_a_broker_of_ones_own_survives_a_restart() -> None:
    with Broker(config={"num.partitions": "2"}) as broker:
        broker.create_topic("kept")
        broker.restart()
        assert broker.topics() == ["kept"]
