"""Offsets that groups commit."""

from __future__ import annotations

from uuid import UUID

from millstream.protocol.schema import Request, Response, Struct, since, until
from millstream.protocol.types import i16, i32, i64


class OffsetCommitRequest(Request, key=8, versions=(2, 10), flexible=8):
    """v5 drops the retention time, v6 adds the leader epoch (KIP-320), v7 knows static members
    (KIP-345), v8 is flexible, v9 takes the member epochs of the new protocol (KIP-848), v10 names
    topics by id."""

    class OffsetCommitRequestPartition(Struct):
        partition_index: i32
        committed_offset: i64
        committed_leader_epoch: i32 = since(6, -1)
        committed_metadata: str | None = None

    class OffsetCommitRequestTopic(Struct):
        name: str = until(9)
        topic_id: UUID = since(10)
        partitions: list[OffsetCommitRequest.OffsetCommitRequestPartition]

    group_id: str
    generation_id_or_member_epoch: i32 = -1
    member_id: str
    retention_time_ms: i64 = until(4, -1)
    group_instance_id: str | None = since(7)
    topics: list[OffsetCommitRequestTopic]


class OffsetCommitResponse(Response, to=OffsetCommitRequest):
    """v3 adds throttling, v10 names topics by id."""

    class OffsetCommitResponsePartition(Struct):
        partition_index: i32
        error_code: i16 = 0

    class OffsetCommitResponseTopic(Struct):
        name: str = until(9)
        topic_id: UUID = since(10)
        partitions: list[OffsetCommitResponse.OffsetCommitResponsePartition]

    throttle_time_ms: i32 = since(3)
    topics: list[OffsetCommitResponseTopic]


class OffsetFetchRequest(Request, key=9, versions=(1, 10), flexible=6):
    """v2 takes null for all topics, v6 is flexible, v7 may insist on stable offsets (KIP-447), v8
    asks for many groups (KIP-709), v9 checks the member's epoch (KIP-848), v10 names topics by id."""

    class OffsetFetchRequestTopic(Struct):
        name: str
        partition_indexes: list[i32]

    class OffsetFetchRequestTopics(Struct):
        name: str = until(9)
        topic_id: UUID = since(10)
        partition_indexes: list[i32]

    class OffsetFetchRequestGroup(Struct):
        group_id: str
        member_id: str | None = since(9)
        member_epoch: i32 = since(9, -1)
        topics: list[OffsetFetchRequest.OffsetFetchRequestTopics] | None = None

    group_id: str = until(7)
    topics: list[OffsetFetchRequestTopic] | None = until(7, null_since=2)
    groups: list[OffsetFetchRequestGroup] = since(8)
    require_stable: bool = since(7)


class OffsetFetchResponse(Response, to=OffsetFetchRequest):
    """v2 adds an error for the whole group, v3 throttling, v5 the leader epoch (KIP-320), v8
    answers for many groups (KIP-709), v10 names topics by id."""

    class OffsetFetchResponsePartition(Struct):
        partition_index: i32
        committed_offset: i64
        committed_leader_epoch: i32 = since(5, -1)
        metadata: str | None = None
        error_code: i16 = 0

    class OffsetFetchResponseTopic(Struct):
        name: str
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartition]

    class OffsetFetchResponsePartitions(Struct):
        partition_index: i32
        committed_offset: i64
        committed_leader_epoch: i32 = -1
        metadata: str | None = None
        error_code: i16 = 0

    class OffsetFetchResponseTopics(Struct):
        name: str = until(9)
        topic_id: UUID = since(10)
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartitions]

    class OffsetFetchResponseGroup(Struct):
        group_id: str
        topics: list[OffsetFetchResponse.OffsetFetchResponseTopics]
        error_code: i16 = 0

    throttle_time_ms: i32 = since(3)
    topics: list[OffsetFetchResponseTopic] = until(7)
    error_code: i16 = since(2, 0, until=7)
    groups: list[OffsetFetchResponseGroup] = since(8)


class OffsetDeleteRequest(Request, key=47, versions=(0, 0), flexible=None):
    """Committed offsets of a group are to go (KIP-496). It never became flexible."""

    class OffsetDeleteRequestPartition(Struct):
        partition_index: i32

    class OffsetDeleteRequestTopic(Struct):
        name: str
        partitions: list[OffsetDeleteRequest.OffsetDeleteRequestPartition]

    group_id: str
    topics: list[OffsetDeleteRequestTopic]


class OffsetDeleteResponse(Response, to=OffsetDeleteRequest):
    """One result for each partition, or one error for all."""

    class OffsetDeleteResponsePartition(Struct):
        partition_index: i32
        error_code: i16 = 0

    class OffsetDeleteResponseTopic(Struct):
        name: str
        partitions: list[OffsetDeleteResponse.OffsetDeleteResponsePartition]

    error_code: i16 = 0
    throttle_time_ms: i32 = 0
    topics: list[OffsetDeleteResponseTopic]
