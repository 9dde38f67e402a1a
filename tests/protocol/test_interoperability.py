"""Batches of others are read by us, and ours by them: aiokafka, kafka-python, kio, librdkafka, Java."""

from __future__ import annotations

import datetime
import io
import json
import os
import socket
import struct
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka.record.default_records
import aiokafka.record.memory_records
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kio.records.readers import read_batch
from kio.records.schema import NewRecordBatch, RecordHeader
from kio.records.schema import Record as KioRecord
from kio.records.writers import write_new_batch
from kio.static.primitive import TZAwareMicros, i8, i16, i32, i64

from bench import apache_kafka
from millstream.protocol.batch import (
    ControlMarker,
    decode_columns,
    decode_records,
    encode_batch,
    encode_marker,
)
from millstream.protocol.compression import Codec
from millstream.protocol.frame import frame_request, read_response
from millstream.protocol.header import BatchHeader
from millstream.protocol.kernel import read_header
from millstream.protocol.messages import FetchRequest, FetchResponse, ProduceRequest, ProduceResponse
from millstream.protocol.record import Record
from millstream.protocol.schema import Request, Response
from millstream.protocol.validation import ProduceRules, check_produced
from tests.protocol.kernels import Records

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas the old way
    import kafka.codec
    import kafka.record.default_records
    import kafka.record.memory_records

NOW_MS = 1_700_000_000_000
CODECS = list(Codec)
PYTHON_CODECS = [
    codec
    for codec, is_there in zip(
        CODECS,
        (
            True,
            kafka.codec.has_gzip(),
            kafka.codec.has_snappy(),
            kafka.codec.has_lz4(),
            kafka.codec.has_zstd(),
        ),
        strict=True,
    )
    if is_there
]
CLIENTS = {
    "aiokafka": (aiokafka.record.default_records, aiokafka.record.memory_records, CODECS),
    "kafka-python": (kafka.record.default_records, kafka.record.memory_records, PYTHON_CODECS),
}
PAIRS = [(name, codec) for name, (_, _, codecs) in CLIENTS.items() for codec in codecs]


def sample(count: int = 300) -> list[Record]:
    """Records of many shapes that compress, so that no client falls back to storing them."""
    made = []
    for i in range(count):
        headers = (("name", b"value"), ("é", b""), ("none", None)) if i % 7 == 0 else ()
        key = None if i % 5 == 0 else b"key-%d" % i
        value = None if i % 11 == 0 else b"some value %d " % i * (i % 40)
        made.append(Record(value, key, headers, NOW_MS + i * (-1) ** i, i))
    return made


def test_the_codecs_that_every_client_has() -> None:
    assert Codec.GZIP in PYTHON_CODECS


@pytest.mark.parametrize(("client", "codec"), PAIRS)
def test_batches_of_python_clients_are_read(records: Records, client: str, codec: Codec) -> None:
    builder = CLIENTS[client][0].DefaultRecordBatchBuilder(2, codec, 1, 77, 3, 12, 1 << 20)
    made = sample()
    for record in made:
        headers = list(record.headers)
        assert builder.append(record.offset, record.timestamp, record.key, record.value, headers) is not None
    data = bytes(builder.build())
    header = read_header(data)
    assert (header.codec, header.is_transactional, header.producer_id) == (codec, True, 77)
    assert (header.producer_epoch, header.base_sequence, header.count) == (3, 12, len(made))
    seen = records.batch.decode_records(data)
    assert [(r.value, r.key, r.headers, r.timestamp, r.offset) for r in seen] == [
        (r.value, r.key, r.headers, r.timestamp, r.offset) for r in made
    ]
    checked = records.validation.check_produced(data, records.validation.ProduceRules(), 13, NOW_MS)
    assert checked.header == header


@pytest.mark.parametrize(("client", "codec"), PAIRS)
def test_python_clients_read_our_batches(records: Records, client: str, codec: Codec) -> None:
    made = sample()
    ours = [records.kernel.Record(r.value, r.key, r.headers, r.timestamp) for r in made]
    data = records.batch.encode_batch(
        ours,
        codec=codec,
        base_offset=1000,
        producer_id=5,
        producer_epoch=1,
        base_sequence=0,
        is_transactional=True,
    )
    reader = CLIENTS[client][1].MemoryRecords(bytes(data))
    batch = reader.next_batch()
    assert batch.validate_crc()
    assert (batch.producer_id, batch.base_offset, batch.is_transactional) == (5, 1000, True)
    seen = [(r.value, r.key, tuple(r.headers), r.timestamp, r.offset) for r in batch]
    assert seen == [(r.value, r.key, r.headers, r.timestamp, 1000 + r.offset) for r in made]
    assert reader.next_batch() is None


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("is_commit", [True, False])
def test_python_clients_read_our_markers(client: str, is_commit: bool) -> None:
    data = encode_marker(ControlMarker(is_commit, 4), producer_id=9, producer_epoch=2, timestamp_ms=NOW_MS)
    batch = CLIENTS[client][1].MemoryRecords(bytes(data)).next_batch()
    assert batch.is_control_batch
    (record,) = batch
    assert record.key == struct.pack(">hh", 0, int(is_commit))


