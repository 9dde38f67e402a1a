"""A clean stop answers what is under way and loses nothing; topics, ids and configs outlive every end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

from millstream.model import NO_UUID
from millstream.protocol.messages import (
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
)
from tests.processes import STOP_TIMEOUT_S, BrokerProcess, until
from tests.wire import (
    Closed,
    Wire,
    append,
    batch,
    create_topic,
    end_offset,
    fetch,
    fetch_partition,
    fetch_request,
    new_producer,
    produce,
    produce_request,
    produced,
    values,
)

OUT_OF_ORDER_SEQUENCE_NUMBER = 45


def set_config(wire: Wire, topic: str, key: str, value: str) -> None:
    change = IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=0, value=value)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=2, resource_name=topic, configs=[change]
    )
    (answer,) = wire.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)).responses
    assert answer.error_code == 0, answer


def config(wire: Wire, topic: str, key: str) -> str:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=2, resource_name=topic, configuration_keys=[key]
    )
    (answer,) = wire.ask(DescribeConfigsRequest(resources=[resource])).results
    (entry,) = answer.configs
    value: str = entry.value
    return value


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_topics_ids_and_configs_survive(broker_process: Callable[..., BrokerProcess], how: str) -> None:
    broker = broker_process().start()
    with Wire(broker.bootstrap) as wire:
        cluster_id = wire.ask(MetadataRequest(topics=[])).cluster_id
        ids = {
            name: create_topic(wire, name, partitions=3, retention_ms="123456789") for name in ("a", "b", "c")
        }
        set_config(wire, "b", "segment.bytes", "2000000")
        for number in range(3):
            assert produce(wire, "a", batch([b"%d" % number]), partition=number).error_code == 0
    broker.stop() if how == "stop" else broker.kill()
    broker.start()
    with Wire(broker.bootstrap) as wire:
        metadata = wire.ask(MetadataRequest(topics=None))
        assert metadata.cluster_id == cluster_id
        assert {topic.name: topic.topic_id for topic in metadata.topics} == ids
        assert {len(topic.partitions) for topic in metadata.topics} == {3}
        assert config(wire, "b", "segment.bytes") == "2000000"
        assert config(wire, "b", "retention.ms") == "123456789"
        for number in range(3):
            assert values(fetch(wire, "a", 0, partition=number).records) == [b"%d" % number]
            assert produce(wire, "a", batch([b"next"]), partition=number).base_offset == 1
    assert broker.stop() == 0


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_producers_are_remembered(broker_process: Callable[..., BrokerProcess], how: str) -> None:
    """A producer that resends after the restart is recognised; one that skips is refused."""
    broker = broker_process().start()
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "t")
        producer_id, epoch = new_producer(wire)

        def sequenced(sequence: int) -> bytearray:
            return batch(
                [b"%d" % sequence], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
            )

        for number in range(4):
            assert produce(wire, "t", sequenced(number)).base_offset == number
    broker.stop() if how == "stop" else broker.kill()
    broker.start()
    with Wire(broker.bootstrap) as wire:
        assert produce(wire, "t", sequenced(3)).base_offset == 3
        assert produce(wire, "t", sequenced(5)).error_code == OUT_OF_ORDER_SEQUENCE_NUMBER
        assert produce(wire, "t", sequenced(4)).base_offset == 4
        assert end_offset(wire, "t") == 5
        other_id, _ = new_producer(wire)
        assert other_id != producer_id


def test_requests_under_way_are_answered(broker_process: Callable[..., BrokerProcess]) -> None:
    """While the broker stops, every record is either acknowledged and kept, or not acknowledged."""
    broker = broker_process().start()
    acknowledged: list[int] = []

    def write() -> None:
        try:
            with Wire(broker.bootstrap) as wire:
                while True:
                    answer = produced(wire.ask(produce_request("t", batch([b"%d" % len(acknowledged)])), 9))
                    assert answer.error_code == 0
                    acknowledged.append(answer.base_offset)
        except (Closed, OSError):
            return

    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "t")
    writer = threading.Thread(target=write)
    writer.start()
    until(lambda: len(acknowledged) > 200, 20, "records flow")
    assert broker.stop() == 0
    writer.join(20)
    assert not writer.is_alive()
    broker.start()
    with Wire(broker.bootstrap) as wire:
        assert acknowledged == list(range(len(acknowledged)))
        assert end_offset(wire, "t") in (len(acknowledged), len(acknowledged) + 1)


def test_a_waiting_fetch_does_not_hold_up_the_stop(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process().start()
    with Wire(broker.bootstrap) as wire, Wire(broker.bootstrap) as waiting:
        create_topic(wire, "t")
        waiting.send(fetch_request({"t": [fetch_partition(0)]}, max_wait_ms=600_000, min_bytes=1), 12)
        assert end_offset(wire, "t") == 0
        os.kill(broker.pid, signal.SIGTERM)
        assert waiting.is_closed_by_broker(4), "it is let go before the time that answers are given is over"
        assert broker.process is not None
        assert broker.process.wait(STOP_TIMEOUT_S) == 0


def test_a_second_broker_keeps_out_of_the_folder(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process().start()
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "t")
        append(wire, "t", b"mine")
    second = broker_process(broker.data)
    with pytest.raises(RuntimeError, match=r"ended with status [1-9]"):
        second.start()
    with Wire(broker.bootstrap) as wire:
        assert append(wire, "t", b"still mine") == 1


def test_the_port_is_free_after_a_stop(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process()
    for _ in range(3):
        broker.start()
        with Wire(broker.bootstrap) as wire:
            assert wire.ask(MetadataRequest(topics=[])).brokers
        assert broker.stop() == 0


def test_deleted_topics_leave_no_files(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process().start()
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "brief", partitions=4)
        append(wire, "brief", b"x")
        assert broker.partition_folder("brief", 3).is_dir()
        request = DeleteTopicsRequest(
            topics=[DeleteTopicsRequest.DeleteTopicState(name="brief", topic_id=NO_UUID)], timeout_ms=5000
        )
        (answer,) = wire.ask(request).responses
        assert answer.error_code == 0
        until(
            lambda: not [entry for entry in broker.data.iterdir() if entry.name.startswith("brief")],
            20,
            "the folders are gone",
        )
        assert not [name for name in broker.descriptors() if "brief" in name]
