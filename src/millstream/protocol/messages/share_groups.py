"""Share groups: membership, and the offsets where they start (KIP-932)."""

from __future__ import annotations

from uuid import UUID

from millstream.protocol.schema import Request, Response, Struct, since
from millstream.protocol.types import i16, i32, i64


class ShareGroupHeartbeatRequest(Request, key=76, versions=(1, 1), flexible=1):
    """Joins (member epoch 0), stays, or leaves (-1). What is null has not changed since the last
    heartbeat."""

    group_id: str
    member_id: str
    member_epoch: i32
    rack_id: str | None = None
    subscribed_topic_names: list[str] | None = None


class ShareGroupHeartbeatResponse(Response, to=ShareGroupHeartbeatRequest):
    """The member's epoch and, if it changed, its assignment."""

    class TopicPartitions(Struct):
        topic_id: UUID
        partitions: list[i32]

    class Assignment(Struct):
        topic_partitions: list[ShareGroupHeartbeatResponse.TopicPartitions]

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: i32
    heartbeat_interval_ms: i32
    assignment: Assignment | None = None


class ShareGroupDescribeRequest(Request, key=77, versions=(1, 1), flexible=1):
    """Which groups to describe."""

    group_ids: list[str]
    include_authorized_operations: bool


class ShareGroupDescribeResponse(Response, to=ShareGroupDescribeRequest):
    """Groups with their members and assignments."""

    class TopicPartitions(Struct):
        topic_id: UUID
        topic_name: str
        partitions: list[i32]

    class Assignment(Struct):
        topic_partitions: list[ShareGroupDescribeResponse.TopicPartitions]

    class Member(Struct):
        member_id: str
        rack_id: str | None = None
        member_epoch: i32
        client_id: str
        client_host: str
        subscribed_topic_names: list[str]
        assignment: ShareGroupDescribeResponse.Assignment

    class DescribedGroup(Struct):
        error_code: i16 = 0
        error_message: str | None = None
        group_id: str
        group_state: str
        group_epoch: i32
        assignment_epoch: i32
        assignor_name: str
        members: list[ShareGroupDescribeResponse.Member]
        authorized_operations: i32 = -(2**31)

    throttle_time_ms: i32 = 0
    groups: list[DescribedGroup]


class DescribeShareGroupOffsetsRequest(Request, key=90, versions=(0, 1), flexible=0):
    """Groups, and topics of theirs or null for all."""

    class DescribeShareGroupOffsetsRequestTopic(Struct):
        topic_name: str
        partitions: list[i32]

    class DescribeShareGroupOffsetsRequestGroup(Struct):
        group_id: str
        topics: list[DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestTopic] | None = None

    groups: list[DescribeShareGroupOffsetsRequestGroup]


class DescribeShareGroupOffsetsResponse(Response, to=DescribeShareGroupOffsetsRequest):
    """Where each share-partition starts; v1 adds its lag (KIP-1226)."""

    class DescribeShareGroupOffsetsResponsePartition(Struct):
        partition_index: i32
        start_offset: i64
        leader_epoch: i32
        lag: i64 = since(1, -1)
        error_code: i16 = 0
        error_message: str | None = None

    class DescribeShareGroupOffsetsResponseTopic(Struct):
        topic_name: str
        topic_id: UUID
        partitions: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition]

    class DescribeShareGroupOffsetsResponseGroup(Struct):
        group_id: str
        topics: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic]
        error_code: i16 = 0
        error_message: str | None = None

    throttle_time_ms: i32 = 0
    groups: list[DescribeShareGroupOffsetsResponseGroup]


class AlterShareGroupOffsetsRequest(Request, key=91, versions=(0, 0), flexible=0):
    """New starts of share-partitions of an empty group."""

    class AlterShareGroupOffsetsRequestPartition(Struct):
        partition_index: i32
        start_offset: i64

    class AlterShareGroupOffsetsRequestTopic(Struct):
        topic_name: str
        partitions: list[AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestPartition]

    group_id: str
    topics: list[AlterShareGroupOffsetsRequestTopic]


class AlterShareGroupOffsetsResponse(Response, to=AlterShareGroupOffsetsRequest):
    """One result for each partition."""

    class AlterShareGroupOffsetsResponsePartition(Struct):
        partition_index: i32
        error_code: i16 = 0
        error_message: str | None = None

    class AlterShareGroupOffsetsResponseTopic(Struct):
        topic_name: str
        topic_id: UUID
        partitions: list[AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition]

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    responses: list[AlterShareGroupOffsetsResponseTopic]


class DeleteShareGroupOffsetsRequest(Request, key=92, versions=(0, 0), flexible=0):
    """Topics that a group shall forget."""

    class DeleteShareGroupOffsetsRequestTopic(Struct):
        topic_name: str

    group_id: str
    topics: list[DeleteShareGroupOffsetsRequestTopic]


class DeleteShareGroupOffsetsResponse(Response, to=DeleteShareGroupOffsetsRequest):
    """One result for each topic."""

    class DeleteShareGroupOffsetsResponseTopic(Struct):
        topic_name: str
        topic_id: UUID
        error_code: i16 = 0
        error_message: str | None = None

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    responses: list[DeleteShareGroupOffsetsResponseTopic]
