"""The prepared bytes are judged by kio, an independent codec of the same formats."""

from __future__ import annotations

import struct

import pytest
from bench.batches import Batch, batch, batch_of_size, sample_values
from bench.frames import FetchFrame, ProduceAnswer, next_offset, produce_frame
from bench.wire import CLIENT_ID, WireError
from kio.records.readers import read_batch
from kio.schema.fetch.v11.request import FetchRequest
from kio.schema.fetch.v11.response import FetchResponse
from kio.schema.produce.v7.request import ProduceRequest
from kio.schema.produce.v7.response import ProduceResponse
from kio.serial import entity_reader

HEADER = 4 + 2 + 2 + 4 + 2 + len(CLIENT_ID)


def test_values_have_their_size_and_differ() -> None:
    values = sample_values(100)
    assert {len(value) for value in values} == {100}
    assert len(set(values)) > 1000
    assert values == sample_values(100)


@pytest.mark.parametrize("size", [1, 100, 1000])
def test_batch_is_readable_record_by_record(size: int) -> None:
    values = sample_values(size, 70)
    keys = [b"key-%d" % index for index in range(70)]
    read, length = read_batch(batch(values, keys).data, 0)
    made = batch(values, keys)
    assert length == len(made.data)
    assert made.count == 70
    assert [record.value for record in read.records] == values
    assert [record.key for record in read.records] == keys
    assert [record.offset for record in read.records] == list(range(70))


def test_batch_of_size_comes_close_to_its_target() -> None:
    made = batch_of_size(100, 16_000)
    assert 15_800 < len(made.data) <= 16_000
    read, _ = read_batch(made.data, 0)
    assert len(read.records) == made.count


def test_produce_frame_is_the_request_it_claims_to_be() -> None:
    made = batch_of_size(100, 1000)
    frame = produce_frame("a-topic", {3: made.data, 5: made.data}, acks=-1)
    assert struct.unpack_from(">ihhi", frame) == (len(frame) - 4, 0, 7, 0)
    request, _ = entity_reader(ProduceRequest)(bytes(frame), HEADER)
    assert request.acks == -1
    (topic,) = request.topic_data
    assert topic.name == "a-topic"
    assert [(part.index, part.records) for part in topic.partition_data] == [(3, made.data), (5, made.data)]


def produce_answer(topic: str, partitions: int, error: int = 0) -> bytes:
    body = struct.pack(">iih", 7, 1, len(topic)) + topic.encode() + struct.pack(">i", partitions)
    for index in range(partitions):
        body += struct.pack(">ihqqq", index, error if index == partitions - 1 else 0, 256, -1, 0)
    body += struct.pack(">i", 0)
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize("partitions", [1, 50])
def test_produce_answer_layout_finds_every_error(partitions: int) -> None:
    good, bad = produce_answer("t", partitions), produce_answer("t", partitions, error=6)
    parsed, _ = entity_reader(ProduceResponse)(good, 8)
    assert len(parsed.responses[0].partition_responses) == partitions
    layout = ProduceAnswer("t", partitions)
    assert layout.size == len(good)
    layout.check(b"before" + good, len(b"before"))
    with pytest.raises(WireError, match="error code 6"):
        layout.check(bad, 0)
    with pytest.raises(WireError, match="instead of"):
        ProduceAnswer("longer", partitions).check(good, 0)


def test_fetch_frame_is_patched_in_the_right_place() -> None:
    frame = FetchFrame("a-topic", 4, max_bytes=1 << 20)
    frame.seek(123_456_789_012)
    request, _ = entity_reader(FetchRequest)(bytes(frame.data), HEADER)
    (topic,) = request.topics
    (partition,) = topic.partitions
    assert (topic.topic, partition.partition, partition.fetch_offset) == ("a-topic", 4, 123_456_789_012)
    assert (partition.partition_max_bytes, request.max_bytes) == (1 << 20, 1 << 20)
    assert request.session_epoch == -1


def fetch_answer(topic: str, records: bytes, error: int = 0) -> bytearray:
    body = struct.pack(">iihiih", 0, 0, 0, 0, 1, len(topic)) + topic.encode()
    body += struct.pack(">iihqqqiii", 1, 0, error, 10, 10, 0, -1, -1, len(records)) + records
    return bytearray(struct.pack(">i", len(body)) + body)


def test_fetch_answer_records_are_found() -> None:
    made: Batch = batch(sample_values(50, 8))
    second = struct.pack(">q", 8) + made.data[8:]
    torn = made.data[:-3]
    answer = fetch_answer("t", made.data + second + torn)
    parsed, _ = entity_reader(FetchResponse)(bytes(answer), 8)
    assert parsed.responses[0].partitions[0].records == made.data + second + torn
    frame = FetchFrame("t", 0, max_bytes=1000)
    end = frame.records_end(answer)
    assert answer[frame.records_position : end] == made.data + second + torn
    assert next_offset(answer, frame.records_position, end) == (16, 2)
    with pytest.raises(WireError, match="error code 1"):
        frame.records_end(fetch_answer("t", b"", error=1))
    assert next_offset(b"", 0, 0) == (-1, 0)
