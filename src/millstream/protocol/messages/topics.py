"""Topics: create, delete, add partitions, delete records."""

from __future__ import annotations

from uuid import UUID

from millstream.protocol.schema import Request, Response, Struct, null_since, optional, since, tagged, until
from millstream.protocol.types import i8, i16, i32, i64


class CreateTopicsRequest(Request, key=19, versions=(2, 7), flexible=5):
    """v4 takes -1 for the broker's default partitions and replicas (KIP-464), v5 is flexible, v6
    may be throttled (KIP-599)."""

    class CreatableReplicaAssignment(Struct):
        partition_index: i32
        broker_ids: list[i32]

    class CreatableTopicConfig(Struct):
        name: str
        value: str | None = None

    class CreatableTopic(Struct):
        name: str
        num_partitions: i32
        replication_factor: i16
        assignments: list[CreateTopicsRequest.CreatableReplicaAssignment] = optional()
        configs: list[CreateTopicsRequest.CreatableTopicConfig] = optional()

    topics: list[CreatableTopic]
    timeout_ms: i32 = 60000
    validate_only: bool = False


class CreateTopicsResponse(Response, to=CreateTopicsRequest):
    """v5 adds what was created, with its configs (KIP-525), v7 its id (KIP-516)."""

    class CreatableTopicConfigs(Struct):
        name: str
        value: str | None = None
        read_only: bool
        config_source: i8 = -1
        is_sensitive: bool

    class CreatableTopicResult(Struct):
        name: str
        topic_id: UUID = since(7)
        error_code: i16 = 0
        error_message: str | None = None
        topic_config_error_code: i16 = tagged(0, 0, since=5)
        num_partitions: i32 = since(5, -1)
        replication_factor: i16 = since(5, -1)
        configs: list[CreateTopicsResponse.CreatableTopicConfigs] | None = since(5)

    throttle_time_ms: i32 = 0
    topics: list[CreatableTopicResult]


class DeleteTopicsRequest(Request, key=20, versions=(1, 6), flexible=4):
    """v4 is flexible, v6 takes names or ids (KIP-516)."""

    class DeleteTopicState(Struct):
        name: str | None = None
        topic_id: UUID

    topic_names: list[str] = until(5)
    topics: list[DeleteTopicState] = since(6)
    timeout_ms: i32


class DeleteTopicsResponse(Response, to=DeleteTopicsRequest):
    """v5 adds a message to the error (KIP-599), v6 the id."""

    class DeletableTopicResult(Struct):
        name: str | None = null_since(6)
        topic_id: UUID = since(6)
        error_code: i16 = 0
        error_message: str | None = since(5)

    throttle_time_ms: i32 = 0
    responses: list[DeletableTopicResult]


class CreatePartitionsRequest(Request, key=37, versions=(0, 3), flexible=2):
    """The count that a topic shall have in all; v2 is flexible, v3 may be throttled (KIP-599)."""

    class CreatePartitionsAssignment(Struct):
        broker_ids: list[i32]

    class CreatePartitionsTopic(Struct):
        name: str
        count: i32
        assignments: list[CreatePartitionsRequest.CreatePartitionsAssignment] | None = None

    topics: list[CreatePartitionsTopic]
    timeout_ms: i32
    validate_only: bool


class CreatePartitionsResponse(Response, to=CreatePartitionsRequest):
    """One result for each topic."""

    class CreatePartitionsTopicResult(Struct):
        name: str
        error_code: i16 = 0
        error_message: str | None = None

    throttle_time_ms: i32 = 0
    results: list[CreatePartitionsTopicResult]


class DeleteRecordsRequest(Request, key=21, versions=(0, 2), flexible=2):
    """Records before an offset, -1 for the high watermark, are to go; v2 is flexible."""

    class DeleteRecordsPartition(Struct):
        partition_index: i32
        offset: i64

    class DeleteRecordsTopic(Struct):
        name: str
        partitions: list[DeleteRecordsRequest.DeleteRecordsPartition]

    topics: list[DeleteRecordsTopic]
    timeout_ms: i32


class DeleteRecordsResponse(Response, to=DeleteRecordsRequest):
    """The new start of each log."""

    class DeleteRecordsPartitionResult(Struct):
        partition_index: i32
        low_watermark: i64
        error_code: i16 = 0

    class DeleteRecordsTopicResult(Struct):
        name: str
        partitions: list[DeleteRecordsResponse.DeleteRecordsPartitionResult]

    throttle_time_ms: i32 = 0
    topics: list[DeleteRecordsTopicResult]
