"""The declaration of messages: versions, defaults, tagged fields, and what a declaration must not do."""

from __future__ import annotations

import subprocess
import sys
from uuid import UUID

import pytest

from millstream.errors import ProtocolError
from millstream.model import NO_UUID
from millstream.protocol.codegen import source_of
from millstream.protocol.messages import (
    INTERNAL_REQUESTS,
    REQUESTS,
    FetchRequest,
    FetchResponse,
    MetadataRequest,
    ProduceRequest,
)
from millstream.protocol.schema import Message, Struct, null_since, since, tagged, until
from millstream.protocol.types import Records, f64, i8, i16, i32, i64, u16


class Parcel(Message, versions=(0, 4), flexible=2):
    class Stamp(Struct):
        colour: str
        cents: i16 = 5

    class Box(Struct):
        weight: i32
        inner: Parcel.Stamp
        stamps: list[Parcel.Stamp] = since(1)

    old: i64 = until(1, 7)
    middle: u16 = since(1, until=3)
    name: str = ""
    label: str | None = null_since(3)
    boxes: list[Box] | None = None
    tags: list[str] = since(1)
    ids: list[UUID] = since(2)
    prices: list[f64] = since(2)
    raw: bytes | None = None
    batch: Records | None = None
    stamp: Stamp | None = since(3)
    note: str | None = tagged(3, since=2)
    rank: i8 = tagged(0, -1, since=2)
    origin: UUID = tagged(5, since=3)
    extra: Stamp | None = tagged(1, since=2)
    many: list[Stamp] = tagged(2, since=2)


class Empty(Message, versions=(0, 1), flexible=1):
    pass


def full() -> Parcel:
    return Parcel(
        old=1,
        middle=65535,
        name="n",
        label="l",
        boxes=[
            Parcel.Box(
                weight=1, inner=Parcel.Stamp(colour="red"), stamps=[Parcel.Stamp(colour="b", cents=1)]
            ),
            Parcel.Box(weight=-2, inner=Parcel.Stamp(colour=""), stamps=[]),
        ],
        tags=["a", "", "ü" * 100],
        ids=[UUID(int=5), NO_UUID],
        prices=[0.5, -1.25],
        raw=b"\x00\xff",
        batch=b"records",
        stamp=Parcel.Stamp(colour="green"),
        note="note",
        rank=3,
        origin=UUID(int=1),
        extra=Parcel.Stamp(colour="gold", cents=100),
        many=[Parcel.Stamp(colour="x", cents=2)],
    )


def test_the_latest_version_carries_everything_that_it_has() -> None:
    parcel = full()
    decoded = Parcel.decode(parcel.encode(4), 4)
    assert (decoded.old, decoded.middle) == (7, 0)
    decoded.old, decoded.middle = parcel.old, parcel.middle
    assert decoded == parcel


def test_a_version_leaves_out_what_it_lacks_and_decodes_it_as_the_default() -> None:
    decoded = Parcel.decode(full().encode(0), 0)
    assert decoded.old == 1
    assert decoded.boxes is not None
    assert decoded.boxes[0].stamps == []
    assert (decoded.middle, decoded.tags, decoded.ids, decoded.stamp) == (0, [], [], None)
    assert (decoded.note, decoded.rank, decoded.origin, decoded.extra, decoded.many) == (
        None,
        -1,
        NO_UUID,
        None,
        [],
    )


def test_null_is_refused_where_the_version_does_not_allow_it() -> None:
    assert Parcel.decode(Parcel(label=None).encode(3), 3).label is None
    with pytest.raises(ProtocolError, match="cannot encode Parcel v2"):
        Parcel(label=None).encode(2)
    data = bytearray(Parcel(label="").encode(2))
    # middle u16, name (compact, empty), then the label's length.
    assert data[3] == 1
    data[3] = 0
    with pytest.raises(ProtocolError, match="label is null"):
        Parcel.decode(data, 2)


def test_every_object_has_its_own_lists_and_structs() -> None:
    first, second = Parcel(), Parcel()
    first.tags.append("x")
    assert second.tags == []
    box, other = Parcel.Box(), Parcel.Box()  # type: ignore[call-arg]
    box.inner.colour = "red"
    assert other.inner == Parcel.Stamp(colour="")
    for decoded in (Parcel.decode(Parcel(label="").encode(0), 0) for _ in range(2)):
        assert decoded.tags == []
        decoded.tags.append("x")


def test_tagged_fields_are_written_in_order_of_their_tags_and_only_when_given() -> None:
    nothing = Parcel(label="").encode(2)
    assert nothing.endswith(b"\x00")
    something = Parcel(label="", note="n", rank=9).encode(2)
    assert something == nothing[:-1] + b"\x02" + b"\x00\x01\x09" + b"\x03\x02\x02n"


def test_unknown_tagged_fields_are_skipped_wherever_they_stand() -> None:
    data = Parcel(label="", rank=9).encode(2)
    assert data.endswith(b"\x01\x00\x01\x09")
    strange = data[:-4] + b"\x03" + b"\x00\x01\x09" + b"\x09\x02??" + b"\xff\x01\x00"
    assert Parcel.decode(strange, 2) == Parcel.decode(data, 2)
    struct_with_tags = Parcel(label="", many=[Parcel.Stamp(colour="red")]).encode(2)
    assert struct_with_tags.endswith(b"\x04red\x00\x05\x00")
    strange = struct_with_tags[:-9] + bytes([struct_with_tags[-9] + 3]) + b"\x02\x04red\x00\x05\x01\x07\x01!"
    assert Parcel.decode(strange, 2).many == [Parcel.Stamp(colour="red")]


