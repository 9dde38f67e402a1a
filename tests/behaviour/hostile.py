"""Frames that no honest client sends: valid ones mutated, and noise. All from one seed."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from uuid import UUID

from millstream.protocol.frame import frame_request
from millstream.protocol.messages import (
    REQUESTS,
    ApiVersionsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    InitProducerIdRequest,
    MetadataRequest,
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
