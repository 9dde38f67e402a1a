"""DeleteRecords: the start of a log moves forward only, for many clients at once and over restarts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from millstream.protocol.messages import DeleteRecordsRequest
from tests.conftest import Name
from tests.processes import BrokerProcess
from tests.wire import Wire, append, create_topic, end_offset, fetch

OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION = 1, 3


def delete_request(topic: str, offset: int, partition: int = 0) -> DeleteRecordsRequest:
    place = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=partition, offset=offset)
    entry = DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[place])
    return DeleteRecordsRequest(topics=[entry], timeout_ms=10_000)


def delete(wire: Wire, topic: str, offset: int, partition: int = 0) -> tuple[int, int]:
    """The error and the start of the log that the broker answers."""
    (found,) = wire.ask(delete_request(topic, offset, partition)).topics
    return found.partitions[0].error_code, found.partitions[0].low_watermark


def test_the_start_moves_forward_only(bootstrap: str, new_name: Name) -> None:
    with Wire(bootstrap) as wire:
        topic = new_name("forward")
        create_topic(wire, topic)
        append(wire, topic, *([b"x"] * 20))
        assert delete(wire, topic, 10) == (0, 10)
        assert delete(wire, topic, 5) == (0, 10)
        assert end_offset(wire, topic, timestamp=-2) == 10
        assert delete(wire, topic, 21)[0] == OFFSET_OUT_OF_RANGE
        assert delete(wire, topic, -7)[0] == OFFSET_OUT_OF_RANGE
        assert delete(wire, topic, 0, partition=3)[0] == UNKNOWN_TOPIC_OR_PARTITION
        assert delete(wire, topic, -1) == (0, 20)  # -1 is the high watermark
        assert append(wire, topic, b"on") == 20


def test_many_clients_delete_at_once(broker_process: Callable[..., BrokerProcess]) -> None:
    """Each deletion is written to the same small file; none may trip over another."""
    broker = broker_process().start()
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(broker.bootstrap)) for _ in range(12)]
        topics = [f"crowded-{number}" for number, _ in enumerate(wires)]
        for topic in topics:
            create_topic(wires[0], topic)
            append(wires[0], topic, *([b"x"] * 40))
        for offset in range(1, 31):
            for wire, topic in zip(wires, topics, strict=True):
                wire.send(delete_request(topic, offset))
            for wire in wires:
                (found,) = wire.receive()[1].topics
                assert (found.partitions[0].error_code, found.partitions[0].low_watermark) == (0, offset)
        for topic in topics:
            assert append(wires[0], topic, b"still writable") == 40


def test_deleted_records_stay_deleted(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process().start()
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "gone")
        append(wire, "gone", *([b"x"] * 20))
        assert delete(wire, "gone", 7) == (0, 7)
    broker.kill()
    broker.start()
    with Wire(broker.bootstrap) as wire:
        assert end_offset(wire, "gone", timestamp=-2) == 7
        assert fetch(wire, "gone", 6).error_code == OFFSET_OUT_OF_RANGE
        assert delete(wire, "gone", 20) == (0, 20)
    assert broker.stop() == 0
    broker.start()
    with Wire(broker.bootstrap) as wire:
        assert end_offset(wire, "gone", timestamp=-2) == 20
        assert append(wire, "gone", b"on") == 20
