"""Frames that no honest client sends: valid ones mutated, and noise, all from one seed; valid ones that ask
for far more than they say."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from uuid import UUID

from millstream.protocol.codegen import uvarint
from millstream.protocol.frame import frame_request
from millstream.protocol.messages import (
    REQUESTS,
    AddPartitionsToTxnRequest,
    ApiVersionsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeProducersRequest,
    ElectLeadersRequest,
    FetchRequest,
    IncrementalAlterConfigsRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    ListPartitionReassignmentsRequest,
    MetadataRequest,
    OffsetFetchRequest,
    WriteTxnMarkersRequest,
)
from millstream.protocol.schema import Request
from tests.wire import batch, fetch_partition, fetch_request, produce_request

EDGES = (0, 1, -1, 127, 128, 255, 32767, -32768, 65535, 2**31 - 1, -(2**31), 2**32 - 1, 2**63 - 1, -(2**63))


def honest_requests(topic: str, topic_id: UUID) -> list[Request]:
    """Requests as clients send them, one or two of each kind that has something inside."""
    creatable = CreateTopicsRequest.CreatableTopic(
        name="hostile",
        num_partitions=1,
        replication_factor=1,
        configs=[CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value="1000")],
    )
    resource = DescribeConfigsRequest.DescribeConfigsResource(resource_type=2, resource_name=topic)
    change = IncrementalAlterConfigsRequest.AlterableConfig(
        name="retention.ms", config_operation=0, value="1"
    )
    alter = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=2, resource_name=topic, configs=[change]
    )
    grow = CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=2)
    return [
        ApiVersionsRequest(client_software_name="hostile", client_software_version="1"),
        MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)]),
        produce_request(topic, batch([b"value"] * 20)),
        produce_request(topic, batch([b"value" * 20] * 20, codec=1)),
        produce_request(topic, batch([b"value" * 20] * 20, codec=4), acks=1),
        produce_request(topic_id, batch([b"value"])),
        fetch_request({topic: [fetch_partition(0)]}, max_wait_ms=5),
        fetch_request({topic_id: [fetch_partition(0)]}, max_wait_ms=5),
        CreateTopicsRequest(topics=[creatable], validate_only=True),
        CreatePartitionsRequest(topics=[grow], timeout_ms=1000, validate_only=True),
        DeleteTopicsRequest(topic_names=["none-such"], timeout_ms=1000),
        DescribeConfigsRequest(resources=[resource]),
        IncrementalAlterConfigsRequest(resources=[alter], validate_only=True),
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000),
        *(kind() for kind in REQUESTS.values()),
    ]


class HostileFrames:
    """An endless supply of frames, sizes included; the same ones for the same seed."""

    def __init__(self, seed: int, topic: str, topic_id: UUID) -> None:
        self._random = random.Random(seed)
        self._honest: list[bytes] = []
        for number, request in enumerate(honest_requests(topic, topic_id)):
            lowest, highest = request.versions
            for version in {lowest, (lowest + highest) // 2, highest}:
                try:
                    self._honest.append(b"".join(frame_request(number, "hostile", request, version)))
                except (AttributeError, TypeError, struct.error):
                    continue  # the topic is named by what this version lacks

    def __iter__(self) -> Iterator[bytes]:
        while True:
            yield self._frame()

    def _frame(self) -> bytes:
        chance = self._random.random()
        if chance < 0.1:
            return self._noise()
        if chance < 0.15:
            return struct.pack(">i", self._random.choice(EDGES) & 0x7FFFFFFF) + self._random.randbytes(30)
        body = bytearray(self._random.choice(self._honest)[4:])
        for _ in range(self._random.choice((0, 1, 1, 1, 2, 4))):
            self._mutate(body)
        return struct.pack(">i", len(body)) + bytes(body)

    def _noise(self) -> bytes:
        body = self._random.randbytes(self._random.randint(0, 300))
        if self._random.random() < 0.7:
            # a header that leads somewhere
            key, version = self._random.choice(sorted(REQUESTS)), self._random.randint(0, 15)
            body = struct.pack(">hhih", key, version, 1, -1) + body
        return struct.pack(">i", len(body)) + body

    def _mutate(self, body: bytearray) -> None:
        pick = self._random
        where = pick.randrange(len(body)) if body else 0
        kind = pick.randrange(6)
        if kind == 0 and body:
            body[where] ^= 1 << pick.randrange(8)
        elif kind == 1 and body:
            body[where] = pick.randrange(256)
        elif kind == 2:
            del body[where : where + pick.randint(1, 20)]
        elif kind == 3:
            body[where:where] = pick.randbytes(pick.randint(1, 20))
        elif kind == 4:
            width, layout = pick.choice(((2, ">H"), (4, ">I"), (8, ">Q")))
            body[where : where + width] = struct.pack(layout, pick.choice(EDGES) & (2 ** (8 * width) - 1))
        else:
            other = pick.choice(self._honest)
            body[where:] = other[pick.randrange(len(other)) :]


def swollen_requests(wide: str, wide_id: UUID) -> Iterator[tuple[str, Request, int]]:
    """Valid requests, and their versions, that name the same thing, or things that are not there, again and
    again. `wide` is a topic of very many partitions."""
    resource = DescribeConfigsRequest.DescribeConfigsResource
    broker = resource(resource_type=4, resource_name="1", configuration_keys=None)
    groups = [
        resource(resource_type=32, resource_name=f"{n}", configuration_keys=None) for n in range(100_000)
    ]
    for name, resources in (("the configs of a broker", [broker] * 2000), ("the configs of groups", groups)):
        request = DescribeConfigsRequest(
            resources=resources, include_synonyms=True, include_documentation=True
        )
        yield name, request, 3
    named = MetadataRequest.MetadataRequestTopic
    yield "a wide topic by name", MetadataRequest(topics=[named(name=wide)] * 1000), 1
    yield "a wide topic by id", MetadataRequest(topics=[named(name=None, topic_id=wide_id)] * 1000), 12
    for count in (130_000, 312_500):
        partitions = [
            FetchRequest.FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1)
            for n in range(count)
        ]
        topic = FetchRequest.FetchTopic(topic="none-such", partitions=partitions)
        yield f"a fetch of {count} partitions", FetchRequest(max_wait_ms=0, min_bytes=0, topics=[topic]), 4
    listed = [ListOffsetsRequest.ListOffsetsPartition(partition_index=n, timestamp=0) for n in range(130_000)]
    offsets = ListOffsetsRequest.ListOffsetsTopic(name="none-such", partitions=listed)
    yield "offsets of 130,000 partitions", ListOffsetsRequest(replica_id=-1, topics=[offsets]), 1
    creatable = [
        CreateTopicsRequest.CreatableTopic(name=f"t{n}", num_partitions=10_000, replication_factor=1)
        for n in range(200)
    ]
    yield "wide topics", CreateTopicsRequest(topics=creatable, timeout_ms=1000, validate_only=True), 7
    indexes = list(range(500_000))
    positions = OffsetFetchRequest.OffsetFetchRequestTopic(name=wide, partition_indexes=indexes)
    yield "positions in 500,000 partitions", OffsetFetchRequest(group_id="g", topics=[positions]), 5
    added = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=wide, partitions=indexes)
    transaction = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[added],
    )
    yield "a transaction of 500,000 partitions", transaction, 3
    marked = WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=wide, partition_indexes=[0] * 500_000)
    marker = WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=1, producer_epoch=0, transaction_result=True, topics=[marked], coordinator_epoch=0
    )
    yield "a marker for one partition", WriteTxnMarkersRequest(markers=[marker]), 1
    elected = ElectLeadersRequest.TopicPartitions(topic=wide, partitions=indexes)
    for version in (0, 2):
        yield (
            f"elections v{version}",
            ElectLeadersRequest(topic_partitions=[elected], timeout_ms=1000),
            version,
        )
    moving = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics(
        name=wide, partition_indexes=indexes
    )
    yield "reassignments", ListPartitionReassignmentsRequest(topics=[moving], timeout_ms=1000), 0
    described = DescribeProducersRequest.TopicRequest(name=wide, partition_indexes=indexes)
    yield "producers", DescribeProducersRequest(topics=[described]), 0


def swollen_frames(wide: str, wide_id: UUID) -> Iterator[tuple[str, bytes]]:
    """The same as frames without their sizes, and frames that are nearly all tagged fields."""
    for name, request, version in swollen_requests(wide, wide_id):
        yield name, b"".join(frame_request(1, "swollen", request, version))[4:]
    header = struct.pack(">hhih", MetadataRequest.key, 12, 1, -1)
    tags = uvarint(5_000_000) + b"\x7f\x00" * 5_000_000
    body = b"\x01\x01\x00"  # no topics
    yield "tagged fields of the header", header + tags + body + b"\x00"
    yield "tagged fields of the body", header + b"\x00" + body + tags
