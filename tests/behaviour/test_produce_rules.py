"""Produce: what a broker checks before it appends, and what it says of that which it does not take."""

from __future__ import annotations

import struct
import time
import uuid
from collections.abc import Iterator

import pytest

from millstream.protocol.batch import seal
from millstream.protocol.record import Record
from tests.conftest import Name
from tests.wire import (
    Wire,
    batch,
    batches,
    create_topic,
    end_offset,
    fetch,
    produce,
    produce_request,
    produced,
    values,
)

UNKNOWN_SERVER_ERROR, CORRUPT_MESSAGE, UNKNOWN_TOPIC_OR_PARTITION, MESSAGE_TOO_LARGE = -1, 2, 3, 10
INVALID_TIMESTAMP, UNSUPPORTED_COMPRESSION_TYPE, INVALID_RECORD, UNKNOWN_TOPIC_ID = 32, 76, 87, 100


@pytest.fixture
def wire(bootstrap: str) -> Iterator[Wire]:
    with Wire(bootstrap) as connection:
        yield connection


def patched(data: bytearray, layout: str, position: int, value: int, *, is_sealed: bool = True) -> bytearray:
    """A batch with one field of its header changed, its checksum right again unless told otherwise."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, position, value)
    if is_sealed:
        seal(memoryview(changed))
    return changed


@pytest.mark.parametrize("version", range(3, 13))
def test_every_version_by_name(wire: Wire, new_name: Name, version: int) -> None:
    topic = new_name(f"produce-v{version}")
    create_topic(wire, topic)
    answer = produced(wire.ask(produce_request(topic, batch([b"a", b"b"])), version))
    assert (answer.error_code, answer.base_offset) == (0, 0)
    assert produced(wire.ask(produce_request(topic, batch([b"c"])), version)).base_offset == 2
    assert values(fetch(wire, topic, 0).records) == [b"a", b"b", b"c"]


def test_by_topic_id(wire: Wire, new_name: Name) -> None:
    topic = new_name("produce-id")
    topic_id = create_topic(wire, topic)
    answer = wire.ask(produce_request(topic_id, batch([b"by id"])), 13)
    assert answer.responses[0].topic_id == topic_id
    assert (produced(answer).error_code, produced(answer).base_offset) == (0, 0)
    assert produce(wire, uuid.uuid4(), batch([b"x"])).error_code == UNKNOWN_TOPIC_ID
    assert produce(wire, topic_id, batch([b"x"]), partition=5).error_code == UNKNOWN_TOPIC_OR_PARTITION
    assert values(fetch(wire, topic, 0).records) == [b"by id"]


def test_an_unknown_topic_is_not_made_by_producing(wire: Wire, new_name: Name) -> None:
    assert produce(wire, new_name("never-made"), batch([b"x"])).error_code == UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("position", [17, 21, 23, 27, 35, 43, 57, 61, 70, -1])
def test_a_changed_byte_is_found(wire: Wire, new_name: Name, position: int) -> None:
    topic = new_name("flipped")
    create_topic(wire, topic)
    data = batch([b"some value that is long enough"])
    data[position] ^= 0x40
    assert produce(wire, topic, data).error_code == CORRUPT_MESSAGE
    assert end_offset(wire, topic) == 0


def test_a_batch_must_be_whole_and_alone(wire: Wire, new_name: Name) -> None:
    topic = new_name("whole")
    create_topic(wire, topic)
    data = batch([b"x"])
    for wrong in (data[:-5], data[:61], bytes(data) * 2, b""):
        assert produce(wire, topic, wrong).error_code in (INVALID_RECORD, CORRUPT_MESSAGE)
    assert end_offset(wire, topic) == 0


def test_headers_that_lie(wire: Wire, new_name: Name) -> None:
    topic = new_name("liar")
    create_topic(wire, topic)
    data = batch([b"a", b"b", b"c"])
    lies = {
        "more records than there are": patched(data, ">i", 57, 4),
        "fewer records than there are": patched(data, ">i", 57, 2),
        "no records": patched(data, ">i", 57, 0),
        "a last offset that is too large": patched(data, ">i", 23, 7),
        "a control batch": patched(data, ">h", 21, 0x20),
        "an older format": patched(data, ">b", 16, 1, is_sealed=False),
    }
    for lie, changed in lies.items():
        assert produce(wire, topic, changed).error_code == INVALID_RECORD, lie
    assert end_offset(wire, topic) == 0


def test_a_codec_that_does_not_exist(wire: Wire, new_name: Name) -> None:
    topic = new_name("codec")
    create_topic(wire, topic)
    answer = produce(wire, topic, patched(batch([b"a"]), ">h", 21, 5))
    assert answer.error_code in (
        UNSUPPORTED_COMPRESSION_TYPE,
        CORRUPT_MESSAGE,
        INVALID_RECORD,
        UNKNOWN_SERVER_ERROR,
    )
    assert end_offset(wire, topic) == 0


def test_zstd_needs_version_7(wire: Wire, new_name: Name) -> None:
    topic = new_name("zstd")
    create_topic(wire, topic)
    data = batch([b"squeeze " * 100], codec=4)
    assert produced(wire.ask(produce_request(topic, data), 6)).error_code == UNSUPPORTED_COMPRESSION_TYPE
    assert produced(wire.ask(produce_request(topic, data), 7)).error_code == 0


def test_garbage_inside_a_compressed_batch(wire: Wire, new_name: Name) -> None:
    topic = new_name("garbage")
    create_topic(wire, topic)
    for codec in (1, 2, 3, 4):
        data = batch([b"squeeze me " * 50], codec=codec)
        data[61 + 12 :] = bytes(len(data) - 73)
        seal(memoryview(data))
        assert produce(wire, topic, data).error_code in (
            CORRUPT_MESSAGE,
            INVALID_RECORD,
            UNKNOWN_SERVER_ERROR,
        )
    assert end_offset(wire, topic) == 0


def test_the_size_limit_counts_the_whole_batch(wire: Wire, new_name: Name) -> None:
    topic = new_name("size")
    create_topic(wire, topic, max_message_bytes="1000")
    overhead = len(batch([b"x" * 900])) - 900
    assert produce(wire, topic, batch([b"x" * (1000 - overhead)])).error_code == 0
    assert produce(wire, topic, batch([b"x" * (1001 - overhead)])).error_code == MESSAGE_TOO_LARGE
    assert produce(wire, topic, batch([b"x" * 5000], codec=4)).error_code == 0  # it is small as sent


def test_errors_name_the_records(wire: Wire, new_name: Name) -> None:
    """KIP-467: from version 8 on the answer says which records of the batch were wrong."""
    topic = new_name("which")
    create_topic(wire, topic, cleanup_policy="compact")
    now_ms = int(time.time() * 1000)
    keys = [b"k", None, b"k", None]
    answer = produce(wire, topic, batch(Record(value=b"v", key=key, timestamp=now_ms) for key in keys))
    assert answer.error_code == INVALID_RECORD
    assert [error.batch_index for error in answer.record_errors] == [1, 3]
    assert answer.error_message


def test_timestamps_out_of_bounds_are_named_too(wire: Wire, new_name: Name) -> None:
    topic = new_name("when")
    create_topic(wire, topic, message_timestamp_after_max_ms="1000", message_timestamp_before_max_ms="1000")
    now_ms = int(time.time() * 1000)
    times = [now_ms, now_ms - 60_000, now_ms, now_ms + 60_000]
    answer = produce(wire, topic, batch(Record(value=b"v", timestamp=time_ms) for time_ms in times))
    assert answer.error_code == INVALID_TIMESTAMP
    assert [error.batch_index for error in answer.record_errors] == [1, 3]
    assert end_offset(wire, topic) == 0


@pytest.mark.parametrize("codec", range(5))
def test_append_time_is_stamped_and_told(wire: Wire, new_name: Name, codec: int) -> None:
    topic = new_name("stamped")
    create_topic(wire, topic, message_timestamp_type="LogAppendTime")
    before_ms = int(time.time() * 1000)
    answer = produce(wire, topic, batch([b"v" * 100, b"w" * 100], codec=codec))
    assert answer.error_code == 0
    assert before_ms <= answer.log_append_time_ms <= int(time.time() * 1000)
    (stored,) = batches(fetch(wire, topic, 0).records)
    attributes, _, _, max_timestamp = struct.unpack_from(">hiqq", stored, 21)
    assert attributes == codec | 8
    assert max_timestamp == answer.log_append_time_ms


def test_the_leader_epoch_is_the_brokers(wire: Wire, new_name: Name) -> None:
    topic = new_name("epoch")
    create_topic(wire, topic)
    assert produce(wire, topic, batch([b"x"], base_offset=999)).error_code == INVALID_RECORD
    data = batch([b"x"], leader_epoch=77)
    assert produce(wire, topic, data).base_offset == 0
    (stored,) = batches(fetch(wire, topic, 0).records)
    base_offset, _, leader_epoch = struct.unpack_from(">qii", stored)
    assert (base_offset, leader_epoch) == (0, 0)
    assert stored[16:] == bytes(data[16:])


def test_a_largest_timestamp_that_is_wrong_is_set_right(wire: Wire, new_name: Name) -> None:
    topic = new_name("largest")
    create_topic(wire, topic)
    now_ms = int(time.time() * 1000)
    data = batch([Record(value=b"v", timestamp=now_ms - 5), Record(value=b"w", timestamp=now_ms)])
    assert produce(wire, topic, patched(data, ">q", 35, now_ms - 1000)).error_code == 0
    assert end_offset(wire, topic, timestamp=-3) == 1
    (stored,) = batches(fetch(wire, topic, 0).records)
    assert struct.unpack_from(">q", stored, 35) == (now_ms,)
