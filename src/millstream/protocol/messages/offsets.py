"""ListOffsets and OffsetForLeaderEpoch: offsets of a log by time and by leader epoch."""

from __future__ import annotations

from millstream.protocol.schema import Request, Response, Struct, since
from millstream.protocol.types import i8, i16, i32, i64


class ListOffsetsRequest(Request, key=2, versions=(1, 11), flexible=6):
    """The timestamp is a time, -1 for the end or -2 for the start; v7 takes -3 for the largest
    timestamp (KIP-734), v8, v9 and v11 take -4, -5 and -6 for tiered logs (KIP-405, KIP-1005,
    KIP-1023). v2 sees only committed transactions if asked, v4 tells the leader epoch, v6 is
    flexible, v10 has a time-out (KIP-1075)."""

    class ListOffsetsPartition(Struct):
        partition_index: i32
        current_leader_epoch: i32 = since(4, -1)
        timestamp: i64

    class ListOffsetsTopic(Struct):
        name: str
        partitions: list[ListOffsetsRequest.ListOffsetsPartition]

    replica_id: i32
    isolation_level: i8 = since(2)
    topics: list[ListOffsetsTopic]
    timeout_ms: i32 = since(10)


class ListOffsetsResponse(Response, to=ListOffsetsRequest):
    """v4 adds the leader epoch of the offset."""

    class ListOffsetsPartitionResponse(Struct):
        partition_index: i32
        error_code: i16 = 0
        timestamp: i64 = -1
        offset: i64 = -1
        leader_epoch: i32 = since(4, -1)

    class ListOffsetsTopicResponse(Struct):
        name: str
        partitions: list[ListOffsetsResponse.ListOffsetsPartitionResponse]

    throttle_time_ms: i32 = since(2)
    topics: list[ListOffsetsTopicResponse]


class OffsetForLeaderEpochRequest(Request, key=23, versions=(2, 4), flexible=4):
    """v3 tells the replica's id and is open to consumers (KIP-320), v4 is flexible."""

    class OffsetForLeaderPartition(Struct):
        partition: i32
        current_leader_epoch: i32 = -1
        leader_epoch: i32

    class OffsetForLeaderTopic(Struct):
        topic: str
        partitions: list[OffsetForLeaderEpochRequest.OffsetForLeaderPartition]

    replica_id: i32 = since(3, -2)
    topics: list[OffsetForLeaderTopic]


class OffsetForLeaderEpochResponse(Response, to=OffsetForLeaderEpochRequest):
    """The end of an epoch: the first offset that does not belong to it."""

    class EpochEndOffset(Struct):
        error_code: i16 = 0
        partition: i32
        leader_epoch: i32 = -1
        end_offset: i64 = -1

    class OffsetForLeaderTopicResult(Struct):
        topic: str
        partitions: list[OffsetForLeaderEpochResponse.EpochEndOffset]

    throttle_time_ms: i32 = 0
    topics: list[OffsetForLeaderTopicResult]
