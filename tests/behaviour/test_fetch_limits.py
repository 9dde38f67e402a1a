"""Fetch: how much and how long. The first batch always comes; the rest obeys the client's limits."""

from __future__ import annotations

import time

import pytest

from millstream.protocol.messages import DeleteRecordsRequest
from tests.conftest import Name
from tests.wire import (
    Wire,
    append,
    base_offsets,
    batch,
    batches,
    create_topic,
    fetch,
    fetch_partition,
    fetch_request,
    fetched,
    list_offsets,
    produce,
    values,
)

OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER = 1, 3, 6
CLUSTER_AUTHORIZATION_FAILED, UNKNOWN_LEADER_EPOCH = 31, 75


def test_the_batch_around_an_offset_comes_whole(bootstrap: str, new_name: Name) -> None:
    with Wire(bootstrap) as wire:
        topic = new_name("inside")
        create_topic(wire, topic)
        for start in (0, 10, 20):
            assert append(wire, topic, *(b"%d" % n for n in range(start, start + 10))) == start
        for offset, expected in (
            (0, [0, 10, 20]),
            (9, [0, 10, 20]),
            (10, [10, 20]),
            (15, [10, 20]),
            (29, [20]),
        ):
            assert base_offsets(fetch(wire, topic, offset).records) == expected
        assert not fetch(wire, topic, 30).records


@pytest.mark.parametrize("version", [4, 7, 11, 12])
def test_the_first_batch_comes_however_small_the_limits(bootstrap: str, new_name: Name, version: int) -> None:
    with Wire(bootstrap) as wire:
        topic = new_name("first")
        create_topic(wire, topic)
        for _ in range(3):
            append(wire, topic, bytes(5000))
        answer = fetch(wire, topic, 1, version, max_bytes=10, partition_max_bytes=10)
        assert base_offsets(answer.records) == [1]
        assert answer.high_watermark == 3


def test_limits_by_partition_and_in_all(bootstrap: str, new_name: Name) -> None:
    with Wire(bootstrap) as wire:
        topic = new_name("limits")
        create_topic(wire, topic, partitions=3)
        size = len(batch([bytes(1000)]))
        for partition in range(3):
            for _ in range(10):
                assert produce(wire, topic, batch([bytes(1000)]), partition=partition).error_code == 0

        def counts(partition_limit: int, limit: int) -> list[int]:
            places = [fetch_partition(0, partition=number, max_bytes=partition_limit) for number in range(3)]
            (found,) = wire.ask(fetch_request({topic: places}, max_bytes=limit), 12).responses
            by_index = {partition.partition_index: partition for partition in found.partitions}
            return [len(batches(by_index[number].records)) for number in range(3)]

        assert counts(1 << 20, 50 << 20) == [10, 10, 10]
        assert counts(4 * size + 10, 50 << 20) == [4, 4, 4]
        assert sum(counts(1 << 20, 15 * size + 10)) in (
            15,
            14,
        )  # a partition that got the rest may be cut anywhere
        assert counts(1 << 20, 1)[0] == 1
        assert sum(counts(1 << 20, 1)) == 1


def test_min_bytes_and_the_longest_wait(bootstrap: str, new_name: Name) -> None:
    with Wire(bootstrap) as wire, Wire(bootstrap) as writer:
        topic = new_name("wait")
        create_topic(wire, topic)
        append(writer, topic, b"x" * 100)
        started = time.monotonic()
        answer = fetched(
            wire.ask(fetch_request({topic: [fetch_partition(0)]}, max_wait_ms=300, min_bytes=5000), 12)
        )
        assert time.monotonic() - started >= 0.29
        assert base_offsets(answer.records) == [0]  # what there is comes when the time is over
        # enough bytes end the wait; too few do not
        wire.send(fetch_request({topic: [fetch_partition(0)]}, max_wait_ms=15_000, min_bytes=5000), 12)
        append(writer, topic, b"y" * 100)
        append(writer, topic, b"z" * 6000)
        assert base_offsets(fetched(wire.receive()[1]).records) == [0, 1, 2]
        started = time.monotonic()
        assert not fetched(
            wire.ask(fetch_request({topic: [fetch_partition(3)]}, max_wait_ms=0, min_bytes=1), 12)
        ).records
        assert time.monotonic() - started < 5