def test_tagged_fields_in_a_sweep_of_structs() -> None:
    partitions = [
        FetchRequest.FetchPartition(
            partition=i, fetch_offset=i, partition_max_bytes=i, high_watermark=2**63 - 1
        )
        for i in range(9)
    ]
    partitions[7].replica_directory_id = UUID(int=3)
    request = FetchRequest(
        max_wait_ms=1,
        min_bytes=1,
        topics=[FetchRequest.FetchTopic(topic_id=UUID(int=1), partitions=partitions)],
    )
    assert FetchRequest.decode(request.encode(18), 18) == request


def test_a_message_must_fill_its_bytes() -> None:
    data = Parcel(label="").encode(4)
    with pytest.raises(ProtocolError, match="1 bytes follow its end"):
        Parcel.decode(data + b"\x00", 4)
    assert Parcel.decode(b"???" + data, 4, offset=3) == Parcel.decode(data, 4)


def test_bytes_behind_a_request_are_passed_over_as_in_kafka() -> None:
    as_librdkafka_sends_it = bytes.fromhex("00000000010000")
    assert MetadataRequest.decode(as_librdkafka_sends_it, 13).topics is None


def test_versions_that_are_not_declared_are_refused() -> None:
    for version in (-1, 5):
        with pytest.raises(ProtocolError, match="Parcel has versions 0 to 4"):
            Parcel().encode(version)
        with pytest.raises(ProtocolError, match="Parcel has versions 0 to 4"):
            Parcel.decode(b"", version)


def test_messages_without_fields() -> None:
    assert Empty().encode(0) == b""
    assert Empty().encode(1) == b"\x00"
    assert Empty.decode(b"\x00", 1) == Empty()


def test_values_that_do_not_fit_are_protocol_errors() -> None:
    for wrong in (
        Parcel(label="", rank=200),
        Parcel(label=5),  # type: ignore[arg-type]
        Parcel(label="", tags=["\ud800"]),
        Parcel(label="", boxes=[None]),  # type: ignore[list-item]
    ):
        with pytest.raises(ProtocolError, match="cannot encode Parcel v2"):
            wrong.encode(2)
    with pytest.raises(ProtocolError, match="cannot encode Parcel v0"):
        Parcel(label="x" * 40000).encode(0)


def test_records_are_views_of_the_frame_and_big_ones_are_not_copied() -> None:
    batch = bytes(range(256)) * 100
    request = ProduceRequest(
        acks=-1,
        timeout_ms=1,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name="t",
                partition_data=[
                    ProduceRequest.PartitionProduceData(index=0, records=batch),
                    ProduceRequest.PartitionProduceData(index=1, records=b"small"),
                    ProduceRequest.PartitionProduceData(index=2, records=None),
                ],
            )
        ],
    )
    for version in (7, 9):
        chunks = request.encode_chunks(version)
        assert len(chunks) == 3
        assert chunks[1] is batch
        frame = bytearray(request.encode(version))
        assert b"".join(chunks) == frame
        decoded = ProduceRequest.decode(frame, version)
        assert decoded == request
        records = decoded.topic_data[0].partition_data[0].records
        assert isinstance(records, memoryview)
        records[0] = 77
        assert frame.count(bytes([77, 1, 2, 3])) == 1
        assert not records.readonly


def test_equality_and_repr() -> None:
    stamp = Parcel.Stamp(colour="red", cents=5)
    assert stamp == Parcel.Stamp(colour="red")
    assert stamp != Parcel.Stamp(colour="blue")
    assert stamp != "red"
    assert repr(stamp) == "Stamp(colour='red')"
    assert repr(Parcel(batch=b"12345", boxes=[], name="n")) == "Parcel(name='n', boxes=[], batch=<5 bytes>)"
    with pytest.raises(TypeError):
        hash(stamp)
    with pytest.raises(TypeError):
        Parcel.Stamp("red")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Parcel.Stamp(color="red")  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        stamp.color = "red"  # type: ignore[attr-defined]


def test_a_declaration_cannot_hide_what_every_message_has() -> None:
    with pytest.raises(TypeError, match="hides an attribute"):

        class Bad(Message, versions=(0, 0)):
            encode: i32  # type: ignore[assignment]


def test_a_declaration_of_an_unknown_type_is_told() -> None:
    class Bad(Struct):
        when: complex

    with pytest.raises(TypeError, match="not a type of the wire"):
        Bad(when=1j)


def test_every_request_has_a_response_of_the_same_key_and_versions() -> None:
    assert len(REQUESTS) == 57
    own = {request.key: request for request in INTERNAL_REQUESTS if request.key >= 30000}
    assert len(own) == 2
    for key, request in (REQUESTS | own).items():
        assert request.key == key == request.response.key
        assert request.versions == request.response.versions
        assert request.flexible == request.response.flexible
        assert request.response.request is request
        assert request.__doc__
        assert request.response.__doc__


def test_produce_is_advertised_from_version_0_on() -> None:
    assert ProduceRequest.versions == (3, 13)
    assert ProduceRequest.advertised == (0, 13)
    assert FetchRequest.advertised == FetchRequest.versions == (4, 18)


def test_codecs_are_made_on_first_use_and_import_stays_cheap() -> None:
    program = (
        "import time, typing, uuid, struct; start = time.process_time();"
        "import millstream.protocol.messages as m; spent = time.process_time() - start;"
        "print(spent, sum(len(r._decoders) + len(r._encoders) for r in m.REQUESTS.values()))"
    )
    spent, codecs = min(
        subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True
        ).stdout.split()
        for _ in range(3)
    )
    assert codecs == "0"
    assert float(spent) < 0.3  # measured 0.03; CI machines are slow


def test_the_generated_source_can_be_read() -> None:
    source = source_of(FetchResponse.encoder(16))
    assert source.startswith("def encode(o, out, chunks):")
    assert "partition_index" in source
