"""A blocking connection that speaks the protocol one frame at a time and does nothing by itself."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from millstream.protocol.batch import decode_records, encode_batch, read_header
from millstream.protocol.frame import frame_request, read_correlation_id, read_response
from millstream.protocol.messages import (
    CreateTopicsRequest,
    FetchRequest,
    FetchResponse,
    InitProducerIdRequest,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    ProduceRequest,
    ProduceResponse,
)
from millstream.protocol.record import Record
from millstream.protocol.schema import Request, Response
from millstream.protocol.types import Buffer

TIMEOUT_S = 20.0
RETRIABLE = {3, 5, 6}
"""UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER: a topic that is still coming."""


class Closed(ConnectionError):
    """The broker ended the connection."""


class Wire:
    """One connection. `send` and `receive` can be used apart, to have several requests under way."""

    def __init__(self, address: str, *, client_id: str | None = "wire", timeout_s: float = TIMEOUT_S) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.client_id = client_id
        self._correlation_id = 0
        self._expected: dict[int, tuple[type[Response], int]] = {}
        self._received = bytearray()

    def frame(self, request: Request, version: int | None = None) -> bytes:
        """The bytes of a request; its answer will be understood."""
        at = request.versions[1] if version is None else version
        self._correlation_id += 1
        self._expected[self._correlation_id] = (request.response, at)
        return b"".join(frame_request(self._correlation_id, self.client_id, request, at))

    def send(self, request: Request, version: int | None = None) -> int:
        """Send without waiting; the correlation id."""
        self.socket.sendall(self.frame(request, version))
        return self._correlation_id

    def send_frame(self, body: bytes) -> None:
        """Send bytes as they are, with their size before them."""
        self.socket.sendall(struct.pack(">i", len(body)) + body)

    def _read(self, size: int) -> bytes:
        while len(self._received) < size:
            try:
                data = self.socket.recv(1 << 20)
            except (ConnectionResetError, BrokenPipeError) as failure:
                raise Closed(str(failure)) from None
            if not data:
                raise Closed("end of stream")
            self._received += data
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    def receive_frame(self) -> bytes:
        """The next answer's bytes, without their size."""
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)

    def receive(self) -> tuple[int, Any]:
        """The next answer and the request it belongs to."""
        frame = self.receive_frame()
        correlation_id = read_correlation_id(frame)
        kind, version = self._expected.pop(correlation_id)
        return correlation_id, read_response(frame, kind, version)

    def ask(self, request: Request, version: int | None = None) -> Any:
        """Send and wait for the answer, which must be the next to come."""
        sent = self.send(request, version)
        correlation_id, answer = self.receive()
        assert correlation_id == sent
        return answer

    def is_closed_by_broker(self, within_s: float = TIMEOUT_S) -> bool:
        """Whether the broker ends the connection in time; bytes that come before are dropped."""
        deadline = time.monotonic() + within_s
        while (left := deadline - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                if not self.socket.recv(1 << 20):
                    return True
            except (ConnectionResetError, BrokenPipeError):
                return True
            except TimeoutError:
                return False
        return False

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def create_topic(wire: Wire, name: str, partitions: int = 1, **config: str) -> UUID:
    """Make a topic, wait until each partition is led and served; its id."""
    entry = CreateTopicsRequest.CreatableTopicConfig
    configs = [entry(name=key.replace("_", "."), value=value) for key, value in config.items()]
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, configs=configs
    )
    (created,) = wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000)).topics
    assert created.error_code == 0, created
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        wanted = MetadataRequest.MetadataRequestTopic(name=name)
        (found,) = wire.ask(MetadataRequest(topics=[wanted], allow_auto_topic_creation=False)).topics
        codes = [found.error_code, *(partition.error_code for partition in found.partitions)]
        if not any(codes) and len(found.partitions) == partitions:
            codes = [place.error_code for place in list_offsets(wire, name, range(partitions))]
        if not any(codes) and len(codes) == partitions:
            topic_id: UUID = found.topic_id
            return topic_id
        assert set(codes) <= {0, *RETRIABLE}, codes
    raise TimeoutError(f"topic {name} did not come up")


def batch(values: Iterable[bytes | Record], **settings: Any) -> bytearray:
    """A batch of values (or whole records), stamped now."""
    now_ms = int(time.time() * 1000)
    records = [v if isinstance(v, Record) else Record(value=v, timestamp=now_ms) for v in values]
    return encode_batch(records, **settings)


def produce_request(
    topic: str | UUID,
    data: bytes | bytearray | None,
    *,
    partition: int = 0,
    acks: int = -1,
    timeout_ms: int = 10_000,
) -> ProduceRequest:
    """One batch for one partition, by name (up to version 12) or by id (from 13 on)."""
    place = ProduceRequest.PartitionProduceData(index=partition, records=data)
    named = {"topic_id": topic} if isinstance(topic, UUID) else {"name": topic}
    entry = ProduceRequest.TopicProduceData(partition_data=[place], **named)
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[entry])