def test_errors_stay_with_their_partition(bootstrap: str, new_name: Name) -> None:
    with Wire(bootstrap) as wire:
        topic = new_name("error")
        create_topic(wire, topic)
        append(wire, topic, b"x")
        places = [fetch_partition(0), fetch_partition(0, partition=7)]
        (found,) = wire.ask(fetch_request({topic: places}, max_wait_ms=100, min_bytes=1), 12).responses
        codes = {partition.partition_index: partition.error_code for partition in found.partitions}
        assert codes == {0: 0, 7: UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.parametrize("offset", [-1, 6, 1 << 40])
def test_offsets_outside_the_log(bootstrap: str, new_name: Name, offset: int) -> None:
    with Wire(bootstrap) as wire:
        topic = new_name("outside")
        create_topic(wire, topic)
        append(wire, topic, *([b"x"] * 5))
        answer = fetch(wire, topic, offset, max_wait_ms=10_000, min_bytes=1)
        assert answer.error_code == OFFSET_OUT_OF_RANGE
        assert not answer.records
        assert answer.high_watermark in (-1, 5)


def test_records_before_the_start_of_the_log_are_gone(bootstrap: str, new_name: Name) -> None:
    with Wire(bootstrap) as wire:
        topic = new_name("start")
        create_topic(wire, topic)
        for _ in range(3):
            append(wire, topic, *([b"x"] * 10))
        place = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=15)
        entry = DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[place])
        (deleted,) = wire.ask(DeleteRecordsRequest(topics=[entry], timeout_ms=10_000)).topics
        assert (deleted.partitions[0].error_code, deleted.partitions[0].low_watermark) == (0, 15)
        assert fetch(wire, topic, 14).error_code == OFFSET_OUT_OF_RANGE
        answer = fetch(wire, topic, 15)
        assert (answer.error_code, answer.log_start_offset) == (0, 15)
        assert base_offsets(answer.records) == [10, 20]  # the batch that holds offset 15, whole


def test_reading_committed_records_without_transactions(bootstrap: str, new_name: Name) -> None:
    with Wire(bootstrap) as wire:
        topic = new_name("committed")
        create_topic(wire, topic)
        append(wire, topic, b"a", b"b")
        answer = fetch(wire, topic, 0, isolation_level=1)
        assert values(answer.records) == [b"a", b"b"]
        assert (answer.high_watermark, answer.last_stable_offset) == (2, 2)
        assert not answer.aborted_transactions


def test_leader_epochs_of_the_future_are_unknown(bootstrap: str, new_name: Name) -> None:
    with Wire(bootstrap) as wire:
        topic = new_name("epochs")
        create_topic(wire, topic)
        append(wire, topic, b"x")
        present = fetched(wire.ask(fetch_request({topic: [fetch_partition(0, leader_epoch=0)]}), 12))
        assert (present.error_code, values(present.records)) == (0, [b"x"])
        future = fetched(wire.ask(fetch_request({topic: [fetch_partition(0, leader_epoch=5)]}), 12))
        assert future.error_code == UNKNOWN_LEADER_EPOCH
        (found,) = list_offsets(wire, topic, leader_epoch=5)
        assert found.error_code == UNKNOWN_LEADER_EPOCH


def test_followers_are_refused_on_a_client_listener(bootstrap: str, new_name: Name) -> None:
    """A fetch that claims to come from a broker gets an error, on the whole or on the partition."""
    with Wire(bootstrap) as wire:
        topic = new_name("follower")
        create_topic(wire, topic)
        append(wire, topic, b"x")
        answer = wire.ask(fetch_request({topic: [fetch_partition(0)]}, replica_id=4242), 12)
        partitions = [partition for topic in answer.responses for partition in topic.partitions]
        codes = {answer.error_code, *(partition.error_code for partition in partitions)} - {0}
        assert codes <= {NOT_LEADER_OR_FOLLOWER, CLUSTER_AUTHORIZATION_FAILED}
        assert codes
        assert not any(partition.records for partition in partitions)
