"""The broker for tests: real, alone, and gone without a trace."""

from __future__ import annotations

import gc
import socket
import threading
import warnings
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from millstream import Admin
from millstream.errors import MillstreamError, TopicAlreadyExists
from millstream.testing import Broker


def write_and_read(bootstrap: str, topic: str, values: list[bytes]) -> list[bytes]:
    """Through a foreign client, so that it is the socket that is tested."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(20) == 0
    return read(bootstrap, topic, len(values))


def read(bootstrap: str, topic: str, count: int) -> list[bytes]:
    from confluent_kafka import TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[bytes] = []
        while len(found) < count:
            message = consumer.poll(20)
            assert message is not None, f"{len(found)} of {count} records came"
            assert message.error() is None, message.error()
            found.append(message.value())
        return found
    finally:
        consumer.close()


def test_a_foreign_client_writes_and_reads() -> None:
    with Broker(config={"num.partitions": "4"}) as broker:
        topic = broker.create_topic("orders", 2, configs={"retention.ms": "60000"})
        assert write_and_read(broker.bootstrap, topic, [b"a", b"b"]) == [b"a", b"b"]
        assert broker.topics() == ["orders"]
        broker.delete_topic("orders")
        assert broker.topics() == []


def test_it_ends_without_a_trace() -> None:
    """No thread, no listening port, no folder, no warning about something left open."""
    before = set(threading.enumerate())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Broker() as broker:
            broker.create_topic("t")
            data, port = broker.data, broker.port
            assert data.is_dir()
        gc.collect()
    assert set(threading.enumerate()) <= before
    assert not data.exists()
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", port))


def test_a_restart_keeps_records_and_port() -> None:
    with Broker() as broker:
        topic = broker.create_topic("kept")
        write_and_read(broker.bootstrap, topic, [b"1", b"2"])
        port = broker.port
        broker.restart()
        assert broker.port == port
        assert read(broker.bootstrap, topic, 2) == [b"1", b"2"]


def test_a_given_folder_is_kept_for_the_next_broker(tmp_path: Path) -> None:
    with Broker(data=tmp_path / "data") as first:
        write_and_read(first.bootstrap, first.create_topic("kept"), [b"x"])
    with Broker(data=tmp_path / "data") as second:
        assert read(second.bootstrap, "kept", 1) == [b"x"]
    assert (tmp_path / "data").is_dir()


def test_two_at_once_do_not_meet() -> None:
    with Broker() as one, Broker() as two:
        one.create_topic("only-here")
        assert one.port != two.port
        assert two.topics() == []


def test_errors_of_the_start_reach_the_caller(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with pytest.raises(MillstreamError, match=r"num\.partitons"), Broker(config={"num.partitons": "1"}):
        pytest.fail("a misspelt key was taken")
    with (
        Broker() as running,
        pytest.raises(OSError, match="address already in use"),
        Broker(port=running.port),
    ):
        pytest.fail("two brokers share a port")
    assert set(threading.enumerate()) <= before


def test_settings_are_texts_numbers_and_truths() -> None:
    config = {"num.partitions": 3, "auto.create.topics.enable": False, "log.cleaner.min.cleanable.ratio": 0.3}
    with Broker(config) as broker:
        with Admin(broker.bootstrap) as admin:
            told = admin.describe_config("broker", "1")
        assert [told[key].value for key in config] == ["3", "false", "0.3"]
    with (
        pytest.raises(MillstreamError, match=r"num\.partitions takes a whole number"),
        Broker({"num.partitions": "many"}),
    ):
        pytest.fail("a word was taken for a number")


def test_errors_of_a_topic_reach_the_caller() -> None:
    with Broker() as broker:
        broker.create_topic("t")
        with pytest.raises(TopicAlreadyExists):
            broker.create_topic("t")


def test_it_cannot_be_used_before_or_after() -> None:
    broker = Broker()
    with pytest.raises(RuntimeError, match="not running"):
        broker.create_topic("t")
    with broker, pytest.raises(RuntimeError, match="running already"):
        broker.start()
    broker.stop()
    with pytest.raises(RuntimeError, match="not running"):
        broker.topics()