def produced(answer: ProduceResponse) -> ProduceResponse.PartitionProduceResponse:
    """The only partition of an answer."""
    (topic,) = answer.responses
    (partition,) = topic.partition_responses
    return partition


def produce(
    wire: Wire, topic: str | UUID, data: bytes | bytearray, *, partition: int = 0, acks: int = -1
) -> ProduceResponse.PartitionProduceResponse:
    """Append one batch; the partition's answer, whatever it says."""
    version = 13 if isinstance(topic, UUID) else 12
    return produced(wire.ask(produce_request(topic, data, partition=partition, acks=acks), version))


def append(wire: Wire, topic: str, *values: bytes, **settings: Any) -> int:
    """Append one batch of values, successfully; its base offset."""
    answer = produce(wire, topic, batch(values, **settings))
    assert answer.error_code == 0, answer
    offset: int = answer.base_offset
    return offset


def fetch_partition(
    offset: int, *, partition: int = 0, max_bytes: int = 1 << 20, leader_epoch: int = -1
) -> FetchRequest.FetchPartition:
    return FetchRequest.FetchPartition(
        partition=partition,
        fetch_offset=offset,
        partition_max_bytes=max_bytes,
        current_leader_epoch=leader_epoch,
    )


def fetch_request(
    places: Mapping[Any, Sequence[FetchRequest.FetchPartition]],
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 0,
    max_bytes: int = 50 << 20,
    **fields: Any,
) -> FetchRequest:
    """A fetch of partitions by topic name or id."""
    topics = [
        FetchRequest.FetchTopic(
            partitions=list(wanted), **({"topic_id": topic} if isinstance(topic, UUID) else {"topic": topic})
        )
        for topic, wanted in places.items()
    ]
    return FetchRequest(
        topics=topics, max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=max_bytes, **fields
    )


def fetched(answer: FetchResponse) -> FetchResponse.PartitionData:
    """The only partition of an answer."""
    assert answer.error_code == 0, answer
    (topic,) = answer.responses
    (partition,) = topic.partitions
    return partition


def fetch(
    wire: Wire, topic: str, offset: int, version: int = 12, **settings: Any
) -> FetchResponse.PartitionData:
    """Read one partition from an offset on, without waiting."""
    max_bytes = settings.pop("partition_max_bytes", 1 << 20)
    place = fetch_partition(offset, partition=settings.pop("partition", 0), max_bytes=max_bytes)
    return fetched(wire.ask(fetch_request({topic: [place]}, **settings), version))


def batches(data: Buffer | None) -> list[bytes]:
    """The whole batches in fetched bytes; a torn last one is left out."""
    found: list[bytes] = []
    view = bytes(data or b"")
    position = 0
    while position + 61 <= len(view):
        size = 12 + struct.unpack_from(">i", view, position + 8)[0]
        if position + size > len(view):
            break
        found.append(view[position : position + size])
        position += size
    return found


def base_offsets(data: Buffer | None) -> list[int]:
    return [read_header(one).base_offset for one in batches(data)]


def values(data: Buffer | None) -> list[bytes | None]:
    """The values of all records in fetched bytes."""
    return [record.value for one in batches(data) for record in decode_records(one)]


def end_offset(wire: Wire, topic: str, timestamp: int = -1, partition: int = 0) -> int:
    """ListOffsets: -1 for the end, -2 for the start."""
    (found,) = list_offsets(wire, topic, [partition], timestamp=timestamp)
    assert found.error_code == 0, found
    offset: int = found.offset
    return offset


def list_offsets(
    wire: Wire, topic: str, partitions: Iterable[int] = (0,), *, timestamp: int = -1, leader_epoch: int = -1
) -> list[ListOffsetsResponse.ListOffsetsPartitionResponse]:
    """What ListOffsets says of some partitions of a topic."""
    wanted = ListOffsetsRequest.ListOffsetsPartition
    places = [
        wanted(partition_index=number, timestamp=timestamp, current_leader_epoch=leader_epoch)
        for number in partitions
    ]
    entry = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=places)
    (found,) = wire.ask(ListOffsetsRequest(replica_id=-1, topics=[entry])).topics
    answers: list[ListOffsetsResponse.ListOffsetsPartitionResponse] = found.partitions
    return answers


def new_producer(wire: Wire) -> tuple[int, int]:
    """A producer id and its epoch."""
    answer = wire.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000))
    assert answer.error_code == 0, answer
    return answer.producer_id, answer.producer_epoch
