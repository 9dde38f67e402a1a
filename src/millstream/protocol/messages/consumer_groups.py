"""Consumer groups of the new protocol, whose assignments the broker computes (KIP-848)."""

from __future__ import annotations

from uuid import UUID

from millstream.protocol.schema import Request, Response, Struct, since
from millstream.protocol.types import i8, i16, i32


class ConsumerGroupHeartbeatRequest(Request, key=68, versions=(0, 1), flexible=0):
    """Joins (member epoch 0), stays, or leaves (-1, static members -2). What is null has not
    changed since the last heartbeat. v1 adds subscriptions by pattern, and member ids made by the
    client (KIP-1082)."""

    class TopicPartitions(Struct):
        topic_id: UUID
        partitions: list[i32]

    group_id: str
    member_id: str
    member_epoch: i32
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: i32 = -1
    subscribed_topic_names: list[str] | None = None
    subscribed_topic_regex: str | None = since(1)
    server_assignor: str | None = None
    topic_partitions: list[TopicPartitions] | None = None


class ConsumerGroupHeartbeatResponse(Response, to=ConsumerGroupHeartbeatRequest):
    """The member's epoch and, if it changed, its assignment."""

    class TopicPartitions(Struct):
        topic_id: UUID
        partitions: list[i32]

    class Assignment(Struct):
        topic_partitions: list[ConsumerGroupHeartbeatResponse.TopicPartitions]

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: i32
    heartbeat_interval_ms: i32
    assignment: Assignment | None = None


class ConsumerGroupDescribeRequest(Request, key=69, versions=(0, 1), flexible=0):
    """Which groups to describe."""

    group_ids: list[str]
    include_authorized_operations: bool


class ConsumerGroupDescribeResponse(Response, to=ConsumerGroupDescribeRequest):
    """Groups, members, and their assignments now and to come; v1 tells classic members from new
    ones (KIP-1099)."""

    class TopicPartitions(Struct):
        topic_id: UUID
        topic_name: str
        partitions: list[i32]

    class Assignment(Struct):
        topic_partitions: list[ConsumerGroupDescribeResponse.TopicPartitions]

    class Member(Struct):
        member_id: str
        instance_id: str | None = None
        rack_id: str | None = None
        member_epoch: i32
        client_id: str
        client_host: str
        subscribed_topic_names: list[str]
        subscribed_topic_regex: str | None = None
        assignment: ConsumerGroupDescribeResponse.Assignment
        target_assignment: ConsumerGroupDescribeResponse.Assignment
        member_type: i8 = since(1, -1)

    class DescribedGroup(Struct):
        error_code: i16 = 0
        error_message: str | None = None
        group_id: str
        group_state: str
        group_epoch: i32
        assignment_epoch: i32
        assignor_name: str
        members: list[ConsumerGroupDescribeResponse.Member]
        authorized_operations: i32 = -(2**31)

    throttle_time_ms: i32 = 0
    groups: list[DescribedGroup]
