"""Produce: record batches to append."""

from __future__ import annotations

from uuid import UUID

from millstream.protocol.schema import Request, Response, Struct, since, tagged, until
from millstream.protocol.types import Records, i16, i32, i64


class ProduceRequest(Request, key=0, versions=(3, 13), flexible=9, advertised=(0, 13)):
    """v3 takes record batches v2 and transactions, v7 zstd (KIP-110), v9 is flexible, v11 knows
    TRANSACTION_ABORTABLE and v12 adds partitions to a transaction by itself (KIP-890), v13 names
    topics by id (KIP-516). Versions 0 to 2 are advertised but not served: old librdkafka compresses
    only if it sees them."""

    class PartitionProduceData(Struct):
        index: i32
        records: Records | None = None

    class TopicProduceData(Struct):
        name: str = until(12)
        topic_id: UUID = since(13)
        partition_data: list[ProduceRequest.PartitionProduceData]

    transactional_id: str | None = None
    acks: i16
    timeout_ms: i32
    topic_data: list[TopicProduceData]


class ProduceResponse(Response, to=ProduceRequest):
    """v5 adds the log's start, v8 which records were wrong (KIP-467), v10 the new leader and its
    address (KIP-951)."""

    class BatchIndexAndErrorMessage(Struct):
        batch_index: i32
        batch_index_error_message: str | None = None

    class LeaderIdAndEpoch(Struct):
        leader_id: i32 = -1
        leader_epoch: i32 = -1

    class PartitionProduceResponse(Struct):
        index: i32
        error_code: i16 = 0
        base_offset: i64
        log_append_time_ms: i64 = -1
        log_start_offset: i64 = since(5, -1)
        record_errors: list[ProduceResponse.BatchIndexAndErrorMessage] = since(8)
        error_message: str | None = since(8)
        current_leader: ProduceResponse.LeaderIdAndEpoch | None = tagged(0, since=10)

    class TopicProduceResponse(Struct):
        name: str = until(12)
        topic_id: UUID = since(13)
        partition_responses: list[ProduceResponse.PartitionProduceResponse]

    class NodeEndpoint(Struct):
        node_id: i32
        host: str
        port: i32
        rack: str | None = None

    responses: list[TopicProduceResponse]
    throttle_time_ms: i32 = 0
    node_endpoints: list[NodeEndpoint] = tagged(0, since=10)
