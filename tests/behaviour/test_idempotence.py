"""Idempotent producers: sequences per producer and partition, duplicates answered as the first time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millstream.protocol.messages import DescribeProducersRequest, InitProducerIdRequest
from tests.conftest import Name
from tests.wire import (
    Wire,
    batch,
    create_topic,
    end_offset,
    fetch,
    new_producer,
    produce,
    produce_request,
    produced,
    values,
)

OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_RECORD = 45, 47, 87


@pytest.fixture
def wire(bootstrap: str) -> Iterator[Wire]:
    with Wire(bootstrap) as connection:
        yield connection


class Sequenced:
    """A producer that sends what it is told, right or wrong."""

    def __init__(self, wire: Wire, topic: str) -> None:
        self.wire = wire
        self.topic = topic
        self.producer_id, self.epoch = new_producer(wire)

    def batch(self, sequence: int, *records: bytes, epoch: int | None = None) -> bytearray:
        at = self.epoch if epoch is None else epoch
        return batch(records, producer_id=self.producer_id, producer_epoch=at, base_sequence=sequence)

    def send(self, sequence: int, *records: bytes, epoch: int | None = None, partition: int = 0) -> Any:
        return produce(
            self.wire, self.topic, self.batch(sequence, *records, epoch=epoch), partition=partition
        )


@pytest.mark.parametrize("version", range(6))
def test_ids_are_never_given_twice(wire: Wire, version: int) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    answers = [wire.ask(request, version) for _ in range(50)]
    assert {answer.error_code for answer in answers} == {0}
    assert {answer.producer_epoch for answer in answers} == {0}
    assert len({answer.producer_id for answer in answers}) == 50


def test_a_duplicate_gets_the_first_answer_again(wire: Wire, new_name: Name) -> None:
    topic = new_name("duplicate")
    create_topic(wire, topic)
    producer = Sequenced(wire, topic)
    offsets = [producer.send(2 * number, b"a%d" % number, b"b%d" % number).base_offset for number in range(7)]
    assert offsets == [0, 2, 4, 6, 8, 10, 12]
    # the last five batches are remembered
    for number in range(2, 7):
        again = producer.send(2 * number, b"a%d" % number, b"b%d" % number)
        assert (again.error_code, again.base_offset) == (0, offsets[number])
    assert end_offset(wire, topic) == 14
    assert producer.send(14, b"next").base_offset == 14


def test_older_duplicates_and_gaps_are_out_of_order(wire: Wire, new_name: Name) -> None:
    topic = new_name("gap")
    create_topic(wire, topic)
    producer = Sequenced(wire, topic)
    for number in range(8):
        assert producer.send(number, b"x").error_code == 0
    assert producer.send(0, b"x").error_code == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send(9, b"skipped one").error_code == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send(6, b"half", b"duplicate").error_code == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert end_offset(wire, topic) == 8
    assert producer.send(8, b"in order").base_offset == 8


def test_partitions_count_apart(wire: Wire, new_name: Name) -> None:
    topic = new_name("apart")
    create_topic(wire, topic, partitions=2)
    producer = Sequenced(wire, topic)
    for number in range(3):
        for partition in (0, 1):
            answer = producer.send(number, b"x", partition=partition)
            assert (answer.error_code, answer.base_offset) == (0, number)


def test_a_new_epoch_fences_the_old_one(wire: Wire, new_name: Name) -> None:
    topic = new_name("fence")
    create_topic(wire, topic)
    producer = Sequenced(wire, topic)
    assert producer.send(0, b"old").error_code == 0
    assert producer.send(0, b"new", epoch=1).base_offset == 1
    assert producer.send(1, b"zombie", epoch=0).error_code == INVALID_PRODUCER_EPOCH
    assert producer.send(5, b"must begin at 0", epoch=2).error_code == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send(1, b"newer", epoch=1).base_offset == 2
    assert values(fetch(wire, topic, 0).records) == [b"old", b"new", b"newer"]


def test_the_epoch_is_bumped_on_request(wire: Wire) -> None:
    """KIP-360: a producer that lost its place asks for the next epoch of the id it has."""
    producer_id, epoch = new_producer(wire)
    bumped = wire.ask(
        InitProducerIdRequest(
            transactional_id=None,
            transaction_timeout_ms=60_000,
            producer_id=producer_id,
            producer_epoch=epoch,
        ),
        4,
    )
    assert bumped.error_code == 0
    assert (bumped.producer_id, bumped.producer_epoch) != (producer_id, epoch)


def test_sequences_wrap_around(wire: Wire, new_name: Name) -> None:
    topic = new_name("wrap")
    create_topic(wire, topic)
    producer = Sequenced(wire, topic)
    first = producer.send(2**31 - 3, b"a", b"b", b"c")
    assert first.error_code == 0
    assert producer.send(0, b"d").base_offset == 3
    assert producer.send(1, b"e").base_offset == 4


def test_many_batches_under_way_at_once(wire: Wire, new_name: Name) -> None:
    topic = new_name("pipeline")
    create_topic(wire, topic)
    producer = Sequenced(wire, topic)
    order = [0, 1, 2, 3, 4, 2, 3, 4, 5, 6]  # as a client resends after a lost connection
    wire.socket.sendall(
        b"".join(
            wire.frame(produce_request(topic, producer.batch(number, b"%d" % number)), 9) for number in order
        )
    )
    offsets = [produced(wire.receive()[1]).base_offset for _ in order]
    assert offsets == order
    assert values(fetch(wire, topic, 0).records) == [b"%d" % number for number in range(7)]


def test_duplicates_across_connections(wire: Wire, bootstrap: str, new_name: Name) -> None:
    topic = new_name("reconnect")
    create_topic(wire, topic)
    producer = Sequenced(wire, topic)
    assert producer.send(0, b"sent").base_offset == 0
    with Wire(bootstrap) as second:
        producer.wire = second
        assert producer.send(0, b"sent").base_offset == 0
        assert producer.send(1, b"after").base_offset == 1
        assert end_offset(second, topic) == 2


def test_a_producer_without_a_sequence_is_refused(wire: Wire, new_name: Name) -> None:
    topic = new_name("no-sequence")
    create_topic(wire, topic)
    producer = Sequenced(wire, topic)
    assert producer.send(-1, b"x").error_code == INVALID_RECORD
    assert end_offset(wire, topic) == 0


def test_producers_are_described(wire: Wire, new_name: Name) -> None:
    topic = new_name("described")
    create_topic(wire, topic)
    producer = Sequenced(wire, topic)
    for number in range(3):
        producer.send(number, b"x")
    entry = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[0, 4])
    (found,) = wire.ask(DescribeProducersRequest(topics=[entry])).topics
    by_index = {partition.partition_index: partition for partition in found.partitions}
    assert by_index[4].error_code == 3
    (state,) = by_index[0].active_producers
    assert (state.producer_id, state.producer_epoch, state.last_sequence) == (producer.producer_id, 0, 2)
    assert state.current_txn_start_offset == -1
