"""Producer ids, and the producers that a partition remembers."""

from __future__ import annotations

from millstream.protocol.schema import Request, Response, Struct, since
from millstream.protocol.types import i16, i32, i64


class InitProducerIdRequest(Request, key=22, versions=(0, 5), flexible=2):
    """v2 is flexible, v3 lets a producer ask for a new epoch of the id it has (KIP-360), v4 knows
    PRODUCER_FENCED, v5 TRANSACTION_ABORTABLE (KIP-890)."""

    transactional_id: str | None = None
    transaction_timeout_ms: i32
    producer_id: i64 = since(3, -1)
    producer_epoch: i16 = since(3, -1)


class InitProducerIdResponse(Response, to=InitProducerIdRequest):
    """The producer's id and epoch."""

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    producer_id: i64 = -1
    producer_epoch: i16


class DescribeProducersRequest(Request, key=61, versions=(0, 0), flexible=0):
    """Which producers a partition's leader remembers (KIP-664)."""

    class TopicRequest(Struct):
        name: str
        partition_indexes: list[i32]

    topics: list[TopicRequest]


class DescribeProducersResponse(Response, to=DescribeProducersRequest):
    """Producers with their last sequence and open transaction."""

    class ProducerState(Struct):
        producer_id: i64
        producer_epoch: i32
        last_sequence: i32 = -1
        last_timestamp: i64 = -1
        coordinator_epoch: i32
        current_txn_start_offset: i64 = -1

    class PartitionResponse(Struct):
        partition_index: i32
        error_code: i16 = 0
        error_message: str | None = None
        active_producers: list[DescribeProducersResponse.ProducerState]

    class TopicResponse(Struct):
        name: str
        partitions: list[DescribeProducersResponse.PartitionResponse]

    throttle_time_ms: i32 = 0
    topics: list[TopicResponse]