def test_kio_writes_what_we_read() -> None:
    timestamp = TZAwareMicros.parse(datetime.datetime.fromtimestamp(NOW_MS / 1000, datetime.UTC))
    batch = NewRecordBatch(
        partition_leader_epoch=i32(4),
        attributes=i16(0),
        producer_id=i64(8),
        producer_epoch=i16(2),
        base_sequence=i32(9),
        records=tuple(
            KioRecord(
                attributes=i8(0),
                timestamp=timestamp,
                offset=i64(55 + i),
                key=b"k%d" % i,
                value=None if i == 2 else b"v",
                headers=(RecordHeader(key=b"h", value=None),),
            )
            for i in range(3)
        ),
    )
    buffer = io.BytesIO()
    write_new_batch(buffer, batch)
    data = buffer.getvalue()
    expected = [
        Record(None if i == 2 else b"v", b"k%d" % i, (("h", None),), NOW_MS, 55 + i) for i in range(3)
    ]
    assert decode_records(data) == expected
    assert read_header(data)[8:] == (NOW_MS, 8, 2, 9, 3)


def test_kio_reads_what_we_write() -> None:
    made = [Record(b"v", None, (("h", b"x"),), NOW_MS + i * 1000, 20 + i) for i in range(3)]
    data = encode_batch(made, base_offset=20, leader_epoch=6)
    batch, size = read_batch(bytes(data), 0)
    assert size == len(data)
    assert (batch.base_offset, batch.partition_leader_epoch) == (20, 6)
    assert [(r.offset, r.key, r.value) for r in batch.records] == [(20 + i, None, b"v") for i in range(3)]
    assert [int(r.timestamp.timestamp() * 1000) for r in batch.records] == [r.timestamp for r in made]


class Wire:
    """A socket to a broker, for one request after the other."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, timeout=20)
        self._stream = self._socket.makefile("rb")

    def ask(self, request: Request, response: type[Response], version: int) -> Any:
        for chunk in frame_request(1, "test", request, version):
            self._socket.sendall(chunk)
        (size,) = struct.unpack(">i", self._stream.read(4))
        return read_response(self._stream.read(size), response, version)

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


class Librdkafka:
    """librdkafka's own mock cluster, which keeps batches as they were sent."""

    def __init__(self) -> None:
        self.owner = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock"})
        (broker,) = self.owner.list_topics(timeout=20).brokers.values()
        self.address = (broker.host, broker.port)
        self.wire = Wire(self.address)

    def stored(self, topic: str, offset: int = 0) -> bytes:
        request = FetchRequest(
            max_wait_ms=1000,
            min_bytes=1,
            topics=[
                FetchRequest.FetchTopic(
                    topic=topic,
                    partitions=[
                        FetchRequest.FetchPartition(
                            partition=0, fetch_offset=offset, partition_max_bytes=1 << 24
                        )
                    ],
                )
            ],
        )
        answer = self.wire.ask(request, FetchResponse, 11)
        (part,) = answer.responses[0].partitions
        assert part.error_code == 0
        return bytes(part.records)

    def store(self, topic: str, data: bytes) -> None:
        request = ProduceRequest(
            acks=-1,
            timeout_ms=10_000,
            topic_data=[
                ProduceRequest.TopicProduceData(
                    name=topic,
                    partition_data=[ProduceRequest.PartitionProduceData(index=0, records=data)],
                )
            ],
        )
        answer = self.wire.ask(request, ProduceResponse, 7)
        assert answer.responses[0].partition_responses[0].error_code == 0

    def close(self) -> None:
        self.wire.close()


@pytest.fixture(scope="module")
def librdkafka() -> Iterator[Librdkafka]:
    cluster = Librdkafka()
    yield cluster
    cluster.close()


