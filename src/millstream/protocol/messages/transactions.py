"""Transactions: the producer's steps, the coordinator's markers, and what admins ask."""

from __future__ import annotations

from millstream.protocol.schema import Request, Response, Struct, optional, since, until
from millstream.protocol.types import i8, i16, i32, i64


class AddPartitionsToTxnRequest(Request, key=24, versions=(0, 5), flexible=3):
    """v3 is flexible. v4 is spoken between brokers: it takes many transactions and may only verify
    them (KIP-890)."""

    class AddPartitionsToTxnTopic(Struct):
        name: str
        partitions: list[i32]

    class AddPartitionsToTxnTransaction(Struct):
        transactional_id: str
        producer_id: i64
        producer_epoch: i16
        verify_only: bool = False
        topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]

    v3_and_below_transactional_id: str = until(3)
    v3_and_below_producer_id: i64 = until(3)
    v3_and_below_producer_epoch: i16 = until(3)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = until(3)
    transactions: list[AddPartitionsToTxnTransaction] = since(4)


class AddPartitionsToTxnResponse(Response, to=AddPartitionsToTxnRequest):
    """v4 has one result for each transaction (KIP-890)."""

    class AddPartitionsToTxnPartitionResult(Struct):
        partition_index: i32
        partition_error_code: i16 = 0

    class AddPartitionsToTxnTopicResult(Struct):
        name: str
        results_by_partition: list[AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult]

    class AddPartitionsToTxnResult(Struct):
        transactional_id: str
        topic_results: list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult]

    throttle_time_ms: i32 = 0
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = until(3)
    error_code: i16 = since(4)
    results_by_transaction: list[AddPartitionsToTxnResult] = since(4)


class AddOffsetsToTxnRequest(Request, key=25, versions=(0, 4), flexible=3):
    """v3 is flexible, v4 knows TRANSACTION_ABORTABLE (KIP-890)."""

    transactional_id: str
    producer_id: i64
    producer_epoch: i16
    group_id: str


class AddOffsetsToTxnResponse(Response, to=AddOffsetsToTxnRequest):
    """Whether the group's partition of the offsets topic is part of the transaction now."""

    throttle_time_ms: i32 = 0
    error_code: i16 = 0


class TxnOffsetCommitRequest(Request, key=28, versions=(0, 5), flexible=3):
    """v2 adds the leader epoch (KIP-320), v3 is flexible and tells the member and its generation
    (KIP-447), v5 adds the group to the transaction by itself (KIP-890)."""

    class TxnOffsetCommitRequestPartition(Struct):
        partition_index: i32
        committed_offset: i64
        committed_leader_epoch: i32 = since(2, -1)
        committed_metadata: str | None = None

    class TxnOffsetCommitRequestTopic(Struct):
        name: str
        partitions: list[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition]

    transactional_id: str
    group_id: str
    producer_id: i64
    producer_epoch: i16
    generation_id: i32 = since(3, -1)
    member_id: str = since(3)
    group_instance_id: str | None = since(3)
    topics: list[TxnOffsetCommitRequestTopic]


class TxnOffsetCommitResponse(Response, to=TxnOffsetCommitRequest):
    """One result for each partition."""

    class TxnOffsetCommitResponsePartition(Struct):
        partition_index: i32
        error_code: i16 = 0

    class TxnOffsetCommitResponseTopic(Struct):
        name: str
        partitions: list[TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition]

    throttle_time_ms: i32 = 0
    topics: list[TxnOffsetCommitResponseTopic]


class EndTxnRequest(Request, key=26, versions=(0, 5), flexible=3):
    """v3 is flexible, v5 makes the coordinator raise the producer's epoch (KIP-890)."""

    transactional_id: str
    producer_id: i64
    producer_epoch: i16
    committed: bool


class EndTxnResponse(Response, to=EndTxnRequest):
    """v5 adds the producer's new id and epoch (KIP-890)."""

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    producer_id: i64 = since(5, -1)
    producer_epoch: i16 = since(5, -1)


class WriteTxnMarkersRequest(Request, key=27, versions=(1, 2), flexible=1):
    """What a transaction's coordinator, or an admin, has leaders write (KIP-98); v1 is flexible, v2
    tells the version of the transaction (KIP-1228)."""

    class WritableTxnMarkerTopic(Struct):
        name: str
        partition_indexes: list[i32]

    class WritableTxnMarker(Struct):
        producer_id: i64
        producer_epoch: i16
        transaction_result: bool
        topics: list[WriteTxnMarkersRequest.WritableTxnMarkerTopic]
        coordinator_epoch: i32
        transaction_version: i8 = since(2)

    markers: list[WritableTxnMarker]


class WriteTxnMarkersResponse(Response, to=WriteTxnMarkersRequest):
    """One result for each partition of each marker."""

    class WritableTxnMarkerPartitionResult(Struct):
        partition_index: i32
        error_code: i16 = 0

    class WritableTxnMarkerTopicResult(Struct):
        name: str
        partitions: list[WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult]

    class WritableTxnMarkerResult(Struct):
        producer_id: i64
        topics: list[WriteTxnMarkersResponse.WritableTxnMarkerTopicResult]

    markers: list[WritableTxnMarkerResult]


class DescribeTransactionsRequest(Request, key=65, versions=(0, 0), flexible=0):
    """Transactions by their ids (KIP-664)."""

    transactional_ids: list[str]


class DescribeTransactionsResponse(Response, to=DescribeTransactionsRequest):
    """The state, age and partitions of each transaction."""

    class TopicData(Struct):
        topic: str
        partitions: list[i32]

    class TransactionState(Struct):
        error_code: i16 = 0
        transactional_id: str
        transaction_state: str
        transaction_timeout_ms: i32
        transaction_start_time_ms: i64
        producer_id: i64
        producer_epoch: i16
        topics: list[DescribeTransactionsResponse.TopicData]

    throttle_time_ms: i32 = 0
    transaction_states: list[TransactionState]


class ListTransactionsRequest(Request, key=66, versions=(0, 2), flexible=0):
    """v1 filters by duration (KIP-994), v2 by a pattern of ids (KIP-1152)."""

    state_filters: list[str] = optional()
    producer_id_filters: list[i64] = optional()
    duration_filter: i64 = since(1, -1)
    transactional_id_pattern: str | None = since(2)


class ListTransactionsResponse(Response, to=ListTransactionsRequest):
    """Transactions that pass the filters, and the filters that nobody knows."""

    class TransactionState(Struct):
        transactional_id: str
        producer_id: i64
        transaction_state: str

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    unknown_state_filters: list[str] = optional()
    transaction_states: list[TransactionState]
