"""Records that share groups acquire and acknowledge one by one (KIP-932)."""

from __future__ import annotations

from uuid import UUID

from millstream.protocol.schema import Request, Response, Struct, optional, since
from millstream.protocol.types import Records, i8, i16, i32, i64


class ShareFetchRequest(Request, key=78, versions=(1, 2), flexible=1):
    """Fetches, and acknowledges what was fetched before; v2 may ask for exactly so many records
    (KIP-1206) and renew the locks of acquired ones (KIP-1222)."""

    class AcknowledgementBatch(Struct):
        first_offset: i64
        last_offset: i64
        acknowledge_types: list[i8]

    class FetchPartition(Struct):
        partition_index: i32
        acknowledgement_batches: list[ShareFetchRequest.AcknowledgementBatch] = optional()

    class FetchTopic(Struct):
        topic_id: UUID
        partitions: list[ShareFetchRequest.FetchPartition]

    class ForgottenTopic(Struct):
        topic_id: UUID
        partitions: list[i32]

    group_id: str | None = None
    member_id: str | None = None
    share_session_epoch: i32
    max_wait_ms: i32
    min_bytes: i32
    max_bytes: i32 = 2**31 - 1
    max_records: i32
    batch_size: i32
    share_acquire_mode: i8 = since(2)
    is_renew_ack: bool = since(2)
    topics: list[FetchTopic]
    forgotten_topics_data: list[ForgottenTopic] = optional()


class ShareFetchResponse(Response, to=ShareFetchRequest):
    """Records, and which of them the member has acquired."""

    class LeaderIdAndEpoch(Struct):
        leader_id: i32
        leader_epoch: i32

    class AcquiredRecords(Struct):
        first_offset: i64
        last_offset: i64
        delivery_count: i16

    class PartitionData(Struct):
        partition_index: i32
        error_code: i16 = 0
        error_message: str | None = None
        acknowledge_error_code: i16 = 0
        acknowledge_error_message: str | None = None
        current_leader: ShareFetchResponse.LeaderIdAndEpoch
        records: Records = b""
        acquired_records: list[ShareFetchResponse.AcquiredRecords]

    class ShareFetchableTopicResponse(Struct):
        topic_id: UUID
        partitions: list[ShareFetchResponse.PartitionData]

    class NodeEndpoint(Struct):
        node_id: i32
        host: str
        port: i32
        rack: str | None = None

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: i32
    responses: list[ShareFetchableTopicResponse]
    node_endpoints: list[NodeEndpoint] = optional()


class ShareAcknowledgeRequest(Request, key=79, versions=(1, 2), flexible=1):
    """Acknowledgement types: 0 gap, 1 accept, 2 release, 3 reject; v2 adds 4, renew (KIP-1222)."""

    class AcknowledgementBatch(Struct):
        first_offset: i64
        last_offset: i64
        acknowledge_types: list[i8]

    class AcknowledgePartition(Struct):
        partition_index: i32
        acknowledgement_batches: list[ShareAcknowledgeRequest.AcknowledgementBatch]

    class AcknowledgeTopic(Struct):
        topic_id: UUID
        partitions: list[ShareAcknowledgeRequest.AcknowledgePartition]

    group_id: str | None = None
    member_id: str | None = None
    share_session_epoch: i32
    is_renew_ack: bool = since(2)
    topics: list[AcknowledgeTopic]


class ShareAcknowledgeResponse(Response, to=ShareAcknowledgeRequest):
    """One result for each partition; v2 adds how long records stay locked."""

    class LeaderIdAndEpoch(Struct):
        leader_id: i32
        leader_epoch: i32

    class PartitionData(Struct):
        partition_index: i32
        error_code: i16 = 0
        error_message: str | None = None
        current_leader: ShareAcknowledgeResponse.LeaderIdAndEpoch

    class ShareAcknowledgeTopicResponse(Struct):
        topic_id: UUID
        partitions: list[ShareAcknowledgeResponse.PartitionData]

    class NodeEndpoint(Struct):
        node_id: i32
        host: str
        port: i32
        rack: str | None = None

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: i32 = since(2)
    responses: list[ShareAcknowledgeTopicResponse]
    node_endpoints: list[NodeEndpoint] = optional()