@pytest.mark.parametrize("codec", CODECS)
def test_batches_of_librdkafka_are_read(records: Records, librdkafka: Librdkafka, codec: Codec) -> None:
    topic = f"theirs-{codec.name}-{time.monotonic_ns()}"
    librdkafka.owner.list_topics(topic, timeout=20)
    address = ":".join(map(str, librdkafka.address))
    producer = Producer(
        {"bootstrap.servers": address, "compression.type": codec.name.lower(), "linger.ms": 500}
    )
    made = sample()
    for record in made:
        producer.produce(
            topic,
            value=record.value,
            key=record.key,
            headers=list(record.headers),
            timestamp=record.timestamp,
            partition=0,
        )
    assert producer.flush(20) == 0
    seen: list[Any] = []
    codecs = set()
    while len(seen) < len(made):
        data = librdkafka.stored(topic, len(seen))
        header = read_header(data)
        codecs.add(header.codec)
        single = bytearray(data[: header.size])
        single[:8] = bytes(8)
        rules = records.validation.ProduceRules(is_compacted=False)
        assert (
            records.validation.check_produced(memoryview(single), rules, 13, NOW_MS).header.count
            == header.count
        )
        seen += records.batch.decode_records(data, from_offset=len(seen))
    assert codec in codecs  # beside it, a batch too small to gain anything is sent as it is
    assert [(r.value, r.key, r.headers, r.timestamp, r.offset) for r in seen] == [
        (r.value, r.key, r.headers, r.timestamp, r.offset) for r in made
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_librdkafka_reads_our_batches(librdkafka: Librdkafka, codec: Codec) -> None:
    topic = f"ours-{codec.name}-{time.monotonic_ns()}"
    librdkafka.owner.list_topics(topic, timeout=20)
    made = sample()
    for start in range(0, len(made), 100):
        librdkafka.store(topic, bytes(encode_batch(made[start : start + 100], codec=codec)))
    consumer = Consumer(
        {
            "bootstrap.servers": ":".join(map(str, librdkafka.address)),
            "group.id": "test",
            "auto.offset.reset": "earliest",
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    seen: list[Any] = []
    deadline = time.monotonic() + 20
    while len(seen) < len(made) and time.monotonic() < deadline:
        for message in consumer.consume(500, timeout=1):
            assert message.error() is None
            headers = tuple(message.headers() or ())
            seen.append((message.value(), message.key(), headers, message.timestamp()[1], message.offset()))
    consumer.close()
    assert seen == [(r.value, r.key, r.headers, r.timestamp, r.offset) for r in made]


def java_log(path: Path) -> list[Record]:
    """A segment file with a batch of every codec, of every flag, and of other odd kinds."""
    made: list[Record] = []
    with path.open("wb") as file:
        for codec in CODECS:
            part = [Record(r.value, r.key, r.headers, r.timestamp, len(made) + r.offset) for r in sample(100)]
            file.write(encode_batch(part, codec=codec, base_offset=len(made), leader_epoch=1))
            made += part
        part = [Record(os.urandom(200_000), b"large", (), NOW_MS, len(made))]
        for codec in CODECS:
            part = [Record(part[0].value, b"large", (), NOW_MS, len(made))]
            file.write(encode_batch(part, codec=codec, base_offset=len(made), leader_epoch=1))
            made += part
        marker = encode_marker(
            ControlMarker(True, 7),
            producer_id=3,
            producer_epoch=1,
            timestamp_ms=NOW_MS,
            base_offset=len(made),
        )
        file.write(marker)
    return made


@pytest.mark.java
def test_kafkas_log_dumper_reads_our_batches(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    made = java_log(path)
    run = apache_kafka.run_tool(
        "org.apache.kafka.tools.DumpLogSegments",
        ["--files", str(path), "--deep-iteration", "--print-data-log"],
        check=True,
    )
    lines = run.stdout.decode(errors="replace").splitlines()
    found = [line for line in lines if line.startswith("| offset:")]
    assert len(found) == len(made) + 1
    for record, line in zip(made, found, strict=False):
        assert line.startswith(f"| offset: {record.offset} CreateTime: {record.timestamp} ")
        assert f"keySize: {-1 if record.key is None else len(record.key)} " in line
        assert f"valueSize: {-1 if record.value is None else len(record.value)} " in line
        names = (
            json.dumps([name for name, _ in record.headers], ensure_ascii=False)
            .replace('"', "")
            .replace(", ", ",")
        )
        assert f"headerKeys: {names}" in line
    assert "endTxnMarker: COMMIT coordinatorEpoch: 7" in found[-1]
    assert not [line for line in lines if "isvalid: false" in line]
    said = [line for line in run.stderr.splitlines() if not line.startswith(b"Picked up JAVA_TOOL_OPTIONS")]
    assert said == []


def test_what_they_write_is_checked_without_a_copy() -> None:
    builder = CLIENTS["aiokafka"][0].DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for record in sample(10):
        builder.append(record.offset, record.timestamp, record.key, record.value, [])
    data = builder.build()
    checked = check_produced(data, ProduceRules(), 13, NOW_MS)
    assert checked.data.obj is data
    assert isinstance(checked.header, BatchHeader)
    assert len(decode_columns(data)) == 10
