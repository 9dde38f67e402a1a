"""Hostile bytes: whatever they are, a decoder returns a message or raises ProtocolError, soon, and
without taking more memory than a small multiple of the frame."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.errors import ProtocolError
from millstream.protocol.codegen import uvarint
from millstream.protocol.decoding import ELEMENT_BYTES, FREE_ELEMENTS
from millstream.protocol.messages import (
    AlterPartitionRequest,
    ConsumerGroupHeartbeatResponse,
    CreatePartitionsRequest,
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    MetadataRequest,
    OffsetFetchRequest,
    ProduceRequest,
)
from millstream.protocol.schema import MAX_REQUEST_ELEMENTS, Message, Struct, StructType
from tests.protocol.strategies import CASE_IDS, CASES, MESSAGES

ELEMENT_MEMORY = 384
"""The most memory that an element of an array takes, in bytes, its text aside. A frame can have
FREE_ELEMENTS elements and one for each ELEMENT_BYTES, so it takes at most 25 MB and 24 times its size."""


def decode_or_refuse(message: type[Message], version: int, data: bytes) -> bool:
    """Whether the bytes are a message; anything but ProtocolError fails the test."""
    try:
        message.decode(data, version)
    except ProtocolError:
        return False
    return True


def filled(cls: StructType, version: int, count: int = 1) -> Any:
    """A struct in which every array has `count` elements and nothing is null or default."""
    values: dict[str, Any] = {}
    for field in cls.fields_at(version):
        type_ = field.type
        if type_.kind == "struct":
            values[field.name] = filled(type_.item, version, count)
        elif type_.kind == "array":
            is_struct = type_.item.kind == "struct"
            values[field.name] = [
                filled(type_.item.item, version, count) if is_struct else type_.item.zero
                for _ in range(count)
            ]
        elif type_.kind in ("str", "bytes", "records"):
            values[field.name] = "text" if type_.kind == "str" else b"bytes"
    return cls(**values)


@pytest.mark.parametrize(("message", "version"), CASES, ids=CASE_IDS)
def test_a_message_cut_anywhere_is_refused(message: type[Message], version: int) -> None:
    data = filled(message, version, 2 if message.__name__.endswith("Request") else 1).encode(version)
    for size in range(len(data)):
        assert not decode_or_refuse(message, version, data[:size])
    assert decode_or_refuse(message, version, data)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_mutated_messages(message: type[Message]) -> None:
    """Bytes changed, inserted and taken out of valid messages of the oldest and the newest version."""
    chance = random.Random(message.__name__)
    for version in message.versions:
        for count in (0, 1, 2):
            data = filled(message, version, count).encode(version)[:1000]
            for _ in range(50):
                decode_or_refuse(message, version, mutated(data, chance))


def mutated(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(changed) + 1)
        what = chance.random()
        if what < 0.6 and at < len(changed):
            changed[at] = chance.choice((0, 1, 2, 127, 128, 255, changed[at] ^ 1 << chance.randrange(8)))
        elif what < 0.8:
            changed[at:at] = chance.choice(
                (b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"\x80", b"\xff" * 9)
            )
        else:
            del changed[at : at + chance.randrange(4)]
    return bytes(changed)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_random_bytes(message: type[Message]) -> None:
    chance = random.Random(message.__name__)
    for version in message.versions:
        for _ in range(40):
            decode_or_refuse(message, version, chance.randbytes(chance.randrange(200)))
        for byte in (0, 1, 2, 127, 128, 255):
            decode_or_refuse(message, version, bytes([byte]) * 300)


# Lengths and counts that lie.


@pytest.mark.parametrize("length", [b"\x7f\xff\xff\xff", b"\x00\x00\x00\x02", b"\x10\x00\x00\x00"])
def test_an_absurd_count_allocates_nothing(length: bytes) -> None:
    data = length + b"\0\1a"
    assert peak_of(MetadataRequest, 1, data) < 10_000


@pytest.mark.parametrize(
    "length", [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x01", b"\x30"]
)
def test_an_absurd_compact_count_allocates_nothing(length: bytes) -> None:
    assert peak_of(MetadataRequest, 12, length + bytes(20)) < 10_000


def test_a_varint_without_end_is_refused() -> None:
    with pytest.raises(ProtocolError, match="longer than five bytes"):
        MetadataRequest.decode(b"\xff" * 100, 12)


def test_records_that_end_beyond_the_frame_are_refused() -> None:
    request = ProduceRequest(
        acks=1,
        timeout_ms=1,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name="t", partition_data=[ProduceRequest.PartitionProduceData(index=0, records=b"1234")]
            )
        ],
    )
    data = request.encode(7)
    assert data.endswith(b"\0\0\0\x041234")
    for length in (5, 2**31 - 1):
        with pytest.raises(ProtocolError, match="records ends beyond the message"):
            ProduceRequest.decode(data[:-8] + length.to_bytes(4, "big") + b"1234", 7)


def test_tagged_fields_that_lie_about_their_size_are_refused() -> None:
    data = FetchRequest(max_wait_ms=1, min_bytes=1, topics=[], cluster_id="abc").encode(12)
    assert data.endswith(b"\x01\x00\x04\x04abc")
    for tail in (
        b"\x01\x00\x05\x04abc",
        b"\x01\x00\x03\x04abc",
        b"\x01\x00\x04\x05abc",
        b"\x01\x09\x7f",
        b"\xff\xff\xff\xff\x0f",
    ):
        with pytest.raises(ProtocolError):
            FetchRequest.decode(data[:-7] + tail, 12)


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(ProtocolError, match="utf-8"):
        MetadataRequest.decode(b"\0\0\0\1\0\2\xff\xfe", 1)


def test_nullable_structs_take_any_mark() -> None:
    sent = ConsumerGroupHeartbeatResponse(member_epoch=1, heartbeat_interval_ms=1)
    data = sent.encode(0)
    assert data.endswith(b"\xff\x00")
    for mark in (0xFE, 0x80):
        assert ConsumerGroupHeartbeatResponse.decode(data[:-2] + bytes([mark, 0]), 0) == sent
    for mark in (0, 1, 0x7F):
        decoded = ConsumerGroupHeartbeatResponse.decode(data[:-2] + bytes([mark, 1, 0, 0]), 0)
        assert decoded.assignment == ConsumerGroupHeartbeatResponse.Assignment(topic_partitions=[])


# Memory and time.


def peak_of(message: type[Message], version: int, data: bytes) -> int:
    """The most memory, in bytes, that decoding takes."""
    decode_or_refuse(message, version, b"")  # compiles the decoder
    view = memoryview(data)
    tracemalloc.start()
    try:
        decode_or_refuse(message, version, view)  # type: ignore[arg-type]
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def inflated(cls: StructType, version: int, count: int) -> Iterator[Any]:
    """Structs of defaults in which one array, somewhere, has `count` elements."""
    for field in cls.fields_at(version):
        item = field.type.item
        if field.type.kind == "struct":
            for inner in inflated(item, version, count):
                yield cls(**{field.name: inner})
        elif field.type.kind == "array" and item.kind != "struct":
            yield cls(**{field.name: [item.zero] * count})
        elif field.type.kind == "array":
            yield cls(**{field.name: [item.item()] * count})
            for inner in inflated(item.item, version, count):
                yield cls(**{field.name: [inner]})


def without_null(struct: Struct, version: int) -> None:
    """Give null fields a value where the version has no null."""
    for field in type(struct).fields_at(version):
        value = getattr(struct, field.name)
        if value is None and field.type.kind == "str" and not field.may_be_null(version):
            setattr(struct, field.name, "")
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, Struct):
                without_null(inner, version)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_messages_of_many_tiny_elements_take_bounded_memory(message: type[Message]) -> None:
    version = message.versions[1]
    for sent in inflated(message, version, 300):
        without_null(sent, version)
        data = sent.encode(version)
        assert decode_or_refuse(message, version, data)
        assert peak_of(message, version, data) < 302 * ELEMENT_MEMORY + 5000


def test_more_elements_than_a_frame_of_that_size_can_mean_are_refused() -> None:
    """Each element takes 2 bytes of the frame and over 100 of memory."""

    def request(count: int) -> bytes:
        element = CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=[])
        topic = CreatePartitionsRequest.CreatePartitionsTopic(
            name="t", count=1, assignments=[element] * count
        )
        return CreatePartitionsRequest(topics=[topic], timeout_ms=1, validate_only=False).encode(3)

    assert decode_or_refuse(CreatePartitionsRequest, 3, request(FREE_ELEMENTS))
    data = request(1_000_000)
    assert len(data) > 2_000_000
    with pytest.raises(ProtocolError, match="too many elements"):
        CreatePartitionsRequest.decode(data, 3)
    assert peak_of(CreatePartitionsRequest, 3, data) < 10_000


def test_numbers_count_too() -> None:
    """Four of them count as one element, so that real lists of partitions or replicas pass."""

    def request(count: int) -> bytes:
        topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[7] * count)
        return OffsetFetchRequest(group_id="g", topics=[topic]).encode(5)

    most = 4 * (MAX_REQUEST_ELEMENTS - 1)
    assert OffsetFetchRequest.decode(request(most), 5).topics
    with pytest.raises(ProtocolError, match="too many elements"):
        OffsetFetchRequest.decode(request(most + 4), 5)


def test_there_is_an_end_to_what_a_request_lists() -> None:
    def data(count: int) -> bytes:
        partitions = [FetchRequest.FetchPartition(partition=1, fetch_offset=1, partition_max_bytes=1)] * count
        topic = FetchRequest.FetchTopic(topic="t", partitions=partitions)
        return FetchRequest(max_wait_ms=1, min_bytes=1, topics=[topic]).encode(4)

    assert FetchRequest.decode(data(MAX_REQUEST_ELEMENTS - 1), 4).topics
    with pytest.raises(ProtocolError, match="too many elements"):
        FetchRequest.decode(data(MAX_REQUEST_ELEMENTS), 4)
    # What a broker tells another of its partitions, and any answer, is as long as it has to be.
    assert AlterPartitionRequest.max_elements is None
    assert FetchResponse.max_elements is None


@pytest.mark.parametrize("tag", [0, 100])
def test_tagged_fields_count_as_elements(tag: int) -> None:
    """Known or not (0 is the cluster id of a fetch): each takes two bytes and some time."""
    plain = FetchRequest(max_wait_ms=1, min_bytes=1, topics=[]).encode(12)
    assert plain.endswith(b"\x00")
    for message, data, version in (
        (FetchRequest, plain, 12),
        (HeartbeatRequest, HeartbeatRequest(group_id="g", generation_id=1, member_id="m").encode(4), 4),
    ):
        few = data[:-1] + uvarint(1000) + bytes((100, 0)) * 1000
        many = data[:-1] + uvarint(1_000_000) + bytes((tag, 0)) * 1_000_000
        assert decode_or_refuse(message, version, few)
        start = time.thread_time()
        with pytest.raises(ProtocolError, match="too many elements"):
            message.decode(many, version)
        assert time.thread_time() - start < 0.05


def test_real_messages_may_be_as_large_as_they_like() -> None:
    topics = [FetchRequest.FetchTopic(topic=f"topic-{n}", partitions=[]) for n in range(FREE_ELEMENTS - 5000)]
    for topic in topics:
        topic.partitions = [FetchRequest.FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1)]
    data = FetchRequest(max_wait_ms=1, min_bytes=1, topics=topics).encode(12)
    assert FREE_ELEMENTS < 2 * len(topics) > len(data) // ELEMENT_BYTES // 2
    assert len(FetchRequest.decode(data, 12).topics) == len(topics)


def test_a_large_hostile_frame_is_dealt_with_soon() -> None:
    for data in (bytes(10_000_000), b"\xff" * 10_000_000, b"\x01" * 10_000_000, b"\x7f" * 10_000_000):
        for message, version in (
            (ProduceRequest, 9),
            (FetchRequest, 16),
            (MetadataRequest, 12),
            (FetchRequest, 11),
        ):
            start = time.thread_time()
            decode_or_refuse(message, version, data)  # some are a small request with bytes behind it
            assert time.thread_time() - start < 2
