"""Fetch: record batches to read, by consumers and by followers."""

from __future__ import annotations

from uuid import UUID

from millstream.protocol.schema import Request, Response, Struct, since, tagged, until
from millstream.protocol.types import Records, i8, i16, i32, i64


class FetchRequest(Request, key=1, versions=(4, 18), flexible=12):
    """v5 tells the follower's log start, v7 brings sessions (KIP-227), v9 the leader epoch
    (KIP-320), v10 zstd (KIP-110), v11 the rack (KIP-392), v12 is flexible and tells the last
    fetched epoch (KIP-595), v13 names topics by id (KIP-516), v15 moves the replica id into a
    tagged field (KIP-903), v17 adds the follower's directory (KIP-853), v18 its high watermark
    (KIP-1166)."""

    class ReplicaState(Struct):
        replica_id: i32 = -1
        replica_epoch: i64 = -1

    class FetchPartition(Struct):
        partition: i32
        current_leader_epoch: i32 = since(9, -1)
        fetch_offset: i64
        last_fetched_epoch: i32 = since(12, -1)
        log_start_offset: i64 = since(5, -1)
        partition_max_bytes: i32
        replica_directory_id: UUID = tagged(0, since=17)
        high_watermark: i64 = tagged(1, 2**63 - 1, since=18)

    class FetchTopic(Struct):
        topic: str = until(12)
        topic_id: UUID = since(13)
        partitions: list[FetchRequest.FetchPartition]

    class ForgottenTopic(Struct):
        topic: str = until(12)
        topic_id: UUID = since(13)
        partitions: list[i32]

    cluster_id: str | None = tagged(0, since=12)
    replica_id: i32 = until(14, -1)
    replica_state: ReplicaState | None = tagged(1, since=15)
    max_wait_ms: i32
    min_bytes: i32
    max_bytes: i32 = 2**31 - 1
    isolation_level: i8 = 0
    session_id: i32 = since(7)
    session_epoch: i32 = since(7, -1)
    topics: list[FetchTopic]
    forgotten_topics_data: list[ForgottenTopic] = since(7)
    rack_id: str = since(11)


class FetchResponse(Response, to=FetchRequest):
    """v5 adds the log's start, v7 the session and an error for the whole answer, v11 the replica to
    prefer, v12 the epoch from which a follower diverges, v16 the addresses of new leaders
    (KIP-951)."""

    class EpochEndOffset(Struct):
        epoch: i32 = -1
        end_offset: i64 = -1

    class LeaderIdAndEpoch(Struct):
        leader_id: i32 = -1
        leader_epoch: i32 = -1

    class SnapshotId(Struct):
        end_offset: i64 = -1
        epoch: i32 = -1

    class AbortedTransaction(Struct):
        producer_id: i64
        first_offset: i64

    class PartitionData(Struct):
        partition_index: i32
        error_code: i16 = 0
        high_watermark: i64
        last_stable_offset: i64 = -1
        log_start_offset: i64 = since(5, -1)
        diverging_epoch: FetchResponse.EpochEndOffset | None = tagged(0, since=12)
        current_leader: FetchResponse.LeaderIdAndEpoch | None = tagged(1, since=12)
        snapshot_id: FetchResponse.SnapshotId | None = tagged(2, since=12)
        aborted_transactions: list[FetchResponse.AbortedTransaction] | None = None
        preferred_read_replica: i32 = since(11, -1)
        records: Records | None = None

    class FetchableTopicResponse(Struct):
        topic: str = until(12)
        topic_id: UUID = since(13)
        partitions: list[FetchResponse.PartitionData]

    class NodeEndpoint(Struct):
        node_id: i32
        host: str
        port: i32
        rack: str | None = None

    throttle_time_ms: i32 = 0
    error_code: i16 = since(7)
    session_id: i32 = since(7)
    responses: list[FetchableTopicResponse]
    node_endpoints: list[NodeEndpoint] = tagged(0, since=16)
